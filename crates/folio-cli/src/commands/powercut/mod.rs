//! `folio powercut`: what an unmodified program loses when the power fails.
//!
//! ```text
//!   mod.rs        arguments, order of the steps
//!     v
//!   recording.rs  runs the program on a mount; every write, change and line it printed
//!   cuts.rs       builds disks as a power cut leaves them, mounts them, runs the check
//!     |  mounted.rs  a disk on a directory        shell.rs  the user's commands
//!   saved.rs      a failing state as a folder     report.rs  text and JSON
//! ```
//!
//! Above: the dispatch in `commands`. Below: `folio::testing` for the states, `folio_fuse` for the
//! mounts, `session`, `progress`, `output`.

mod cuts;
mod mounted;
mod recording;
pub(super) mod report;
mod saved;
mod shell;

use crate::exit::{Exit, Failure, Outcome};
use crate::session::Session;
use clap::Args;
use cuts::Judge;
use folio::base::Owner;
use folio::block::tools::{CopyOptions, copy};
use folio::block::{MemoryDevice, OpenOptions, open};
use folio::ext4::{self, FormatOptions};
use folio::testing::PowerCutDisk;
use mounted::How;
use recording::{Program, Recording};
use report::{PowercutReport, RunReport};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  folio powercut --run './save $MNT/config' --check './load $MNT/config'
  folio powercut --setup 'tar -C $MNT -xf fixture.tar' --run './app --data $MNT/db' \\
                 --check './app --verify $MNT/db --acked $ACKED' --cuts 1000
  folio powercut --compare --run ... --check ...      the same with each of ext4's options
  folio powercut disk.img --run ... --check ...       on a copy of an image
  folio powercut --replay cut-4211                    the check again, on a failing state

The program runs on a disk in memory, mounted at $MNT, and every write and flush of the disk is recorded. Then disks are
built as a power cut leaves them: all writes before the last flush, and of the later ones any part, also torn at sectors
of 512 bytes. Each is mounted at $MNT, which replays the journal, and the check runs in it. It fails by an exit code
other than 0; the last line that it prints is the reason. The commands run in sh.

What --run prints on standard output counts as acknowledged: $ACKED is a file with all that it had printed before the
cut. A program that prints a line after each commit finds there what must not be lost. The cuts also strike after the
program has ended, until everything is written.

The file system is Folio's ext4, with the options of -o. The states are those that Linux's could leave, too; only the
default differs: Folio writes a file that replaces another one before the commit that renames it.

The first failing state is reduced to fewer lost writes, and saved in a new folder cut-N. The same seed gives the same
cuts of one record; another run of the program writes another record.

Exit codes: 0 no check failed, 1 checks failed, 2 usage error.";

/// Find what a program loses when the power fails
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Powercut {
    /// An image to start with; it stays as it is. The default is a new file system
    #[arg(conflicts_with = "size")]
    image: Option<PathBuf>,
    /// Size of the new file system
    #[arg(long, value_name = "SIZE", value_parser = crate::value_parsers::disk_size, default_value = "256M")]
    size: u64,
    /// A command that prepares the file system at $MNT
    #[arg(long, value_name = "COMMAND")]
    setup: Option<String>,
    /// The program, which changes files at $MNT
    #[arg(long, value_name = "COMMAND", required_unless_present = "replay")]
    run: Option<String>,
    /// A command that fails if something is lost at $MNT
    #[arg(long, value_name = "COMMAND", required_unless_present = "replay")]
    check: Option<String>,
    /// Number of power cuts; fewer where the writes leave fewer states
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    cuts: u32,
    /// Chooses the power cuts
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Kill the program after this time, such as 10s; for programs that do not end
    #[arg(long = "for", value_name = "TIME", value_parser = folio_fuse::parse_ttl)]
    limit: Option<Duration>,
    /// Time after which a check has failed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = folio_fuse::parse_ttl)]
    timeout: Duration,
    /// Repeat all with each of ext4's options, and print a table
    #[arg(long, conflicts_with = "replay")]
    compare: bool,
    /// Folder for the folder of the first failing state
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    save: PathBuf,
    /// Run the check again on the state in this folder; --check is another check
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["image", "setup", "run", "save", "json"])]
    replay: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The rows of `--compare`: mount options of ext4.
const COMPARED: [&str; 6] = [
    "auto_da_alloc=commit",
    "auto_da_alloc=close",
    "noauto_da_alloc",
    "nodelalloc",
    "data=writeback",
    "nobarrier",
];

