//! `folio powercut`: what an unmodified program loses when the power fails.
//!
//! ```text
//!   mod.rs        arguments, order of the steps
//!     v
//!   recording.rs  runs the program on a mount; every write, change and line it printed
//!     |  fault.rs    makes chosen calls fail, or kills the program
//!   cuts.rs       builds disks as a power cut leaves them, mounts them, runs the check
//!     |  kernel.rs   the program on the kernel's ext4
//!     |  mounted.rs  a disk on a directory
//!     |  disk.rs     the raw or qcow2 file that stores a disk
//!   saved.rs      a failing state as a folder     report.rs  text and JSON
//! ```
//!
//! Above: the dispatch in `commands`. Below: `folio::testing` for the states, `folio_fuse` for the
//! mounts, `user_command`, `session`, `progress`, `output`.

mod cuts;
mod disk;
mod fault;
mod kernel;
mod mounted;
mod recording;
pub(super) mod report;
mod saved;

use crate::exit::{Exit, Failure, Outcome};
use crate::session::Session;
use clap::Args;
use cuts::{FailingCut, Judge};
use disk::DiskFile;
use fault::{Fault, Which};
use folio::block::ImageFormat;
use mounted::How;
use recording::{Contender, Program, Recording};
use report::{PowercutReport, RunReport};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  folio powercut --run './save $MNT/config' --check './load $MNT/config'
  folio powercut --setup 'tar -C $MNT -xf fixture.tar' --run './app --data $MNT/db' \\
                 --check './app --verify $MNT/db --acked $ACKED' --cuts 1000
  folio powercut --fault eio@fsync --run ... --check ...       each fsync(2) fails once
  folio powercut --fault kill@any --run ... --check ...        the program is killed before each change
  folio powercut --compare --run ... --check ...               the same with each of ext4's options
  folio powercut --kernel --run ... --check ...                the program on the kernel's ext4
  folio powercut --kernel --fault eio@write --run ...          each write of its disk fails once
  folio powercut disk.img --run ... --check ...                on a copy of an image
  folio powercut --format qcow2 --run ... --check ...          the disk is a qcow2 file; its tables are cut, too
  folio powercut --replay cut-4211                             the check again, on a failing state

The program runs on a disk in memory, mounted at $MNT, and every write and flush of the disk is recorded. Then disks are
built as a power cut leaves them: all writes before the last flush, and of the later ones any part, also torn at sectors
of 512 bytes. Each is mounted at $MNT, which replays the journal, and the check runs in it. It fails by an exit code
other than 0; the last line that it prints is the reason. The commands run in sh.

What --run prints on standard output counts as acknowledged: $ACKED is a file with all that it had printed before the
cut. A program that prints a line after each commit finds there what must not be lost. The cuts also strike after the
program has ended, until everything is written.

The file system is Folio's ext4, with the options of -o. The states are those that Linux's could leave, too; only the
default differs: Folio writes a file that replaces another one before the commit that renames it. With --kernel it is the
ext4 of the running kernel, on a loop device over the recorded disk. With --format qcow2 the disk is a qcow2 file: its
writes are recorded and cut, with those of its tables. A given image keeps its format.

A fault strikes one call of the program: --fault eio@fsync:3 its third fsync(2), eio@fsync each one, in a run of its own;
enospc@write:3.. all writes from the third on. An fsync(2) that fails leaves its data unwritten, and reports that once to
each open file, as in Linux: a program that repeats the call, and then says that all is stored, has lost it. kill@write
kills the program in place of a write. The program may then fail: what it has said must hold. The check also runs on what
it leaves without a power cut. A program that repeats the call without end is killed: see --for. With --kernel the calls
are those of the disk: @write its writes, discards and zeroed ranges, @fsync its flushes. kill@write there kills the
program, and the disk still makes the write. On Folio's ext4, @write also counts fallocate(2).

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
    /// Format of the file that stores the disk: the cuts are of its writes. The default is that of
    /// the image, else raw
    #[arg(long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format(), conflicts_with = "replay")]
    format: Option<ImageFormat>,
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
    /// Kill the program after this time, such as 10s; for programs that do not end. The default
    /// with --fault is 60s, or 10 times the run without a fault if that is longer and known
    #[arg(long = "for", value_name = "TIME", value_parser = crate::value_parsers::duration)]
    limit: Option<Duration>,
    /// Time after which a check has failed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::value_parsers::duration)]
    timeout: Duration,
    /// Make calls fail: eio, enospc or kill, @write, @fsync or @any (any change), :N for the Nth
    /// call, :N.. for all from then on, or :all (the default) for each one in a run of its own
    #[arg(long, value_name = "FAULT@CALL[:N]", conflicts_with = "replay")]
    fault: Option<Fault>,
    /// Repeat all with each of ext4's options, and print a table
    #[arg(long, conflicts_with = "replay")]
    compare: bool,
    /// Run the program on the kernel's ext4 (root and loop devices); checks stay on Folio's. With
    /// --compare after the rows of Folio's. A fault strikes a call of the disk: a write or a flush
    #[arg(long, conflicts_with = "replay")]
    kernel: bool,
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

