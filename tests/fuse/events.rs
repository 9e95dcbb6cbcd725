//! Changes on the host as events in the mount: watchers of a folder and of its mount get the same
//! events, in the same order for each file. docs/semantics.md quotes these tests.
//!
//! The tests print delays (`--nocapture`), but do not limit them.

use crate::support::random::{Random, number};
use crate::support::requires;
use crate::support::rounds::is_long;
use crate::{Fixture, MountSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, RenameFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an event may be on its way before the test gives up.
const LOST: Duration = Duration::from_secs(120);

/// The events of changes. Opens, reads and closes after reads are not sent from the host. The host
/// sends `IN_DELETE_SELF` only once the server has closed the directory, too.
fn watched() -> WatchFlags {
    WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR
}

/// An event of a directory, which the test knows by number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenEvent {
    directory: usize,
    name: String,
    events: ReadFlags,
    cookie: u32,
}

/// One name in one directory.
type EventKey = (usize, String);

/// An inotify instance with watches of directories.
struct Watcher {
    fd: OwnedFd,
    directories: HashMap<i32, usize>,
    seen: Vec<SeenEvent>,
}

impl Watcher {
    fn new() -> Self {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        Self {
            fd: inotify::init(flags).unwrap(),
            directories: HashMap::new(),
            seen: Vec::new(),
        }
    }

    fn add(&mut self, directory: usize, path: &Path) {
        let wd = inotify::add_watch(&self.fd, path, watched()).unwrap();
        self.directories.insert(wd, directory);
    }

    /// Reads events until one has this name.
    #[track_caller]
    fn read_until(&mut self, name: &str, what: &str) {
        let start = Instant::now();
        let from = self.seen.len();
        while !self.seen[from..].iter().any(|event| event.name == name) {
            let last = self.seen.last();
            assert!(start.elapsed() < LOST, "{what}: no event {name}: {last:?}");
            let mut ready = [PollFd::new(&self.fd, PollFlags::IN)];
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            if poll(&mut ready, Some(&second)) == Ok(1) {
                self.read();
            }
        }
    }

    fn read(&mut self) {
        let mut buf = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(&self.fd, &mut buf);
        while let Ok(event) = reader.next() {
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
            if event.events().contains(ReadFlags::IGNORED) {
                continue;
            }
            let name = event.file_name().unwrap_or_default().to_string_lossy();
            self.seen.push(SeenEvent {
                directory: self.directories[&event.wd()],
                name: name.into_owned(),
                events: event.events(),
                cookie: event.cookie(),
            });
        }
    }

    /// Returns the events of each name, equal ones in succession as one.
    fn by_name(&self) -> BTreeMap<EventKey, Vec<ReadFlags>> {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for event in &self.seen {
            let events = names
                .entry((event.directory, event.name.clone()))
                .or_default();
            if events.last() != Some(&event.events) {
                events.push(event.events);
            }
        }
        names
    }

    /// Returns the moves, each with both names.
    fn moves(&self) -> Vec<(EventKey, EventKey)> {
        let mut from = HashMap::new();
        let mut moves = Vec::new();
        for event in &self.seen {
            let key = (event.directory, event.name.clone());
            if event.events.contains(ReadFlags::MOVED_FROM) {
                from.insert(event.cookie, key);
            } else if event.events.contains(ReadFlags::MOVED_TO) {
                let from = from.remove(&event.cookie);
                moves.push((from.unwrap_or_default(), key));
            }
        }
        moves
    }
}

/// A folder of the host and its mount, both watched, and random changes of the folder.
struct WatchedTree {
    fixture: Fixture,
    on_host: Watcher,
    on_mount: Watcher,
    random: Random,
    /// Directories: number and path. The first is the root.
    directories: Vec<(usize, PathBuf)>,
    files: Vec<PathBuf>,
    next: usize,
    /// The last changes, for messages.
    log: Vec<String>,
}

impl WatchedTree {
    fn new(options: &str, seed: u64) -> Self {
        let fixture = Fixture::on(MountSource::Directory, options);
        let mut this = Self {
            fixture,
            on_host: Watcher::new(),
            on_mount: Watcher::new(),
            random: Random::new(seed),
            directories: Vec::new(),
            files: Vec::new(),
            next: 0,
            log: Vec::new(),
        };
        this.watch(PathBuf::new());
        this
    }

