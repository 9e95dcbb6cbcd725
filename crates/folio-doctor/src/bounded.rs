//! Calls with a limited wait, since a server of files may never answer.
//!
//! Each call has a thread of its own. One that does not return goes on waiting, and ends with the
//! process.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
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
    let (sender, receiver) = channel();
    // The receiver has stopped waiting, or takes it.
    std::thread::spawn(move || drop(sender.send(call())));
    let start = Instant::now();
    while start.elapsed() < limit && !should_stop.load(Ordering::Relaxed) {
        match receiver.recv_timeout(PAUSE) {
            Ok(found) => return Some(found),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Returns whether the file system of a mount answers: no kernel keeps a server's answer to
/// statfs(2).
pub(crate) fn is_answering(mount_point: PathBuf, should_stop: &AtomicBool) -> bool {
    let ask = move || rustix::fs::statfs(&mount_point).is_ok();
    within(ANSWER_MAX, should_stop, ask).is_some()
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
}
