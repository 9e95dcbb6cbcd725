//! The part cache: parts of objects in files of the host, shared between processes.
//!
//! ```text
//!   DIR/NAME.parts    part N at N * 64 KiB, sparse
//!   DIR/NAME.sums     a header, then for part N its checksum, or zeros
//! ```
//!
//! NAME is the hash of URL, ETag and length, so a file holds one version only, and all processes
//! write the same bytes. The checksum is written after the part. Neither is synced: after a crash,
//! or while another process writes, a part whose checksum does not match is absent. Checksums are
//! read once, when the cache is opened: a part that another process has evicted since then reads as
//! zeros, which do not match.

use crate::parts::PART_BYTES;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use sha2::{Digest, Sha256};
use std::fs::{self, File, FileTimes};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// Space of the header in a file of checksums.
const HEADER_BYTES: u64 = 4096;
/// Marks a checksum that is present; the number of the part is added to it.
const PRESENT: u32 = 0x464F_4C01;
/// Checks of the size of the folder, for each size that it may have.
const CHECKS_PER_SIZE: u64 = 32;

/// A folder of parts, and its greatest size.
#[derive(Debug, Clone)]
pub struct PartCacheOptions {
    /// The folder; created if missing.
    pub folder: PathBuf,
    /// Its greatest size in bytes, which it exceeds by a 32nd at most.
    pub size_bytes: u64,
}

/// The parts of one version of an object.
pub struct PartCache {
    options: PartCacheOptions,
    parts: File,
    parts_path: PathBuf,
    sums: File,
    len_bytes: u64,
    /// The stored checksums of the parts that this process knows to be present; of others zero.
    known: Box<[AtomicU64]>,
    written_bytes: AtomicU64,
    /// Where eviction continues.
    hand: AtomicU64,
    is_failure_logged: AtomicBool,
}

impl PartCache {
    /// Opens the parts of an object's version.
    ///
    /// # Errors
    ///
    /// The host's errors.
    pub fn open(
        options: &PartCacheOptions,
        url: &str,
        e_tag: &str,
        len_bytes: u64,
    ) -> io::Result<Self> {
        fs::create_dir_all(&options.folder)?;
        let identity = format!("folio part cache 1\n{url}\n{e_tag}\n{len_bytes}\n");
        let digest = Sha256::digest(&identity);
        let name: String = digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        // As private as the credentials that fetched the parts.
        let open = |extension: &str| {
            let path = options.folder.join(format!("{name}.{extension}"));
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            Ok::<_, io::Error>((file, path))
        };
        let (sums, _) = open("sums")?;
        let (parts, parts_path) = open("parts")?;
        let header = identity.as_bytes();
        let header = &header[..header.len().min(HEADER_BYTES as usize)];
        sums.write_all_at(header, 0)?;
        // The time of the last use, for eviction.
        let _ = sums.set_times(FileTimes::new().set_modified(SystemTime::now()));
        let count = len_bytes.div_ceil(PART_BYTES);
        Ok(Self {
            options: options.clone(),
            parts,
            parts_path,
            len_bytes,
            known: read_sums(&sums, count)?,
            sums,
            written_bytes: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            is_failure_logged: AtomicBool::new(false),
        })
    }

    /// Whether a part is likely present.
    pub(crate) fn has(&self, part: u64) -> bool {
        self.known_sum(part) != 0
    }

    fn known_sum(&self, part: u64) -> u64 {
        let sum = self.known.get(part as usize);
        sum.map_or(0, |sum| sum.load(Ordering::Relaxed))
    }

    fn set_known(&self, part: u64, new: u64) {
        if let Some(sum) = self.known.get(part as usize) {
            sum.store(new, Ordering::Relaxed);
        }
    }

    /// Returns a part whose checksum matches.
    pub(crate) fn read(&self, part: u64) -> Option<Bytes> {
        let len = self.len_bytes.checked_sub(part * PART_BYTES)?;
        let mut bytes = vec![0; len.min(PART_BYTES) as usize];
        self.read_into(part, &mut [IoSliceMut::new(&mut bytes)])
            .then(|| bytes.into())
    }

