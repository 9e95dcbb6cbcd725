//! The residency of a file: how many of its bytes are in the kernel's page cache.

use crate::open::{Source, open_regular};
use crate::sys::{self, Locked};
use rustix::fs::{Advice, FsWord, MemfdFlags};
use serde::Serialize;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::OnceLock;

/// overlayfs (linux/magic.h): its files have no pages of their own, so cachestat(2) counts none.
const OVERLAYFS_MAGIC: FsWord = 0x794c_7630;
/// OpenZFS: file data is in its own cache (ARC), which the kernel does not count.
const ZFS_MAGIC: FsWord = 0x2fc1_2fc1;
/// Bytes mapped at a time for mincore(2).
const WINDOW: u64 = 64 << 20;
/// Parts that a range is split into, to find those without pages.
const SPLIT: u64 = 64;

/// Bytes of a file in the page cache, counted in whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Bytes in memory; the last page counts up to the end of the file.
    pub resident_bytes: u64,
    /// Bytes changed in memory and not written; `None` if unknown.
    pub dirty_bytes: Option<u64>,
    /// Bytes being written; `None` if unknown.
    pub writeback_bytes: Option<u64>,
    /// Bytes evicted, as far as the kernel remembers them; `None` if unknown.
    pub evicted_bytes: Option<u64>,
    /// The part of them evicted so recently that a little more memory would have kept them.
    pub recently_evicted_bytes: Option<u64>,
}

/// The answer to a question about residency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResidencyReport {
    /// The residency is known.
    Known(Residency),
    /// The residency cannot be determined.
    Unknown(UnknownReason),
}

/// Why the residency of a file cannot be determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UnknownReason {
    /// The kernel hides it: the user neither owns the file nor may write it.
    Rights,
    /// The file system caches data outside the page cache.
    OwnCache,
    /// The kernel has no cachestat(2), and its mincore(2) reports every page as resident.
    Kernel,
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rights => {
                "the kernel reports it only to root, the owner and users with write permission"
            }
            Self::OwnCache => "the file system has a cache of its own",
            Self::Kernel => "this kernel does not report it",
        })
    }
}

/// Returns how much of `file` is in memory.
///
/// Uses cachestat(2) where it exists, else mincore(2); on overlayfs always mincore(2), because
/// cachestat(2) counts no pages there. Without ownership or write permission,
/// cachestat(2) fails and mincore(2) reports every page as resident.
pub fn residency(file: &File) -> io::Result<ResidencyReport> {
    let found = file.metadata()?;
    look(file, &found, 0..found.len())
}

/// Returns how much of `range` of `file` is in memory, as [`residency`] does for a whole file.
/// `range` is in bytes and starts at a page boundary; the reported size is that of the range.
pub fn residency_of(file: &File, range: Range<u64>) -> io::Result<ResidencyReport> {
    look(file, &file.metadata()?, range)
}

/// As [`residency_of`], for a file whose attributes are known.
pub(crate) fn look(
    file: &File,
    found: &Metadata,
    range: Range<u64>,
) -> io::Result<ResidencyReport> {
    let size_bytes = range.end.saturating_sub(range.start);
    let magic = rustix::fs::fstatfs(file).map_or(0, |found| found.f_type);
    if magic == ZFS_MAGIC {
        return Ok(ResidencyReport::Unknown(UnknownReason::OwnCache));
    }
    if magic != OVERLAYFS_MAGIC {
        match sys::cachestat(file, range.clone()) {
            Ok(found) => return Ok(ResidencyReport::Known(counted(size_bytes, &found))),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM) => return Ok(ResidencyReport::Unknown(UnknownReason::Rights)),
                Some(libc::ENOSYS | libc::EOPNOTSUPP) => {}
                _ => return Err(error),
            },
        }
    }
    if size_bytes > 0 && !mincore_reports_absence() {
        return Ok(ResidencyReport::Unknown(UnknownReason::Kernel));
    }
    if !is_mincore_permitted(file, found)? {
        return Ok(ResidencyReport::Unknown(UnknownReason::Rights));
    }
    let mut resident_bytes = 0;
    cached_ranges(file, range, |range| {
        resident_bytes += range.end - range.start
    })?;
    Ok(ResidencyReport::Known(Residency {
        size_bytes,
        resident_bytes,
        ..Residency::default()
    }))
}

