//! Changes on the host as events in the mount: watchers of a folder and of its mount get the same
//! events, in the same order for each file. docs/semantics.md quotes these tests.
//!
//! The tests print delays (`--nocapture`), but do not limit them.

use crate::support::requires;
use crate::support::watched_tree::{SeenEvent, WatchedTree, Watcher, seeds_and_count};
use crate::{Fixture, MountSource};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;

/// A folder and its mount with events.
fn watched_mount(seed: u64) -> WatchedTree<Fixture> {
    let fixture = Fixture::on(MountSource::Directory, "rw,push=inotify,events=on");
    let (behind, mount) = (fixture.behind.clone(), fixture.mount.path());
    WatchedTree::new(fixture, behind, mount, seed)
}

/// Both watchers get the same events of random changes, in the same order for each file.
#[test]
fn random_host_changes_are_the_same_events() {
    requires!(root, fuse);
    let (seeds, count) = seeds_and_count();
    for seed in seeds {
        let mut tree = watched_mount(seed);
        tree.compare_random_changes(count);
        tree.fixture.finish();
    }
}

#[test]
fn event_arrives_with_a_delay_that_is_printed() {
    requires!(root, fuse);
    let mut tree = watched_mount(1);
    tree.print_delays();
    tree.fixture.finish();
}

/// Changes through the mount are the kernel's own events, and only those.
#[test]
fn own_changes_are_raised_once() {
    requires!(root, fuse);
    let mut tree = watched_mount(1);
    let at = |name: &str| tree.fixture.at(name);
    for round in 0..50 {
        fs::write(at("temporary"), vec![1; round * 100]).unwrap();
        fs::rename(at("temporary"), at("saved")).unwrap();
        fs::set_permissions(at("saved"), Permissions::from_mode(0o640)).unwrap();
        fs::write(at("short-lived"), "x").unwrap();
        fs::remove_file(at("short-lived")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/f"), "x").unwrap();
        fs::remove_dir_all(at("folder")).unwrap();
    }
    tree.settle();
    tree.settle();
    // The two sides are the same then, too: the mount's events are those of its own calls.
    let count = |watcher: &Watcher, name: &str, event: ReadFlags| {
        let is_event = |seen: &&SeenEvent| seen.name == name && seen.events.contains(event);
        watcher.seen.iter().filter(is_event).count()
    };
    for (name, event, expected) in [
        ("temporary", ReadFlags::CREATE, 50),
        ("temporary", ReadFlags::CLOSE_WRITE, 50),
        ("temporary", ReadFlags::MOVED_FROM, 50),
        ("saved", ReadFlags::MOVED_TO, 50),
        ("saved", ReadFlags::ATTRIB, 50),
        ("short-lived", ReadFlags::CREATE, 50),
        ("short-lived", ReadFlags::MODIFY, 50),
        ("short-lived", ReadFlags::CLOSE_WRITE, 50),
        ("short-lived", ReadFlags::DELETE, 50),
        ("folder", ReadFlags::CREATE, 50),
        ("folder", ReadFlags::DELETE, 50),
    ] {
        let seen = count(&tree.on_mount, name, event);
        // The event of an inode that was replaced meanwhile is taken for one of the new inode.
        let may_be_more = event == ReadFlags::ATTRIB && seen > expected;
        assert!(seen == expected || may_be_more, "{name} {event:?}: {seen}");
    }
    tree.fixture.finish();
}

/// Watchers of a file itself see its replacement and its removal.
#[test]
fn removed_file_ends_its_own_watch() {
    requires!(root, fuse);
    let mut tree = watched_mount(1);
    let names = ["removed", "replaced", "kept"];
    let host = |tree: &WatchedTree<Fixture>, name: &str| tree.fixture.behind.join(name);
    for name in names {
        fs::write(host(&tree, name), "old").unwrap();
    }
    fs::hard_link(host(&tree, "kept"), host(&tree, "other name")).unwrap();
    tree.settle();
    let files = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let watches = names.map(|name| {
        let events = WatchFlags::DELETE_SELF | WatchFlags::MODIFY;
        inotify::add_watch(&files, tree.fixture.at(name), events).unwrap()
    });
    fs::remove_file(host(&tree, "removed")).unwrap();
    fs::write(host(&tree, "new"), "new").unwrap();
    fs::rename(host(&tree, "new"), host(&tree, "replaced")).unwrap();
    fs::remove_file(host(&tree, "other name")).unwrap();
    tree.settle();
    let mut buf = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&files, &mut buf);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        seen.push((event.wd(), event.events()));
    }
    let expected = [ReadFlags::DELETE_SELF, ReadFlags::IGNORED];
    let expected = watches[..2]
        .iter()
        .flat_map(|wd| expected.map(|event| (*wd, event)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    tree.fixture.finish();
}

/// Two files that exchange their names keep their own watches.
#[test]
fn exchange_of_names_ends_no_watch() {
    requires!(root, fuse);
    let mut tree = watched_mount(1);
    let host = |tree: &WatchedTree<Fixture>, name: &str| tree.fixture.behind.join(name);
    for name in ["one", "two"] {
        fs::write(host(&tree, name), name).unwrap();
    }
    tree.settle();
    let files = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    for name in ["one", "two"] {
        inotify::add_watch(&files, tree.fixture.at(name), WatchFlags::DELETE_SELF).unwrap();
    }
    let names = ["one", "two"].map(|name| host(&tree, name));
    rustix::fs::renameat_with(CWD, &names[0], CWD, &names[1], RenameFlags::EXCHANGE).unwrap();
    tree.settle();
    let mut buf = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&files, &mut buf);
    let event = reader.next();
    assert!(event.is_err(), "{event:?}");
    assert_eq!(fs::read(tree.fixture.at("one")).unwrap(), b"two");
    tree.assert_same_events();
    tree.fixture.finish();
}