/// The rows of `--compare --kernel`, after those of Folio.
const COMPARED_ON_KERNEL: [&str; 5] = [
    "auto_da_alloc",
    "noauto_da_alloc",
    "nodelalloc",
    "data=writeback",
    "nobarrier",
];

/// Runs the command.
pub(crate) fn run(powercut: &Powercut, session: &Session) -> Outcome {
    if powercut.kernel && !rustix::process::geteuid().is_root() {
        return Err(Failure::usage("--kernel: run as root, for a loop device"));
    }
    powercut.check_kernel_fault()?;
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
    let before = match &powercut.image {
        Some(image) => DiskFile::copy_of(image, powercut.format)?,
        None => DiskFile::create(powercut.format.unwrap_or(ImageFormat::Raw), powercut.size)?,
    };
    let mut table = Table {
        is_printed: !powercut.json && (powercut.compare || powercut.has_each_fault()),
        report: PowercutReport { runs: Vec::new() },
    };
    table.print_head()?;
    for contender in powercut.contenders(&options) {
        trial.run_faults(&before, &contender, &mut table)?;
    }
    table.finish(powercut, session)
}

/// The rows as they come.
struct Table {
    is_printed: bool,
    report: PowercutReport,
}

impl Table {
    fn print_head(&self) -> Outcome {
        if self.is_printed {
            RunReport::print_head()?;
        }
        Ok(())
    }

    fn add(&mut self, row: RunReport) -> Outcome {
        if self.is_printed {
            row.print_row()?;
        }
        self.report.runs.push(row);
        Ok(())
    }

    /// Prints the JSON, or the only run, or of several the first that has a saved state, else
    /// without --compare the first that fails.
    fn finish(&self, powercut: &Powercut, session: &Session) -> Outcome {
        let runs = &self.report.runs;
        if powercut.json {
            session.print_json(&self.report)?;
        } else {
            let shown = runs.iter().find(|run| !self.is_printed || run.is_saved());
            let failing = || runs.iter().find(|run| run.has_failing());
            if let Some(shown) = shown.or_else(|| failing().filter(|_| !powercut.compare)) {
                shown.print()?;
            }
        }
        if runs.iter().any(RunReport::has_failing) {
            return Err(Failure::exiting(Exit::FaultFound, ""));
        }
        Ok(())
    }
}

impl Powercut {
    /// Refuses faults that count different calls in the rows of one table.
    fn check_kernel_fault(&self) -> Outcome {
        if self.compare && self.kernel && self.fault.is_some() {
            let text = "--compare --kernel --fault: on Folio's ext4 a fault counts calls of the \
                        program, on the kernel's those of the disk: run them one by one";
            return Err(Failure::usage(text));
        }
        Ok(())
    }

    /// Returns whether there is a run for each call of a kind.
    fn has_each_fault(&self) -> bool {
        self.fault.is_some_and(|fault| fault.which == Which::Each)
    }

    /// Returns what to run the program on; `options` come from the command line.
    fn contenders(&self, options: &str) -> Vec<Contender> {
        let contender = |is_kernel, words: &str| Contender {
            is_kernel,
            options: [words, options].join(",").trim_matches(',').to_owned(),
        };
        if !self.compare {
            return vec![contender(self.kernel, "")];
        }
        let on_kernel = COMPARED_ON_KERNEL.iter().filter(|_| self.kernel);
        let on_kernel = on_kernel.map(|words| contender(true, words));
        let on_folio = COMPARED.iter().map(|words| contender(false, words));
        on_folio.chain(on_kernel).collect()
    }
}

/// Returns the time after which a program with a fault is killed; it takes `run_time` without one.
fn fault_limit(run_time: Option<Duration>) -> Duration {
    let longer = run_time.unwrap_or_default().saturating_mul(10);
    Duration::from_secs(longer.as_secs().max(60))
}

/// What all runs share.
struct Trial<'a> {
    powercut: &'a Powercut,
    session: &'a Session,
    folder: &'a Path,
    has_own_mounts: bool,
}

