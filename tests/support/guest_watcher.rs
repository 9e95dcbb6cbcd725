//! A watcher in a guest: the program of the tests, started there, and its other side on the host.
//! The program prints the names of markers; all events are in a file of the share at the end.
//!
//! A program with this module has the test `guest_watcher::program`, which does nothing unless the
//! variable [`ASKED`] is set.

use crate::support::guest::{Guest, Run};
use crate::support::two_sides::{HEAD, LIMIT};
use crate::support::watched_tree::{MountWatcher, SeenEvent, watched};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

/// The environment variable with the task of the program in the guest: a word and a path.
const ASKED: &str = "FOLIO_GUEST_WATCHER";
/// The arguments that run only that task.
const WORDS: &str = "--exact guest_watcher::program --nocapture";
/// How long a line of the guest may take before the test gives up.
const LOST: Duration = Duration::from_secs(120);
/// Names of random changes begin with this, and no marker does.
const RANDOM: char = 'n';
/// The file after whose creation the program in the guest ends.
const END: &str = "end of changes";
/// The file with all events.
const LOG: &str = "log of events";
/// Printed before the name of a marker.
const SEEN: &str = "@@seen ";

/// A guest that runs a script, and the lines that it prints.
pub(crate) struct RunningGuest {
    lines: Receiver<String>,
    thread: JoinHandle<Result<Run, String>>,
}

impl RunningGuest {
    /// Boots a guest.
    pub(crate) fn start(guest: Guest, script: &str) -> Self {
        let (sender, lines) = mpsc::channel();
        let script = format!("{HEAD}{script}");
        let run = move || guest.run(&script, LIMIT, |line| drop(sender.send(line.to_owned())));
        Self {
            lines,
            thread: std::thread::spawn(run),
        }
    }

    /// Waits for a line that contains `text`, and returns it.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str, patience: Duration, what: &str) -> String {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => lines.push(line),
                Err(_) => panic!("{what}: no {text:?} in {lines:?}"),
            }
        }
    }

    /// Waits for the end of the script, which must succeed.
    #[track_caller]
    pub(crate) fn finish(self) {
        let run = self.thread.join().unwrap().expect("the guest starts");
        let (said, errors) = (run.lines.join("\n"), run.errors);
        assert_eq!(
            run.status,
            Some(0),
            "the guest said:\n{said}\nQEMU said:\n{errors}"
        );
    }
}

/// Adds the program of this test, without its symbols.
pub(crate) fn with_test_program(guest: Guest, folder: &Path) -> Result<Guest, String> {
    let program = std::env::current_exe().unwrap();
    guest.program(&stripped(&program, folder))
}

/// Returns a copy of a program without its symbols: a guest has it in memory.
pub(crate) fn stripped(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap());
    let strip = Command::new("strip")
        .arg("-o")
        .args([&copy, program])
        .status();
    if !strip.is_ok_and(|status| status.success()) {
        fs::copy(program, &copy).unwrap();
    }
    copy
}

/// Returns the line of a script that runs a task of the program on a path of the guest.
pub(crate) fn task(task: &str, path: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    format!("{ASKED}='{task} {path}' {name} {WORDS} || fail {task}\n")
}

/// The watcher in a guest that shares a folder.
pub(crate) struct GuestWatcher {
    pub(crate) guest: RunningGuest,
    /// The folder on the host.
    folder: PathBuf,
    /// Numbers of the directories, in the order in which both sides have found them.
    directories: Vec<usize>,
    seen: Vec<SeenEvent>,
}

impl GuestWatcher {
    /// Waits until the program watches the root.
    #[track_caller]
    pub(crate) fn new(guest: RunningGuest, folder: &Path) -> Self {
        guest.wait_for(SEEN, LIMIT, "start");
        Self {
            guest,
            folder: folder.to_owned(),
            directories: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Ends the program in the guest.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        File::create(self.folder.join(END)).unwrap();
        self.read_until(END, "end");
    }

    fn parse(&self, line: &str) -> SeenEvent {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap();
        let directory = word().parse::<usize>().unwrap();
        SeenEvent {
            directory: self.directories[directory],
            events: ReadFlags::from_bits_retain(word().parse().unwrap()),
            cookie: word().parse().unwrap(),
            name: word().to_owned(),
        }
    }
}

impl MountWatcher for GuestWatcher {
    /// The program in the guest watches each new directory by itself, before it prints the name of
    /// the next marker.
    fn add(&mut self, directory: usize, _path: &Path) {
        self.directories.push(directory);
    }

