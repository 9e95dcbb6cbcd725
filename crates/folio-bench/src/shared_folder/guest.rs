//! The folder in a virtual machine: `folio share` beside virtiofsd, each in the modes that they
//! have in common.

use super::jobs::{self, FIGURES, Figure, Job, NOT_SEEN, READY, SEEN};
use super::tables::{Kind, add, drop_unseen, slower};
use super::{iozone, trees};
use crate::command::{find, this_program};
use crate::options::is_wanted;
use crate::outcome::{Context, Outcome};
use crate::race::Run;
use crate::report::{Report, ratio};
use crate::server::Server;
use crate::virtual_machine::Guest;
use clap::ValueEnum;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a guest may take.
const LIMIT: Duration = Duration::from_secs(900);
const MEMORY_MIB: u32 = 1024;

/// A server, and the mode that it has in common with the one before or after it.
struct Contender {
    name: &'static str,
    mode: &'static str,
    /// Words for `folio share`, or for virtiofsd.
    words: Words,
    is_folio: bool,
}

type Words = &'static [&'static str];

const fn ours(name: &'static str, mode: &'static str, words: Words) -> Contender {
    Contender {
        name,
        mode,
        words,
        is_folio: true,
    }
}

const fn theirs(name: &'static str, mode: &'static str, words: Words) -> Contender {
    Contender {
        is_folio: false,
        ..ours(name, mode, words)
    }
}

const CONTENDERS: [Contender; 7] = [
    ours(
        "folio share, cache=none",
        "never",
        &["-o", "cache=none,push=off,ttl=0"],
    ),
    theirs("virtiofsd, cache=never", "never", &["--cache=never"]),
    ours("folio share, ttl=1s", "auto", &["-o", "ttl=1s"]),
    theirs("virtiofsd, cache=auto", "auto", &["--cache=auto"]),
    ours(
        "folio share, ttl=inf,writeback",
        "always",
        &["-o", "ttl=inf,writeback"],
    ),
    theirs(
        "virtiofsd, cache=always,writeback",
        "always",
        &["--cache=always", "--writeback"],
    ),
    ours("folio share", "coherent", &[]),
];

const LIMITS: [&str; 3] = [
    "the guest is emulated, without KVM: what the processor does costs many times what it costs on hardware, for all \
     contenders alike",
    "auto of virtiofsd treats names and attributes as valid for a second, as ttl=1s does here",
    "folio share without options has no rival in the same mode: it is coherent and cached",
];

/// The limit of delays, which `--iozone` and `--trees` do not measure.
const DELAY_LIMITS: [&str; 1] =
    ["a change counts until the guest reports over its serial line that it has seen it"];

/// Measures each contender in a guest of its own, in rounds.
pub(super) fn measure(
    virtiofsd: Option<PathBuf>,
    only: &Option<String>,
    kind: Kind,
    run: &Run<'_>,
    source: &Path,
    report: &mut Report,
) -> Outcome {
    Guest::new()?;
    let virtiofsd = virtiofsd.or_else(|| find("virtiofsd"));
    if virtiofsd.is_none() {
        report.skip("virtiofsd", "not installed; name it with --virtiofsd");
    }
    let unseen = RefCell::new(BTreeSet::new());
    let mut race = kind.race();
    for contender in &CONTENDERS {
        let name = contender.name;
        let program = if contender.is_folio {
            Some(&run.folio)
        } else {
            virtiofsd.as_ref()
        };
        let Some(program) = program.filter(|_| is_wanted(only, name)) else {
            continue;
        };
        if kind == Kind::Trees && contender.mode == "never" {
            report.skip(
                name,
                "each call is a request: too slow in an emulated guest",
            );
            continue;
        }
        let unseen = &unseen;
        race.contender(name, move |turn| {
            (run.step)(&format!("shared-folder: a guest of {name}"))?;
            let seen = boot(contender, program, source, kind, run.is_quick)?;
            add(seen.figures, turn);
            match seen.delays {
                Some(delays) if delays.is_empty() => (),
                Some(delays) => add(jobs::middle_and_most(delays), turn),
                None => _ = unseen.borrow_mut().insert(name),
            }
            Ok(())
        });
    }
    race.run(run, report)?;
    drop_unseen(report, &unseen.into_inner());
    judge(report);
    report.limit(&LIMITS);
    report.limit(match kind {
        Kind::Usual => &DELAY_LIMITS[..],
        Kind::Iozone => &iozone::LIMITS,
        Kind::Trees => &trees::LIMITS,
    });
    Ok(())
}

