//! `folio notify`: changes on the host are events in a guest that mounts virtiofs.
//! docs/semantics.md quotes these tests; tests/fuse/events.rs has those of a local mount.

use crate::guest_watcher::{GuestWatcher, RunningGuest, stripped, task, with_test_program};
use crate::support::guest::Guest;
use crate::support::two_sides::LIMIT;
use crate::support::watched_tree::{WatchedTree, seeds_and_count};
use crate::support::{report_skip, requires};
use crate::virtiofs::SharedSource;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tempfile::TempDir;

/// Mounts the share, and begins to raise events.
const NOTIFY: &str = "\
mount -t virtiofs share /mnt || fail mount
folio notify --background /mnt || fail notify
";
/// The mount is not in use by folio, which ends by itself.
const UNMOUNT: &str = "\
umount /mnt || fail umount
for try in $(seq 100000); do pidof folio > /dev/null || break; done
pidof folio > /dev/null && fail 'folio notify goes on'
exit 0
";

/// Time between changes while a guest ends: less than that between two requests of a notifier.
const CHANGE_INTERVAL: Duration = Duration::from_millis(100);

/// An option that changes nothing.
const DEFAULT: &str = "rw";

/// A shared folder of the host.
struct Share {
    shared: SharedSource,
    parent: TempDir,
}

impl Share {
    #[track_caller]
    fn new(options: &str) -> Self {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("shared");
        fs::create_dir(&folder).unwrap();
        let shared = SharedSource::new(&folder, &["-o", options]);
        Self { shared, parent }
    }

    fn folder(&self) -> PathBuf {
        self.parent.path().join("shared")
    }

    /// Boots a guest with the share, with `folio` and the program of the tests; an error says why
    /// there is none.
    fn boot(&self, script: &str) -> Result<RunningGuest, String> {
        let folio = stripped(Path::new(env!("CARGO_BIN_EXE_folio")), self.parent.path());
        let guest = Guest::new()?
            .size(1024, 1)
            .share("share", &self.shared.socket)
            .program(&folio)?;
        let guest = with_test_program(guest, self.parent.path())?;
        Ok(RunningGuest::start(guest, script))
    }
}

fn watched_guest(seed: u64) -> Option<WatchedTree<Share, GuestWatcher>> {
    let share = Share::new(DEFAULT);
    let script = format!("{NOTIFY}{}{UNMOUNT}", task("watch", "/mnt"));
    let guest = match share.boot(&script) {
        Ok(guest) => guest,
        Err(reason) => {
            report_skip(&reason);
            return None;
        }
    };
    let folder = share.folder();
    let watcher = GuestWatcher::new(guest, &folder);
    let mount = PathBuf::from("/mnt");
    Some(WatchedTree::with_watcher(
        share, folder, mount, seed, watcher,
    ))
}

fn finish(tree: WatchedTree<Share, GuestWatcher>) {
    tree.on_mount.guest.finish();
    tree.fixture.shared.stop();
}

/// Both watchers get the same events of random changes, in the same order for each file.
#[test]
fn random_changes_are_same_events_in_a_guest() {
    requires!(root);
    let (seeds, count) = seeds_and_count();
    for seed in seeds {
        let Some(mut tree) = watched_guest(seed) else {
            return;
        };
        tree.compare_random_changes(count);
        finish(tree);
    }
}

#[test]
fn event_in_a_guest_has_a_delay_that_is_printed() {
    requires!(root);
    let Some(mut tree) = watched_guest(1) else {
        return;
    };
    tree.print_delays();
    tree.on_mount.end();
    finish(tree);
}

/// A program that wakes reads the new state: contents of the same length, names, and their absence.
#[test]
fn guest_reads_new_state_after_event() {
    requires!(root);
    // Nothing but the event invalidates what the guest has cached within the time to live.
    for options in [DEFAULT, "ttl=1s"] {
        let share = Share::new(options);
        fs::write(share.folder().join("file"), "text 000").unwrap();
        let script = format!("{NOTIFY}cat /mnt/file\n{}{UNMOUNT}", task("react", "/mnt"));
        match share.boot(&script) {
            Ok(guest) => assert_reads_new_state(&share, guest),
            Err(reason) => return report_skip(&reason),
        }
        share.shared.stop();
    }
}

#[track_caller]
fn assert_reads_new_state(share: &Share, guest: RunningGuest) {
    let at = |name: &str| share.folder().join(name);
    let wait_for = |text: &str| drop(guest.wait_for(text, LIMIT, text));
    wait_for("@@seen .");
    let file = OpenOptions::new().write(true).open(at("file")).unwrap();
    for round in 1..50 {
        let text = format!("text {round:03}");
        file.write_all_at(text.as_bytes(), 0).unwrap();
        wait_for(&format!("file Ok({text:?}) Some(8)."));
        fs::write(at("new"), &text).unwrap();
        wait_for(&format!("new Ok({text:?}) Some(8)."));
        fs::rename(at("new"), at("moved")).unwrap();
        wait_for("(MOVED_FROM) new Err(NotFound) None.");
        wait_for(&format!("(MOVED_TO) moved Ok({text:?}) Some(8)."));
        fs::remove_file(at("moved")).unwrap();
        wait_for("(DELETE) moved Err(NotFound) None.");
    }
    fs::write(at("end of changes"), "").unwrap();
    finish_among_changes(guest, &at("file"));
}