    /// Reads whole parts from `first` on into buffers of their length; returns whether the checksum
    /// of each matches.
    pub(crate) fn read_into(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> bool {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let found = rustix::io::preadv(&self.parts, bufs, first * PART_BYTES);
        let is_found = found == Ok(len);
        let mut is_valid = is_found;
        let mut check = |part, crc: Crc| {
            if !is_found || self.known_sum(part) != sum_of(part, &crc) {
                self.set_known(part, 0);
                is_valid = false;
            }
        };
        let mut part = first;
        let mut crc = new_crc();
        let mut left = PART_BYTES as usize;
        for buf in bufs {
            let mut bytes = &**buf;
            while !bytes.is_empty() {
                let (now, later) = bytes.split_at(left.min(bytes.len()));
                crc.update(now);
                (bytes, left) = (later, left - now.len());
                if left == 0 {
                    check(part, std::mem::replace(&mut crc, new_crc()));
                    (part, left) = (part + 1, PART_BYTES as usize);
                }
            }
        }
        // The last part of an object is shorter.
        if left < PART_BYTES as usize {
            check(part, crc);
        }
        is_valid
    }

    /// Stores neighboring parts, in one piece: the host's page cache then keeps them in one, too. A
    /// failure is logged: the parts are then fetched again.
    pub(crate) fn write(&self, first: u64, bytes: &[u8]) {
        let parts = (first..).zip(bytes.chunks(PART_BYTES as usize));
        let sums: Vec<u64> = parts
            .map(|(part, bytes)| {
                let mut crc = new_crc();
                crc.update(bytes);
                sum_of(part, &crc)
            })
            .collect();
        let stored: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let written = self
            .parts
            .write_all_at(bytes, first * PART_BYTES)
            .and_then(|()| self.sums.write_all_at(&stored, HEADER_BYTES + first * 8));
        match written {
            Ok(()) => (first..)
                .zip(sums)
                .for_each(|(part, sum)| self.set_known(part, sum)),
            Err(error) => self.log_failure(&error),
        }
        let step = (self.options.size_bytes / CHECKS_PER_SIZE).max(PART_BYTES);
        let before = self
            .written_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before / step != (before + bytes.len() as u64) / step
            && let Err(error) = self.limit_size()
        {
            self.log_failure(&error);
        }
    }

    fn log_failure(&self, error: &io::Error) {
        if !self.is_failure_logged.swap(true, Ordering::Relaxed) {
            let folder = self.options.folder.display();
            tracing::warn!("part cache {folder}: {error}: parts are fetched again when needed");
        }
    }

    /// Evicts the least recently used objects, then parts of this one, until the folder is small
    /// enough.
    fn limit_size(&self) -> io::Result<()> {
        let mut found = files(&self.options.folder)?;
        let mut total: u64 = found.iter().map(|file| file.bytes).sum();
        found.sort_by_key(|file| file.used);
        for file in found.iter().filter(|file| file.parts != self.parts_path) {
            if total <= self.options.size_bytes {
                return Ok(());
            }
            // Checksums first: without them the parts are absent.
            fs::remove_file(file.parts.with_extension("sums"))?;
            fs::remove_file(&file.parts)?;
            total = total.saturating_sub(file.bytes);
        }
        if total > self.options.size_bytes {
            let surplus = total - self.options.size_bytes + self.options.size_bytes / 8;
            self.evict_parts(surplus)?;
        }
        Ok(())
    }

    /// Evicts parts of this object, in the order of their numbers.
    fn evict_parts(&self, surplus_bytes: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let count = self.len_bytes.div_ceil(PART_BYTES);
        let mut evicted_bytes = 0;
        for _ in 0..count {
            if evicted_bytes >= surplus_bytes {
                break;
            }
            let part = self.hand.fetch_add(1, Ordering::Relaxed) % count;
            if !self.has(part) {
                continue;
            }
            self.sums.write_all_at(&[0; 8], HEADER_BYTES + part * 8)?;
            self.set_known(part, 0);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.parts, flags, part * PART_BYTES, PART_BYTES)?;
            evicted_bytes += PART_BYTES;
        }
        Ok(())
    }
}

