//! How much of a file is in the kernel's page cache, as far as that can be known.

use crate::open::open_regular;
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
/// OpenZFS: what was read is in its own cache (ARC), which the kernel counts nowhere.
const ZFS_MAGIC: FsWord = 0x2fc1_2fc1;
/// Bytes that are mapped at a time to be looked at.
const WINDOW: u64 = 1 << 30;

/// Bytes of a file in the page cache, counted in whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// In memory, the page at the end counted as far as the file reaches.
    pub resident_bytes: u64,
    /// Changed in memory and not written; `None` where it cannot be known.
    pub dirty_bytes: Option<u64>,
    /// Being written.
    pub writeback_bytes: Option<u64>,
    /// Not in memory any more, and remembered as having been.
    pub evicted_bytes: Option<u64>,
    /// Of those, the ones that went only just now: they would be there if there were a little more
    /// memory.
    pub recently_evicted_bytes: Option<u64>,
}

/// What can be known about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// This is how it is.
    Is(Residency),
    /// Nobody tells.
    NotTold(Unknown),
}

/// Why it cannot be known how much of a file is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unknown {
    /// The kernel does not tell this user: the file is somebody else's and may not be written.
    Rights,
    /// The file system keeps its data in a cache of its own.
    OwnCache,
    /// The kernel has no cachestat(2), and its mincore(2) says of everything that it is in memory.
    Kernel,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rights => "the kernel tells only the owner, who may write the file, and root",
            Self::OwnCache => "the file system has a cache of its own",
            Self::Kernel => "this kernel does not tell",
        })
    }
}

/// How much of `file` is in memory.
///
/// cachestat(2) where there is one, mincore(2) else and on overlayfs, which the other is blind to.
/// Neither tells who may not write a file and does not own it: one refuses, the other says that
/// everything is there.
pub fn residency(file: &File) -> io::Result<Known> {
    let found = file.metadata()?;
    look(file, &found, 0..found.len())
}

/// How much of a part of `file` (bytes, from a page's beginning on) is in memory, told as
/// [`residency`] tells of a whole file; the size is the part's.
pub fn residency_of(file: &File, range: Range<u64>) -> io::Result<Known> {
    look(file, &file.metadata()?, range)
}

/// The same where the file's attributes are known.
pub(crate) fn look(file: &File, found: &Metadata, range: Range<u64>) -> io::Result<Known> {
    let size_bytes = range.end.saturating_sub(range.start);
    let magic = rustix::fs::fstatfs(file).map_or(0, |found| found.f_type);
    if magic == ZFS_MAGIC {
        return Ok(Known::NotTold(Unknown::OwnCache));
    }
    if magic != OVERLAYFS_MAGIC {
        match sys::cachestat(file, range.clone()) {
            Ok(found) => return Ok(Known::Is(counted(size_bytes, &found))),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM) => return Ok(Known::NotTold(Unknown::Rights)),
                Some(libc::ENOSYS | libc::EOPNOTSUPP) => {}
                _ => return Err(error),
            },
        }
    }
    if size_bytes > 0 && !mincore_tells() {
        return Ok(Known::NotTold(Unknown::Kernel));
    }
    if !is_told(file, found)? {
        return Ok(Known::NotTold(Unknown::Rights));
    }
    let mut resident_bytes = 0;
    cached_ranges(file, range, |range| {
        resident_bytes += range.end - range.start
    })?;
    Ok(Known::Is(Residency {
        size_bytes,
        resident_bytes,
        ..Residency::default()
    }))
}

