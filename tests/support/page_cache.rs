//! The page cache of this machine, which all tests share, those of another process as well.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A hold on the page cache of this machine, until it is dropped.
#[must_use]
pub struct PageCache(#[allow(dead_code)] File);

impl PageCache {
    /// Waits for tests that empty the page cache, and lets none begin.
    pub fn used() -> Self {
        let file = lock_file();
        file.lock_shared().expect("the lock of the page cache");
        Self(file)
    }

    /// Waits for every test that uses or empties the page cache: this one empties it.
    pub fn emptied() -> Self {
        let file = lock_file();
        file.lock().expect("the lock of the page cache");
        Self(file)
    }
}

/// One file for the tests of all crates: `target/tmp` belongs to the build, not to a crate.
fn lock_file() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-cache.lock");
    File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the number of pages that this machine removed from its page cache: by reclaim, by writes
/// to drop_caches and by DAMON (Documentation/admin-guide/mm/damon/usage.rst), whose schemes page
/// out files that it saw no use of, and which /proc/vmstat does not count.
pub fn dropped_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let counted: u64 = ["drop_pagecache ", "pgsteal_file "]
        .into_iter()
        .filter_map(count)
        .sum();
    counted + paged_out_by_damon()
}

/// Returns the number of pages that DAMON paged out since its start, 0 where it does not run.
fn paged_out_by_damon() -> u64 {
    let daemons = Path::new("/sys/kernel/mm/damon/admin/kdamonds");
    let mut size_bytes = 0;
    for daemon in numbered(daemons) {
        // The files of statistics hold what they held when they were last asked for.
        if std::fs::write(daemon.join("state"), "update_schemes_stats").is_err() {
            continue;
        }
        for context in numbered(&daemon.join("contexts")) {
            for scheme in numbered(&context.join("schemes")) {
                let read = |name| std::fs::read_to_string(scheme.join(name)).unwrap_or_default();
                if read("action").trim() == "pageout" {
                    size_bytes += read("stats/sz_applied").trim().parse().unwrap_or(0_u64);
                }
            }
        }
    }
    size_bytes / rustix::param::page_size() as u64
}

/// Returns the numbered folders of a folder of DAMON's.
fn numbered(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (0..)
        .map(move |number: u32| folder.join(number.to_string()))
        .take_while(|path| path.exists())
}
