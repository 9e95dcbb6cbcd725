//! Counters of threads, and facts about processes, from /proc.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The counters of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    /// Nanoseconds on a processor.
    pub(super) cpu_ns: u64,
    /// Nanoseconds without a free processor.
    pub(super) delay_ns: u64,
    /// Voluntary context switches.
    pub(super) switches: u64,
    /// 512-byte blocks that a disk read for it.
    pub(super) read_blocks: u64,
}

impl Counters {
    /// Reads the counters of a thread; 0 what the kernel does not report.
    pub(super) fn of(tid: u32) -> Self {
        let times = read(tid, "schedstat");
        let mut times = times.split_whitespace().map(number);
        Self {
            cpu_ns: times.next().unwrap_or(0),
            delay_ns: times.next().unwrap_or(0),
            switches: field(&read(tid, "status"), "voluntary_ctxt_switches:"),
            read_blocks: field(&read(tid, "io"), "read_bytes:") / 512,
        }
    }
}

/// Reads a file of a thread; empty if it has ended.
fn read(tid: u32, name: &str) -> String {
    // A thread has a directory there, too, which lists do not show.
    fs::read_to_string(format!("/proc/{tid}/task/{tid}/{name}")).unwrap_or_default()
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

fn field(text: &str, name: &str) -> u64 {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
    values.next().map_or(0, |value| number(value.trim()))
}

/// Returns the process of a thread and its parent; `None` if it has ended.
pub(super) fn process_of(tid: u32) -> Option<(u32, u32)> {
    let text = read(tid, "status");
    let process = field(&text, "Tgid:") as u32;
    (process != 0).then(|| (process, field(&text, "PPid:") as u32))
}

/// Returns the target of a link of a process: `cwd` or `exe`.
pub(super) fn link(pid: u32, name: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// Returns the threads of a process.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the open files of a process: descriptor, path and flags of open(2).
pub(super) fn open_files(pid: u32) -> Vec<(i32, PathBuf, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let names = entries.into_iter().flatten().flatten();
    let open = |entry: fs::DirEntry| {
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        // Pipes and sockets have no path.
        let path = fs::read_link(entry.path()).ok()?;
        let path = path.is_absolute().then_some(path)?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u64::from_str_radix(flags.trim(), 8).ok()?;
        Some((fd, path, flags))
    };
    names.filter_map(open).collect()
}

/// Returns the bytes of a path.
pub(super) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
