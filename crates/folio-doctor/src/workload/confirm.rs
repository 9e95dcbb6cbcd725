//! Confirmation of a finding: a file that waited is examined again, after the command.
//!
//! The calls of the command may also have waited for a processor.

use super::part::Cost;
use super::reopen;
use crate::bounded;
use crate::probe::attributes;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longest wait for the server.
const LIMIT: Duration = Duration::from_secs(1);

/// Measures whether a server is asked again for the name and the attributes of the file that waited
/// longest, and then how long an open takes without them. If the file does not exist any more, its
/// folder is examined: the mount has one validity for all.
pub(crate) fn confirm(cost: &mut Cost, should_stop: &AtomicBool) {
    let Some(path) = cost.example.clone() else {
        return;
    };
    let (part, opens) = (cost.part, cost.opens);
    let found = bounded::within(LIMIT, should_stop, move || {
        let mut places = path.ancestors();
        let place = places.find(|place| place.symlink_metadata().is_ok());
        let is_asked = place.and_then(|place| attributes::are_asked_again(place).ok());
        let is_measured = is_asked == Some(true);
        let reopen_ns = is_measured.then(|| reopen::measure(part, opens, &path));
        (is_asked, reopen_ns.flatten())
    });
    if let Some(found) = found {
        (cost.is_asked, cost.reopen_ns) = found;
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
