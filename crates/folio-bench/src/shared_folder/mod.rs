//! The scenario `shared-folder`: a host folder read and statted again and again, as it is,
//! through mounts, and in this process.
//!
//! ```text
//!   mod      contenders, tables, aims
//!   guest    the same in a virtual machine: folio share beside virtiofsd
//!   iozone   --iozone: IOzone's columns and the article's two programs
//!   trees    --trees: an installer, git, tar, rm
//!   tables   the figures of all
//!   jobs     the operations, and how long a change of the host stays unseen
//! ```

// The scenario measures time.
#![allow(clippy::disallowed_methods)]

mod guest;
mod iozone;
mod jobs;
mod tables;
mod trees;

use crate::command::{is_root, tool};
use crate::options::is_wanted;
use crate::outcome::{Context, Outcome};
use crate::published::{PublishedCase, Today};
use crate::race::{Run, scratch_in};
use crate::report::{Bound, Report, Unit, ratio};
use crate::server::Mounted;
use crate::view::View;
use jobs::{FIGURES, Job, Sizes};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
pub(crate) use tables::Kind;
use tables::{CALLS, NATIVE, add, drop_unseen, slower};

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Parent of the shared folder; cold reads need a disk
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Only contenders whose name has this in it, and the native one
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// In a virtual machine (QEMU), through virtiofs, beside virtiofsd
    #[arg(long)]
    pub(crate) guest: bool,
    /// The virtiofsd to measure; without it, the one that is installed
    #[arg(long, requires = "guest")]
    pub(crate) virtiofsd: Option<PathBuf>,
    /// The article's table: IOzone's columns (64 MiB, records of 64 KiB), a file read again and
    /// statted again, without a cache and with one; by iozone, if it is installed
    #[arg(long)]
    pub(crate) iozone: bool,
    /// Work on trees: 20,000 small files made, listed, read and removed, `tar -x` of 3,000 entries,
    /// `git status`
    #[arg(long, conflicts_with = "iozone")]
    pub(crate) trees: bool,
}

impl Options {
    fn kind(&self) -> Kind {
        match self {
            Self { iozone: true, .. } => Kind::Iozone,
            Self { trees: true, .. } => Kind::Trees,
            _ => Kind::Usual,
        }
    }

    /// Whether cold reads follow `/proc/sys/vm/drop_caches` of this machine.
    pub(crate) fn drops_caches(&self) -> bool {
        self.kind() == Kind::Usual && !self.guest
    }
}

