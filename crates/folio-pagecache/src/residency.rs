//! How much of a file is in the kernel's page cache, as far as that can be known.

use crate::sys;
use rustix::fs::FsWord;
use serde::Serialize;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

/// overlayfs (linux/magic.h): its files have no pages of their own, so cachestat(2) counts none.
const OVERLAYFS_MAGIC: FsWord = 0x794c_7630;
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
    /// Of those, the ones that went only just now: they would be there if there were a little more memory.
    pub recently_evicted_bytes: Option<u64>,
}

/// What can be known about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// This is how it is.
    Is(Residency),
    /// The kernel does not tell this user: the file is somebody else's and may not be written.
    NotTold,
}

/// How much of `file` is in memory.
///
/// cachestat(2) where there is one, mincore(2) else and on overlayfs, which the other is blind to. Neither tells who may
/// not write a file and does not own it: one refuses, the other says that everything is there.
pub fn residency(file: &File) -> io::Result<Known> {
    residency_of(file, 0..file.metadata()?.len())
}

/// How much of a part of `file` (bytes, from a page's beginning on) is in memory, told as [`residency`] tells of a whole
/// file; the size is the part's.
pub fn residency_of(file: &File, range: Range<u64>) -> io::Result<Known> {
    let size_bytes = range.end.saturating_sub(range.start);
    let is_overlay = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == OVERLAYFS_MAGIC);
    if !is_overlay {
        match sys::cachestat(file, range.clone()) {
            Ok(found) => return Ok(Known::Is(counted(size_bytes, &found))),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM) => return Ok(Known::NotTold),
                Some(libc::ENOSYS | libc::EOPNOTSUPP) => {}
                _ => return Err(error),
            },
        }
    }
    if !is_told(file)? {
        return Ok(Known::NotTold);
    }
    let mut resident_bytes = 0;
    cached_ranges(file, range, |range| resident_bytes += range.end - range.start)?;
    Ok(Known::Is(Residency { size_bytes, resident_bytes, ..Residency::default() }))
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

/// Whether mincore(2) tells this user the truth about a file. Linux: mm/mincore.c, `can_do_mincore`.
fn is_told(file: &File) -> io::Result<bool> {
    let euid = rustix::process::geteuid();
    if euid.is_root() || file.metadata()?.uid() == euid.as_raw() {
        return Ok(true);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
}

/// Calls `each` for the runs of bytes in `range` that are in memory and complete, in order; the first and the last page
/// are cut to the range. By mincore(2).
pub fn cached_ranges(file: &File, range: Range<u64>, mut each: impl FnMut(Range<u64>)) -> io::Result<()> {
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

/// Bytes of a page.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_resident_up_to_the_size() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 100], 3 * page_bytes()).unwrap();
        let size_bytes = 3 * page_bytes() + 100;
        let Known::Is(found) = residency(&file).unwrap() else { panic!("our own file") };
        assert_eq!(found.size_bytes, size_bytes);
        assert!(found.resident_bytes >= 100 && found.resident_bytes <= size_bytes, "{found:?}");
        let mut ranges = Vec::new();
        cached_ranges(&file, 0..size_bytes, |range| ranges.push(range)).unwrap();
        assert_eq!(ranges.last().map(|range| range.end), Some(size_bytes), "{ranges:?}");
        // From the middle of a page, to the middle of a page.
        let start = 3 * page_bytes() + 10;
        let mut ranges = Vec::new();
        cached_ranges(&file, start..start + 5, |range| ranges.push(range)).unwrap();
        assert_eq!(ranges.as_slice(), std::slice::from_ref(&(start..start + 5)));
    }
}
