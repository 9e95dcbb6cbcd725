//! Changes by the host and by other clients as events in the mount of a remote share.
//! docs/semantics.md quotes these tests; tests/fuse/events.rs has those of a local mount.

use crate::remote::host::SharedDirectory;
use crate::remote::mount::RemoteMount;
use crate::remote::proxy::Proxy;
use crate::remote::{ImageFolder, RunningCommand, wait_until};
use crate::support::requires;
use crate::support::tools::command;
use crate::support::watched_tree::{WatchedTree, Watcher, seeds_and_count};
use rustix::fs::RenameFlags;
use rustix::fs::inotify::ReadFlags;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const EVENTS: [&str; 2] = ["-o", "events=on"];

/// A shared directory of the host, and its mount.
struct Share {
    mount: RemoteMount,
    host: SharedDirectory,
}

fn watched_share(seed: u64) -> WatchedTree<Share> {
    let host = SharedDirectory::new(&[]);
    let mount = RemoteMount::new(&host.shared.address, &EVENTS);
    wait_until("the share answers", || fs::read_dir(mount.path()).is_ok());
    let (behind, path) = (host.at(""), mount.path().to_owned());
    WatchedTree::new(Share { mount, host }, behind, path, seed)
}

fn finish(tree: WatchedTree<Share>) {
    let Share { mount, host } = tree.fixture;
    // They have the directories open.
    drop((tree.on_host, tree.on_mount));
    mount.unmount();
    host.shared.stop();
}

/// Both watchers get the same events of random changes, in the same order for each file.
#[test]
fn random_changes_are_same_events_of_a_share() {
    requires!(root, fuse);
    let (seeds, count) = seeds_and_count();
    for seed in seeds {
        let mut tree = watched_share(seed);
        tree.compare_random_changes(count);
        finish(tree);
    }
}

#[test]
fn event_of_a_share_has_a_delay_that_is_printed() {
    requires!(root, fuse);
    let mut tree = watched_share(1);
    tree.print_delays();
    finish(tree);
}

/// Makes each kind of change in a directory.
fn change_everything(directory: &Path) {
    let at = |name: &str| directory.join(name);
    fs::write(at("file"), "x").unwrap();
    File::options().append(true).open(at("file")).unwrap();
    fs::set_permissions(at("file"), Permissions::from_mode(0o600)).unwrap();
    OpenOptions::new()
        .write(true)
        .open(at("file"))
        .unwrap()
        .set_len(9)
        .unwrap();
    // From here on, data of the file may be reported by its other name.
    fs::hard_link(at("file"), at("link")).unwrap();
    symlink("anywhere", at("symlink")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::rename(at("file"), at("folder/moved")).unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::rename(at("new"), at("link")).unwrap();
    let (one, two) = (at("link"), at("symlink"));
    let flags = RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &two, flags).unwrap();
    fs::remove_dir_all(at("folder")).unwrap();
    fs::remove_file(at("symlink")).unwrap();
    fs::write(at("end"), "").unwrap();
}

/// Changes by one client are events of another one, and no second ones of its own. The kernel opens
/// and closes the files of an image without a request, so their ends of writing are not known.
#[track_caller]
fn assert_clients_see_the_same(address: &str, has_closes: bool) {
    let [one, two] = [(); 2].map(|()| RemoteMount::new(address, &EVENTS));
    for mount in [&one, &two] {
        wait_until("the share answers", || fs::read_dir(mount.path()).is_ok());
    }
    let [mut own, mut other] = [&one, &two].map(|mount| {
        let mut watcher = Watcher::new();
        watcher.add(1, mount.path());
        watcher
    });
    change_everything(one.path());
    own.read_until("end", "own");
    other.read_until("end", "another client");
    fs::write(one.at("second end"), "").unwrap();
    own.read_until("second end", "own");
    other.read_until("second end", "another client");
    let without_end = |watcher: &Watcher| {
        let mut names = watcher.by_name();
        names.retain(|(_, name), _| name != "second end");
        // The server itself sets the owner of what is new, which may be another event.
        let is_certain = |event: &ReadFlags| {
            !event.contains(ReadFlags::ATTRIB) && (has_closes || *event != ReadFlags::CLOSE_WRITE)
        };
        for events in names.values_mut() {
            events.retain(is_certain);
            events.dedup();
        }
        names
    };
    assert_eq!(without_end(&other), without_end(&own));
    assert_eq!(other.moves(), own.moves());
    drop((own, other));
    two.unmount();
    one.unmount();
}

