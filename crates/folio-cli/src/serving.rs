//! Parts of commands that serve until a signal: stopping, unmounting, and the switch to the
//! background.

use crate::exit::{Exit, Failure, Outcome, explain};
use crate::mount_record::MountRecord;
use crate::ready;
use crate::session::Session;
use folio::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The line that a command in the background prints for its starter once it is ready.
const READY: &str = "ready";
/// Set in the environment of the process that serves in the background. It reports its readiness to
/// its starter on standard output.
const BACKGROUND: &str = "FOLIO_SERVES_IN_BACKGROUND";

/// How a command reports that it is ready.
#[derive(Clone, Copy)]
pub(crate) struct Readiness<'a> {
    /// `--ready-fd`.
    pub(crate) fd: Option<u32>,
    /// The process serves in the background: it reports to its starter on standard output.
    pub(crate) background: Option<Background<'a>>,
}

/// Where a command in the background prints its messages.
#[derive(Clone, Copy)]
pub(crate) struct Background<'a> {
    /// None where there is no place for it.
    pub(crate) record: Option<&'a MountRecord>,
    /// `--log`.
    pub(crate) log: Option<&'a File>,
}

/// Returns the signals that end a command. Before this call they end the program at once.
pub(crate) fn signals() -> Outcome<Signals> {
    Ok(Signals::new([SIGINT, SIGTERM, SIGHUP])?)
}

/// Runs `work`, and calls `stop` at the first signal.
pub(crate) fn until_signal<T>(
    mut signals: Signals,
    stop: impl FnOnce() + Send,
    work: impl FnOnce() -> T,
) -> T {
    on_signals(
        &signals.handle(),
        || {
            if signals.forever().next().is_some() {
                stop();
            }
        },
        work,
    )
}

/// Runs `work`, and unmounts at a signal: at the first one if the mount is not busy. A further one,
/// or SIGTERM, detaches (`unmount(true)`) a busy mount from the tree, calls `detached`, and serves
/// the programs that use it until they are done. So it does after an external `umount -l`.
pub(crate) fn until_unmounted<T>(
    mut signals: Signals,
    unmount: &(dyn Fn(bool) -> folio::Result<()> + Sync),
    session: &Session,
    detached: impl Fn() + Send,
    work: impl FnOnce() -> T,
) -> T {
    on_signals(
        &signals.handle(),
        || {
            unmount_on_signal(&mut signals, unmount, session, detached);
        },
        work,
    )
}

/// Returns the signal that prints the number of requests. Before this call it ends the program.
pub(crate) fn count_signal() -> Outcome<Signals> {
    Ok(Signals::new([SIGUSR1])?)
}

/// Runs `work`, and calls `print` at each of `signals`, to print the number of requests.
pub(crate) fn with_counts<T>(
    mut signals: Signals,
    print: impl Fn() + Send,
    work: impl FnOnce() -> T,
) -> T {
    let handle = signals.handle();
    let wait = move || signals.forever().for_each(|_| print());
    on_signals(&handle, wait, work)
}

fn on_signals<T>(
    handle: &signal_hook::iterator::Handle,
    wait: impl FnOnce() + Send,
    work: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        scope.spawn(wait);
        let done = work();
        handle.close();
        done
    })
}

fn unmount_on_signal(
    signals: &mut Signals,
    unmount: &dyn Fn(bool) -> folio::Result<()>,
    session: &Session,
    detached: impl Fn(),
) {
    let mut was_busy = false;
    for signal in signals.forever() {
        let error = match unmount(false) {
            Ok(()) => return,
            Err(error) => error,
        };
        if error.errno() == Errno::INVAL {
            session.note("not mounted here: folio serves it until its last user closes it");
            detached();
        } else if error.errno() != Errno::BUSY {
            session.fail(explain(&error));
        } else if was_busy || signal != SIGINT {
            match unmount(true) {
                Ok(()) => {
                    session.note("in use: detached; folio serves it until its last user closes it");
                    detached();
                }
                Err(error) => session.fail(explain(&error)),
            }
        } else {
            was_busy = true;
            session.note(
                "in use: programs have open files or directories; press Ctrl-C again to detach it",
            );
        }
    }
}

/// Reports that the mount `description` is ready. In the background it then leaves the starter's
/// directory and output.
pub(crate) fn report_ready(
    readiness: Readiness<'_>,
    session: &Session,
    description: &str,
) -> Outcome {
    ready::notify_ready(readiness.fd, description)?;
    let Some(background) = readiness.background else {
        if !session.quiet {
            session.note(format_args!("{description} until Ctrl-C or umount"));
        }
        return Ok(());
    };
    let mut out = std::io::stdout();
    writeln!(out, "{READY}").and_then(|()| out.flush())?;
    // Releases the starter's directory, terminal and pipes.
    std::env::set_current_dir("/")?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    let log = background.log.unwrap_or(&null);
    match background.record {
        Some(record) => record.take_messages(background.log)?,
        None => rustix::stdio::dup2_stderr(log).map_err(std::io::Error::from)?,
    }
    session.log_to_system();
    Ok(())
}

/// Returns whether this process was started to serve in the background.
pub(crate) fn is_background() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Starts this command again as a separate process. Waits until it is ready, or has failed and
/// printed the reason.
pub(crate) fn start_in_background() -> Outcome {
    let program = std::env::current_exe()?;
    let mut words = std::env::args_os();
    let mut command = Command::new(program);
    // The name says how the words are read.
    command
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(BACKGROUND, "1")
        .process_group(0);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() == READY {
        return Ok(());
    }
    let exit = match child.wait()?.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Image,
        _ => Exit::Failed,
    };
    Err(Failure::exiting(exit, ""))
}
