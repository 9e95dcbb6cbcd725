//! A trial: records a workload once, then cuts the power many times and judges each outcome.

use crate::crash::cut::{Cut, Loss, Replay, plan};
use crate::crash::judge::{Judge, ReplacedCounts, dump, load};
use crate::crash::program::{Machine, MountSetup, Program, ROOT, RecordedRun};
use crate::crash::random::{Random, number, random_of, seed};
use crate::support::Mounted;
use crate::support::require::{Need, find};
use crate::support::tools::{command, text};
use folio::block::Device;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of ext4 trials that share the requested cuts; each qcow2 trial has as many cuts as one of
/// them.
const TRIALS: usize = 30;
/// One cut in this many is checked by e2fsck after Folio's recovery, another by e2fsck alone, and
/// one by the kernel.
const EXTERNAL_CHECK_INTERVAL: usize = 16;
/// Failures shown in full, at most.
const FAILURES_SHOWN_MAX: usize = 3;

/// The parameters of a trial.
pub(crate) struct Trial<'t> {
    pub(crate) name: &'t str,
    pub(crate) setup: MountSetup,
    /// Whether files that are only replaced as a whole may be found damaged.
    pub(crate) may_tear: bool,
}

/// The result of a trial.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) cuts: usize,
    pub(crate) failures: Vec<String>,
    pub(crate) replaced: ReplacedCounts,
}

/// Returns the number of cuts per trial; `FOLIO_CRASH_CUTS` is for all trials.
pub(crate) fn cuts_per_trial() -> usize {
    (number("FOLIO_CRASH_CUTS").unwrap_or(1000) as usize).div_ceil(TRIALS)
}

impl<'t> Trial<'t> {
    /// Creates a trial with the default setup.
    pub(crate) fn new(name: &'t str) -> Self {
        Self {
            name,
            setup: MountSetup::default(),
            may_tear: false,
        }
    }

    /// Runs the workload and judges it.
    pub(crate) fn run(
        &self,
        image: Arc<dyn Device>,
        workload: impl FnOnce(&mut Program, &mut Random),
    ) {
        self.judge(&self.record(image, workload));
    }

    /// Cuts the power; fails if anything was lost.
    pub(crate) fn judge(&self, run: &RecordedRun) {
        let outcome = self.cut(run);
        assert!(
            outcome.failures.is_empty(),
            "{}: seed {}: {} of {} cuts failed:\n{}",
            self.name,
            seed(),
            outcome.failures.len(),
            outcome.cuts,
            outcome.failures[..outcome.failures.len().min(FAILURES_SHOWN_MAX)].join("\n\n")
        );
    }

    /// Runs and records the workload.
    pub(crate) fn record(
        &self,
        image: Arc<dyn Device>,
        workload: impl FnOnce(&mut Program, &mut Random),
    ) -> RecordedRun {
        let machine = Machine::new(image, &self.setup);
        let mut program = machine.program(ROOT);
        workload(&mut program, &mut self.random());
        machine.end(vec![program])
    }

