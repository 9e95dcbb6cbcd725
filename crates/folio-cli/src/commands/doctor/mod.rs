//! `folio doctor`: finds the layer that makes a file slow, or the causes of a command's waits, and
//! suggests a fix.

mod html;
pub(super) mod report;
mod trial;
mod workload;

use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, with_image};
use crate::image_path::{ImagePath, PathArgument};
use crate::output::ReportFile;
use crate::session::Session;
use clap::Args;
use folio_doctor::{
    CommandOutput, Facts, FileSystem, Kind, Layer, Limits, Recorder, RunOptions, Step, Verdict,
    chain_of, inside, judge, probe, reason, sample,
};
use report::{DoctorReport, NotProbed, PathReport, Shown};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trial::Trials;
use workload::WorkloadReport;

const EXAMPLES: &str = "\
Examples:
  folio doctor /srv/www/app.js           find the layer that makes it slow
  folio doctor --write-probe /srv/www    also measure rewriting and renaming files there
  folio doctor /var/lib/vm/disk.qcow2    the cost of first writes into an image
  folio doctor disk.qcow2:/srv/db        a file inside it, with the counters of Folio's own page cache
  folio doctor -- make -C src            split the time of a command by the causes of its waits
  folio doctor --try -- ./import.sh      the same, then again with each cure that can be applied, and without it
  folio doctor --try --setup 'rm -rf out' -- ./export.sh out     for a command that fails the second time
  folio doctor --trace -- ./build.sh     the same, with the static programs that it starts
  folio doctor --pid 4711 --for 30s      the same for a process that runs already, which goes on
  folio doctor --html a.html -- make     the same as a page, with the files and a timeline
  folio doctor --json /mnt/share         for programs; docs/json.md lists the keys

Nothing is changed. The command reads files, and a part of them twice, so this part is in memory afterwards. With
--write-probe it writes temporary files beside each path. One has no name and disappears with the command, however that
ends. Further ones are renamed in a hidden directory, .folio-doctor-*, which stays behind only if the command is killed.

Each fault has its evidence, its certainty, and a command that fixes it. Certain means counted, likely means one step
inferred, hint means that other causes are possible. Faults are backed by a measurement; anything merely unusual is
listed as a note. Other findings are only counted; --all prints them. A ? marks what could not be determined, and why;
--write-probe prints these, too. The image behind a mount or a loop device is examined, too.

After --, a command is run unmodified, with its file calls recorded by a preloaded library. The parts sum to its time:
on the critical path, from its start to its end. Each cause has its cost, what a remedy saves, and the remedy with its
risk. The library does not reach static and set-user-id programs. A command that is static, --trace and --pid use
ptrace(2) instead: slower, on x86-64 only, and set-user-id programs get no rights of their owner, so they are traced with
--trace only, or by root. Static programs that a command starts without --trace are reported as unknown. --pid traces no
children that run already.

With --try, the command runs again: for each finding at least three times without its cure and three times with it, in
turns, each time after --setup. Its output is dropped then, and its input is empty. What the cure saves is printed beside
the prediction, with the risk that was taken. Syncs are left out by the preloaded library, and all runs are timed until
the file system is synced; options of a mount are set and restored, also if the command is killed (root); a server is
asked through a private mount by folio (root); cold files are warmed. Cures inside a program are not tried.

Exit codes: 0 no fault, 1 faults, 2 usage error, 3 a path could not be examined, the command could not be run,
or the page of --html could not be written: it replaces no file but an earlier page.";

