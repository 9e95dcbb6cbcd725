//! A trial: a workload is recorded once, then the power is cut many times and each outcome is
//! judged.

use crate::crash::cut::{Cut, Loss, Replay, plan};
use crate::crash::judge::{Judge, Replaced, dump, load};
use crate::crash::random::Random;
use crate::crash::world::{Machine, ROOT, Run, Setup, World};
use crate::support::Mounted;
use crate::support::require::{Need, find};
use crate::support::tools::{command, text};
use folio::block::Device;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many trials of ext4 share the cuts that were asked for; each of qcow2 has as many as one of
/// them.
const TRIALS: usize = 30;
/// Of so many cuts one goes through e2fsck after Folio's recovery, another to e2fsck alone, and one
/// to the kernel.
const JUDGED_BY_OTHERS: usize = 16;
/// Failures told in full.
const TOLD_MAX: usize = 3;

/// What a trial is to be.
pub(crate) struct Trial<'t> {
    pub(crate) name: &'t str,
    pub(crate) setup: Setup,
    /// Whether files that are only replaced as a whole may be found damaged.
    pub(crate) may_tear: bool,
}

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) cuts: usize,
    pub(crate) failures: Vec<String>,
    pub(crate) replaced: Replaced,
}

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}: {text}"))
    })
}

/// Power cuts of one trial: `FOLIO_CRASH_CUTS` is for all of them.
pub(crate) fn cuts_per_trial() -> usize {
    (number("FOLIO_CRASH_CUTS").unwrap_or(1000) as usize).div_ceil(TRIALS)
}

/// The seed of all trials: `FOLIO_CRASH_SEED`.
pub(crate) fn seed() -> u64 {
    number("FOLIO_CRASH_SEED").unwrap_or(1)
}

