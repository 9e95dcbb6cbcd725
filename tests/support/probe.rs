//! Checks of locks and unnamed files between two processes: a test, and its own program started a
//! second time, on this machine or in a guest.
//!
//! A program with this module has the test `probe::again`, which does nothing unless the variable
//! [`ASKED`] is set.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The environment variable with the task of the second program: a word and a path.
pub(crate) const ASKED: &str = "FOLIO_PROBE";
/// The arguments that run only that task.
pub(crate) const WORDS: &str = "--exact probe::again --nocapture";
/// The exit status after a refused lock.
const REFUSED: i32 = 11;
/// Printed before the program waits for a lock.
const WAITS: &str = "waits";

/// The calls that lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// flock(2), of the whole file.
    Flock,
    /// fcntl(2), `F_SETLK`: the process holds the lock.
    Posix,
    /// fcntl(2), `F_OFD_SETLK`: the open file holds the lock.
    Ofd,
}

/// The operations on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Take,
    Share,
    Wait,
    Free,
}

const KINDS: [(&str, Kind); 3] = [
    ("flock", Kind::Flock),
    ("posix", Kind::Posix),
    ("ofd", Kind::Ofd),
];
const STEPS: [(&str, Step); 3] = [
    ("take", Step::Take),
    ("share", Step::Share),
    ("wait", Step::Wait),
];
/// The locked bytes of record locks.
const BYTES: Range<i64> = 0..10;
/// Bytes that no test locks.
const BESIDE: Range<i64> = 10..20;

impl Kind {
    fn lock(self, file: &File, step: Step, bytes: Range<i64>) -> Result<(), Errno> {
        if self == Self::Flock {
            return rustix::fs::flock(
                file,
                match step {
                    Step::Take => FlockOperation::NonBlockingLockExclusive,
                    Step::Share => FlockOperation::NonBlockingLockShared,
                    Step::Wait => FlockOperation::LockExclusive,
                    Step::Free => FlockOperation::Unlock,
                },
            );
        }
        let l_type = match step {
            Step::Take | Step::Wait => libc::F_WRLCK,
            Step::Share => libc::F_RDLCK,
            Step::Free => libc::F_UNLCK,
        };
        let whence = libc::SEEK_SET as i16;
        let lock = libc::flock {
            l_type: l_type as i16,
            l_whence: whence,
            l_start: bytes.start,
            l_len: bytes.end - bytes.start,
            l_pid: 0,
        };
        let call = match (self, step) {
            (Self::Posix, Step::Wait) => FcntlArg::F_SETLKW(&lock),
            (Self::Posix, _) => FcntlArg::F_SETLK(&lock),
            (_, Step::Wait) => FcntlArg::F_OFD_SETLKW(&lock),
            (_, _) => FcntlArg::F_OFD_SETLK(&lock),
        };
        fcntl(file, call)
            .map(drop)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// Returns a command that runs this program for another task.
fn another(word: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(WORDS.split(' '))
        .env(ASKED, format!("{word} {}", path.display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Returns whether another process gets a lock.
#[track_caller]
fn another_gets(word: &str, path: &Path) -> bool {
    let output = another(word, path).output().unwrap();
    match output.status.code() {
        Some(0) => true,
        Some(REFUSED) => false,
        _ => panic!("{word}: {output:?}"),
    }
}

/// Asserts that locks of each kind hold between two processes that open `path`, and are released
/// on unlock and close.
#[track_caller]
pub(crate) fn locks(path: &Path) {
    for (name, kind) in KINDS {
        let word = |step: &str| format!("{name}:{step}");
        let file = open(path);
        kind.lock(&file, Step::Take, BYTES).unwrap();
        assert!(
            !another_gets(&word("take"), path),
            "{name}: two processes hold it"
        );
        assert!(
            !another_gets(&word("share"), path),
            "{name}: an exclusive lock is shared"
        );
        if kind != Kind::Flock {
            assert!(
                another_gets(&word("beside"), path),
                "{name}: other bytes are locked too"
            );
        }
        let mut waiting = another(&word("wait"), path).spawn().unwrap();
        let mut said = BufReader::new(waiting.stdout.take().unwrap()).lines();
        assert!(
            said.any(|line| line.unwrap().contains(WAITS)),
            "{name}: the other process does not wait"
        );
        kind.lock(&file, Step::Free, BYTES).unwrap();
        // The pipe closes when the process ends.
        said.for_each(drop);
        assert!(
            waiting.wait().unwrap().success(),
            "{name}: the waiter does not get the lock"
        );
        kind.lock(&file, Step::Share, BYTES).unwrap();
        assert!(
            another_gets(&word("share"), path),
            "{name}: the lock is not shared"
        );
        assert!(
            !another_gets(&word("take"), path),
            "{name}: a shared lock is taken exclusively"
        );
        drop(file);
        assert!(
            another_gets(&word("take"), path),
            "{name}: the lock survives close"
        );
    }
}

/// Asserts that files can be made in `directory` without a name, and linked unless they were opened
/// with `O_EXCL`.
#[track_caller]
pub(crate) fn unnamed(directory: &Path) {
    let open = |flags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | flags;
        rustix::fs::open(directory, flags, Mode::from(0o640))
            .map(File::from)
            .expect("a file without a name")
    };
    let link = |file: &File, path: &Path| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
    };
    let count = || fs::read_dir(directory).unwrap().count();
    let (before, named) = (count(), directory.join("named"));
    let file = open(OFlags::empty());
    file.write_all_at(b"without", 0).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(
        (metadata.nlink(), metadata.len(), metadata.mode() & 0o7777),
        (0, 7, 0o640)
    );
    assert_eq!(count(), before, "it has a name");
    link(&file, &named).unwrap();
    assert_eq!(fs::read(&named).unwrap(), b"without");
    assert_eq!(
        (fs::metadata(&named).unwrap().nlink(), count()),
        (1, before + 1)
    );
    file.write_all_at(b" a name", 7).unwrap();
    drop(file);
    assert_eq!(fs::read(&named).unwrap(), b"without a name");
    assert_eq!(
        link(&open(OFlags::EXCL), &directory.join("sealed")),
        Err(Errno::NOENT)
    );
    fs::remove_file(&named).unwrap();
    assert_eq!(count(), before);
}

/// Runs the task that [`ASKED`] names.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no other way to an exit status of its own"
)]
fn again() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    let (word, path) = asked.split_once(' ').expect("a word and a path");
    let path = Path::new(path);
    match word {
        "locks" => locks(path),
        "unnamed" => unnamed(path),
        _ => {
            let (kind, step) = word.split_once(':').expect("a kind and a step");
            let kind = KINDS
                .iter()
                .find(|known| known.0 == kind)
                .expect("a kind of lock")
                .1;
            let found = STEPS.iter().find(|known| known.0 == step);
            // Any other word takes the lock on other bytes.
            let (step, bytes) = found.map_or((Step::Take, BESIDE), |known| (known.1, BYTES));
            if step == Step::Wait {
                println!("{WAITS}");
            }
            match kind.lock(&open(path), step, bytes) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => std::process::exit(REFUSED),
                Err(errno) => panic!("{word}: {errno}"),
            }
        }
    }
}
