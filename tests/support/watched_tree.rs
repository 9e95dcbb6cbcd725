//! A folder and its mount, both watched: random changes of the folder must be the same events on
//! both sides, in the same order for each file.

use super::random::{Random, number};
use super::rounds::is_long;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an event may be on its way before the test gives up.
const LOST: Duration = Duration::from_secs(120);

/// The events of changes. Opens, reads and closes after reads are not sent from the host. The host
/// sends `IN_DELETE_SELF` only once the server has closed the directory, too.
pub fn watched() -> WatchFlags {
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
pub struct SeenEvent {
    pub directory: usize,
    pub name: String,
    pub events: ReadFlags,
    pub cookie: u32,
}

/// One name in one directory.
pub type EventKey = (usize, String);

/// A watcher of the directories of a mount, on this machine or in a guest.
pub trait MountWatcher {
    /// Watches a directory, which has a number.
    fn add(&mut self, directory: usize, path: &Path);

    /// Reads events until one has this name.
    #[track_caller]
    fn read_until(&mut self, name: &str, what: &str);

    /// Returns the events so far, after the last change.
    fn all_seen(&mut self) -> &[SeenEvent];
}

/// An inotify instance with watches of directories.
pub struct Watcher {
    fd: OwnedFd,
    directories: HashMap<i32, usize>,
    pub seen: Vec<SeenEvent>,
}

impl Watcher {
    pub fn new() -> Self {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        Self {
            fd: inotify::init(flags).unwrap(),
            directories: HashMap::new(),
            seen: Vec::new(),
        }
    }

    /// Watches a directory, which has a number.
    pub fn add(&mut self, directory: usize, path: &Path) {
        let wd = inotify::add_watch(&self.fd, path, watched()).unwrap();
        self.directories.insert(wd, directory);
    }

    /// Reads events until one has this name.
    #[track_caller]
    pub fn read_until(&mut self, name: &str, what: &str) {
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
    pub fn by_name(&self) -> BTreeMap<EventKey, Vec<ReadFlags>> {
        by_name(&self.seen)
    }

    /// Returns the moves, each with both names.
    pub fn moves(&self) -> Vec<(EventKey, EventKey)> {
        moves(&self.seen)
    }
}

impl MountWatcher for Watcher {
    fn add(&mut self, directory: usize, path: &Path) {
        Self::add(self, directory, path);
    }

    #[track_caller]
    fn read_until(&mut self, name: &str, what: &str) {
        Self::read_until(self, name, what);
    }

    fn all_seen(&mut self) -> &[SeenEvent] {
        &self.seen
    }
}

fn by_name(seen: &[SeenEvent]) -> BTreeMap<EventKey, Vec<ReadFlags>> {
    let mut names = BTreeMap::<_, Vec<_>>::new();
    for event in seen {
        let events = names
            .entry((event.directory, event.name.clone()))
            .or_default();
        if events.last() != Some(&event.events) {
            events.push(event.events);
        }
    }
    names
}

fn moves(seen: &[SeenEvent]) -> Vec<(EventKey, EventKey)> {
    let mut from = HashMap::new();
    let mut moves = Vec::new();
    for event in seen {
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

/// A folder of the host and its mount, both watched, and random changes of the folder. `M` keeps
/// the mount, and `W` watches it.
pub struct WatchedTree<M, W = Watcher> {
    pub fixture: M,
    behind: PathBuf,
    mount: PathBuf,
    pub on_host: Watcher,
    pub on_mount: W,
    random: Random,
    /// Directories: number and path. The first is the root.
    directories: Vec<(usize, PathBuf)>,
    files: Vec<PathBuf>,
    pub next: usize,
    /// The last changes, for messages.
    log: Vec<String>,
}

impl<M> WatchedTree<M> {
    /// Watches the folder `behind` and its mount.
    pub fn new(fixture: M, behind: PathBuf, mount: PathBuf, seed: u64) -> Self {
        Self::with_watcher(fixture, behind, mount, seed, Watcher::new())
    }
}

impl<M, W: MountWatcher> WatchedTree<M, W> {
    /// Watches the folder `behind`, and its mount by `on_mount`.
    pub fn with_watcher(
        fixture: M,
        behind: PathBuf,
        mount: PathBuf,
        seed: u64,
        on_mount: W,
    ) -> Self {
        let mut this = Self {
            fixture,
            behind,
            mount,
            on_host: Watcher::new(),
            on_mount,
            random: Random::new(seed),
            directories: Vec::new(),
            files: Vec::new(),
            next: 0,
            log: Vec::new(),
        };
        this.watch(PathBuf::new());
        this
    }

    pub fn host(&self, path: &Path) -> PathBuf {
        self.behind.join(path)
    }

    /// Watches a directory on both sides.
    pub fn watch(&mut self, path: PathBuf) {
        self.next += 1;
        let number = self.next;
        let (host, mount) = (self.host(&path), self.mount.join(&path));
        self.on_host.add(number, &host);
        self.on_mount.add(number, &mount);
        self.directories.push((number, path));
    }

    /// Waits until both watchers have the events of all changes so far.
    #[track_caller]
    pub fn settle(&mut self) {
        self.next += 1;
        let marker = format!("marker {}", self.next);
        File::create(self.behind.join(&marker)).unwrap();
        let what = format!(
            "after {:?}",
            self.log.iter().rev().take(8).collect::<Vec<_>>()
        );
        self.on_host.read_until(&marker, "host");
        self.on_mount.read_until(&marker, &what);
        fs::remove_file(self.behind.join(&marker)).unwrap();
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
    pub fn change(&mut self) {
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
    pub fn assert_same_events(&mut self) {
        self.settle();
        // The removal of the last marker.
        self.settle();
        let mut differences = Vec::new();
        let seen = self.on_mount.all_seen();
        let (host, mount) = (self.on_host.by_name(), by_name(seen));
        let moved = moves(seen);
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
        assert_eq!(moved, self.on_host.moves(), "moves");
    }

    /// Makes `count` random changes, and compares the events of both sides.
    #[track_caller]
    pub fn compare_random_changes(&mut self, count: usize) {
        let start = Instant::now();
        (0..count).for_each(|_| self.change());
        self.assert_same_events();
        println!(
            "{count} changes, {} events on the host, {} in the mount, {:.1} s",
            self.on_host.seen.len(),
            self.on_mount.all_seen().len(),
            start.elapsed().as_secs_f64()
        );
    }

    /// Prints the delay from a change on the host to its event in the mount.
    #[track_caller]
    pub fn print_delays(&mut self) {
        let rounds = if is_long() { 5_000 } else { 200 };
        let mut delays = Vec::new();
        for round in 0..rounds {
            let name = format!("f{round}");
            let start = Instant::now();
            File::create(self.behind.join(&name)).unwrap();
            self.on_mount.read_until(&name, "create");
            delays.push(start.elapsed());
            self.settle();
        }
        delays.sort();
        let at = |percent: usize| delays[(delays.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        println!(
            "{rounds} creations: {:.3} ms at the median, {:.3} ms at 99 percent",
            at(50),
            at(99)
        );
    }
}

/// Returns the seeds of the random changes, and their number for each.
pub fn seeds_and_count() -> (Range<u64>, usize) {
    let first = number("FOLIO_EVENT_SEED").unwrap_or(1);
    if is_long() {
        (first..first + 10, 10_000)
    } else {
        (first..first + 1, 1_000)
    }
}