    /// Runs the workload in several threads, each in its own directory.
    pub(crate) fn record_threads(
        &self,
        image: Arc<dyn Device>,
        threads: usize,
        workload: impl Fn(&mut Program, &mut Random) + Sync,
    ) -> RecordedRun {
        let machine = Machine::new(image, &self.setup);
        let work = |thread: usize, mut program: Program| {
            let mut random = Random::new(self.random().next() ^ thread as u64);
            workload(&mut program, &mut random);
            program
        };
        let programs: Vec<Program> = (0..threads)
            .map(|n| machine.program(&format!("{ROOT}/program-{n}")))
            .collect();
        let ended = std::thread::scope(|scope| {
            let work = &work;
            let running: Vec<_> = programs
                .into_iter()
                .enumerate()
                .map(|(n, program)| scope.spawn(move || work(n, program)))
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

    /// Cuts the power at planned positions.
    pub(crate) fn cut(&self, run: &RecordedRun) -> Outcome {
        let (plain, lossy) = plan(&run.record, cuts_per_trial(), &mut self.random());
        self.cut_at(run, &plain, &lossy)
    }

    /// Cuts the power after each sync(2).
    pub(crate) fn cut_at_syncs(&self, run: &RecordedRun) -> Outcome {
        let mut positions: Vec<usize> = run
            .programs
            .iter()
            .flat_map(|names| names.sync_points())
            .collect();
        positions.sort_unstable();
        positions.dedup();
        let cuts: Vec<_> = positions
            .into_iter()
            .map(|recorded| Cut {
                recorded,
                loss: Loss::Nothing,
                seed: 0,
            })
            .collect();
        self.cut_at(run, &cuts, &[])
    }

    fn cut_at(&self, run: &RecordedRun, plain: &[Cut], lossy: &[Cut]) -> Outcome {
        let writes = run
            .record
            .iter()
            .filter(|entry| **entry != folio::testing::Recorded::Flush)
            .count();
        let flushes = run.record.len() - writes;
        let mut checker = CutChecker::new(self, run);
        for cuts in [plain, lossy] {
            let mut replay = Replay::new(&run.before, &run.record);
            for cut in cuts {
                checker.check_cut(replay.device(*cut), *cut);
            }
        }
        let CutChecker {
            outcome,
            folder: _folder,
            after_folio,
            alone,
            by_kernel,
            ..
        } = checker;
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

/// Checks the cuts of one trial.
struct CutChecker<'t> {
    trial: &'t Trial<'t>,
    run: &'t RecordedRun,
    judge: Judge,
    folder: tempfile::TempDir,
    has_e2fsck: bool,
    outcome: Outcome,
    after_folio: usize,
    alone: usize,
    by_kernel: usize,
    has_kernel: bool,
}

impl<'t> CutChecker<'t> {
    fn new(trial: &'t Trial<'t>, run: &'t RecordedRun) -> Self {
        let folder = tempfile::TempDir::with_prefix("folio-crash-").unwrap();
        let has_kernel = Need::LoopDevices.met().is_ok() && kernel_mounts(run, folder.path());
        Self {
            trial,
            run,
            judge: Judge::new(trial.setup.mount.clone()),
            folder,
            has_e2fsck: find("e2fsck").is_some(),
            outcome: Outcome::default(),
            after_folio: 0,
            alone: 0,
            by_kernel: 0,
            has_kernel,
        }
    }

    fn check_cut(&mut self, device: Arc<dyn Device>, cut: Cut) {
        let turn = self.outcome.cuts % EXTERNAL_CHECK_INTERVAL;
        self.outcome.cuts += 1;
        let raw = self.folder.path().join("cut.img");
        let keeps = std::env::var_os("FOLIO_CRASH_KEEP").map(PathBuf::from);
        let is_alone = self.has_e2fsck && turn == EXTERNAL_CHECK_INTERVAL / 2;
        let is_kernels = self.has_e2fsck && self.has_kernel && turn == EXTERNAL_CHECK_INTERVAL / 4;
        if keeps.is_some() || is_alone || is_kernels {
            dump(&*device, &raw);
        }
        let before = self.judge.replaced.lost();
        let mut verdict = self.judge.judge(&device, &self.run.programs, cut.recorded);
        if verdict.is_ok() && self.judge.replaced.lost() > before && !self.trial.may_tear {
            verdict = Err(format!("only replaced as a whole: {}", self.judge.damaged));
        }
        if let (Some(folder), Err(_)) = (&keeps, &verdict) {
            let name = format!("{}-{}.img", self.trial.name, self.outcome.cuts);
            std::fs::copy(&raw, folder.join(name)).unwrap();
        }
        if verdict.is_ok() {
            verdict = match turn {
                0 if self.has_e2fsck => self.e2fsck_after_folio(&*device),
                // Linux rejects a torn superblock.
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

    /// Checks that e2fsck finds nothing after Folio's recovery.
    fn e2fsck_after_folio(&mut self, device: &dyn Device) -> Result<(), String> {
        self.after_folio += 1;
        let path = self.folder.path().join("after.img");
        dump(device, &path);
        passes_e2fsck(&path).map_err(|output| format!("after Folio's recovery: {output}"))
    }

    /// Checks that the kernel's own recovery gives the same files.
    fn kernel_alone(&mut self, raw: &Path, cut: Cut) -> Result<(), String> {
        self.by_kernel += 1;
        Mounted::new(raw, "rw").unmount();
        passes_e2fsck(raw).map_err(|output| format!("after the kernel's recovery: {output}"))?;
        let judged = self
            .judge
            .judge(&load(raw), &self.run.programs, cut.recorded);
        judged.map_err(|error| format!("after the kernel's recovery: {error}"))
    }

    /// Checks that e2fsck's own recovery repairs nothing else and gives the same files.
    fn e2fsck_alone(&mut self, raw: &Path, cut: Cut) -> Result<(), String> {
        self.alone += 1;
        let output = command("e2fsck").arg("-fy").arg(raw).output().unwrap();
        let lines = text(&output);
        let repairs: Vec<&str> = lines.lines().filter(|line| !is_recovery(line)).collect();
        if !matches!(output.status.code(), Some(0 | 1)) || !repairs.is_empty() {
            return Err(format!(
                "e2fsck -fy alone: {}\n{}",
                output.status,
                repairs.join("\n")
            ));
        }
        passes_e2fsck(raw).map_err(|output| format!("after e2fsck -fy alone: {output}"))?;
        let judged = self
            .judge
            .judge(&load(raw), &self.run.programs, cut.recorded);
        judged.map_err(|error| format!("after e2fsck -fy alone: {error}"))
    }
}

/// Returns whether the running kernel supports ext4 with the features of the trial.
fn kernel_mounts(run: &RecordedRun, folder: &Path) -> bool {
    let path = folder.join("before.img");
    dump(&*run.before, &path);
    match Mounted::attempt(&path, "rw") {
        Ok(mounted) => {
            mounted.unmount();
            true
        }
        Err(said) => {
            println!("no cut is judged by the kernel: {said}");
            false
        }
    }
}

fn passes_e2fsck(image: &Path) -> Result<(), String> {
    let output = command("e2fsck").arg("-fn").arg(image).output().unwrap();
    let lines = text(&output);
    if output.status.success() && !lines.contains("? no") {
        Ok(())
    } else {
        Err(format!("e2fsck -fn: {lines}"))
    }
}

/// Returns whether a line of e2fsck belongs to an ordinary recovery.
fn is_recovery(line: &str) -> bool {
    let parts = [
        "recovering journal",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "Setting free ",
        // The kernel leaves these too: e2fsck does not update the orphan file and the totals during
        // the replay.
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

/// Returns whether the superblock has a valid checksum, or none.
fn has_whole_superblock(raw: &Path) -> bool {
    const METADATA_CSUM: u8 = 0x4;
    let mut bytes = [0; 1024];
    std::fs::File::open(raw)
        .unwrap()
        .read_exact_at(&mut bytes, 1024)
        .unwrap();
    let (covered, stored) = bytes.split_at(0x3FC);
    // ext4 omits the inversion at the end.
    bytes[0x65] & METADATA_CSUM == 0 || (!crc32c::crc32c(covered)).to_le_bytes() == stored
}