/// Starts the server of `contender`, and waits until it listens at `socket`.
fn serve(contender: &Contender, program: &Path, source: &Path, socket: &Path) -> Outcome<Server> {
    let mut command = Command::new(program);
    if contender.is_folio {
        command
            .args(["--quiet", "share"])
            .arg(source)
            .arg("--socket");
    } else {
        command.args(["--sandbox=none", "--log-level=error", "--shared-dir"]);
        command.arg(source).arg("--socket-path");
    }
    command.arg(socket).args(contender.words);
    Server::start(command, "the server does not listen", || socket.exists())
}

/// What a guest has measured.
struct Seen {
    figures: Vec<Figure>,
    /// Seconds until it saw each change; `None` if it missed one.
    delays: Option<Vec<f64>>,
}

/// Runs all jobs of a kind in one guest, from its boot to its end.
fn boot(
    contender: &Contender,
    program: &Path,
    source: &Path,
    kind: Kind,
    is_quick: bool,
) -> Outcome<Seen> {
    let bench = this_program()?;
    let folder = tempfile::tempdir().at("folder")?;
    let socket = folder.path().join("socket");
    let _server = serve(contender, program, source, &socket)?;
    let mut guest = Guest::new()?
        .size(MEMORY_MIB, 1)
        .share("share", &socket)
        .program(&bench)?;
    let needed = match kind {
        Kind::Usual => None,
        Kind::Iozone => iozone::program(),
        Kind::Trees => find("git"),
    };
    if let Some(needed) = needed {
        guest = guest.program(&needed)?;
    }
    let name = bench.file_name().unwrap_or_default().to_string_lossy();
    let word = kind
        .to_possible_value()
        .map_or_else(String::new, |kind| kind.get_name().to_owned());
    let quick = if is_quick { "--quick" } else { "" };
    let script = format!(
        "mkdir -p /mnt; mount -t virtiofs share /mnt || exit 1\n\
         /bin/{name} shared-folder-guest /mnt {word} {quick} || exit 1\n"
    );
    let mut figures: Option<Vec<Figure>> = None;
    let (mut delays, mut changed) = (Some(Vec::new()), Instant::now());
    let mut failure = None;
    let run = guest.run(&script, LIMIT, |line| {
        if let Some(text) = line.strip_prefix(FIGURES) {
            figures = serde_json::from_str(text).ok();
        } else if let Some(number) = line.strip_prefix(READY) {
            changed = Instant::now();
            let number = number.trim().parse().at(line);
            failure = number.and_then(|number| jobs::change(source, number)).err();
        } else if line.starts_with(SEEN) {
            delays
                .iter_mut()
                .for_each(|delays| delays.push(changed.elapsed().as_secs_f64()));
        } else if line.starts_with(NOT_SEEN) {
            delays = None;
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    let figures = figures
        .filter(|_| run.status == Some(0))
        .ok_or_else(|| run.explain())?;
    Ok(Seen { figures, delays })
}

/// Judges each figure of Folio beside its rival, mode by mode.
fn judge(report: &mut Report) {
    for ours in CONTENDERS.iter().filter(|contender| contender.is_folio) {
        let mut rivals = CONTENDERS.iter().filter(|other| !other.is_folio);
        let Some(theirs) = rivals.find(|other| other.mode == ours.mode) else {
            continue;
        };
        for job in Job::all() {
            let Some(times) = slower(report, job, ours.name, theirs.name) else {
                continue;
            };
            let aim = format!("{}: {} not slower than virtiofsd", ours.name, job.title());
            report.add_verdict(aim, times <= 1.0, format!("{} of its time", ratio(times)));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::virtual_machine::Run;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Collects these lines of a guest, which then ends or is silent.
    fn collected(lines: &[&str], ends: bool) -> Run {
        let (sender, receiver) = mpsc::channel();
        let mut sender = Some(sender);
        for line in lines {
            let sent = sender
                .as_ref()
                .map(|sender| sender.send((*line).to_owned()));
            assert_eq!(sent, Some(Ok(())));
        }
        sender.take_if(|_| ends);
        Run::collect(
            &receiver,
            [Duration::ZERO, Duration::from_millis(1)],
            |_| (),
        )
    }

    #[test]
    fn silent_guest_is_given_up_with_a_reason() {
        let silent = collected(&[], false);
        assert_eq!(silent.explain(), "the guest did not boot within 0 s");
        let stuck = collected(&["loaded@@begun", "a", "b"], false);
        assert_eq!(stuck.explain(), "the guest did not end within 0 s; a | b");
        let ended = collected(&["@@begun", "a", "@@ended 3"], true);
        assert_eq!((ended.status, ended.missed), (Some(3), None));
        assert_eq!(ended.explain(), "the guest failed; a | @@ended 3");
    }
}
