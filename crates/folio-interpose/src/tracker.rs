//! Processes, descriptors and paths: turns records into events on files.

use crate::calls::Op;
use crate::layout::{F_SETFD, Record, WORKING_DIRECTORY};
use crate::ring::Ring;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// The flag of open(2) that truncates a file, of the 64-bit architectures.
pub const O_TRUNC: u64 = 0o1000;
/// The flag of open(2) that writes at the end of a file, of the 64-bit architectures.
pub const O_APPEND: u64 = 0o2000;
const O_CLOEXEC: u64 = 0o2_000_000;
/// Commands of fcntl(2).
const F_DUPFD: u64 = 0;
const F_DUPFD_CLOEXEC: u64 = 1030;
/// The flag of F_SETFD.
const FD_CLOEXEC: i32 = 1;

/// A path that was seen, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

/// An open file of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFile {
    /// Its path when it was opened.
    pub file: FileId,
    /// Flags of open(2).
    pub flags: u64,
    /// It was truncated at open or since.
    pub is_truncated: bool,
    /// Bytes written through this descriptor.
    pub written_bytes: u64,
    /// Those of them before its last sync.
    pub synced_bytes: u64,
    closes_at_exec: bool,
}

/// A call, with the file that it is about.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The call.
    pub record: Record,
    /// What it does.
    pub op: Op,
    /// Its file: the path, or that of the descriptor.
    pub file: Option<FileId>,
    /// The second path of a rename.
    pub second: Option<FileId>,
    /// The open file of its descriptor.
    pub open: Option<OpenFile>,
}

/// The descriptors and the working directory of one process.
#[derive(Debug, Clone, Default)]
struct Process {
    folder: Option<FileId>,
    files: HashMap<i32, OpenFile>,
}

/// All processes of a command.
#[derive(Debug, Default)]
pub struct Tracker {
    processes: HashMap<u32, Process>,
    paths: Vec<PathBuf>,
    ids: HashMap<PathBuf, FileId>,
    /// Places in the ring that are resolved, by the directory that they are relative to.
    resolved: HashMap<(u32, Option<FileId>), FileId>,
}

impl Tracker {
    /// Returns a tracker with the files that the first process inherits as descriptors.
    pub fn new(pid: u32, inherited: &[(i32, PathBuf)]) -> Self {
        let mut this = Self::default();
        let mut first = Process::default();
        for (fd, path) in inherited {
            let file = this.intern(path);
            // A shell has truncated a file of standard output, or has it written at its end.
            first.files.insert(*fd, opened(file, O_APPEND));
        }
        this.processes.insert(pid, first);
        this
    }

    /// Returns the path of a file.
    pub fn path(&self, file: FileId) -> &Path {
        &self.paths[file.0 as usize]
    }

    /// Follows a record; `None` if its operation is not of the table.
    pub fn follow(&mut self, record: &Record, ring: &Ring) -> Option<Event> {
        let op = *Op::ALL.get(usize::from(record.op))?;
        match op {
            Op::Start => self.start(record, ring),
            // A child of vfork(2).
            Op::Exec => self.inherit(record),
            _ => {}
        }
        let open = self.open_file(record.pid, record.fd);
        let file = match record.path {
            0 => open.map(|open| open.file),
            place => self.resolve(ring, record.pid, record.fd, place),
        };
        let second = match record.second {
            0 => None,
            _ if op == Op::Start => None,
            place => self.resolve(ring, record.pid, record.other_fd, place),
        };
        if record.result >= 0 {
            self.change(op, record, file);
        }
        Some(Event {
            record: *record,
            op,
            file,
            second,
            open,
        })
    }

    fn open_file(&self, pid: u32, fd: i32) -> Option<OpenFile> {
        self.processes.get(&pid)?.files.get(&fd).copied()
    }

    /// A child has its parent's descriptors, a new program those that stay open.
    fn start(&mut self, record: &Record, ring: &Ring) {
        let is_program = record.second != 0;
        if !is_program {
            // A child of fork(2), whose id may have been in use before.
            self.processes.remove(&record.pid);
        }
        self.inherit(record);
        let folder = ring.text(record.path).map(|path| self.intern(&path));
        if let Some(process) = self.processes.get_mut(&record.pid) {
            process.folder = folder.or(process.folder);
            if is_program {
                process.files.retain(|_, open| !open.closes_at_exec);
            }
        }
    }

    /// Gives a new process the descriptors of its parent.
    fn inherit(&mut self, record: &Record) {
        let parent = u32::try_from(record.detail).unwrap_or(0);
        if !self.processes.contains_key(&record.pid) {
            let inherited = self.processes.get(&parent).cloned().unwrap_or_default();
            self.processes.insert(record.pid, inherited);
        }
    }