    #[track_caller]
    fn read_until(&mut self, name: &str, what: &str) {
        let line = format!("{SEEN}{name}.");
        self.guest.wait_for(&line, LOST, what);
    }

    fn all_seen(&mut self) -> &[SeenEvent] {
        if self.seen.is_empty() {
            self.end();
            let log = fs::read_to_string(self.folder.join(LOG)).unwrap();
            self.seen = log.lines().map(|line| self.parse(line)).collect();
        }
        &self.seen
    }
}

/// A watched directory, which may be moved.
struct WatchedDirectory {
    number: usize,
    directory: OwnedFd,
}

/// Watches a directory, and returns its descriptor.
fn watch_one(inotify: &OwnedFd, path: &Path) -> (i32, OwnedFd) {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap();
    let wd = inotify::add_watch(inotify, own_path(&directory), watched()).unwrap();
    (wd, directory)
}

/// Returns a path that leads to a file by its descriptor.
fn own_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// In the guest: watches the tree at `path` until the end of changes.
pub(crate) fn watch(path: &Path) {
    let inotify = inotify::init(CreateFlags::CLOEXEC).unwrap();
    let (root, directory) = watch_one(&inotify, path);
    let mut watched = HashMap::from([(
        root,
        WatchedDirectory {
            number: 0,
            directory,
        },
    )]);
    println!("\n{SEEN}.");
    let mut log = String::new();
    let mut buf = [MaybeUninit::uninit(); 16 << 10];
    let mut reader = Reader::new(&inotify, &mut buf);
    loop {
        let event = reader.next().unwrap();
        let events = event.events();
        assert!(!events.contains(ReadFlags::QUEUE_OVERFLOW));
        let name = event.file_name().unwrap_or_default().to_string_lossy();
        if name == END {
            fs::write(path.join(LOG), &log).unwrap();
            println!("{SEEN}{END}.");
            return;
        }
        if events.contains(ReadFlags::IGNORED) {
            continue;
        }
        let parent = &watched[&event.wd()];
        let (number, bits, cookie) = (parent.number, events.bits(), event.cookie());
        writeln!(log, "{number} {bits} {cookie} {name}").unwrap();
        if events.contains(ReadFlags::CREATE | ReadFlags::ISDIR) {
            // The parent may have moved.
            let parent = fs::read_link(own_path(&parent.directory)).unwrap();
            let (wd, directory) = watch_one(&inotify, &parent.join(&*name));
            let number = watched.len();
            watched.insert(wd, WatchedDirectory { number, directory });
        } else if events.contains(ReadFlags::CREATE) && !name.starts_with(RANDOM) {
            println!("{SEEN}{name}.");
        }
    }
}

/// In the guest: prints what it reads after each event of a file in `path`.
pub(crate) fn react(path: &Path) {
    let inotify = inotify::init(CreateFlags::CLOEXEC).unwrap();
    let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
    inotify::add_watch(&inotify, path, events).unwrap();
    println!("\n{SEEN}.");
    let mut buf = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&inotify, &mut buf);
    loop {
        let event = reader.next().unwrap();
        let name = event.file_name().unwrap_or_default().to_string_lossy();
        if name == END {
            return;
        }
        let file = path.join(&*name);
        let text = fs::read_to_string(&file).map_err(|error| error.kind());
        let len = fs::metadata(&file).map(|metadata| metadata.len());
        let kind = event.events() & !ReadFlags::ISDIR;
        println!("{SEEN}{kind:?} {name} {text:?} {:?}.", len.ok());
    }
}

/// Runs the task that [`ASKED`] names.
#[test]
fn program() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    match asked.split_once(' ').expect("a word and a path") {
        ("watch", path) => watch(Path::new(path)),
        (_, path) => react(Path::new(path)),
    }
}