/// Reads the beginning of a regular file and leaves the cache as it was: a page that comes in goes
/// again. Returns how many bytes that were, fewer where the file is shorter.
pub fn peek(path: &Path, buf: &mut [u8]) -> io::Result<usize> {
    let (file, found) = open_regular(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    let looked_at = 0..found.len().min(buf.len() as u64);
    let before = resident_in(&file, &found, &looked_at)?;
    let count = file.read_at(buf, 0)?;
    if before == Some(0) {
        // Of a page in part nothing goes.
        let pages = (buf.len() as u64).next_multiple_of(page_bytes());
        rustix::fs::fadvise(&file, 0, NonZeroU64::new(pages), Advice::DontNeed)?;
    }
    Ok(count)
}

/// How many bytes of `range` are in memory, or on their way there; `None` where nobody tells.
pub(crate) fn resident_in(
    file: &File,
    found: &Metadata,
    range: &Range<u64>,
) -> io::Result<Option<u64>> {
    if range.is_empty() {
        return Ok(Some(0));
    }
    match look(file, found, range.clone())? {
        Known::Is(told) => Ok(Some(told.resident_bytes)),
        Known::NotTold(_) => Ok(None),
    }
}

fn counted(size_bytes: u64, found: &sys::CacheStat) -> Residency {
    let page = page_bytes();
    let bytes = |pages: u64| pages.saturating_mul(page);
    Residency {
        size_bytes,
        // The last page is there as far as the file reaches.
        resident_bytes: bytes(found.cached).min(size_bytes),
        dirty_bytes: Some(bytes(found.dirty).min(size_bytes)),
        writeback_bytes: Some(bytes(found.writeback).min(size_bytes)),
        evicted_bytes: Some(bytes(found.evicted)),
        recently_evicted_bytes: Some(bytes(found.recently_evicted)),
    }
}

/// Whether mincore(2) tells this user the truth about a file. Linux: mm/mincore.c,
/// `can_do_mincore`.
fn is_told(file: &File, found: &Metadata) -> io::Result<bool> {
    let euid = rustix::process::geteuid();
    if euid.is_root() || found.uid() == euid.as_raw() {
        return Ok(true);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
}

/// Whether mincore(2) says of a page that nobody ever touched that it is not in memory. Where the
/// kernel is a program, as in gVisor, it says so of none.
fn mincore_tells() -> bool {
    static TELLS: OnceLock<bool> = OnceLock::new();
    *TELLS.get_or_init(|| {
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

/// Calls `each` for the runs of bytes in `range` that are in memory and complete, in order; the
/// first and the last page are cut to the range. By mincore(2).
pub fn cached_ranges(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let page = page_bytes();
    let mut open: Option<Range<u64>> = None;
    let mut window = range.start / page * page;
    while window < range.end {
        let end = range.end.min(window + WINDOW);
        let mut at = window;
        sys::mincore(file, window..end, |is_cached| {
            let here = at.max(range.start)..(at + page).min(range.end);
            at += page;
            match (&mut open, is_cached) {
                (Some(run), true) => run.end = here.end,
                (None, true) => open = Some(here),
                (_, false) => open.take().into_iter().for_each(&mut each),
            }
        })?;
        window = end;
    }
    open.into_iter().for_each(each);
    Ok(())
}

/// Has what is in memory of the file at `path` stay there, and tells how many bytes that is. What
/// is not in memory is not read. EAGAIN, ENOMEM or EPERM beyond `RLIMIT_MEMLOCK`.
pub fn lock(path: &Path) -> io::Result<(Locked, u64)> {
    let (file, found) = open_regular(path)?;
    if let Known::NotTold(unknown) = look(&file, &found, 0..found.len())? {
        return Err(io::Error::other(unknown.to_string()));
    }
    let (mut ranges, mut bytes) = (Vec::new(), 0);
    cached_ranges(&file, 0..found.len(), |range| {
        bytes += range.end - range.start;
        ranges.push(range);
    })?;
    Ok((Locked::new(&file, found.len(), &ranges)?, bytes))
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn mincore_of_linux_can_be_trusted() {
        assert!(mincore_tells());
    }

    #[test]
    fn what_is_written_is_resident_up_to_the_size() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 100], 3 * page_bytes()).unwrap();
        let size_bytes = 3 * page_bytes() + 100;
        let Known::Is(found) = residency(&file).unwrap() else {
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
