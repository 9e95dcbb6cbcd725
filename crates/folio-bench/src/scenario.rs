//! The list of scenarios, and the code that runs them.

use crate::images::Source;
#[cfg(feature = "object-store")]
use crate::object_store;
use crate::options::{Common, DiskDir, ServedDisks};
use crate::outcome::Outcome;
use crate::race::Run;
use crate::report::{FORMAT, Machine, Report, Results};
use crate::{
    build, cache, command, convert, doctor, ext4, first_write, gpu, image_tools, images, memcpy,
};
use crate::{
    mount, nbd, page_cache, probe, python, run_in_image, shared_folder, vhost_user_blk, warm,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A measurement.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Scenario {
    /// The five published cases, in about ten minutes
    All(DiskDir),
    /// Case 1, shared folders: a host folder, mounted and in process: reads, stats, changes
    SharedFolder(shared_folder::Options),
    /// Case 2, delayed allocation: 64 KiB x 1024 written ten times over, in each mode
    AutoDaAlloc(ext4::Options),
    /// Case 3, copy loops: reads from a ramfs, with a copy loop of bytes and with memcpy
    Memcpy(memcpy::Options),
    /// Case 4, page cache: files of a database, cold and warm, in tmpfs, in Folio's cache
    PageCache(page_cache::Options),
    /// Case 5, first writes: mkfs and writes into fresh and preallocated images, beside QEMU
    FirstWrite(first_write::Options),
    /// Usual jobs on folio mount, beside the kernel's loop mount and fuse2fs; FUSE requests of each
    Mount(mount::Options),
    /// Large files and a tree of small ones into the page cache, beside vmtouch and the device
    Warm(warm::Options),
    /// Reads of any file or folder, cold and warm, beside the device and memory
    Read(probe::Options),
    /// Stats of any path, and of the tree below it
    Stat(probe::StatOptions),
    /// Writes in any folder, to a file of the bench's own
    Write(probe::Options),
    /// Cached reads, writes and lookups, beside the kernel's tmpfs and bare memcpy
    Cache(cache::Options),
    /// Files made and removed, bytes in order and at random, beside the kernel's ext4 and fuse2fs
    Ext4Ops(ext4::Options),
    /// A tree into an image and out again
    Image {
        /// The tree; without it, some 22,000 of the machine's own files
        #[arg(long)]
        tree: Option<PathBuf>,
        /// Place and size
        #[command(flatten)]
        common: Common,
    },
    /// 20,000 files of 100 bytes in one folder into an image and out again
    OneDir(Common),
    /// One file of 500 MB into an image and out again; its extents are counted
    File(Common),
    /// One small file out of the ext4 in an image, by a whole process
    SmallFile(Common),
    /// An image into other formats and back, beside qemu-img
    Convert(Common),
    /// The subcommands of qemu-img, beside it; each on fresh copies of images
    ImageTools(Common),
    /// Container images, archives and trees into images, beside umoci, tar, mke2fs and qemu-img
    Build(build::Options),
    /// Commands of a Debian by folio run, beside systemd-nspawn, proot and chroot
    Run(run_in_image::Options),
    /// Reads, opens and walks by foliofs, beside plain Python and the readers of ext4 on PyPI
    Python(python::Options),
    /// Requests a second of folio serve nbd, beside nbdkit and qemu-nbd, with fio as the client
    Nbd(ServedDisks),
    /// Requests a second of folio serve vhost-user-blk, beside qemu-storage-daemon
    VhostUserBlk(ServedDisks),
    /// Images and volumes in a store with latency, beside its own GETs and PUTs, and nbdkit
    #[cfg(feature = "object-store")]
    ObjectStore(object_store::Options),
    /// Injected faults that folio doctor must name, healthy commands, predictions, its overhead
    Doctor(doctor::Options),
    /// Files in a GPU's memory: host reads, reads and gathers by kernels, fills
    Gpu(gpu::Options),
}

/// Parts of a scenario that run in processes of their own.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Helper {
    /// One job of first-write
    #[command(hide = true)]
    FirstWriteJob(first_write::JobArguments),
    /// Uses memory and gives it back
    #[command(hide = true)]
    TouchMemory {
        /// Size in MiB
        mib: usize,
    },
    /// The part of shared-folder that runs in a guest
    #[command(hide = true)]
    SharedFolderGuest {
        /// The folder that is shared
        root: PathBuf,
        /// What is measured
        kind: shared_folder::Kind,
        /// Small sizes
        #[arg(long)]
        quick: bool,
    },
}

impl Helper {
    /// Does it.
    pub fn run(&self) -> Result<(), String> {
        let done = match self {
            Self::FirstWriteJob(arguments) => first_write::run_job(arguments),
            Self::TouchMemory { mib } => command::use_memory(*mib),
            Self::SharedFolderGuest { root, kind, quick } => {
                shared_folder::run_in_guest(root, *kind, *quick)
            }
        };
        done.map_err(|error| error.to_string())
    }
}

