//! Confirmation of a finding: a file that waited is examined again, after the command.
//!
//! The calls of the command may also have waited for a processor. A thread of its own asks, as a
//! server may not answer.

use super::part::Cost;
use super::reopen;
use crate::probe::attributes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for the server.
const LIMIT: Duration = Duration::from_secs(1);
/// Pause between looks at `should_stop`.
const PAUSE: Duration = Duration::from_millis(20);

/// Measures whether a server is asked again for the name and the attributes of the file that waited
/// longest, and then how long an open takes without them. If the file does not exist any more, its
/// folder is examined: the mount has one validity for all.
pub(crate) fn confirm(cost: &mut Cost, should_stop: &AtomicBool) {
    let Some(path) = cost.example.clone() else {
        return;
    };
    let (part, opens) = (cost.part, cost.opens);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut places = path.ancestors();
        let place = places.find(|place| place.symlink_metadata().is_ok());
        let is_asked = place.and_then(|place| attributes::are_asked_again(place).ok());
        let is_measured = is_asked == Some(true);
        let reopen_ns = is_measured.then(|| reopen::measure(part, opens, &path));
        // The receiver has stopped waiting, or takes it.
        let _ = sender.send((is_asked, reopen_ns.flatten()));
    });
    let start = Instant::now();
    while start.elapsed() < LIMIT && !should_stop.load(Ordering::Relaxed) {
        match receiver.recv_timeout(PAUSE) {
            Ok(found) => {
                (cost.is_asked, cost.reopen_ns) = found;
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::Part;
    use super::*;

    #[test]
    fn local_file_is_not_asked_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut cost = Cost::new(Part::Attributes, 0);
        cost.example = Some(file.path().to_owned());
        confirm(&mut cost, &AtomicBool::new(true));
        assert_eq!(cost.is_asked, None);
        confirm(&mut cost, &AtomicBool::new(false));
        assert_eq!(cost.is_asked, Some(false));
        cost.is_asked = None;
        // Its folder.
        cost.example = Some(file.path().with_extension("removed"));
        confirm(&mut cost, &AtomicBool::new(false));
        assert_eq!(cost.is_asked, Some(false));
    }
}