#[test]
fn changes_by_one_client_are_events_of_another() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let host = SharedDirectory::new(&[]);
    assert_clients_see_the_same(&host.shared.address, true);
    host.shared.stop();
    let image = ImageFolder::new();
    let shared = image.share();
    assert_clients_see_the_same(&shared.address, false);
    shared.stop();
}

/// A client that asks for events gets all of them, although another one has not asked.
#[test]
fn events_begin_after_a_client_without_them() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    fs::create_dir(host.at("folder")).unwrap();
    let plain = RemoteMount::new(&host.shared.address, &[]);
    wait_until("the share answers", || plain.at("folder").exists());
    let mount = RemoteMount::new(&host.shared.address, &EVENTS);
    wait_until("the share answers", || mount.at("folder").exists());
    let mut watcher = Watcher::new();
    watcher.add(1, &mount.at("folder"));
    fs::write(host.at("folder/file"), "x").unwrap();
    while !watcher
        .seen
        .iter()
        .any(|event| event.events.contains(ReadFlags::CLOSE_WRITE))
    {
        watcher.read_until("file", "a new file");
    }
    drop(watcher);
    mount.unmount();
    plain.unmount();
    host.shared.stop();
}

/// Events of changes without a connection arrive once there is one.
#[test]
fn events_without_connection_arrive_later() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    let path = |name: &str| host.folder.path().join(name);
    let proxy = Proxy::new(&path("proxy"), &path("socket"), 1);
    proxy.stop_cutting();
    let mount = RemoteMount::new(&proxy.address(), &EVENTS);
    wait_until("the share answers", || fs::read_dir(mount.path()).is_ok());
    let mut watcher = Watcher::new();
    watcher.add(1, mount.path());
    for round in 0..5 {
        proxy.cut();
        let name = format!("file {round}");
        fs::write(host.at(&name), "x").unwrap();
        watcher.read_until(&name, "a cut connection");
    }
    drop(watcher);
    mount.unmount();
    host.shared.stop();
}

/// The client closes the mount although its server does not end the burst.
#[test]
fn server_killed_in_burst_leaves_mount_unmountable() {
    requires!(root, fuse);
    let mut host = SharedDirectory::new(&[]);
    let words = [&EVENTS[..], &["--retry", "1"]].concat();
    let mount = RemoteMount::new(&host.shared.address, &words);
    wait_until("the share answers", || fs::read_dir(mount.path()).is_ok());
    let mut watcher = Watcher::new();
    watcher.add(1, mount.path());
    for _ in 0..2_000 {
        File::create(host.at("file")).unwrap();
        fs::remove_file(host.at("file")).unwrap();
    }
    watcher.read_until("file", "a burst");
    host.shared.running.kill();
    drop(watcher);
    mount.unmount();
}

/// A mount that another mount hides misses events, and gets an event of each directory afterwards.
#[test]
fn hidden_mount_gets_an_overflow_afterwards() {
    requires!(root, fuse);
    let mut tree = watched_share(1);
    tree.settle();
    let path = tree.fixture.mount.path().to_owned();
    let mounted = command("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(&path)
        .status();
    assert!(mounted.unwrap().success());
    let stderr = &tree.fixture.mount.running.stderr;
    let mut count = 0;
    // The client may still have the mount open for the events before.
    wait_until("the mount cannot be reached", || {
        count += 1;
        File::create(tree.fixture.host.at(&format!("missed {count}"))).unwrap();
        stderr.all().contains("the mount cannot be reached")
    });
    assert!(command("umount").arg(&path).status().unwrap().success());
    // Its name is empty: it is about the directory itself. Later events may follow.
    tree.on_mount.read_until("", "overflow");
    let seen = &tree.on_mount.seen;
    let overflow = seen.iter().rfind(|event| event.name.is_empty()).unwrap();
    assert!(overflow.events.contains(ReadFlags::ATTRIB), "{overflow:?}");
    tree.settle();
    finish(tree);
}

#[test]
fn events_without_notifications_are_refused() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&["-o", "push=off"]);
    let target = tempfile::TempDir::new().unwrap();
    let place = target.path().to_str().unwrap();
    for words in [&["-o", "events=on"][..], &["-o", "events=on,ro"]] {
        let words = [&["mount", &host.shared.address, place], words].concat();
        let refused = RunningCommand::start(&words);
        assert!(
            refused.stderr.has_line_before_end("events=on"),
            "{}",
            refused.stderr.all()
        );
    }
    host.shared.stop();
}