    fn host(&self, path: &Path) -> PathBuf {
        self.fixture.behind.join(path)
    }

    /// Watches a directory on both sides.
    fn watch(&mut self, path: PathBuf) {
        self.next += 1;
        let number = self.next;
        let (host, mount) = (self.host(&path), self.fixture.mount.at(&path));
        self.on_host.add(number, &host);
        self.on_mount.add(number, &mount);
        self.directories.push((number, path));
    }

    /// Waits until both watchers have the events of all changes so far.
    #[track_caller]
    fn settle(&mut self) {
        self.next += 1;
        let marker = format!("marker {}", self.next);
        File::create(self.fixture.behind.join(&marker)).unwrap();
        let what = format!(
            "after {:?}",
            self.log.iter().rev().take(8).collect::<Vec<_>>()
        );
        self.on_host.read_until(&marker, "host");
        self.on_mount.read_until(&marker, &what);
        fs::remove_file(self.fixture.behind.join(&marker)).unwrap();
    }

    fn new_name(&mut self) -> PathBuf {
        self.next += 1;
        let (_, directory) = self.random.pick(&self.directories);
        // Few names, so that they are used again.
        directory.join(format!("n{}", self.next % 40))
    }

    fn is_free(&self, path: &Path) -> bool {
        !self.files.iter().any(|file| file == path)
            && !self.directories.iter().any(|(_, other)| other == path)
    }

    /// Makes one random change.
    fn change(&mut self) {
        let kind = self.random.below(100);
        let path = self.new_name();
        let is_free = self.is_free(&path);
        let file = (!self.files.is_empty()).then(|| self.random.pick(&self.files));
        self.log.push(format!("{kind} {} {file:?}", path.display()));
        match (kind, file) {
            (..15, _) | (_, None) if is_free => {
                fs::write(self.host(&path), vec![7; kind * 100]).unwrap();
                self.files.push(path);
            }
            (15..75, Some(file)) => self.change_file(kind, &file, &path, is_free),
            (75..80, _) if is_free => {
                symlink("anywhere", self.host(&path)).unwrap();
                // Later changes would follow it.
                fs::remove_file(self.host(&path)).unwrap();
            }
            (80..88, _) if is_free && self.directories.len() < 12 => {
                fs::create_dir(self.host(&path)).unwrap();
                self.settle();
                self.watch(path);
            }
            (88..92, _) => self.move_directory(&path, is_free),
            (92..96, _) if self.directories.len() > 1 => {
                let (_, directory) = self.random.pick(&self.directories[1..]);
                fs::remove_dir_all(self.host(&directory)).unwrap();
                self.files.retain(|file| !file.starts_with(&directory));
                self.directories
                    .retain(|(_, other)| !other.starts_with(&directory));
            }
            (96.., _) => {
                let (_, directory) = self.random.pick(&self.directories);
                fs::set_permissions(self.host(&directory), Permissions::from_mode(0o755)).unwrap();
            }
            _ => {}
        }
    }

    fn change_file(&mut self, kind: usize, file: &Path, path: &Path, is_free: bool) {
        let host = self.host(file);
        match kind {
            15..25 => {
                let mut append = OpenOptions::new().append(true).open(&host).unwrap();
                append.write_all(b"more").unwrap();
            }
            25..32 => {
                let size = self.random.below(9000_u64);
                let file = OpenOptions::new().write(true).open(&host).unwrap();
                file.set_len(size).unwrap();
            }
            32..40 => fs::set_permissions(&host, Permissions::from_mode(0o600)).unwrap(),
            40..52 => {
                fs::remove_file(&host).unwrap();
                self.files.retain(|other| other != file);
            }
            52..62 if is_free => {
                fs::rename(&host, self.host(path)).unwrap();
                self.files.retain(|other| other != file);
                self.files.push(path.to_owned());
            }
            62..70 => {
                let new = self.host(Path::new("new version"));
                fs::write(&new, "replaced").unwrap();
                fs::rename(&new, &host).unwrap();
            }
            70..75 if is_free => {
                fs::hard_link(&host, self.host(path)).unwrap();
                self.files.push(path.to_owned());
            }
            _ => {}
        }
    }