impl Trial<'_> {
    fn judge<'a>(&'a self, check: &'a str, format: ImageFormat, options: &str) -> Judge<'a> {
        Judge {
            check,
            format,
            limit: self.powercut.timeout,
            how: How {
                options: options.to_owned(),
                cache_bytes: self.session.cache_bytes,
                is_direct: false,
                observer: None,
            },
            folder: self.folder,
            has_own_mounts: self.has_own_mounts,
            session: self.session,
        }
    }

    /// Checks the states of one run, or of a run for each call with a fault.
    fn run_faults(&self, before: &DiskFile, contender: &Contender, table: &mut Table) -> Outcome {
        let cuts = self.powercut.cuts as usize;
        let check = self.powercut.check.as_deref().unwrap_or_default();
        // The check only reads what the kernel has left: its options are not for Folio.
        let options = Some(&*contender.options).filter(|_| !contender.is_kernel);
        let caller = if contender.is_kernel {
            "while the program runs, the disk gets"
        } else {
            "the program makes"
        };
        let judge = self.judge(check, before.format, options.unwrap_or_default());
        let Some(fault) = self
            .powercut
            .fault
            .filter(|_| self.powercut.has_each_fault())
        else {
            let recording = self.record(before, &judge, contender, self.powercut.fault, None)?;
            if let Some(fault) = self.powercut.fault.filter(|_| !recording.has_met_fault) {
                let made = recording.count(fault.calls);
                let text = format!("--fault {fault}: {caller} only {made} such calls");
                return Err(Failure::new(text));
            }
            return self.check_states(&judge, &recording, contender, cuts, table);
        };
        let without_fault = self.record(before, &judge, contender, None, None)?;
        let run_time = Some(without_fault.run_time);
        let count = without_fault.count(fault.calls) as usize;
        drop(without_fault);
        if count == 0 {
            let text = format!("--fault {fault}: {caller} no such call");
            return Err(Failure::new(text));
        }
        let runs = count.min(cuts);
        let mut met = 0;
        for run in 0..runs {
            // Spread over all calls.
            let fault = Some(fault.nth((run * count / runs) as u64 + 1));
            let recording = self.record(before, &judge, contender, fault, run_time)?;
            // Otherwise the program made fewer calls this time.
            if recording.has_met_fault {
                met += 1;
                self.check_states(&judge, &recording, contender, cuts / runs, table)?;
            }
        }
        if met == 0 {
            let text = format!("--fault {fault}: no run made the call that fails in it");
            return Err(Failure::new(text));
        }
        if met < runs {
            let fewer = runs - met;
            let text = format!("--fault {fault}: {fewer} of {runs} runs made fewer calls");
            self.session.note(text);
        }
        Ok(())
    }

    /// Runs the program, which takes `run_time` without a fault, if that is known. Without a fault
    /// the check must succeed afterwards.
    fn record(
        &self,
        before: &DiskFile,
        judge: &Judge<'_>,
        contender: &Contender,
        fault: Option<Fault>,
        run_time: Option<Duration>,
    ) -> Outcome<Recording> {
        let powercut = self.powercut;
        let program = Program {
            setup: powercut.setup.as_deref(),
            run: powercut.run.as_deref().unwrap_or_default(),
            limit: powercut.limit.or(fault.map(|_| fault_limit(run_time))),
            fault,
            contender,
        };
        let disk = before.record().map_err(Failure::image)?;
        let place = judge.place(0);
        let recording = Recording::new(disk, program, &place.mount, &judge.how, self.session)?;
        if fault.is_none()
            && let Some(reason) = judge.reason_without_cut(&recording)?
        {
            let text = format!("--check fails without a power cut: {reason}");
            return Err(Failure::new(text));
        }
        Ok(recording)
    }

    /// Checks the states after power cuts, and after a fault the one without.
    fn check_states(
        &self,
        judge: &Judge<'_>,
        recording: &Recording,
        contender: &Contender,
        cuts: usize,
        table: &mut Table,
    ) -> Outcome {
        let started = Instant::now();
        let at_end = match recording.fault {
            Some(_) => judge.reason_without_cut(recording)?,
            None => None,
        };
        let judged = judge.judge(recording, cuts, self.powercut.seed)?;
        let mut report = RunReport::new(
            judge.format,
            contender,
            recording,
            &judged,
            started.elapsed(),
        );
        report.add_fault(recording, at_end);
        if let Some(first) = judged.failing.first() {
            let is_saved = table.report.runs.iter().any(RunReport::is_saved);
            self.add_first(judge, recording, first, is_saved, &mut report)?;
        }
        table.add(report)
    }

    /// Reduces the first failing state and saves it: one alone, and none with --compare.
    fn add_first(
        &self,
        judge: &Judge<'_>,
        recording: &Recording,
        first: &FailingCut,
        is_saved: bool,
        report: &mut RunReport,
    ) -> Outcome {
        if is_saved {
            report.add_first(recording, first, None);
            return Ok(());
        }
        let first = judge.shrink(recording, first)?;
        let saved = (!self.powercut.compare)
            .then(|| saved::save(&self.powercut.save, judge, recording, &first))
            .transpose()?;
        report.add_first(recording, &first, saved.as_deref());
        Ok(())
    }

    /// Runs the check of a saved state again.
    fn replay(&self, folder: &Path, options: &str) -> Outcome {
        let saved = saved::load(folder)?;
        let check = self.powercut.check.as_deref().unwrap_or(&saved.check);
        let words = [&saved.options, options].join(",");
        let judge = self.judge(check, saved.format()?, words.trim_matches(','));
        match saved::replay(folder, &saved, &judge)? {
            None => {
                self.session.note("consistent");
                Ok(())
            }
            Some(reason) => Err(Failure::exiting(Exit::FaultFound, reason)),
        }
    }
}
