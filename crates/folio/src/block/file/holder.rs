//! The programs that have a file open, for messages about a file in use.
//!
//! Locks of open file descriptions have no process in /proc/locks, so this compares the open files
//! of all processes, as fuser(1) does.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Returns the programs that have the file open, as "qemu-system-x86 (process 123)", at most three;
/// without the rights to look into a process it is missing.
pub(super) fn holders(file: &File) -> Vec<String> {
    let Ok(found) = file.metadata() else {
        return Vec::new();
    };
    let has_open = |process: &fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter();
        files.flatten().flatten().any(|entry| {
            fs::metadata(entry.path())
                .is_ok_and(|open| (open.dev(), open.ino()) == (found.dev(), found.ino()))
        })
    };
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holders = processes.filter_map(|process| {
        let number = process.file_name().into_string().ok()?;
        let is_other = number.bytes().all(|byte| byte.is_ascii_digit()) && number != own;
        if !is_other || !has_open(&process) {
            return None;
        }
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some(format!("{} (process {number})", name.trim_end()))
    });
    holders.take(3).collect()
}
