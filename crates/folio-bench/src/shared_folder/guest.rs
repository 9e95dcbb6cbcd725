//! The folder in a virtual machine: `folio share` beside virtiofsd, each in the modes that they
//! have in common.

use super::figures::{Figures, Measured};
use super::jobs::{self, FIGURES, Job, NOT_SEEN, READY, SEEN};
use super::options::{NAME, Options, ROUNDS};
use crate::contender::find;
use crate::measure::{Said, this_program};
use crate::report::{Report, Verdict, owned, with_context};
use crate::run::Run;
use crate::virtual_machine::Guest;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a guest may take.
const LIMIT: Duration = Duration::from_secs(400);
const READY_LIMIT: Duration = Duration::from_secs(20);
const MEMORY_MIB: u32 = 1024;

/// A server, and the mode that it has in common with the one before or after it.
struct Contender {
    name: &'static str,
    mode: &'static str,
    /// Words for `folio share`, or for virtiofsd.
    words: &'static [&'static str],
    is_folio: bool,
}

const fn ours(name: &'static str, mode: &'static str, words: &'static [&'static str]) -> Contender {
    Contender {
        name,
        mode,
        words,
        is_folio: true,
    }
}

const fn theirs(
    name: &'static str,
    mode: &'static str,
    words: &'static [&'static str],
) -> Contender {
    Contender {
        name,
        mode,
        words,
        is_folio: false,
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

const LIMITS: [&str; 4] = [
    "the guest is emulated, without KVM: what the processor does costs many times what it costs on hardware, for all \
     contenders alike",
    "a change counts until the guest reports over its serial line that it has seen it",
    "auto of virtiofsd treats names and attributes as valid for a second, as ttl=1s does here",
    "folio share without options has no rival in the same mode: it is coherent and cached",
];

/// A server of the folder; it ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::TERM,
        );
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed() < READY_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures each contender in a guest of its own, in rounds.
pub(super) fn measure(
    options: &Options,
    run: &Run<'_>,
    source: &Path,
    report: &mut Report,
) -> Result<Measured, String> {
    Guest::new()?;
    let virtiofsd = options.virtiofsd.clone().or_else(|| find("virtiofsd"));
    if virtiofsd.is_none() {
        report.skip("virtiofsd", "not installed; name it with --virtiofsd");
    }
    let wanted = |contender: &&Contender| {
        (contender.is_folio || virtiofsd.is_some())
            && options
                .only
                .as_ref()
                .is_none_or(|only| contender.name.contains(only.as_str()))
    };
    let mut rounds: Vec<(&Contender, Vec<Vec<Option<f64>>>)> = CONTENDERS
        .iter()
        .filter(wanted)
        .map(|contender| (contender, Vec::new()))
        .collect();
    while run.goes_on(NAME, report.repeats, ROUNDS)? {
        for turn in 0..rounds.len() {
            let at = (turn + report.repeats as usize) % rounds.len();
            let (contender, figures) = &mut rounds[at];
            let program = if contender.is_folio {
                Some(run.folio.as_path())
            } else {
                virtiofsd.as_deref()
            };
            let program = program.ok_or("no server")?;
            (run.step)(&format!("{NAME}: a guest of {}", contender.name))?;
            figures.push(boot(contender, program, source).map_err(with_context(contender.name))?);
        }
        report.repeats += 1;
    }
    report.limits = owned(&LIMITS);
    let modes: Vec<&Contender> = rounds.iter().map(|(contender, _)| *contender).collect();
    let measured: Measured = rounds
        .into_iter()
        .map(|(contender, rounds)| Figures::new(contender.name, rounds))
        .collect();
    report.verdicts = verdicts(&modes, &measured);
    Ok(measured)
}

/// Starts the server of `contender`, and waits until it listens at `socket`.
fn serve(
    contender: &Contender,
    program: &Path,
    source: &Path,
    socket: &Path,
) -> Result<Server, String> {
    let mut command = Command::new(program);
    let socket_option = if contender.is_folio {
        command.args(["--quiet", "share"]).arg(source);
        "--socket"
    } else {
        command
            .args(["--sandbox=none", "--log-level=error", "--shared-dir"])
            .arg(source);
        "--socket-path"
    };
    command
        .arg(socket_option)
        .arg(socket)
        .args(contender.words)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let said = Said::by(&mut command)?;
    let mut server = Server(command.spawn().map_err(with_context(program.display()))?);
    let start = Instant::now();
    while !socket.exists() {
        if !matches!(server.0.try_wait(), Ok(None)) || start.elapsed() > READY_LIMIT {
            return Err(said.explain("the server does not listen"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

/// Runs all jobs in one guest, from its boot to its end.
fn boot(contender: &Contender, program: &Path, source: &Path) -> Result<Vec<Option<f64>>, String> {
    let bench = this_program()?;
    let folder = tempfile::tempdir().map_err(with_context("folder"))?;
    let socket = folder.path().join("socket");
    let _server = serve(contender, program, source, &socket)?;
    let guest = Guest::new()?
        .size(MEMORY_MIB, 1)
        .share("share", &socket)
        .program(&bench)?;
    let name = bench
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let script = format!(
        "mkdir -p /mnt; mount -t virtiofs share /mnt || exit 1\n/bin/{name} shared-folder-guest /mnt || exit 1\n"
    );
    let mut figures: Option<Vec<Option<f64>>> = None;
    let (mut delays, mut changed, mut is_unseen) = (Vec::new(), Instant::now(), false);
    let mut failed = None;
    let run = guest.run(&script, LIMIT, |line| {
        if let Some(text) = line.strip_prefix(FIGURES) {
            figures = serde_json::from_str(text).ok();
        } else if let Some(number) = line
            .strip_prefix(READY)
            .and_then(|text| text.trim().parse().ok())
        {
            changed = Instant::now();
            failed = jobs::change(source, number).err();
        } else if line.starts_with(SEEN) {
            delays.push(changed.elapsed().as_secs_f64() * 1e3);
        } else if line.starts_with(NOT_SEEN) {
            is_unseen = true;
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let mut figures = figures
        .filter(|_| run.status == Some(0))
        .ok_or_else(|| run.explain())?;
    figures.extend(if is_unseen {
        vec![None, None]
    } else {
        jobs::middle_and_most(delays)
    });
    Ok(figures)
}

/// Returns the ratio of each figure of Folio to its rival, mode by mode.
fn verdicts(modes: &[&Contender], measured: &[Figures]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let both = || modes.iter().zip(measured);
    for (contender, ours) in both().filter(|(contender, _)| contender.is_folio) {
        let rival = both().find(|(other, _)| !other.is_folio && other.mode == contender.mode);
        let Some((_, theirs)) = rival else { continue };
        for (at, job) in Job::ALL.iter().enumerate() {
            let (Some(ours), Some(theirs)) = (ours.middle[at], theirs.middle[at]) else {
                continue;
            };
            let value = if job.is_rate() {
                theirs / ours
            } else {
                ours / theirs
            };
            verdicts.push(Verdict {
                aim: format!(
                    "{}: {} not slower than virtiofsd",
                    contender.name,
                    job.title()
                ),
                is_met: value <= 1.0,
                figures: format!("{} of its time", crate::rows::ratio(value)),
            });
        }
    }
    verdicts
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