/// Waits for the end of the script. Meanwhile the host keeps changing a file, so that requests for
/// calls never wait for long.
#[track_caller]
fn finish_among_changes(guest: RunningGuest, file: &Path) {
    let (finished, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while waiting.recv_timeout(CHANGE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                fs::write(file, "changed").unwrap();
            }
        });
        guest.finish();
        drop(finished);
    });
}

/// Events of changes while there is no notifier arrive once there is another one.
#[test]
fn events_without_notifier_arrive_later() {
    requires!(root);
    let share = Share::new(DEFAULT);
    let at = |name: &str| share.folder().join(name);
    fs::create_dir(at("folder")).unwrap();
    let script = format!(
        "{NOTIFY}({}) & watching=$!
        until [ -e /mnt/stop ]; do :; done
        kill $(pidof folio)
        while pidof folio > /dev/null; do :; done
        echo @@stopped
        until [ -e /mnt/again ]; do :; done
        folio notify --background /mnt || fail 'notify again'
        wait $watching || fail watch
        {UNMOUNT}",
        task("react", "/mnt/folder")
    );
    let guest = match share.boot(&script) {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    let wait_for = |text: &str| drop(guest.wait_for(text, LIMIT, text));
    wait_for("@@seen .");
    fs::write(at("folder/before"), "").unwrap();
    wait_for("(CREATE) before");
    fs::write(at("stop"), "").unwrap();
    wait_for("@@stopped");
    fs::write(at("folder/meanwhile"), "text").unwrap();
    fs::rename(at("folder/meanwhile"), at("folder/moved")).unwrap();
    fs::write(at("again"), "").unwrap();
    wait_for("(CREATE) meanwhile");
    wait_for("(MOVED_TO) moved Ok(\"text\") Some(4).");
    fs::write(at("folder/end of changes"), "").unwrap();
    guest.finish();
    share.shared.stop();
}

/// What has no notifier says so, and what to do.
const REFUSALS: &str = r#"
refused() { text=$(folio notify "$1" 2>&1) && fail "$1: $text"; echo "$text" | grep -q "$2" || fail "$1: $text"; }
refused /tmp 'folio share DIR --socket PATH'
mkdir /tmp/d /tmp/ro /mnt/sub
mount --bind /mnt/sub /tmp/d; refused /tmp/d 'not the root'
folio notify /mnt 2> /tmp/first & first=$!
for try in $(seq 100000); do grep -q 'until Ctrl-C' /tmp/first && break; done
mount -o bind /mnt /tmp/ro; mount -o remount,bind,ro /tmp/ro; refused /tmp/ro 'read-only'
kill $first; wait $first || fail "a refused notifier has replaced another: $(cat /tmp/first)"
printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n' > /etc/passwd
chmod 755 /mnt
su user -c '/bin/folio notify /mnt' > /tmp/said 2>&1 && fail 'a notifier of an ordinary user'
grep -q 'only root' /tmp/said || fail "$(cat /tmp/said)"
folio notify /mnt 2> /tmp/first & first=$!
for try in $(seq 100000); do grep -q 'until Ctrl-C' /tmp/first && break; done
folio notify /mnt 2> /tmp/second & second=$!
wait $first && fail 'two notifiers of one mount'
grep -q 'another folio notify' /tmp/first || fail "$(cat /tmp/first)"
kill $second; wait $second || fail "$(cat /tmp/second)"
folio notify /mnt 2> /tmp/third & third=$!
for try in $(seq 100000); do grep -q 'until Ctrl-C' /tmp/third && break; done
umount /tmp/d /tmp/ro; mount -o remount,ro /mnt || fail remount
echo @@remounted
wait $third && fail 'a notifier of a mount that has become read-only'
grep -q 'the mount is read-only' /tmp/third || fail "$(cat /tmp/third)"
"#;

#[test]
fn notifier_is_refused_with_a_reason() {
    requires!(root);
    let share = Share::new(DEFAULT);
    let script = format!("mount -t virtiofs share /mnt || fail mount\nmkdir /etc\n{REFUSALS}");
    match share.boot(&script) {
        Ok(guest) => {
            guest.wait_for("@@remounted", LIMIT, "remount");
            fs::write(share.folder().join("new"), "").unwrap();
            guest.finish();
        }
        Err(reason) => return report_skip(&reason),
    }
    share.shared.stop();
}