impl Scenario {
    /// Runs the measurement; `taken_at` is the time recorded in the results.
    pub fn measure(
        &self,
        run: &Run<'_>,
        taken_at: impl FnOnce() -> String,
    ) -> Result<Results, String> {
        let machine = Machine::here();
        if machine.is_root && self.drops_caches() {
            (run.step)(
                "as root this empties the page cache of the whole machine before cold reads: other \
                 programs read their files again",
            )?;
        }
        let scenarios = match self {
            Self::All(disk) => all(disk, run),
            one => one.timed(run).map(|report| vec![report]),
        };
        Ok(Results {
            format: FORMAT,
            folio: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at: taken_at(),
            is_optimized: !cfg!(debug_assertions),
            is_quick: run.is_quick,
            machine,
            scenarios: scenarios.map_err(|error| error.to_string())?,
        })
    }

    /// Whether cold reads follow `/proc/sys/vm/drop_caches`.
    fn drops_caches(&self) -> bool {
        match self {
            Self::SharedFolder(options) => options.drops_caches(),
            Self::All(_) | Self::FirstWrite(_) | Self::Cache(_) => true,
            _ => false,
        }
    }

    fn timed(&self, run: &Run<'_>) -> Outcome<Report> {
        let start = Instant::now();
        let mut report = self.report(run)?;
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    fn report(&self, run: &Run<'_>) -> Outcome<Report> {
        match self {
            Self::All(_) => Err("all consists of other scenarios".into()),
            Self::SharedFolder(options) => shared_folder::measure(options, run),
            Self::AutoDaAlloc(options) => ext4::rewrite::measure(options, run),
            Self::FirstWrite(options) => first_write::measure(options, run),
            Self::Memcpy(options) => memcpy::measure(options, run),
            Self::PageCache(options) => page_cache::measure(options, run),
            Self::Mount(options) => mount::measure(options, run),
            Self::Warm(options) => warm::measure(options, run),
            Self::Read(options) => probe::read(options, run),
            Self::Stat(options) => probe::stat(options, run),
            Self::Write(options) => probe::write(options, run),
            Self::Cache(options) => cache::measure(options, run),
            Self::Ext4Ops(options) => ext4::ops::measure(options, run),
            Self::Image { tree, common } => {
                let source = tree.clone().map_or(Source::Machine, Source::At);
                images::measure("image", &source, common, run)
            }
            Self::OneDir(common) => images::measure("one-dir", &Source::OneFolder, common, run),
            Self::File(common) => images::measure("file", &Source::OneFile, common, run),
            Self::SmallFile(common) => images::small_file(common, run),
            Self::Convert(common) => convert::measure(common, run),
            Self::ImageTools(common) => image_tools::measure(common, run),
            Self::Build(options) => build::measure(options, run),
            Self::Run(options) => run_in_image::measure(options, run),
            Self::Python(options) => python::measure(options, run),
            Self::Nbd(options) => nbd::measure(options, run),
            Self::VhostUserBlk(options) => vhost_user_blk::measure(options, run),
            #[cfg(feature = "object-store")]
            Self::ObjectStore(options) => object_store::measure(options, run),
            Self::Doctor(options) => doctor::measure(options, run),
            Self::Gpu(options) => gpu::measure(options, run),
        }
    }
}

/// No round begins later than this: the rest of ten minutes is for the last one.
const ALL: Duration = Duration::from_secs(420);

/// Runs the published cases in order, each with its share of the time. A case that cannot be
/// measured here reports the reason; the run continues with the next one.
fn all(disk: &DiskDir, run: &Run<'_>) -> Outcome<Vec<Report>> {
    let dir = disk.path();
    let disk = || DiskDir::at(dir.clone());
    let shared = shared_folder::Options {
        dir: dir.clone(),
        only: None,
        guest: false,
        virtiofsd: None,
        iozone: false,
        trees: false,
    };
    let rewriting = ext4::Options {
        disk: disk(),
        only: None,
    };
    let database = page_cache::Options {
        disk: disk(),
        size: None,
    };
    let fresh = first_write::Options {
        disk: disk(),
        ..first_write::Options::default()
    };
    let cases = [
        ("shared-folder", Scenario::SharedFolder(shared), 30),
        ("auto-da-alloc", Scenario::AutoDaAlloc(rewriting), 25),
        ("memcpy", Scenario::Memcpy(memcpy::Options::default()), 5),
        ("page-cache", Scenario::PageCache(database), 15),
        ("first-write", Scenario::FirstWrite(fresh), 25),
    ];
    let end = Instant::now() + ALL;
    let mut weights: u32 = cases.iter().map(|(.., weight)| weight).sum();
    let mut reports = Vec::new();
    for (name, scenario, weight) in cases {
        // A share of the time that is left: a case that took less leaves more to the next ones.
        let now = Instant::now();
        let part = Run {
            until: Some(now + end.saturating_duration_since(now) * weight / weights),
            is_part: true,
            ..run.clone()
        };
        weights -= weight;
        reports.push(match scenario.timed(&part) {
            Ok(report) => report,
            Err(reason) => {
                // If `step` ended the run, it fails again here and ends it.
                (run.step)(&format!("{name}: {reason}"))?;
                let mut report = Report::new(name, "", &dir);
                report.skip(name, reason.to_string());
                report
            }
        });
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn article_table_empties_no_page_cache() {
        let mut options = shared_folder::Options {
            dir: ".".into(),
            only: None,
            guest: false,
            virtiofsd: None,
            iozone: false,
            trees: false,
        };
        assert!(Scenario::SharedFolder(options.clone()).drops_caches());
        options.iozone = true;
        assert!(!Scenario::SharedFolder(options).drops_caches());
    }
}
