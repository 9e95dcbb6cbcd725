//! Locks on ranges of bytes: fcntl(2) by processes and by open file descriptions.

use super::support::random::Random;
use super::{CREATE, fails, touch, world, write};
use folio::syscall::{Credentials, Fd, LockKind, LockMode, RecordLock, Whence};
use folio::{Errno, Process};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const WRITE: RecordLock = RecordLock {
    mode: LockMode::Write,
    whence: Whence::Set,
    start: 0,
    len: 10,
    pid: 0,
};

fn open(process: &Process) -> Fd {
    process.open("/f", CREATE, 0o600).unwrap()
}

#[test]
fn close_of_any_descriptor_releases_locks() {
    let (kernel, one) = world();
    touch(&one, "/f", 0o644);
    one.set_pid(7);
    let two = kernel.process(Credentials::root());
    let (first, second, other) = (open(&one), open(&one), open(&two));
    one.fcntl_setlk(first, LockKind::Process, &WRITE, false)
        .unwrap();
    one.fcntl_setlk(second, LockKind::Process, &WRITE, false)
        .unwrap();
    fails! { two.fcntl_setlk(other, LockKind::Process, &WRITE, false) => AGAIN }
    let held = two.fcntl_getlk(other, LockKind::Process, &WRITE).unwrap();
    assert_eq!(held, Some(RecordLock { pid: 7, ..WRITE }));
    one.close(second).unwrap();
    two.fcntl_setlk(other, LockKind::Process, &WRITE, false)
        .unwrap();
    fails! { one.fcntl_setlk(first, LockKind::Process, &WRITE, false) => AGAIN }
    drop(two);
    one.fcntl_setlk(first, LockKind::Process, &WRITE, false)
        .unwrap();
}

#[test]
fn child_has_no_locks_of_its_parent() {
    let (_kernel, one) = world();
    let fd = open(&one);
    one.fcntl_setlk(fd, LockKind::Process, &WRITE, false)
        .unwrap();
    let child = one.fork().unwrap();
    fails! { child.fcntl_setlk(fd, LockKind::Process, &WRITE, false) => AGAIN }
    // A close by the child keeps the parent's locks.
    child.close(fd).unwrap();
    let two = one.fork().unwrap();
    fails! { two.fcntl_setlk(fd, LockKind::Process, &WRITE, false) => AGAIN }
    drop(one);
    two.fcntl_setlk(fd, LockKind::Process, &WRITE, false)
        .unwrap();
}

#[test]
fn lock_of_an_open_file_ends_with_its_last_close() {
    let (_kernel, one) = world();
    let fd = open(&one);
    let child = one.fork().unwrap();
    let other = open(&child);
    one.fcntl_setlk(fd, LockKind::OpenFile, &WRITE, false)
        .unwrap();
    child
        .fcntl_setlk(fd, LockKind::OpenFile, &WRITE, false)
        .unwrap();
    let held = child
        .fcntl_getlk(other, LockKind::OpenFile, &WRITE)
        .unwrap();
    assert_eq!(held, Some(RecordLock { pid: -1, ..WRITE }));
    one.close(fd).unwrap();
    fails! { child.fcntl_setlk(other, LockKind::Process, &WRITE, false) => AGAIN }
    child.close(fd).unwrap();
    child
        .fcntl_setlk(other, LockKind::Process, &WRITE, false)
        .unwrap();
}