/// How a contender sees the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As it is: the host's own file system.
    Native,
    /// `folio mount` with these options.
    Mount(&'static str),
    /// Folio in this process with these options.
    InProcess(&'static str),
    /// `bindfs`.
    Bindfs,
}

/// Name, and how it sees the folder.
const CONTENDERS: [(&str, How); 10] = [
    (NATIVE, How::Native),
    (MOUNT, How::Mount("")),
    (MOUNT_TTL, How::Mount("push=off,ttl=1ms")),
    (PASSTHROUGH, How::Mount("passthrough=on")),
    (
        "folio mount, cache=writeback",
        How::Mount("cache=writeback"),
    ),
    (MOUNT_NONE, How::Mount("cache=none,push=off,ttl=0")),
    (PROCESS, How::InProcess("")),
    (PROCESS_TTL, How::InProcess("push=off,ttl=1ms")),
    (PROCESS_NONE, How::InProcess("cache=none,push=off,ttl=0")),
    ("bindfs", How::Bindfs),
];
const MOUNT: &str = "folio mount";
const MOUNT_TTL: &str = "folio mount, ttl=1ms";
const MOUNT_NONE: &str = "folio mount, cache=none";
const PROCESS: &str = "folio in process";
const PROCESS_TTL: &str = "folio in process, ttl=1ms";
const PROCESS_NONE: &str = "folio in process, cache=none";

/// Those of `--iozone`: the article's slow folder, its remedy (a page cache with a time to live),
/// and changes of the host that are pushed.
const ARTICLE_CONTENDERS: [(&str, How); 4] = [
    (NATIVE, How::Native),
    (MOUNT_NONE, How::Mount("cache=none,push=off,ttl=0")),
    (MOUNT_SECOND, How::Mount("push=off,ttl=1s")),
    (MOUNT, How::Mount("")),
];
const MOUNT_SECOND: &str = "folio mount, ttl=1s";

/// Those of `--trees`: the folder, and the mounts that are in use for such work.
const TREE_CONTENDERS: [(&str, How); 5] = [
    (NATIVE, How::Native),
    (MOUNT, How::Mount("")),
    (MOUNT_SECOND, How::Mount("push=off,ttl=1s")),
    (PASSTHROUGH, How::Mount("passthrough=on")),
    ("bindfs", How::Bindfs),
];
const PASSTHROUGH: &str = "folio mount, passthrough";

const LIMITS: [&str; 5] = [
    "cold reads follow drop_caches, and the disk below may have a cache of its own; Folio's cache in this process is \
     not dropped, so it has no cold figure and no first walk",
    "in process there is no kernel between: that is what linking Folio gives a program, not a faster mount",
    "a reader on the same machine looks for a change: it opens, reads and closes without a pause",
    "one reader; the mounts answer from the kernel's own memory once they are warm",
    "medians of all rounds; the change's second figure is the longest of all rounds",
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let folder = scratch_in(&options.dir)?;
    let source = folder.path().join("source");
    std::fs::create_dir(&source).at(&source)?;
    let sizes = Sizes::of(run.is_quick);
    let kind = options.kind();
    match kind {
        Kind::Usual | Kind::Iozone => jobs::make_source(&source, sizes)?,
        Kind::Trees => trees::make_source(&source, sizes)?,
    }
    let mut report = Report::new("shared-folder", describe(kind, sizes), &options.dir);
    if kind == Kind::Iozone {
        iozone::describe(&mut report);
    }
    if options.guest {
        let virtiofsd = options.virtiofsd.clone();
        guest::measure(virtiofsd, &options.only, kind, run, &source, &mut report)?;
    } else {
        on_host(options, run, sizes, folder.path(), &mut report)?;
        report.story = (kind != Kind::Trees).then(|| published_case(&report));
    }
    Ok(report)
}

fn describe(kind: Kind, sizes: Sizes) -> String {
    match kind {
        Kind::Usual => format!(
            "{} MiB in order and at random, {} small files, one file again and again, changes by \
             the host",
            sizes.large_mib,
            sizes.folders * sizes.files_each
        ),
        Kind::Iozone => {
            let mib = sizes.iozone_mib;
            format!("IOzone's columns of {mib} MiB, one file read and statted again and again")
        }
        Kind::Trees => format!(
            "{} small files made, listed, read and removed; an archive and a repository of {} \
             entries",
            sizes.installed_files, sizes.archive_entries
        ),
    }
}

fn published_case(report: &Report) -> PublishedCase {
    let times = |job: Job, name: &str, than: &str| {
        let of = |name: &str| report.row(CALLS, job.title(), name);
        let word = if job == Job::ArticleStat {
            "stats"
        } else {
            "reads"
        };
        Today::times(&format!("{word}: {name}"), of(name), of(than))
    };
    let today = [
        times(Job::ArticleRead, MOUNT_NONE, NATIVE),
        times(Job::ArticleRead, PROCESS_NONE, PROCESS),
        times(Job::ArticleRead, "bindfs", NATIVE),
        times(Job::ArticleRead, MOUNT_SECOND, NATIVE).map(Today::cure),
        times(Job::ArticleRead, MOUNT, NATIVE).map(Today::cure),
        times(Job::ArticleStat, MOUNT_NONE, NATIVE),
        times(Job::ArticleStat, PROCESS_NONE, PROCESS),
        times(Job::ArticleStat, "bindfs", NATIVE),
        times(Job::ArticleStat, MOUNT_SECOND, NATIVE).map(Today::cure),
        times(Job::ArticleStat, MOUNT, NATIVE).map(Today::cure),
    ];
    PublishedCase::new(
        "Shared folders",
        "a virtual machine's shared folder was ten times slower than its rival: reads went past the page cache, and \
         every stat asked the host",
        "share the folder with a server whose pages and attributes the kernel may keep, such as folio mount or folio share",
    )
    .with("the slow folder, as a multiple of the rival's time (today: native, or cached in process)", Unit::Times, 10.0, today)
}

/// A view of the folder, and the mount that serves it.
struct Target {
    view: View,
    mount: Option<Mounted>,
}

/// On this machine, without a guest.
fn on_host(
    options: &Options,
    run: &Run<'_>,
    sizes: Sizes,
    folder: &Path,
    report: &mut Report,
) -> Outcome {
    let source = &folder.join("source");
    let drops_caches = is_root() && !run.is_quick;
    let kind = options.kind();
    if kind != Kind::Usual {
        // Nothing is cold in their tables.
    } else if !is_root() {
        report.skip("cold reads", "dropping the host's cache needs root");
    } else if run.is_quick {
        report.skip("cold reads", "a quick run leaves the host's cache alone");
    }
    let unseen = RefCell::new(BTreeSet::new());
    let contenders = match kind {
        Kind::Usual => &CONTENDERS[..],
        Kind::Iozone => &ARTICLE_CONTENDERS,
        Kind::Trees => &TREE_CONTENDERS,
    };
    let mut race = kind.race().leave_out_failures();
    for (at, &(name, how)) in contenders.iter().enumerate() {
        if name != NATIVE && !is_wanted(&options.only, name) {
            continue;
        }
        let target = match how.target(&run.folio, source, &folder.join(format!("mount-{at}"))) {
            Ok(target) => target,
            Err(reason) => {
                report.skip(name, reason.to_string());
                continue;
            }
        };
        let unseen = &unseen;
        race.contender(name, move |turn| {
            let figures = match (kind, &target.view) {
                (Kind::Iozone, view) => iozone::run(view, sizes),
                (Kind::Trees, View::Host(root)) => trees::run(root, sizes),
                (_, view) => jobs::run(view, sizes, drops_caches),
            };
            let measured = figures.and_then(|figures| {
                add(figures, turn);
                if kind != Kind::Usual {
                    return Ok(());
                }
                match jobs::changes(&target.view, sizes, source)? {
                    Some(delays) => add(delays, turn),
                    None => _ = unseen.borrow_mut().insert(name),
                }
                Ok(())
            });
            measured.map_err(|reason| target.explain(&reason.to_string()).into())
        });
    }
    race.run(run, report)?;
    let unseen = unseen.into_inner();
    drop_unseen(report, &unseen);
    judge(report, &unseen);
    report.limit(match kind {
        Kind::Usual => &LIMITS[..],
        Kind::Iozone => &iozone::LIMITS,
        Kind::Trees => &trees::LIMITS,
    });
    Ok(())
}

/// Runs the part of the scenario that is in a guest, at a folder that it has mounted.
pub(crate) fn run_in_guest(root: &Path, kind: Kind, is_quick: bool) -> Outcome {
    let (view, sizes) = (View::Host(root.to_owned()), Sizes::of(is_quick));
    let figures = match kind {
        Kind::Usual => jobs::run(&view, sizes, true)?,
        Kind::Iozone => iozone::run(&view, sizes)?,
        Kind::Trees => trees::run(root, sizes)?,
    };
    println!("{FIGURES}{}", serde_json::to_string(&figures)?);
    match kind {
        Kind::Usual => jobs::see_changes_in_guest(&view, sizes),
        Kind::Iozone | Kind::Trees => Ok(()),
    }
}

impl How {
    fn target(self, folio: &Path, source: &Path, mount_point: &Path) -> Outcome<Target> {
        let mut command = match self {
            Self::Native => {
                let view = View::Host(source.to_owned());
                return Ok(Target { view, mount: None });
            }
            Self::InProcess(options) => {
                let view = View::in_process(source, options)?;
                return Ok(Target { view, mount: None });
            }
            Self::Mount(options) => {
                let mut command = Command::new(folio);
                command.args(["--quiet", "mount"]);
                if !options.is_empty() {
                    command.args(["-o", options]);
                }
                command
            }
            Self::Bindfs => {
                let mut command = tool("bindfs")?;
                command
                    .args((!is_root()).then_some("--no-allow-other"))
                    .arg("-f");
                command
            }
        };
        command.arg(source).arg(mount_point);
        Ok(Target {
            mount: Some(Mounted::start(command, mount_point)?),
            view: View::Host(mount_point.to_owned()),
        })
    }
}

impl Target {
    /// Returns a reason with the standard error of the server, if there is one.
    fn explain(&self, reason: &str) -> String {
        let mount = self.mount.as_ref();
        mount.map_or_else(|| reason.to_owned(), |mount| mount.explain(reason))
    }
}

fn judge(report: &mut Report, unseen: &BTreeSet<&str>) {
    for (job, what, most) in [
        (Job::ReadWarm, "warm reads in order", 1.05),
        (Job::RandomWarm, "warm reads at random", 1.05),
        (Job::ArticleRead, "64 KiB opened and read", 1.05),
        (Job::ArticleStat, "warm stats", 1.05),
        (Job::ReadCold, "cold reads in order", 1.2),
    ] {
        let aim =
            format!("{what} through the mount within {most} of the native file system's time");
        let times = slower(report, job, MOUNT, NATIVE);
        report.judge(aim, times, Bound::AtMost(most));
    }
    for (job, what) in [
        (Job::SmallWarm, "reads (1 KiB)"),
        (Job::RandomWarm, "reads (4 KiB at random)"),
        (Job::ArticleStat, "stats"),
    ] {
        let aim = format!("in process, cached {what} at least 10 times as fast as uncached ones");
        let share = slower(report, job, PROCESS, PROCESS_NONE);
        report.judge(aim, share, Bound::AtMost(0.1));
    }
    for (name, most_ms) in [
        (MOUNT, 5.0),
        (PROCESS, 5.0),
        (MOUNT_TTL, 6.0),
        (PROCESS_TTL, 6.0),
    ] {
        let row = report.row(CALLS, Job::ChangeSeenMost.title(), name);
        let never = unseen.contains(name).then_some(f64::INFINITY);
        if let Some(ms) = row.map(|row| row.most * 1e3).or(never) {
            let aim = format!("{name}: a change by the host is seen within {most_ms} ms");
            report.add_verdict(aim, ms <= most_ms, format!("{} ms at most", ratio(ms)));
        }
    }
}
