//! A directory of the host, changed by host and guest.

use crate::support::guest::Guest;
use crate::support::{report_skip, requires, two_sides};
use crate::virtiofs::SharedSource;
use crate::virtiofs::image::MOUNT;
use tempfile::TempDir;

#[test]
fn guest_and_host_changes_are_seen() {
    requires!(tool("setfattr"), tool("getfattr"), root);
    for options in ["ttl=0", "ttl=1ms", "cache=none", "cache=writeback"] {
        let parent = TempDir::new().unwrap();
        let folder = two_sides::directory(&parent);
        let shared = SharedSource::new(&folder, &["-o", options]);
        let guest = match Guest::new() {
            Ok(guest) => two_sides::with_attributes(guest.share("share", &shared.socket)),
            Err(reason) => return report_skip(&reason),
        };
        // With writeback, data reaches the host by a sync.
        let sync = if options.contains("writeback") {
            "sync; host 9"
        } else {
            "host 9"
        };
        let script = two_sides::SCRIPT.replace("host 9", sync);
        two_sides::run(guest, &format!("{MOUNT}{script}"), &folder);
        shared.stop();
    }
}