#[test]
fn circle_of_waiting_processes_is_a_deadlock() {
    let (_kernel, one) = world();
    let fd = open(&one);
    let two = one.fork().unwrap();
    let at = |start| RecordLock { start, ..WRITE };
    one.fcntl_setlk(fd, LockKind::Process, &at(0), true)
        .unwrap();
    two.fcntl_setlk(fd, LockKind::Process, &at(10), true)
        .unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| one.fcntl_setlk(fd, LockKind::Process, &at(10), true));
        // Until the other process waits, the range is refused for another reason.
        let errno = loop {
            let call = two
                .begin_setlk(fd, LockKind::Process, &at(0), true)
                .unwrap();
            let errno = call.finish(&|| true).unwrap_err().errno();
            if errno != Errno::INTR {
                break errno;
            }
        };
        assert_eq!(errno, Errno::DEADLK);
        two.close(fd).unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn withdrawn_wait_fails_with_eintr() {
    let (_kernel, one) = world();
    let fd = open(&one);
    let two = one.fork().unwrap();
    one.fcntl_setlk(fd, LockKind::Process, &WRITE, false)
        .unwrap();
    let is_withdrawn = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let call = two
            .begin_setlk(fd, LockKind::Process, &WRITE, true)
            .unwrap();
        let waiting = scope.spawn(|| call.finish(&|| is_withdrawn.load(Ordering::Relaxed)));
        is_withdrawn.store(true, Ordering::Relaxed);
        fails! { waiting.join().unwrap() => INTR }
    });
    one.close(fd).unwrap();
    two.fcntl_setlk(fd, LockKind::Process, &WRITE, true)
        .unwrap();
}

/// One call of the comparison, by one of several processes on one of its descriptors.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Closes the descriptor, and opens the file again in its place.
    Reopen,
    Seek(u64),
    Set(LockKind, RecordLock),
    Get(LockKind, RecordLock),
}

const PROCESSES: usize = 3;
const DESCRIPTORS: usize = 3;
const FILE_BYTES: u64 = 20;

fn random_step(random: &mut Random) -> Step {
    let kinds = [LockKind::Process, LockKind::OpenFile];
    let kind = kinds[random.below(kinds.len())];
    let modes = [LockMode::Read, LockMode::Write, LockMode::Unlock];
    let mut lock = RecordLock {
        mode: modes[random.below(modes.len())],
        whence: [Whence::Set, Whence::Current, Whence::End][random.below(3_usize)],
        start: random.below(30_u64) as i64 - 5,
        len: random.below(16_u64) as i64 - 4,
        pid: 0,
    };
    if random.percent(3) {
        lock.start = i64::MAX - random.below(20_u64) as i64;
    }
    match random.below(20_u64) {
        0 => Step::Reopen,
        1 => Step::Seek(random.below(FILE_BYTES)),
        // F_UNLCK of F_OFD_GETLK is newer than the oldest kernels.
        2..6 if lock.mode != LockMode::Unlock => Step::Get(kind, lock),
        _ => Step::Set(kind, lock),
    }
}

/// The outcome as text: an errno, or the lock that was found, with the number of its process among
/// those of the test.
fn outcome(result: Result<Option<RecordLock>, Errno>) -> String {
    match result {
        Err(errno) => format!("errno {}", errno.raw_os_error()),
        Ok(None) => "none".to_owned(),
        Ok(Some(held)) => {
            format!(
                "{:?} {} {} of {}",
                held.mode, held.start, held.len, held.pid
            )
        }
    }
}

fn on_library(process: &Process, fds: &mut [Fd], fd: usize, step: Step) -> String {
    let errno = |error: folio::Error| error.errno();
    let result = match step {
        Step::Reopen => {
            process.close(fds[fd]).unwrap();
            fds[fd] = open(process);
            Ok(None)
        }
        Step::Seek(to) => {
            process.lseek(fds[fd], to as i64, Whence::Set).unwrap();
            Ok(None)
        }
        Step::Set(kind, lock) => process
            .fcntl_setlk(fds[fd], kind, &lock, false)
            .map(|()| None)
            .map_err(errno),
        Step::Get(kind, lock) => process.fcntl_getlk(fds[fd], kind, &lock).map_err(errno),
    };
    outcome(result)
}

/// The words of a step, for a process of the host.
fn words(fd: usize, step: Step) -> String {
    let lock = |name: &str, kind, lock: RecordLock| {
        let mode = lock.mode as u32;
        let whence = lock.whence as u32;
        let kind = if kind == LockKind::Process {
            "process"
        } else {
            "file"
        };
        format!(
            "{name} {fd} {kind} {mode} {whence} {} {}",
            lock.start, lock.len
        )
    };
    match step {
        Step::Reopen => format!("reopen {fd}"),
        Step::Seek(to) => format!("seek {fd} {to}"),
        Step::Set(kind, of) => lock("set", kind, of),
        Step::Get(kind, of) => lock("get", kind, of),
    }
}

