//! Direct reads: from the disk into the caller's cache, without a second copy in the host's.
//!
//! A read goes direct if it is long and aligned, if the host caches less than half of it, and if
//! the disk is fast. On a slow disk the host's copy, which the next program finds, is worth more
//! than it costs. Every other read, and every write, uses the host's page cache. The host keeps the
//! two coherent: a direct read first writes back the dirty pages of its range.

use crate::block::iov::{self, IOV_MAX};
use nix::libc;
use rustix::fs::{FsWord, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Smallest direct read, in bytes. The host's readahead is better for smaller ones.
const READ_BYTES_MIN: u64 = 256 << 10;
/// Alignment in bytes of offset, length and memory that every local disk accepts.
const ALIGN: u64 = 4096;
/// Bytes of direct reads after which the speed of the disk is known.
const PROBE_BYTES: u64 = 16 << 20;
/// Least speed of one direct read, in bytes per second. Several are in flight at a time.
const BYTES_PER_S_MIN: u64 = 100 << 20;
/// File systems of local disks that read directly from the disk, and whose cached pages
/// cachestat(2) counts (linux/magic.h): ext4, XFS, Btrfs, F2FS.
const FILE_SYSTEMS: [FsWord; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// cachestat(2) has this number on every architecture (include/uapi/asm-generic/unistd.h).
const SYS_CACHESTAT: libc::c_long = 451;

/// A second descriptor of a host file, for direct reads.
#[derive(Default)]
pub(crate) struct DirectReads {
    /// None where the host cannot read directly.
    file: Option<File>,
    is_disabled: AtomicBool,
    read_bytes: AtomicU64,
    read_ns: AtomicU64,
}

impl DirectReads {
    /// Opens `file` again for direct reads, if its file system is on a local disk.
    pub(crate) fn open(file: &File, is_block_device: bool) -> Self {
        let is_local =
            || rustix::fs::fstatfs(file).is_ok_and(|found| FILE_SYSTEMS.contains(&found.f_type));
        let open = || {
            File::options()
                .read(true)
                .custom_flags((OFlags::DIRECT | OFlags::NONBLOCK).bits() as i32)
                .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .ok()
        };
        Self {
            file: (is_block_device || is_local()).then(open).flatten(),
            ..Self::default()
        }
    }

    /// Reads directly into the start of `bufs`, if that is possible and worth it; returns the
    /// number of bytes, 0 if the caller must read through the host's page cache. `file` is the
    /// descriptor for that.
    pub(crate) fn read(&self, file: &File, bufs: &mut [IoSliceMut<'_>], offset: u64) -> u64 {
        let want = iov::len_mut(bufs);
        let Some(direct) = &self.file else { return 0 };
        if want < READ_BYTES_MIN
            || self.is_disabled.load(Ordering::Relaxed)
            || !is_aligned(bufs, offset)
            || is_cached(file, offset, want)
        {
            return 0;
        }
        let start = Instant::now();
        match rustix::io::preadv(direct, bufs, offset) {
            Ok(count) => {
                self.judge_speed(count as u64, start.elapsed().as_nanos() as u64);
                count as u64
            }
            Err(errno) => {
                // The read through the page cache reports the errors of the disk.
                if matches!(errno, Errno::INVAL | Errno::OPNOTSUPP) {
                    self.is_disabled.store(true, Ordering::Relaxed);
                }
                tracing::debug!(%errno, offset, want, "direct read");
                0
            }
        }
    }

    /// Turns direct reads off if the disk is slow.
    fn judge_speed(&self, bytes: u64, ns: u64) {
        let bytes = self.read_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let ns = self.read_ns.fetch_add(ns, Ordering::Relaxed) + ns;
        if bytes >= PROBE_BYTES && is_slow(bytes, ns) {
            self.is_disabled.store(true, Ordering::Relaxed);
        }
    }
}

fn is_slow(bytes: u64, ns: u64) -> bool {
    u128::from(bytes) * 1_000_000_000 < u128::from(ns) * u128::from(BYTES_PER_S_MIN)
}

fn is_aligned(bufs: &[IoSliceMut<'_>], offset: u64) -> bool {
    let is_aligned = |number: usize| (number as u64).is_multiple_of(ALIGN);
    bufs.len() <= IOV_MAX
        && offset.is_multiple_of(ALIGN)
        && bufs
            .iter()
            .all(|buf| is_aligned(buf.len()) && is_aligned(buf.as_ptr().addr()))
}

/// Whether the host caches at least half of a range, or has changes of it to write; also if the
/// host does not report it.
fn is_cached(file: &File, offset: u64, len_bytes: u64) -> bool {
    cachestat(file, offset, len_bytes).is_none_or(|found| {
        let cached_bytes = found.cached * rustix::param::page_size() as u64;
        found.dirty + found.writeback > 0 || cached_bytes * 2 >= len_bytes
    })
}

/// Pages of a range of a file, as cachestat(2) counts them (linux/mman.h, `struct cachestat`).
#[repr(C)]
#[derive(Debug, Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Counts the cached pages of a range; none before Linux 6.5, and without ownership or write
/// permission.
#[allow(unsafe_code)]
fn cachestat(file: &File, offset: u64, len_bytes: u64) -> Option<CacheStat> {
    let range = [offset, len_bytes];
    let mut found = CacheStat::default();
    // SAFETY: the kernel reads two words and writes five, which is what both pointers lead to.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            &raw mut found,
            0,
        )
    };
    (status == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::AlignedBuffer;
    use crate::block::file::{HostFile, ImageFile};
    use rustix::fs::Advice;
    use std::io::IoSlice;

    const LEN: u64 = 4 << 20;

    fn image() -> (tempfile::TempDir, HostFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = HostFile::create(&folder.path().join("disk")).unwrap();
        file.set_len(LEN).unwrap();
        (folder, file)
    }

    fn read(file: &HostFile, offset: u64, len_bytes: u64) -> Vec<u8> {
        let mut buf = AlignedBuffer::new(len_bytes as usize);
        let done = file
            .read_some_uncached(&mut [IoSliceMut::new(&mut buf)], offset)
            .unwrap();
        buf[..done as usize].to_vec()
    }

    /// Empties the host's cache of the image.
    fn forget(file: &HostFile) {
        file.sync_data().unwrap();
        rustix::fs::fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    }

    #[test]
    fn uncached_reads_see_buffered_writes() {
        let (_folder, file) = image();
        let mut expected = vec![0_u8; LEN as usize];
        let mut seed = 1_u64;
        for round in 0..200_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) % (LEN - 70_000);
            let len = [1, 512, 4096, 70_000][(round % 4) as usize];
            let bytes = vec![round as u8 + 1; len];
            file.write(&[IoSlice::new(&bytes)], at).unwrap();
            expected[at as usize..][..len].copy_from_slice(&bytes);
            if round % 8 == 0 {
                forget(&file);
            }
            let start = (seed >> 40) % 4 * READ_BYTES_MIN;
            let found = read(&file, start, 2 * READ_BYTES_MIN);
            assert!(
                found == expected[start as usize..][..found.len()],
                "{round}"
            );
        }
    }

    #[test]
    fn long_cold_read_leaves_no_copy_in_the_host() {
        let (_folder, file) = image();
        let bytes: Vec<u8> = (0..LEN).map(|n| (n / 5) as u8).collect();
        file.write(&[IoSlice::new(&bytes)], 0).unwrap();
        forget(&file);
        let is_forgotten = cachestat(file.as_file(), 0, LEN).is_some_and(|stat| stat.cached == 0);
        assert!(read(&file, 0, LEN) == bytes);
        if is_forgotten && DirectReads::open(file.as_file(), false).file.is_some() {
            assert!(!is_cached(file.as_file(), 0, LEN));
        }
        // A short read keeps its copy, and a cached range is read from there.
        let start = LEN - READ_BYTES_MIN;
        for _ in 0..2 {
            let mut rest = vec![0; READ_BYTES_MIN as usize + 1];
            let done = file.read_some_uncached(&mut [IoSliceMut::new(&mut rest[1..])], start);
            assert_eq!(done.unwrap(), READ_BYTES_MIN);
            assert!(rest[1..] == bytes[start as usize..]);
        }
        assert!(is_cached(file.as_file(), start, READ_BYTES_MIN));
        assert!(read(&file, start, READ_BYTES_MIN) == bytes[start as usize..]);
    }

    #[test]
    fn uncached_read_stops_at_the_end_of_the_file() {
        let (_folder, file) = image();
        let len = READ_BYTES_MIN + 777;
        file.set_len(0).unwrap();
        file.write(&[IoSlice::new(&vec![7; len as usize])], 0)
            .unwrap();
        forget(&file);
        assert_eq!(read(&file, 0, 2 * READ_BYTES_MIN), vec![7; len as usize]);
        assert!(read(&file, LEN, READ_BYTES_MIN).is_empty());
    }

    #[test]
    fn slow_disk_keeps_the_copy_of_the_host() {
        let reads = DirectReads::default();
        reads.judge_speed(PROBE_BYTES - 1, u64::MAX / 2);
        assert!(!reads.is_disabled.load(Ordering::Relaxed));
        reads.judge_speed(1, 1);
        assert!(reads.is_disabled.load(Ordering::Relaxed));
        let reads = DirectReads::default();
        reads.judge_speed(PROBE_BYTES, 1_000_000_000 / 10);
        assert!(!reads.is_disabled.load(Ordering::Relaxed));
    }
}