/// Find the layer that makes a file or a command slow, and suggest a fix
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Files, directories, mounts, disk images; for a directory, a few of its files are examined
    #[arg(required_unless_present_any = ["command", "pid"])]
    paths: Vec<OsString>,
    /// Run this command, and split its time by the causes of its waits
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["paths", "all"])]
    command: Vec<OsString>,
    /// Trace the system calls of the command, also those of static programs that it starts
    #[arg(long, requires = "command")]
    trace: bool,
    /// Split the time of a process that runs already, until it ends or Ctrl-C
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(conflicts_with_all = ["paths", "command", "write_probe", "all"])]
    pid: Option<u32>,
    /// With --pid, detach after this time
    #[arg(long = "for", value_name = "TIME", value_parser = crate::value_parsers::measured_time)]
    #[arg(requires = "pid", default_value = "30s")]
    limit: Duration,
    /// Then run the command again with each cure that can be applied to it from outside, and
    /// without it, in turns; prints what that saves beside the prediction
    #[arg(long = "try", requires = "command", conflicts_with_all = ["paths", "pid"])]
    tries: bool,
    /// With --try, a command that prepares each run, such as one that removes its results
    #[arg(long, value_name = "COMMAND", requires = "tries")]
    setup: Option<String>,
    /// With --try, pairs of runs of each cure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    #[arg(requires = "tries", default_value = "3")]
    repeats: u32,
    /// Also write and rename temporary files beside each path; with a command, write one beside the
    /// files that it syncs or writes in tiny buffers: the prediction then has the time of one sync,
    /// or of large writes, of as many bytes
    #[arg(long)]
    write_probe: bool,
    /// Maximum number of bytes to read, over all paths
    #[arg(long, value_name = "SIZE", value_parser = crate::value_parsers::size, default_value = "256M")]
    read_limit: u64,
    /// Print all checks, layer by layer: also those that found nothing, and those that are unknown
    #[arg(long)]
    all: bool,
    /// Also write the report as a page of HTML: one file without scripts, for a browser or a mail
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    fn shown(&self) -> Shown {
        if self.all {
            Shown::All
        } else if self.write_probe {
            // A measurement that was asked for.
            Shown::AllButFine
        } else {
            Shown::FaultsAndNotes
        }
    }

    /// Returns the file for the page, which is not one of the paths.
    fn page(&self) -> Outcome<Option<ReportFile>> {
        let Some(path) = &self.html else {
            return Ok(None);
        };
        let page = ReportFile::open(path, folio_html::BEGINNING)?;
        page.refuse_inputs(&self.paths)?;
        Ok(Some(page))
    }
}

/// A path to examine.
enum ProbeTarget {
    /// A path of the host, and the directory that it represents.
    Host {
        path: PathBuf,
        sample_of: Option<PathBuf>,
    },
    /// The image behind a mount or a loop device.
    Behind(PathBuf),
    /// A file inside an image.
    Inside(ImagePath),
}

impl ProbeTarget {
    fn host(path: impl Into<PathBuf>) -> Self {
        Self::Host {
            path: path.into(),
            sample_of: None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Host { path, .. } | Self::Behind(path) => path.display().to_string(),
            Self::Inside(place) => place.to_string(),
        }
    }

