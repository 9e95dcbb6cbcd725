//! Calls with a limited wait, since a server of files may never answer.
//!
//! Each call has a thread of its own. One that does not return goes on waiting, and ends with the
//! process. A server that has read a request and does not answer it prevents even that: the kernel
//! then waits uninterruptibly. The first question is therefore asked by a child process.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::Metadata;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for a server that answers; a busy machine delays the answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause between looks at `should_stop`.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the result of a call; `None` if it does not return in time, or after `should_stop`.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    should_stop: &AtomicBool,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if should_stop.load(Ordering::Relaxed) {
        return None;
    }
    let (sender, receiver) = channel();
    // The receiver has stopped waiting, or takes it.
    std::thread::spawn(move || drop(sender.send(call())));
    received(&receiver, limit, should_stop)
}

/// Waits for the result of a call.
fn received<T>(receiver: &Receiver<T>, limit: Duration, should_stop: &AtomicBool) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < limit && !should_stop.load(Ordering::Relaxed) {
        match receiver.recv_timeout(PAUSE) {
            Ok(found) => return Some(found),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    // The answer may have arrived meanwhile.
    receiver.try_recv().ok()
}

/// Returns whether the file system of a mount answers, with or without an error. The kernel caches
/// no answer to statfs(2); overlayfs asks its upper layer only.
pub(crate) fn is_answering(mount_point: PathBuf, should_stop: &AtomicBool) -> bool {
    let mut question = Command::new("stat");
    question.args(["-f", "--"]).arg(&mount_point);
    let ask = move || rustix::fs::statfs(&mount_point).is_ok();
    match has_ended(question, ANSWER_MAX, should_stop) {
        Ok(has_ended) => has_ended,
        // stat(1) does not exist.
        Err(_) => within(ANSWER_MAX, should_stop, ask).is_some(),
    }
}

/// Runs a program without input and output; returns whether it ended in time. One that did not is
/// killed and not waited for, since it may end with the server only.
///
/// # Errors
/// If the program cannot be started.
fn has_ended(mut program: Command, limit: Duration, should_stop: &AtomicBool) -> io::Result<bool> {
    // Ctrl-C at the terminal is for the command.
    program.process_group(0).stdin(Stdio::null());
    program.stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    // The search for the program may also wait for a server.
    let Some(child) = within(limit, should_stop, move || program.spawn()) else {
        return Ok(false);
    };
    let mut child = child?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let rest = limit.saturating_sub(start.elapsed());
    let has_ended = within(rest, should_stop, move || child.wait()).is_some();
    if !has_ended && let Ok(process) = process {
        // It may have ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    Ok(has_ended)
}

/// Returns the metadata of a path, if it exists and its server answers.
pub(crate) fn metadata(path: &Path) -> Option<Metadata> {
    let path = path.to_owned();
    let found = within(ANSWER_MAX, &AtomicBool::new(false), move || path.metadata());
    found?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_does_not_return_is_left() {
        let (never, stopped) = (AtomicBool::new(false), AtomicBool::new(true));
        let (sender, receiver) = channel::<()>();
        let waits = move || receiver.recv().is_ok();
        assert_eq!(within(Duration::from_millis(1), &never, waits), None);
        assert!(sender.send(()).is_ok(), "its thread still waits");
        assert_eq!(within(Duration::MAX, &never, || 7), Some(7));
        assert_eq!(within(Duration::MAX, &stopped, || 7), None);
        assert!(metadata(Path::new("/")).is_some_and(|found| found.is_dir()));
        assert!(metadata(Path::new("/nowhere/at/all")).is_none());
    }

    #[test]
    fn answer_that_has_arrived_is_returned() {
        let never = AtomicBool::new(false);
        let (sender, receiver) = channel();
        // The limit ends after the answer, while no answer is waited for.
        sender.send(7).unwrap();
        assert_eq!(received(&receiver, Duration::ZERO, &never), Some(7));
        assert_eq!(received(&receiver, Duration::ZERO, &never), None);
    }

    #[test]
    fn program_that_does_not_end_is_killed() {
        let never = AtomicBool::new(false);
        let program = |words: &[&str]| {
            let mut program = Command::new(words[0]);
            program.args(&words[1..]);
            program
        };
        assert!(has_ended(program(&["true"]), ANSWER_MAX, &never).unwrap());
        assert!(has_ended(program(&["false"]), ANSWER_MAX, &never).unwrap());
        has_ended(program(&["/nowhere/at/all"]), ANSWER_MAX, &never).unwrap_err();
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let path = pipe.to_str().unwrap();
        let limit = Duration::from_millis(100);
        assert!(!has_ended(program(&["cat", path]), limit, &never).unwrap());
        assert!(is_answering("/".into(), &never));
        assert!(is_answering("/nowhere/at/all".into(), &never));
    }
}
