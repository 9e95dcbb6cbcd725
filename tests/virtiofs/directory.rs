//! A directory of the host in a guest, which both change.

use crate::support::guest::Guest;
use crate::support::{report_skip, requires, two_sides};
use crate::virtiofs::Shared;
use crate::virtiofs::image::MOUNT;
use tempfile::TempDir;

#[test]
fn host_and_guest_change_one_directory() {
    requires!(tool("setfattr"), tool("getfattr"), root);
    for words in ["ttl=0", "ttl=1ms", "cache=none", "cache=writeback"] {
        let parent = TempDir::new().unwrap();
        let folder = two_sides::directory(&parent);
        let shared = Shared::new(&folder, &["-o", words]);
        let guest = match Guest::new() {
            Ok(guest) => two_sides::with_attributes(guest.share("share", &shared.socket)),
            Err(reason) => return report_skip(&reason),
        };
        // What is written back is the host's after a sync.
        let sync = if words.contains("writeback") {
            "sync; host 9"
        } else {
            "host 9"
        };
        let script = two_sides::SCRIPT.replace("host 9", sync);
        two_sides::run(guest, &format!("{MOUNT}{script}"), &folder);
        shared.stop();
    }
}