    /// Examines the path; `Err` is the reason why that is impossible.
    fn examine(
        &self,
        doctor: &Doctor,
        session: &Session,
        read_bytes: u64,
    ) -> Result<PathReport, String> {
        match self {
            Self::Host { path, sample_of } => {
                // The file system treats all files of a directory alike at close, so one probe of
                // the directory suffices.
                let may_write = doctor.write_probe && sample_of.is_none();
                let facts = probe(
                    path,
                    Limits {
                        read_bytes,
                        may_write,
                    },
                );
                Ok(path_report(
                    sample_of.as_deref(),
                    facts.map_err(|error| reason(&error))?,
                ))
            }
            Self::Behind(path) => {
                let limits = Limits {
                    read_bytes,
                    may_write: doctor.write_probe,
                };
                let facts = probe(path, limits).map_err(|error| reason(&error))?;
                let mut report = path_report(None, facts);
                report.checks.retain(|check| check.layer != "file-system");
                Ok(report)
            }
            Self::Inside(place) => {
                examine_inside(place, session, read_bytes).map_err(|failure| failure.message)
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(doctor: &Doctor, session: &Session) -> Outcome {
    if let Some(request) = trial::remount::requested() {
        return request.run();
    }
    if let Some(request) = trial::cached_mount::requested() {
        return request.run();
    }
    session.refuse_options()?;
    let page = doctor.page();
    let page = page.map_err(|failure| Failure::exiting(Exit::NotProbed, failure.message))?;
    let mut report = DoctorReport {
        faults: 0,
        write_probe: doctor.write_probe,
        read_limit_bytes: doctor.read_limit,
        paths: Vec::new(),
        not_probed: Vec::new(),
        workload: None,
    };
    if doctor.pid.is_some() || !doctor.command.is_empty() {
        return examine_workload(doctor, report, page, session);
    }
    let targets = targets(doctor, session)?;
    let share = doctor.read_limit / targets.len().max(1) as u64;
    for target in &targets {
        session.check_interrupt()?;
        match target.examine(doctor, session, share) {
            Ok(path_report) => report.paths.push(path_report),
            Err(reason) => report.not_probed.push(NotProbed {
                path: target.name(),
                reason,
            }),
        }
    }
    let checks = report.paths.iter().flat_map(|path| &path.checks);
    report.faults = checks
        .filter(|check| check.verdict == Verdict::Fault)
        .count();
    write_page(page, &report)?;
    if doctor.json {
        session.print_json(&report)?;
    } else {
        report::print(&report, doctor.shown())?;
    }
    for NotProbed { path, reason } in &report.not_probed {
        session.fail(format_args!("{path}: {reason}"));
    }
    let ends = |exit| Err(Failure::exiting(exit, ""));
    match (report.not_probed.is_empty(), report.faults) {
        (false, _) => ends(Exit::NotProbed),
        (true, 0) => Ok(()),
        (true, _) => ends(Exit::FaultFound),
    }
}

/// Runs a command or attaches to a process, and reports where its time went.
fn examine_workload(
    doctor: &Doctor,
    mut report: DoctorReport,
    page: Option<ReportFile>,
    session: &Session,
) -> Outcome {
    let output = if doctor.json {
        CommandOutput::OnStandardError
    } else {
        CommandOutput::Inherited
    };
    let recorder = if doctor.trace {
        Recorder::Ptrace
    } else {
        Recorder::Preload
    };
    let options = RunOptions {
        output,
        recorder,
        omission: None,
        folder: None,
        may_write: doctor.write_probe,
    };
    let found = match doctor.pid {
        Some(pid) => workload::attach(pid, doctor.limit, session)?,
        None => workload::run(&doctor.command, &options, session)?,
    };
    let failure = found.failure();
    report.faults = found.faults();
    let faults = report.faults;
    let found = report.workload.insert(found);
    if !doctor.json {
        workload::print(found)?;
    }
    if doctor.tries {
        run_trials(doctor, found, session)?;
    }
    write_page(page, &report)?;
    if doctor.json {
        session.print_json(&report)?;
    }
    if let Some(failure) = failure {
        session.note(failure);
    }
    match faults {
        0 => Ok(()),
        _ => Err(Failure::exiting(Exit::FaultFound, "")),
    }
}

fn write_page(page: Option<ReportFile>, report: &DoctorReport) -> Outcome {
    let written = page.map(|page| page.write(&html::html(report)));
    let written = written.transpose();
    written.map_err(|failure| Failure::exiting(Exit::NotProbed, failure.message))?;
    Ok(())
}

/// Runs the command again with the cure of each finding.
fn run_trials(doctor: &Doctor, found: &mut WorkloadReport, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let trials = Trials {
        words: &doctor.command,
        recorder: found.recorder,
        status: found.status,
        setup: doctor.setup.as_deref(),
        repeats: doctor.repeats,
        session,
    };
    trials.run(found, |number, trial| {
        if doctor.json {
            return Ok(());
        }
        workload::print_trial(number, trial)
    })
}

/// Returns the image that holds the file system, or is shown by the loop device, of a path.
fn image_behind(target: &ProbeTarget) -> Option<PathBuf> {
    let ProbeTarget::Host {
        path,
        sample_of: None,
    } = target
    else {
        return None;
    };
    let steps = chain_of(path);
    steps.into_iter().find_map(|step| match step.layer {
        Layer::Path {
            path,
            is_image: true,
            ..
        } => Some(path),
        _ => None,
    })
}

/// Returns the paths to examine: after each directory its sample files, after each file inside an
/// image the image.
fn targets(doctor: &Doctor, session: &Session) -> Outcome<Vec<ProbeTarget>> {
    let mut targets = Vec::new();
    for word in &doctor.paths {
        session.check_interrupt()?;
        add_targets(word, &mut targets, session);
    }
    let behind: Vec<PathBuf> = targets.iter().filter_map(image_behind).collect();
    for image in behind {
        let name = image.display().to_string();
        if !targets.iter().any(|target| target.name() == name) {
            targets.push(ProbeTarget::Behind(image));
        }
    }
    Ok(targets)
}

fn add_targets(word: &OsString, targets: &mut Vec<ProbeTarget>, session: &Session) {
    let path = Path::new(word);
    if !path.exists()
        && let PathArgument::Image(place) = PathArgument::parse(word, false)
    {
        let image = ProbeTarget::host(place.image.clone());
        targets.extend([ProbeTarget::Inside(place), image]);
        return;
    }
    targets.push(ProbeTarget::host(path));
    if !path.is_dir() {
        return;
    }
    let found = sample(path);
    if !session.quiet {
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let met = if found.is_complete {
            found.met.to_string()
        } else {
            format!("the first {}", found.met)
        };
        if names.is_empty() {
            session.note(format_args!(
                "{}: contains no file to examine",
                path.display()
            ));
        } else {
            session.note(format_args!(
                "{}: examining {} as samples of {met} files",
                path.display(),
                names.join(", ")
            ));
        }
    }
    let sample_target = |file| ProbeTarget::Host {
        path: file,
        sample_of: Some(path.to_owned()),
    };
    targets.extend(found.files.into_iter().map(sample_target));
}

fn path_report(sample_of: Option<&Path>, facts: Facts) -> PathReport {
    let mut checks = judge(&facts);
    if sample_of.is_some() || facts.image.is_some() {
        // The directory's own result has these checks already. Disk images are neither truncated
        // nor replaced.
        checks.retain(|check| check.layer != "file-system");
    }
    PathReport {
        path: facts.path.display().to_string(),
        kind: facts.kind,
        size_bytes: facts.size_bytes,
        sample_of: sample_of.map(|path| path.display().to_string()),
        chain: facts.chain,
        checks,
    }
}

/// Examines a file inside an image, through Folio.
fn examine_inside(place: &ImagePath, session: &Session, read_bytes: u64) -> Outcome<PathReport> {
    let (size_bytes, checks) = with_image(session, place, Access::Read, |image| {
        let name = place.to_string();
        inside(
            image.kernel(),
            image.process(),
            &place.path,
            &name,
            read_bytes,
        )
        .map_err(|error| image.name(error))
    })?;
    let file_system = FileSystem {
        fs_type: "ext4".to_owned(),
        source: place.image_name(),
        mount_point: "/".into(),
        root: "/".into(),
        server: Some("folio".to_owned()),
        ..FileSystem::default()
    };
    let path = Layer::Path {
        path: place.image.clone(),
        by_name: false,
        is_image: true,
    };
    let mut layers = vec![
        Step {
            depth: 0,
            layer: Layer::FileSystem(file_system),
        },
        Step {
            depth: 1,
            layer: path,
        },
    ];
    layers.extend(chain_of(&place.image).into_iter().map(|step| Step {
        depth: step.depth + 2,
        ..step
    }));
    Ok(PathReport {
        path: place.to_string(),
        kind: Kind::File,
        size_bytes,
        sample_of: None,
        chain: layers,
        checks,
    })
}