    fn change(&mut self, op: Op, record: &Record, file: Option<FileId>) {
        let Some(process) = self.processes.get_mut(&record.pid) else {
            return;
        };
        let result = record.result as i32;
        match (op, file) {
            (Op::Open | Op::OpenStream | Op::OpenDirectory, Some(file)) => {
                process.files.insert(result, opened(file, record.detail));
            }
            (Op::Close | Op::CloseStream, _) => {
                process.files.remove(&record.fd);
            }
            (Op::ChangeDirectory, Some(file)) => process.folder = Some(file),
            (Op::Duplicate, _) => {
                let closes_at_exec = record.detail & O_CLOEXEC != 0;
                process.duplicate(record.fd, result, closes_at_exec);
            }
            (Op::Control, _) => match record.detail {
                F_DUPFD => process.duplicate(record.fd, result, false),
                F_DUPFD_CLOEXEC => process.duplicate(record.fd, result, true),
                F_SETFD => {
                    if let Some(open) = process.files.get_mut(&record.fd) {
                        open.closes_at_exec = record.other_fd & FD_CLOEXEC != 0;
                    }
                }
                _ => {}
            },
            (Op::Write | Op::WriteVector | Op::WriteStream | Op::Copy, _) => {
                if let Some(open) = process.files.get_mut(&record.fd) {
                    open.written_bytes += record.result as u64;
                }
            }
            (Op::Sync | Op::SyncData, _) => {
                if let Some(open) = process.files.get_mut(&record.fd) {
                    open.synced_bytes = open.written_bytes;
                }
            }
            (Op::Truncate, _) if record.detail == 0 => {
                if let Some(open) = process.files.get_mut(&record.fd) {
                    open.is_truncated = true;
                }
            }
            _ => {}
        }
    }

    fn resolve(&mut self, ring: &Ring, pid: u32, fd: i32, place: u32) -> Option<FileId> {
        let process = self.processes.get(&pid);
        let base = match fd {
            WORKING_DIRECTORY | -1 => process.and_then(|process| process.folder),
            fd => process
                .and_then(|process| process.files.get(&fd))
                .map(|open| open.file),
        };
        if let Some(known) = self.resolved.get(&(place, base)) {
            return Some(*known);
        }
        let path = ring.text(place)?;
        let path = match base {
            Some(base) => clean(&self.path(base).join(&path)),
            None if path.is_absolute() => clean(&path),
            None => return None,
        };
        let file = self.intern(&path);
        self.resolved.insert((place, base), file);
        Some(file)
    }

    fn intern(&mut self, path: &Path) -> FileId {
        if let Some(known) = self.ids.get(path) {
            return *known;
        }
        let file = FileId(self.paths.len() as u32);
        self.paths.push(path.to_owned());
        self.ids.insert(path.to_owned(), file);
        file
    }
}

impl Process {
    fn duplicate(&mut self, from: i32, to: i32, closes_at_exec: bool) {
        if from == to {
            return;
        }
        match self.files.get(&from).copied() {
            Some(open) => {
                self.files.insert(
                    to,
                    OpenFile {
                        closes_at_exec,
                        ..open
                    },
                );
            }
            None => {
                self.files.remove(&to);
            }
        }
    }
}

fn opened(file: FileId, flags: u64) -> OpenFile {
    OpenFile {
        file,
        flags,
        is_truncated: flags & O_TRUNC != 0,
        written_bytes: 0,
        synced_bytes: 0,
        closes_at_exec: flags & O_CLOEXEC != 0,
    }
}

/// Removes `.`, and `..` with the name before it.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::CurDir => {}
            component => cleaned.push(component),
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    /// Whether a descriptor is open after these calls and the start of another program.
    fn survives_exec(calls: &[Record], fd: i32) -> bool {
        let ring = Ring::create().unwrap();
        let mut tracker = Tracker::new(PID, &[(0, PathBuf::from("/x"))]);
        let start = Record {
            op: Op::Start as u16,
            second: 4,
            ..Record::default()
        };
        for record in calls.iter().chain([&start]) {
            let record = Record {
                pid: PID,
                ..*record
            };
            tracker.follow(&record, &ring).unwrap();
        }
        tracker.open_file(PID, fd).is_some()
    }

    fn set_flags(flags: i32) -> Record {
        Record {
            op: Op::Control as u16,
            detail: F_SETFD,
            other_fd: flags,
            ..Record::default()
        }
    }

    #[test]
    fn fcntl_sets_and_clears_close_at_exec() {
        assert!(survives_exec(&[], 0));
        assert!(!survives_exec(&[set_flags(1)], 0));
        assert!(survives_exec(&[set_flags(1), set_flags(0)], 0));
    }

    #[test]
    fn dup3_sets_close_at_exec() {
        let copy = |detail| Record {
            op: Op::Duplicate as u16,
            result: 5,
            detail,
            ..Record::default()
        };
        assert!(survives_exec(&[copy(0)], 5));
        assert!(!survives_exec(&[copy(O_CLOEXEC)], 5));
        assert!(survives_exec(&[copy(O_CLOEXEC)], 0));
    }

    #[test]
    fn sync_keeps_the_bytes_before_it() {
        let ring = Ring::create().unwrap();
        let mut tracker = Tracker::new(PID, &[(0, PathBuf::from("/x"))]);
        let written = [(Op::Write, 5), (Op::SyncData, 0), (Op::Write, 3)];
        for (op, result) in written {
            let record = Record {
                op: op as u16,
                pid: PID,
                result,
                ..Record::default()
            };
            tracker.follow(&record, &ring).unwrap();
        }
        let open = tracker.open_file(PID, 0).unwrap();
        assert_eq!((open.written_bytes, open.synced_bytes), (8, 5));
    }
}