/// Reads the start of a regular file and leaves the cache as it was: pages that the read brought in
/// are dropped. Returns the bytes read, fewer than `buf` holds if the file is shorter.
pub fn peek(path: &Path, buf: &mut [u8]) -> io::Result<usize> {
    let (file, found) = open_regular(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    let looked_at = 0..found.len().min(buf.len() as u64);
    let before = resident_in(&file, &found, &looked_at)?;
    let count = file.read_at(buf, 0)?;
    if before == Some(0) {
        // The kernel drops whole pages only.
        let pages = (buf.len() as u64).next_multiple_of(page_bytes());
        rustix::fs::fadvise(&file, 0, NonZeroU64::new(pages), Advice::DontNeed)?;
    }
    Ok(count)
}

/// Returns the bytes of `range` that are in memory or being read; `None` if unknown.
pub(crate) fn resident_in(
    file: &File,
    found: &Metadata,
    range: &Range<u64>,
) -> io::Result<Option<u64>> {
    if range.is_empty() {
        return Ok(Some(0));
    }
    match look(file, found, range.clone())? {
        ResidencyReport::Known(found) => Ok(Some(found.resident_bytes)),
        ResidencyReport::Unknown(_) => Ok(None),
    }
}

fn counted(size_bytes: u64, found: &sys::CacheStat) -> Residency {
    let page = page_bytes();
    let bytes = |pages: u64| pages.saturating_mul(page);
    Residency {
        size_bytes,
        // The last page counts up to the end of the file.
        resident_bytes: bytes(found.cached).min(size_bytes),
        dirty_bytes: Some(bytes(found.dirty).min(size_bytes)),
        writeback_bytes: Some(bytes(found.writeback).min(size_bytes)),
        evicted_bytes: Some(bytes(found.evicted)),
        recently_evicted_bytes: Some(bytes(found.recently_evicted)),
    }
}

/// Returns whether mincore(2) gives this user correct answers about a file. Linux: mm/mincore.c,
/// `can_do_mincore`.
fn is_mincore_permitted(file: &File, found: &Metadata) -> io::Result<bool> {
    let euid = rustix::process::geteuid();
    if euid.is_root() || found.uid() == euid.as_raw() {
        return Ok(true);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
}

/// Returns whether mincore(2) reports an untouched page as absent. gVisor reports every page as
/// resident.
fn mincore_reports_absence() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        let Ok(file) = rustix::fs::memfd_create("folio", MemfdFlags::CLOEXEC) else {
            return false;
        };
        let mut is_empty = false;
        let looked = rustix::fs::ftruncate(&file, page_bytes())
            .map_err(io::Error::from)
            .and_then(|()| sys::mincore(&file, 0..page_bytes(), |is_cached| is_empty = !is_cached));
        looked.is_ok() && is_empty
    })
}

/// Calls `each` for the runs of bytes in `range` that are in memory and up to date, in order. The
/// first and the last page are clipped to the range. Uses mincore(2), on the parts of a large file
/// that have pages by cachestat(2).
pub fn cached_ranges(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let page = page_bytes();
    let mut open: Option<Range<u64>> = None;
    for part in occupied(file, range.start / page * page..range.end) {
        if open.as_ref().is_some_and(|run| run.end < part.start) {
            open.take().into_iter().for_each(&mut each);
        }
        let mut at = part.start;
        sys::mincore(file, part, |is_cached| {
            let here = at.max(range.start)..(at + page).min(range.end);
            at += page;
            match (&mut open, is_cached) {
                (Some(run), true) => run.end = here.end,
                (None, true) => open = Some(here),
                (_, false) => open.take().into_iter().for_each(&mut each),
            }
        })?;
    }
    open.into_iter().for_each(each);
    Ok(())
}

/// Splits `range`, which starts at a page, into parts for mincore(2), and leaves out large parts
/// without pages. Counting costs as much as there are pages, so that a huge sparse file is quick.
fn occupied(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let size_bytes = range.end.saturating_sub(range.start);
    let magic = rustix::fs::fstatfs(file).map_or(0, |found| found.f_type);
    let is_empty = |part: &Range<u64>| {
        magic != OVERLAYFS_MAGIC
            && sys::cachestat(file, part.clone()).is_ok_and(|found| found.cached == 0)
    };
    let (mut parts, mut step) = (vec![range], size_bytes);
    while step > WINDOW {
        step = (step / SPLIT).next_multiple_of(page_bytes()).max(WINDOW);
        let split = parts.iter().flat_map(|part| {
            let starts = (part.start..part.end).step_by(step as usize);
            starts.map(|start| start..part.end.min(start + step))
        });
        parts = split.filter(|part| !is_empty(part)).collect();
    }
    parts
}

/// Locks the resident pages of the file or block device at `path` in memory; returns the lock and
/// its bytes. Absent pages are not read.
///
/// # Errors
///
/// EAGAIN, ENOMEM or EPERM beyond `RLIMIT_MEMLOCK`.
pub fn lock(path: &Path) -> io::Result<(Locked, u64)> {
    let source = Source::open(path)?;
    let (file, whole) = (&source.file, 0..source.size_bytes);
    if let ResidencyReport::Unknown(unknown) = look(file, &source.found, whole.clone())? {
        return Err(io::Error::other(unknown.to_string()));
    }
    let (mut ranges, mut bytes) = (Vec::new(), 0);
    cached_ranges(file, whole, |range| {
        bytes += range.end - range.start;
        ranges.push(range);
    })?;
    Ok((Locked::new(file, source.size_bytes, &ranges)?, bytes))
}

/// Returns the host's page size in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn linux_mincore_reports_absent_pages() {
        assert!(mincore_reports_absence());
    }

    #[test]
    fn written_bytes_are_resident_up_to_the_size() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 100], 3 * page_bytes()).unwrap();
        let size_bytes = 3 * page_bytes() + 100;
        let ResidencyReport::Known(found) = residency(&file).unwrap() else {
            panic!("our own file")
        };
        assert_eq!(found.size_bytes, size_bytes);
        assert!(
            found.resident_bytes >= 100 && found.resident_bytes <= size_bytes,
            "{found:?}"
        );
        let mut ranges = Vec::new();
        cached_ranges(&file, 0..size_bytes, |range| ranges.push(range)).unwrap();
        assert_eq!(
            ranges.last().map(|range| range.end),
            Some(size_bytes),
            "{ranges:?}"
        );
        // From the middle of a page, to the middle of a page.
        let start = 3 * page_bytes() + 10;
        let mut ranges = Vec::new();
        cached_ranges(&file, start..start + 5, |range| ranges.push(range)).unwrap();
        assert_eq!(ranges.as_slice(), std::slice::from_ref(&(start..start + 5)));
    }
}