/// The numbers of the trial of this name.
pub(crate) fn random_of(name: &str) -> Random {
    let name = name.bytes().fold(0_u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    Random::new(seed() ^ name << 16)
}

impl<'t> Trial<'t> {
    /// A trial with the default setup.
    pub(crate) fn new(name: &'t str) -> Self {
        Self {
            name,
            setup: Setup::default(),
            may_tear: false,
        }
    }

    /// Runs the workload and judges it.
    pub(crate) fn run(
        &self,
        image: Arc<dyn Device>,
        workload: impl FnOnce(&mut World, &mut Random),
    ) {
        self.judge(&self.record(image, workload));
    }

    /// Cuts the power, and fails if anything was lost.
    pub(crate) fn judge(&self, run: &Run) {
        let outcome = self.cut(run);
        assert!(
            outcome.failures.is_empty(),
            "{}: seed {}: {} of {} cuts went wrong:\n{}",
            self.name,
            seed(),
            outcome.failures.len(),
            outcome.cuts,
            outcome.failures[..outcome.failures.len().min(TOLD_MAX)].join("\n\n")
        );
    }

    /// Runs the workload.
    pub(crate) fn record(
        &self,
        image: Arc<dyn Device>,
        workload: impl FnOnce(&mut World, &mut Random),
    ) -> Run {
        let machine = Machine::new(image, &self.setup);
        let mut world = machine.program(ROOT);
        workload(&mut world, &mut self.random());
        machine.end(vec![world])
    }

    /// Runs the workload in several threads at once, each below a directory of its own.
    pub(crate) fn record_threads(
        &self,
        image: Arc<dyn Device>,
        threads: usize,
        workload: impl Fn(&mut World, &mut Random) + Sync,
    ) -> Run {
        let machine = Machine::new(image, &self.setup);
        let work = |thread: usize, mut world: World| {
            let mut random = Random::new(self.random().next() ^ thread as u64);
            workload(&mut world, &mut random);
            world
        };
        let worlds: Vec<World> = (0..threads)
            .map(|n| machine.program(&format!("{ROOT}/program-{n}")))
            .collect();
        let ended = std::thread::scope(|scope| {
            let work = &work;
            let running: Vec<_> = worlds
                .into_iter()
                .enumerate()
                .map(|(n, world)| scope.spawn(move || work(n, world)))
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        machine.end(ended)
    }

    fn random(&self) -> Random {
        random_of(self.name)
    }

    /// Cuts the power.
    pub(crate) fn cut(&self, run: &Run) -> Outcome {
        let (plain, lossy) = plan(&run.record, cuts_per_trial(), &mut self.random());
        self.cut_at(run, &plain, &lossy)
    }

    /// Cuts the power at places where everything was just synced.
    pub(crate) fn cut_at_syncs(&self, run: &Run) -> Outcome {
        let mut places: Vec<usize> = run
            .programs
            .iter()
            .flat_map(|names| names.sync_points())
            .collect();
        places.sort_unstable();
        places.dedup();
        let cuts: Vec<_> = places
            .into_iter()
            .map(|recorded| Cut {
                recorded,
                loss: Loss::Nothing,
                seed: 0,
            })
            .collect();
        self.cut_at(run, &cuts, &[])
    }

    fn cut_at(&self, run: &Run, plain: &[Cut], lossy: &[Cut]) -> Outcome {
        let writes = run
            .record
            .iter()
            .filter(|entry| **entry != folio::block::Recorded::Flush)
            .count();
        let flushes = run.record.len() - writes;
        let mut court = Court::new(self, run);
        for cuts in [plain, lossy] {
            let mut replay = Replay::new(&run.before, &run.record);
            for cut in cuts {
                court.hear(replay.device(*cut), *cut);
            }
        }
        let Court {
            outcome,
            folder: _folder,
            after_folio,
            alone,
            by_kernel,
            ..
        } = court;
        println!(
            "{}: seed {}: {} operations, {writes} writes, {flushes} flushes; {} cuts in order, {} with losses, \
             e2fsck after Folio {after_folio}, e2fsck alone {alone}, the kernel {by_kernel}; {} failures, replaced files: {:?}",
            self.name,
            seed(),
            run.programs.iter().map(|names| names.step()).sum::<usize>(),
            plain.len(),
            lossy.len(),
            outcome.failures.len(),
            outcome.replaced
        );
        outcome
    }
}

/// Who judges the cuts of one trial.
struct Court<'t> {
    trial: &'t Trial<'t>,
    run: &'t Run,
    judge: Judge,
    folder: tempfile::TempDir,
    has_e2fsck: bool,
    outcome: Outcome,
    after_folio: usize,
    alone: usize,
    by_kernel: usize,
    has_kernel: bool,
}

impl<'t> Court<'t> {
    fn new(trial: &'t Trial<'t>, run: &'t Run) -> Self {
        Self {
            trial,
            run,
            judge: Judge::new(trial.setup.mount.clone()),
            folder: tempfile::TempDir::with_prefix("folio-crash-").unwrap(),
            has_e2fsck: find("e2fsck").is_some(),
            outcome: Outcome::default(),
            after_folio: 0,
            alone: 0,
            by_kernel: 0,
            has_kernel: Need::LoopDevices.met().is_ok() && has_ext4(),
        }
    }

    fn hear(&mut self, device: Arc<dyn Device>, cut: Cut) {
        let turn = self.outcome.cuts % JUDGED_BY_OTHERS;
        self.outcome.cuts += 1;
        let raw = self.folder.path().join("cut.img");
        let keeps = std::env::var_os("FOLIO_CRASH_KEEP").map(PathBuf::from);
        let is_alone = self.has_e2fsck && turn == JUDGED_BY_OTHERS / 2;
        let is_kernels = self.has_e2fsck && self.has_kernel && turn == JUDGED_BY_OTHERS / 4;
        if keeps.is_some() || is_alone || is_kernels {
            dump(&*device, &raw);
        }
        let before = self.judge.replaced.lost();
        let mut verdict = self.judge.judge(&device, &self.run.programs, cut.recorded);
        if verdict.is_ok() && self.judge.replaced.lost() > before && !self.trial.may_tear {
            verdict = Err(format!(
                "only ever replaced as a whole: {}",
                self.judge.damaged
            ));
        }
        if let (Some(folder), Err(_)) = (&keeps, &verdict) {
            let name = format!("{}-{}.img", self.trial.name, self.outcome.cuts);
            std::fs::copy(&raw, folder.join(name)).unwrap();
        }
        if verdict.is_ok() {
            verdict = match turn {
                0 if self.has_e2fsck => self.e2fsck_after_folio(&*device),
                // Half a superblock is no superblock at all to Linux.
                _ if is_alone && has_whole_superblock(&raw) => self.e2fsck_alone(&raw, cut),
                _ if is_kernels && has_whole_superblock(&raw) => self.kernel_alone(&raw, cut),
                _ => Ok(()),
            };
        }
        self.outcome.replaced = self.judge.replaced;
        if let Err(error) = verdict {
            self.outcome.failures.push(format!("{cut}: {error}"));
        }
    }

    /// What Folio recovered is a sound file system.
    fn e2fsck_after_folio(&mut self, device: &dyn Device) -> Result<(), String> {
        self.after_folio += 1;
        let path = self.folder.path().join("after.img");
        dump(device, &path);
        finds_nothing(&path).map_err(|said| format!("after Folio's recovery: {said}"))
    }

    /// The kernel replays the journal itself, and leaves the same files.
    fn kernel_alone(&mut self, raw: &Path, cut: Cut) -> Result<(), String> {
        self.by_kernel += 1;
        Mounted::new(raw, "rw").unmount();
        finds_nothing(raw).map_err(|said| format!("after the kernel's recovery: {said}"))?;
        let judged = self
            .judge
            .judge(&load(raw), &self.run.programs, cut.recorded);
        judged.map_err(|error| format!("after the kernel's recovery: {error}"))
    }

    /// e2fsck replays the journal itself, finds nothing else to do, and leaves the same files.
    fn e2fsck_alone(&mut self, raw: &Path, cut: Cut) -> Result<(), String> {
        self.alone += 1;
        let output = command("e2fsck").arg("-fy").arg(raw).output().unwrap();
        let said = text(&output);
        let strange: Vec<&str> = said.lines().filter(|line| !is_recovery(line)).collect();
        if !matches!(output.status.code(), Some(0 | 1)) || !strange.is_empty() {
            return Err(format!(
                "e2fsck -fy alone: {}\n{}",
                output.status,
                strange.join("\n")
            ));
        }
        finds_nothing(raw).map_err(|said| format!("after e2fsck -fy alone: {said}"))?;
        let judged = self
            .judge
            .judge(&load(raw), &self.run.programs, cut.recorded);
        judged.map_err(|error| format!("after e2fsck -fy alone: {error}"))
    }
}

/// Whether the kernel here knows ext4.
fn has_ext4() -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|text| text.lines().any(|line| line.ends_with("\text4")))
}

