//! The parts of a command's wall time, and their costs.

use serde::Serialize;
use std::path::PathBuf;

/// A part of the wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Part {
    /// On a processor.
    Cpu,
    /// On a processor, in calls that move few bytes each.
    TinyBuffers,
    /// In reads that waited for data.
    ReadMisses,
    /// In attribute calls.
    Attributes,
    /// In opens, and reads of directories.
    OpenAndLookup,
    /// In fsync(2), fdatasync(2), msync(2).
    Fsync,
    /// In close(2), and in opens that truncate.
    Close,
    /// In rename(2).
    Rename,
    /// In writes: throttled, or first writes that allocate.
    Writes,
    /// In writes that wait for the disk: O_SYNC, O_DSYNC, a mount with `sync`.
    SyncWrites,
    /// For locks of files.
    Locks,
    /// In other calls on files.
    OtherFiles,
    /// Runnable, but without a processor.
    Processor,
    /// Outside of calls on files: sleeping, pipes, sockets, other processes.
    NotFiles,
    /// Stopped at system calls, as these are traced.
    Tracing,
    /// In programs that were not recorded.
    Unknown,
}

impl Part {
    /// All, in the order of the report.
    pub const ALL: [Self; 16] = [
        Self::Cpu,
        Self::TinyBuffers,
        Self::ReadMisses,
        Self::Attributes,
        Self::OpenAndLookup,
        Self::Fsync,
        Self::Close,
        Self::Rename,
        Self::Writes,
        Self::SyncWrites,
        Self::Locks,
        Self::OtherFiles,
        Self::Processor,
        Self::NotFiles,
        Self::Tracing,
        Self::Unknown,
    ];

    /// Returns its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::TinyBuffers => "tiny buffers",
            Self::ReadMisses => "read misses",
            Self::Attributes => "attribute calls",
            Self::OpenAndLookup => "open and lookup",
            Self::Fsync => "fsync",
            Self::Close => "close",
            Self::Rename => "rename",
            Self::Writes => "writes",
            Self::SyncWrites => "sync writes",
            Self::Locks => "locks",
            Self::OtherFiles => "other files",
            Self::Processor => "for a processor",
            Self::NotFiles => "not files",
            Self::Tracing => "tracing",
            Self::Unknown => "unknown",
        }
    }

    /// Returns what its time is, in a few words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Cpu => "on a processor",
            Self::TinyBuffers => "in calls that move few bytes each",
            Self::ReadMisses => "reads that wait for data",
            Self::Attributes => "stat(2) and similar calls",
            Self::OpenAndLookup => "opens, and reads of directories",
            Self::Fsync => "fsync(2), fdatasync(2), msync(2)",
            Self::Close => "close(2), and opens that truncate",
            Self::Rename => "rename(2)",
            Self::Writes => "throttled, or first writes that allocate",
            Self::SyncWrites => "writes that wait for the disk",
            Self::Locks => "waits for locks of files",
            Self::OtherFiles => "other calls on files",
            Self::Processor => "runnable, without a free processor",
            Self::NotFiles => "sleep, pipes, sockets",
            Self::Tracing => "stopped, as system calls are traced",
            Self::Unknown => "in programs that were not recorded",
        }
    }
}

/// The calls of one part on one mount that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The part.
    pub part: Part,
    /// Index of the mount in [`Workload::mounts`](crate::Workload::mounts).
    pub mount: usize,
    /// Calls that took at least 16 microseconds, or 5 if they ask for attributes.
    pub calls: u64,
    /// Those of them that open a file or a directory.
    pub opens: u64,
    /// Files of these calls, sorted.
    pub files: Vec<PathBuf>,
    /// Time that they did not run, in nanoseconds.
    pub wait_ns: u64,
    /// Their whole time, in nanoseconds.
    pub wall_ns: u64,
    /// Bytes that they moved, or that were written since the last sync.
    pub bytes: u64,
    /// Bytes that a disk read for them.
    pub device_bytes: u64,
    /// Of syncs: the time that one sync of these bytes takes, in nanoseconds, if it was measured;
    /// at least this time if it was too long.
    pub last_sync_ns: Option<u64>,
    /// Calls that slept.
    pub slept: u64,
    /// Of large costs of names and attributes: whether a server is asked for them again, if it was
    /// measured.
    pub is_asked: Option<bool>,
    /// Of opens that ask a server: the time of one whose name and attributes are valid, in
    /// nanoseconds, if it was measured.
    pub reopen_ns: Option<u64>,
    /// Of closes: of files that were truncated and written. Of renames: over a file.
    pub replacements: u64,
    /// The path with the longest time.
    pub example: Option<PathBuf>,
}

impl Cost {
    /// Returns the costs of no calls.
    pub(crate) fn new(part: Part, mount: usize) -> Self {
        Self {
            part,
            mount,
            calls: 0,
            opens: 0,
            files: Vec::new(),
            wait_ns: 0,
            wall_ns: 0,
            bytes: 0,
            device_bytes: 0,
            last_sync_ns: None,
            slept: 0,
            is_asked: None,
            reopen_ns: None,
            replacements: 0,
            example: None,
        }
    }
}

/// A file, with the time of its calls on the critical path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCost {
    /// Its path.
    pub path: PathBuf,
    /// Index of its mount in [`Workload::mounts`](crate::Workload::mounts).
    pub mount: usize,
    /// The part with most of the time.
    pub part: Part,
    /// Calls that took at least 16 microseconds, or 5 if they ask for attributes, and small calls.
    pub calls: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Time that they did not run, in nanoseconds.
    pub wait_ns: u64,
    /// Their waits, and the whole time of small calls, in nanoseconds.
    pub cost_ns: u64,
}

/// A file that one process read or wrote in small calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiny {
    /// Its path.
    pub path: PathBuf,
    /// Index of its mount in [`Workload::mounts`](crate::Workload::mounts).
    pub mount: usize,
    /// Whether they were writes.
    pub is_write: bool,
    /// Calls.
    pub calls: u64,
    /// Bytes of all calls.
    pub bytes: u64,
    /// Those of them that a file without contents, or the end of a file, got: truncated, made or
    /// appended to.
    pub new_bytes: u64,
    /// Whether an open may have made the file.
    pub may_be_created: bool,
    /// Time of all calls, in nanoseconds; of a loop that copies, those on the other file as well.
    pub ns: u64,
    /// Time of calls of 64 KiB for the same bytes, in nanoseconds, if it was measured; at least
    /// this time if it was too long.
    pub large_ns: Option<u64>,
}

/// A program that was not recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unreached {
    /// Its path, as it was started.
    pub program: String,
    /// Its time on the critical path, in seconds.
    pub seconds: f64,
}