    fn move_directory(&mut self, to: &Path, is_free: bool) {
        if self.directories.len() < 2 || !is_free {
            return;
        }
        let (_, from) = self.random.pick(&self.directories[1..]);
        if to.starts_with(&from) {
            return;
        }
        fs::rename(self.host(&from), self.host(to)).unwrap();
        let below = |path: &mut PathBuf| {
            if let Ok(rest) = path.strip_prefix(&from) {
                *path = if rest.as_os_str().is_empty() {
                    to.to_owned()
                } else {
                    to.join(rest)
                };
            }
        };
        self.files.iter_mut().for_each(below);
        self.directories
            .iter_mut()
            .for_each(|(_, path)| below(path));
    }

    /// Compares both streams.
    #[track_caller]
    fn assert_same_events(&mut self) {
        self.settle();
        // The removal of the last marker.
        self.settle();
        let mut differences = Vec::new();
        let (host, mount) = (self.on_host.by_name(), self.on_mount.by_name());
        for key in host.keys().chain(mount.keys()) {
            let (expected, seen) = (host.get(key), mount.get(key));
            if expected != seen && !key.1.starts_with("marker") {
                differences.push(format!("{key:?}: host {expected:?}, mount {seen:?}"));
            }
        }
        differences.dedup();
        let count = differences.len();
        differences.truncate(10);
        assert!(
            differences.is_empty(),
            "{count} names differ:\n{}",
            differences.join("\n")
        );
        assert_eq!(self.on_mount.moves(), self.on_host.moves(), "moves");
    }
}

/// Both watchers get the same events of random changes, in the same order for each file.
#[test]
fn random_host_changes_are_the_same_events() {
    requires!(root, fuse);
    let count = if is_long() { 10_000 } else { 1_000 };
    let first = number("FOLIO_EVENT_SEED").unwrap_or(1);
    for seed in first..first + if is_long() { 10 } else { 1 } {
        let mut tree = WatchedTree::new("rw,push=inotify,events=on", seed);
        let start = Instant::now();
        for _ in 0..count {
            tree.change();
        }
        tree.assert_same_events();
        println!(
            "seed {seed}: {count} changes, {} events on the host, {} in the mount, {:.1} s",
            tree.on_host.seen.len(),
            tree.on_mount.seen.len(),
            start.elapsed().as_secs_f64()
        );
        tree.fixture.finish();
    }
}

/// Prints the delay from a change on the host to its event in the mount.
#[test]
fn event_arrives_with_a_delay_that_is_printed() {
    requires!(root, fuse);
    let mut tree = WatchedTree::new("rw,push=inotify,events=on", 1);
    let rounds = if is_long() { 5_000 } else { 200 };
    let mut delays = Vec::new();
    for round in 0..rounds {
        let name = format!("f{round}");
        let path = tree.fixture.behind.join(&name);
        let start = Instant::now();
        File::create(&path).unwrap();
        tree.on_mount.read_until(&name, "create");
        delays.push(start.elapsed());
        tree.settle();
    }
    delays.sort();
    let at = |percent: usize| delays[(delays.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{rounds} creations: {:.3} ms at the median, {:.3} ms at 99 percent",
        at(50),
        at(99)
    );
    tree.fixture.finish();
}

/// Changes through the mount are the kernel's own events, and only those.
#[test]
fn own_changes_are_raised_once() {
    requires!(root, fuse);
    let mut tree = WatchedTree::new("rw,push=inotify,events=on", 1);
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
    let mut tree = WatchedTree::new("rw,push=inotify,events=on", 1);
    let names = ["removed", "replaced", "kept"];
    let host = |tree: &WatchedTree, name: &str| tree.fixture.behind.join(name);
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
    let mut tree = WatchedTree::new("rw,push=inotify,events=on", 1);
    let host = |tree: &WatchedTree, name: &str| tree.fixture.behind.join(name);
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
    let mut tree = WatchedTree::new("rw,push=inotify,events=on", 1);
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
        let mut tree = WatchedTree::new("rw,push=inotify,events=on", round);
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
