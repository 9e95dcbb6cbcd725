//! The page cache of this machine, which all tests share, those of another process as well.

use std::fs::File;
use std::path::Path;

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

/// Returns the number of pages that reclaim and writes to drop_caches removed from the page cache
/// of this machine.
pub fn dropped_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    ["drop_pagecache ", "pgsteal_file "]
        .into_iter()
        .filter_map(count)
        .sum()
}
