//! The three system calls about cached and allocated pages that no crate wraps: cachestat(2),
//! mincore(2), FIEMAP.
//!
//! Everything that needs `unsafe` in this crate is here.

use rustix::fd::{AsFd, AsRawFd};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;

/// cachestat(2) has this number on every architecture (include/uapi/asm-generic/unistd.h).
const SYS_CACHESTAT: libc::c_long = 451;
/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)` (linux/fs.h).
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// Extents asked for in one call.
const EXTENTS: usize = 128;
/// The last extent of the file (`FIEMAP_EXTENT_LAST`).
const LAST: u32 = 1;

/// Pages of a range of a file, as cachestat(2) counts them (linux/mman.h, `struct cachestat`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStat {
    /// Cached, including pages still being read.
    pub(crate) cached: u64,
    /// Changed and not written.
    pub(crate) dirty: u64,
    /// Being written.
    pub(crate) writeback: u64,
    /// Evicted, and still remembered by the kernel.
    pub(crate) evicted: u64,
    /// The part of them evicted recently.
    pub(crate) recently_evicted: u64,
}

/// Counts the cached pages of `range` (in bytes).
///
/// # Errors
///
/// ENOSYS before Linux 6.5; EPERM without ownership or write permission.
pub(crate) fn cachestat(file: impl AsFd, range: Range<u64>) -> io::Result<CacheStat> {
    let asked = [range.start, range.end.saturating_sub(range.start)];
    let mut found = CacheStat::default();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the kernel reads two words and writes five, which is what both pointers lead to.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, fd, asked.as_ptr(), &raw mut found, 0) };
    if status == 0 {
        Ok(found)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Calls `each` for the pages of `range`, in order, with whether the page is cached and up to date.
/// `range` is in bytes and starts at a page boundary. Without ownership or write
/// permission, the kernel reports every page as cached.
pub(crate) fn mincore(
    file: impl AsFd,
    range: Range<u64>,
    mut each: impl FnMut(bool),
) -> io::Result<()> {
    let len = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
    if len == 0 {
        return Ok(());
    }
    let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: the kernel chooses the address of the new mapping, and no code reads through it.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            flags,
            file,
            range.start,
        )
    }?;
    let mut pages = vec![0_u8; len.div_ceil(rustix::param::page_size())];
    // SAFETY: the range is the mapping just made, and there is a byte for each of its pages.
    let status = unsafe { libc::mincore(start, len, pages.as_mut_ptr()) };
    let status = if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    };
    // SAFETY: this function made the mapping, and no pointer into it remains.
    unsafe { rustix::mm::munmap(start, len) }?;
    status?;
    pages.iter().for_each(|page| each(page & 1 != 0));
    Ok(())
}

/// Waits until `range` (in bytes) of a file is in memory. Reads absent pages one by one and nothing
/// around them; a plain read would continue at the mark of an earlier reader's readahead.
///
/// # Errors
///
/// EINVAL before Linux 5.14.
pub(crate) fn populate(file: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let start = range.start / rustix::param::page_size() as u64 * rustix::param::page_size() as u64;
    let len = usize::try_from(range.end.saturating_sub(start)).map_err(io::Error::other)?;
    if len == 0 {
        return Ok(());
    }
    let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: the kernel chooses the address of the new mapping, and no code reads through it.
    let at =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, start) }?;
    // SAFETY: as below. The advice keeps the kernel from reading around a page.
    unsafe { rustix::mm::madvise(at, len, Advice::Random) }?;
    // SAFETY: the range is the mapping just made, and the call leaves its contents unchanged.
    let status = unsafe { rustix::mm::madvise(at, len, Advice::LinuxPopulateRead) };
    // SAFETY: this function made the mapping, and no pointer into it remains.
    unsafe { rustix::mm::munmap(at, len) }?;
    Ok(status?)
}

/// Ranges of a file locked in memory until this value is dropped. Linux: mlock(2).
#[derive(Debug)]
pub struct Locked {
    start: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: the value owns its mapping, and no code reads or writes through the pointer.
unsafe impl Send for Locked {}

impl Locked {
    /// Locks `ranges` of `file`: bytes below `size_bytes`, in whole pages.
    ///
    /// # Errors
    ///
    /// EAGAIN, ENOMEM or EPERM beyond `RLIMIT_MEMLOCK`.
    pub(crate) fn new(file: impl AsFd, size_bytes: u64, ranges: &[Range<u64>]) -> io::Result<Self> {
        let len = usize::try_from(size_bytes).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Self {
                start: std::ptr::null_mut(),
                len,
            });
        }
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address of the new mapping, and no code reads through it.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) }?;
        let locked = Self { start, len };
        // SAFETY: the range is the mapping just made, and the call leaves its contents unchanged.
        unsafe { rustix::mm::madvise(start, len, Advice::Random) }?;
        for range in ranges {
            // Both fit into usize: they are at most `len`.
            let (at, end) = (
                range.start.min(size_bytes) as usize,
                range.end.min(size_bytes) as usize,
            );
            let part = start.wrapping_byte_add(at);
            // SAFETY: the range is within the mapping just made.
            unsafe { rustix::mm::mlock(part, end.saturating_sub(at)) }?;
        }
        Ok(locked)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `self` owns the mapping, and no pointer into it remains; munmap unlocks its
            // pages.
            let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
        }
    }
}

/// A contiguous run of a file on the device. Linux: `struct fiemap_extent`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// First byte on the device.
    pub place: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    reserved: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved_too: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// Returns the extents of a file in file order, at most `extents_max` of them. Linux:
/// FS_IOC_FIEMAP.
///
/// # Errors
///
/// EOPNOTSUPP if the file system does not support FIEMAP.
pub fn fiemap(file: impl AsFd, extents_max: usize) -> io::Result<Vec<Extent>> {
    let fd = file.as_fd().as_raw_fd();
    let mut found: Vec<Extent> = Vec::new();
    let mut start = 0;
    while found.len() < extents_max {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the kernel reads the header, and writes the header and at most `extent_count`
        // extents, for which `map` has room.
        if unsafe { libc::ioctl(fd, FS_IOC_FIEMAP as _, &raw mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let count = (map.mapped_extents as usize).min(EXTENTS);
        found.extend_from_slice(&map.extents[..count]);
        let Some(last) = map.extents[..count].last() else {
            break;
        };
        let end = last.offset.saturating_add(last.len_bytes);
        if last.flags & LAST != 0 || end <= start {
            break;
        }
        start = end;
    }
    found.truncate(extents_max);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn written_file_is_cached_by_both_calls() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10 * 4096 + 1]).unwrap();
        match cachestat(&file, 0..u64::MAX) {
            Ok(found) => assert_eq!(found.cached, 11, "{found:?}"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
        let mut pages = Vec::new();
        mincore(&file, 0..10 * 4096 + 1, |is_cached| pages.push(is_cached)).unwrap();
        assert_eq!(pages, [true; 11]);
    }

    #[test]
    fn locked_pages_count_in_vm_lck() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 4 * 4096]).unwrap();
        let locked = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("VmLck:"))
                .unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = locked();
        let held = Locked::new(&file, 4 * 4096, &[0..4096, 2 * 4096..4 * 4096]).unwrap();
        assert_eq!(locked() - before, 12);
        drop(held);
        assert_eq!(locked(), before);
        drop(Locked::new(&file, 0, &[]).unwrap());
    }

    #[test]
    fn extents_cover_data_and_no_hole() {
        let mut file = tempfile::tempfile_in(".").unwrap();
        file.write_all(&[7; 1 << 16]).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 1 << 20).unwrap();
        file.sync_all().unwrap();
        match fiemap(&file, 1000) {
            Ok(extents) => {
                let bytes: u64 = extents.iter().map(|extent| extent.len_bytes).sum();
                assert_eq!(bytes, (1 << 16) + 4096, "{extents:?}");
                assert!(
                    extents
                        .iter()
                        .all(|extent| extent.offset < 1 << 16 || extent.offset == 1 << 20)
                );
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}"),
        }
    }
}