/// Whether all threads of a server are stopped, or wait for a stopped one: until then it reads
/// events.
fn is_stopped(process: rustix::process::Pid) -> bool {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    fs::read_dir(tasks).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (_, state) = stat.rsplit_once(") ").unwrap();
        state.starts_with(['T', 'D'])
    })
}

/// Events that the host's queue has dropped are reported on each directory.
#[test]
fn overflow_is_an_event_of_each_directory() {
    requires!(root, fuse);
    let max = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let max: usize = max.trim().parse().unwrap();
    if max > 100_000 {
        return crate::support::require::report_skip("needs an event queue that can be filled");
    }
    let mut tree = watched_mount(1);
    fs::create_dir(tree.fixture.behind.join("folder")).unwrap();
    tree.settle();
    let mount = tree.fixture.at("folder");
    tree.next += 1;
    let folder = tree.next;
    tree.on_mount.add(folder, &mount);
    let server = tree.fixture.mount.process();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    while !is_stopped(server) {
        std::thread::yield_now();
    }
    let noise = ["one", "two"].map(|name| File::create(tree.fixture.behind.join(name)).unwrap());
    for number in 0..max + 1000 {
        (&noise[number % 2]).write_all(b"x").unwrap();
    }
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    // Its name is empty: it is about the watched directory itself.
    tree.on_mount.read_until("", "overflow");
    while !(tree.on_mount.seen.iter()).any(|event| event.directory == folder) {
        tree.on_mount.read_until("", "overflow in a folder");
    }
    let last = tree.on_mount.seen.last().unwrap();
    assert!(last.events.contains(ReadFlags::ATTRIB), "{last:?}");
    drop(noise);
    tree.fixture.finish();
}

/// A server that is killed while it raises events ends, and so does its mount.
#[test]
fn killed_server_ends_while_it_raises_events() {
    requires!(root, fuse);
    for round in 0..4 {
        let mut tree = watched_mount(round);
        for number in 0..300 {
            let path = tree.fixture.behind.join(format!("f{number}"));
            fs::write(path, "x").unwrap();
        }
        let server = tree.fixture.mount.process();
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let (status, _) = tree.fixture.mount.ended();
        assert!(!status.success());
        let list = fs::read_dir(tree.fixture.mount.path());
        assert!(list.is_err(), "the mount of a dead server");
    }
}

/// Mounts that cannot raise events say so.
#[test]
fn events_on_without_notifications_is_refused() {
    requires!(root, fuse);
    let folder = tempfile::TempDir::new().unwrap();
    fs::create_dir(folder.path().join("behind")).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    for options in [
        "events=on,push=off",
        "events=on,ro",
        "events=on,passthrough=on",
    ] {
        let output = crate::support::tools::command(env!("CARGO_BIN_EXE_folio"))
            .args(["mount", "-o", options])
            .args([folder.path().join("behind"), folder.path().join("mount")])
            .output()
            .unwrap();
        let text = crate::support::tools::text(&output);
        assert!(!output.status.success(), "{options}: {text}");
        assert!(
            text.contains("option events=on: needs"),
            "{options}: {text}"
        );
    }
}