fn finds_nothing(image: &Path) -> Result<(), String> {
    let output = command("e2fsck").arg("-fn").arg(image).output().unwrap();
    let said = text(&output);
    if output.status.success() && !said.contains("? no") {
        Ok(())
    } else {
        Err(format!("e2fsck -fn: {said}"))
    }
}

/// Whether a line of e2fsck tells of nothing but an ordinary recovery.
fn is_recovery(line: &str) -> bool {
    let parts = [
        "recovering journal",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "Setting free ",
        // What the kernel leaves too: e2fsck does not follow the orphan file and the sums as it
        // replays.
        "Feature orphan_present is set but orphan file is clean.",
        "is not clean.",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "Fix? yes",
        "Clear? yes",
        "FILE SYSTEM WAS MODIFIED",
        "non-contiguous), ",
    ];
    line.trim().is_empty()
        || line.starts_with("e2fsck ")
        || line.starts_with("Pass ")
        || parts.iter().any(|part| line.contains(part))
}

/// Whether the superblock's checksum fits, if it has one.
fn has_whole_superblock(raw: &Path) -> bool {
    const METADATA_CSUM: u8 = 0x4;
    let mut bytes = [0; 1024];
    std::fs::File::open(raw)
        .unwrap()
        .read_exact_at(&mut bytes, 1024)
        .unwrap();
    let (covered, stored) = bytes.split_at(0x3FC);
    // ext4 leaves out the inversion at the end.
    bytes[0x65] & METADATA_CSUM == 0 || (!crc32c::crc32c(covered)).to_le_bytes() == stored
}