/// Reads the checksums of `count` parts.
fn read_sums(file: &File, count: u64) -> io::Result<Box<[AtomicU64]>> {
    let mut sums = vec![0; (count * 8) as usize];
    let mut filled = 0;
    while filled < sums.len() {
        match file.read_at(&mut sums[filled..], HEADER_BYTES + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    let (sums, _) = sums.as_chunks();
    let sums = sums.iter().map(|sum| u64::from_le_bytes(*sum));
    Ok(sums.map(AtomicU64::new).collect())
}

fn new_crc() -> Crc {
    Crc::new(CrcAlgorithm::Crc32Iscsi)
}

/// Returns the checksum of a part as it is stored.
fn sum_of(part: u64, crc: &Crc) -> u64 {
    let mark = PRESENT.wrapping_add(part as u32);
    u64::from(mark) << 32 | crc.finalize()
}

struct CacheFile {
    parts: PathBuf,
    bytes: u64,
    used: Option<SystemTime>,
}

fn files(folder: &Path) -> io::Result<Vec<CacheFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let parts = entry?.path();
        if parts
            .extension()
            .is_some_and(|extension| extension == "parts")
            && let Ok(file) = fs::metadata(&parts)
        {
            let sums = fs::metadata(parts.with_extension("sums"));
            found.push(CacheFile {
                bytes: file.blocks() * 512,
                used: sums.and_then(|sums| sums.modified()).ok(),
                parts,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &Path, e_tag: &str, size_bytes: u64) -> PartCache {
        let options = PartCacheOptions {
            folder: folder.to_owned(),
            size_bytes,
        };
        PartCache::open(&options, "s3://b/k", e_tag, 64 * PART_BYTES + 100).unwrap()
    }

    #[test]
    fn parts_survive_a_reopen_but_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let part = vec![7; PART_BYTES as usize];
        let one = cache(folder.path(), "a", 1 << 30);
        one.write(3, &part);
        one.write(64, &part[..100]);
        let again = cache(folder.path(), "a", 1 << 30);
        assert!(again.has(3) && again.has(64) && !again.has(4));
        assert_eq!(again.read(3).unwrap(), part);
        assert_eq!(again.read(64).unwrap(), part[..100]);
        assert!(again.read(4).is_none());
        assert!(cache(folder.path(), "b", 1 << 30).read(3).is_none());
        one.parts.write_all_at(&[8], 3 * PART_BYTES + 5).unwrap();
        assert!(again.read(3).is_none() && !again.has(3));
    }

    #[test]
    fn neighbors_are_read_together_unless_one_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let part = PART_BYTES as usize;
        let bytes: Vec<u8> = (0..3 * part + 100).map(|n| (n / 1000) as u8).collect();
        let one = cache(folder.path(), "a", 1 << 30);
        one.write(61, &bytes);
        let again = cache(folder.path(), "a", 1 << 30);
        let read = |cache: &PartCache| {
            let (mut head, mut rest) = (vec![0; part + 7], vec![0; 2 * part + 93]);
            let mut bufs = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)];
            let is_valid = cache.read_into(61, &mut bufs);
            (is_valid, [head, rest].concat())
        };
        assert_eq!(read(&again), (true, bytes.clone()));
        one.parts.write_all_at(&[9], 64 * PART_BYTES + 5).unwrap();
        assert!(!read(&again).0);
        let has: Vec<bool> = (61..65).map(|part| again.has(part)).collect();
        assert_eq!(has, [true, true, true, false]);
        assert_eq!(again.read(62).unwrap(), bytes[part..2 * part]);
    }

    #[test]
    fn folder_keeps_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let part = vec![7; PART_BYTES as usize];
        let old = cache(folder.path(), "old", 16 * PART_BYTES);
        (0..4).for_each(|number| old.write(number, &part));
        let new = cache(folder.path(), "new", 16 * PART_BYTES);
        (0..64).for_each(|number| new.write(number, &part));
        let total: u64 = files(folder.path())
            .unwrap()
            .iter()
            .map(|file| file.bytes)
            .sum();
        assert!(total <= 17 * PART_BYTES, "{total}");
        assert!(new.read(63).is_some() && new.read(0).is_none());
        assert!(!cache(folder.path(), "old", 1 << 30).has(0));
    }
}