/// Runs the command.
pub(crate) fn run(powercut: &Powercut, session: &Session) -> Outcome {
    // Before the first thread. Without namespaces the mounts are among the host's.
    let has_own_mounts = folio_run::unshare_mounts().is_ok();
    let folder = tempfile::Builder::new().prefix("folio-powercut-").tempdir();
    let folder = folder.map_err(|error| Failure::new(format!("temporary folder: {error}")))?;
    std::fs::create_dir(folder.path().join("mnt"))
        .map_err(|error| Failure::new(format!("{}: {error}", folder.path().display())))?;
    let trial = Trial {
        powercut,
        session,
        folder: folder.path(),
        has_own_mounts,
    };
    let options = session.options.join(",");
    if let Some(saved) = &powercut.replay {
        return trial.replay(saved, &options);
    }
    let before = content(powercut)?;
    let mut report = PowercutReport { runs: Vec::new() };
    let prints_rows = powercut.compare && !powercut.json;
    if prints_rows {
        RunReport::print_head()?;
    }
    if powercut.compare {
        for compared in COMPARED {
            let words = [compared, &options].join(",");
            let row = trial.run(&before, words.trim_end_matches(','))?;
            if prints_rows {
                row.print_row()?;
            }
            report.runs.push(row);
        }
    } else {
        report.runs.push(trial.run(&before, &options)?);
    }
    if powercut.json {
        session.print_json(&report)?;
    } else if let ([only], false) = (&report.runs[..], powercut.compare) {
        only.print()?;
    }
    if report.runs.iter().any(RunReport::has_failing) {
        return Err(Failure::exiting(Exit::FaultFound, ""));
    }
    Ok(())
}

/// Returns the disk before the program: a new file system, or a copy of the image.
fn content(powercut: &Powercut) -> Outcome<MemoryDevice> {
    let Some(image) = &powercut.image else {
        let disk = MemoryDevice::new(powercut.size);
        // The programs run as the user.
        let root_owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let options = FormatOptions {
            root_owner,
            ..FormatOptions::default()
        };
        ext4::format(&disk, &options)
            .map_err(|error| Failure::usage(format!("--size: {error}")))?;
        return Ok(disk);
    };
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let source = open(image, &read_only).map_err(Failure::image)?;
    let disk = MemoryDevice::new(source.len_bytes());
    copy(&*source, &disk, &CopyOptions::default()).map_err(Failure::image)?;
    Ok(disk)
}

/// What all runs share.
struct Trial<'a> {
    powercut: &'a Powercut,
    session: &'a Session,
    folder: &'a Path,
    has_own_mounts: bool,
}

impl Trial<'_> {
    fn judge<'a>(&'a self, check: &'a str, options: &str) -> Judge<'a> {
        Judge {
            check,
            limit: self.powercut.timeout,
            how: How {
                options: options.to_owned(),
                cache_bytes: self.session.cache_bytes,
                observer: None,
            },
            folder: self.folder,
            has_own_mounts: self.has_own_mounts,
            session: self.session,
        }
    }

    /// Records the program with these mount options, and checks the states after power cuts.
    fn run(&self, before: &MemoryDevice, options: &str) -> Outcome<RunReport> {
        let powercut = self.powercut;
        let judge = self.judge(powercut.check.as_deref().unwrap_or_default(), options);
        let program = Program {
            setup: powercut.setup.as_deref(),
            run: powercut.run.as_deref().unwrap_or_default(),
            limit: powercut.limit,
        };
        let disk = Arc::new(PowerCutDisk::from_content(before.snapshot()));
        let place = judge.place(0);
        let recording = Recording::new(disk, program, &place.mount, &judge.how, self.session)?;
        if let Some(reason) = judge.reason_without_cut(&recording)? {
            let text = format!("--check fails without a power cut: {reason}");
            return Err(Failure::new(text));
        }
        let started = Instant::now();
        let judged = judge.judge(&recording, powercut.cuts as usize, powercut.seed)?;
        let mut report = RunReport::new(options, &recording, &judged, started.elapsed());
        if let Some(first) = judged.failing.first() {
            let first = judge.shrink(&recording, first)?;
            let saved = (!powercut.compare)
                .then(|| saved::save(&powercut.save, &judge, &recording, &first))
                .transpose()?;
            report.add_first(&recording, &first, saved.as_deref());
        }
        Ok(report)
    }

    /// Runs the check of a saved state again.
    fn replay(&self, folder: &Path, options: &str) -> Outcome {
        let saved = saved::load(folder)?;
        let check = self.powercut.check.as_deref().unwrap_or(&saved.check);
        let words = [&saved.options, options].join(",");
        let judge = self.judge(check, words.trim_matches(','));
        match saved::replay(folder, &judge)? {
            None => {
                self.session.note("consistent");
                Ok(())
            }
            Some(reason) => Err(Failure::exiting(Exit::FaultFound, reason)),
        }
    }
}
