//! The programs that have a file open, for messages about a file in use.
//!
//! Locks of open file descriptions have no process in /proc/locks, so this compares the open files
//! of all processes, as fuser(1) does.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The programs that have a file open.
pub(super) struct Holders {
    /// Whether this process has it open once more.
    pub(super) is_own: bool,
    /// Other processes, as "qemu-system-x86 (process 123)", at most three. A process that this one
    /// has no rights to look into is missing.
    pub(super) others: Vec<String>,
}

/// Returns the programs that have the file open, besides `file` itself.
pub(super) fn holders(file: &File) -> Holders {
    let mut found = Holders {
        is_own: false,
        others: Vec::new(),
    };
    let Ok(wanted) = file.metadata() else {
        return found;
    };
    let open_count = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter();
        let is_same = |entry: &fs::DirEntry| {
            fs::metadata(entry.path())
                .is_ok_and(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()))
        };
        files.flatten().flatten().filter(is_same).count()
    };
    found.is_own = open_count(Path::new("/proc/self")) > 1;
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = processes.filter_map(|process| {
        let number = process.file_name().into_string().ok()?;
        let is_other = number.bytes().all(|byte| byte.is_ascii_digit()) && number != own;
        if !is_other || open_count(&process.path()) == 0 {
            return None;
        }
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some(format!("{} (process {number})", name.trim_end()))
    });
    found.others = others.take(3).collect();
    found
}
