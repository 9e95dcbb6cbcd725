//! `folio warm` and `folio cache`, run as commands and compared with the kernel's own counters.

mod fit;
mod folios;
mod hotset;
mod images;
mod in_use;
mod status;
#[path = "../support/mod.rs"]
mod support;
mod warm;

use rustix::io::ReadWriteFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::require::find;
use support::tools::{command, run};
use support::{Group, PageCache, dropped_pages, report_skip, requires};
use tempfile::TempDir;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A folder on the disk that holds the build. Pages of a file system in memory, such as tmpfs,
/// cannot be dropped.
struct Bench {
    folder: TempDir,
    _cache: PageCache,
}

/// Runs a test again, at most three times, while it fails and this machine lost pages of its page
/// cache meanwhile: other programs use it, too, and the machine's host may take pages back.
fn undisturbed(test: impl Fn()) {
    for _ in 0..3 {
        let before = dropped_pages();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(_) if dropped_pages() != before => {}
            Err(reason) => std::panic::resume_unwind(reason),
        }
    }
    test();
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _cache: PageCache::used(),
        }
    }

    /// Returns a bench that excludes every other bench while it exists.
    fn alone() -> Self {
        Self {
            folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _cache: PageCache::emptied(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a file of this size without pages in memory.
    fn cold(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..size_bytes)
            .map(|at| (at >> 8) as u8 ^ at as u8)
            .collect();
        fs::write(&path, bytes).unwrap();
        forget(&path);
        assert_eq!(resident(&path), 0, "{}", path.display());
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> (Output, String) {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        (output, stderr)
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let (output, stderr) = self.output(arguments);
        assert!(
            output.status.success() && stderr.is_empty(),
            "{arguments:?}: {stderr}"
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs a command that fails with exit code 1 and these words, and returns its JSON report.
    #[track_caller]
    fn partly(&self, arguments: &[&str], words: &str) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        let (output, stderr) = self.output(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(words),
            "{arguments:?}: {stderr:?} lacks {words:?}"
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Drops the pages of a file from the page cache, without Folio.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // Pages stay that another processor has not put on the kernel's lists yet.
    for _ in 0..100 {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if find("fincore").is_none_or(|_| resident(path) == 0) {
            break;
        }
    }
}

/// Returns the bytes in memory, as fincore(1) counts them: whole pages.
fn resident(path: &Path) -> u64 {
    let arguments = ["--bytes", "--noheadings", "--output", "RES"].map(Into::into);
    let said = run(
        "fincore",
        arguments.into_iter().chain([path.as_os_str().to_owned()]),
    );
    said.trim()
        .parse()
        .unwrap_or_else(|_| panic!("fincore: {said}"))
}

/// Returns which pages of a file are in memory: those that can be read without waiting. The check
/// itself starts reading the remaining pages.
fn pages(path: &Path) -> Vec<bool> {
    let file = File::open(path).unwrap();
    let size_bytes = file.metadata().unwrap().len();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let is_there = |page: u64| {
        let mut byte = [0];
        let mut bufs = [IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&file, &mut bufs, page * PAGE, ReadWriteFlags::NOWAIT) == Ok(1)
    };
    (0..size_bytes.div_ceil(PAGE)).map(is_there).collect()
}

/// Reads exactly these pages of a file.
fn touch(path: &Path, pages: impl IntoIterator<Item = u64>) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    for page in pages {
        file.read_exact_at(&mut [0; PAGE as usize], page * PAGE)
            .unwrap();
    }
}