/// A process of the host: this test, which executes the steps of its input.
struct HostProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const FILE: &str = "FOLIO_TEST_LOCKED_FILE";

impl HostProcess {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "record_locks::steps_of_another_process",
                "--exact",
                "--nocapture",
            ])
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn execute(&mut self, words: &str) -> String {
        writeln!(self.input, "{words}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "{words}");
            if let Some(outcome) = line.trim_end().strip_prefix("= ") {
                return outcome.to_owned();
            }
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn steps_of_another_process() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let mut files: Vec<File> = (0..DESCRIPTORS).map(|_| open()).collect();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        let fd = number(1) as usize;
        let result = match words[0] {
            "reopen" => {
                // Closed first: a lock of the process does not outlive it.
                files[fd] = File::open("/dev/null").unwrap();
                files[fd] = open();
                Ok(None)
            }
            "seek" => {
                files[fd].seek(SeekFrom::Start(number(2) as u64)).unwrap();
                Ok(None)
            }
            name => {
                let lock = nix::libc::flock {
                    l_type: number(3) as i16,
                    l_whence: number(4) as i16,
                    l_start: number(5),
                    l_len: number(6),
                    l_pid: 0,
                };
                host_lock(&files[fd], name == "set", words[2] == "process", lock)
            }
        };
        let mut output = std::io::stdout();
        writeln!(output, "\n= {}", outcome(result)).unwrap();
        output.flush().unwrap();
    }
}

fn host_lock(
    file: &File,
    sets: bool,
    is_process: bool,
    mut lock: nix::libc::flock,
) -> Result<Option<RecordLock>, Errno> {
    let argument = if sets && is_process {
        FcntlArg::F_SETLK(&lock)
    } else if sets {
        FcntlArg::F_OFD_SETLK(&lock)
    } else if is_process {
        FcntlArg::F_GETLK(&mut lock)
    } else {
        FcntlArg::F_OFD_GETLK(&mut lock)
    };
    fcntl(file, argument).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    let mode = match i32::from(lock.l_type) {
        nix::libc::F_RDLCK => LockMode::Read,
        nix::libc::F_WRLCK => LockMode::Write,
        _ => return Ok(None),
    };
    Ok((!sets).then_some(RecordLock {
        mode,
        whence: Whence::Set,
        start: lock.l_start,
        len: lock.l_len,
        pid: lock.l_pid,
    }))
}

#[test]
fn random_locks_agree_with_the_host() {
    let seed = 37;
    let mut random = Random::new(seed);
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("f");
    std::fs::write(&file, [0; FILE_BYTES as usize]).unwrap();
    let mut hosts: Vec<_> = (0..PROCESSES).map(|_| HostProcess::start(&file)).collect();
    let (kernel, root) = world();
    write(&root, "/f", &[0; FILE_BYTES as usize]);
    let processes: Vec<_> = hosts
        .iter()
        .map(|host| {
            let process = kernel.process(Credentials::root());
            process.set_pid(host.child.id());
            process
        })
        .collect();
    let fds = |process: &Process| (0..DESCRIPTORS).map(|_| open(process)).collect::<Vec<_>>();
    let mut fds: Vec<_> = processes.iter().map(fds).collect();
    let mut conflicts = 0;
    for number in 0..3000 {
        let at = random.below(PROCESSES);
        let fd = random.below(DESCRIPTORS);
        let step = random_step(&mut random);
        let expected = hosts[at].execute(&words(fd, step));
        let found = on_library(&processes[at], &mut fds[at], fd, step);
        assert_eq!(
            found, expected,
            "seed {seed}, step {number}: process {at}, descriptor {fd}: {step:?}"
        );
        conflicts += usize::from(expected.starts_with("errno 11"));
    }
    assert!(conflicts > 100, "{conflicts}");
}
