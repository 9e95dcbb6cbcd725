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
//! read once, for 512 MiB of the object at a time: a part that another process has evicted since
//! then reads as zeros, which do not match.

use crate::parts::{OBJECT_BYTES_MAX, PART_BYTES};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use folio::Errno;
use sha2::{Digest, Sha256};
use std::fs::{self, File, FileTimes};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// Space of the header in a file of checksums.
const HEADER_BYTES: u64 = 4096;
/// Marks a checksum that is present; the number of the part is added to it.
const PRESENT: u32 = 0x464F_4C01;
/// Parts whose checksums are read together: those of 512 MiB.
const GROUP_PARTS: u64 = 8192;
/// Checks of the size of the folder, for each size that it may have.
const CHECKS_PER_SIZE: u64 = 32;

/// A folder of parts, and its greatest size.
#[derive(Debug, Clone)]
pub struct PartCacheOptions {
    /// The folder; created if missing.
    pub folder: PathBuf,
    /// Its greatest size in bytes, which each process that writes exceeds by a 32nd at most.
    pub size_bytes: u64,
}

/// The parts of one version of an object.
pub struct PartCache {
    options: PartCacheOptions,
    parts: File,
    parts_path: PathBuf,
    sums: File,
    len_bytes: u64,
    /// For each group of parts that was asked for: the stored checksums of the parts that this
    /// process knows to be present, and zero for the rest.
    known: Box<[OnceLock<Box<[AtomicU64]>>]>,
    written_bytes: AtomicU64,
    /// The offset in the file of parts where eviction continues.
    hand: AtomicU64,
    is_failure_logged: AtomicBool,
}

impl PartCache {
    /// Opens the parts of an object's version.
    ///
    /// # Errors
    ///
    /// The host's errors; an invalid argument if the object is longer than 256 TiB.
    pub fn open(
        options: &PartCacheOptions,
        url: &str,
        e_tag: &str,
        len_bytes: u64,
    ) -> io::Result<Self> {
        if len_bytes > OBJECT_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
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
        let groups = len_bytes.div_ceil(PART_BYTES * GROUP_PARTS);
        Ok(Self {
            options: options.clone(),
            parts,
            parts_path,
            len_bytes,
            known: (0..groups).map(|_| OnceLock::new()).collect(),
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
        let sum = self.sum(part);
        sum.map_or(0, |sum| sum.load(Ordering::Relaxed))
    }

    fn set_known(&self, part: u64, new: u64) {
        if let Some(sum) = self.sum(part) {
            sum.store(new, Ordering::Relaxed);
        }
    }

    fn sum(&self, part: u64) -> Option<&AtomicU64> {
        let group = self.known.get((part / GROUP_PARTS) as usize)?;
        let first = part - part % GROUP_PARTS;
        let sums = group.get_or_init(|| self.read_sums(first));
        sums.get((part - first) as usize)
    }

    /// Reads the checksums of a group; those that cannot be read are of absent parts.
    fn read_sums(&self, first: u64) -> Box<[AtomicU64]> {
        let count = self.len_bytes.div_ceil(PART_BYTES) - first;
        let mut sums = vec![0; (count.min(GROUP_PARTS) * 8) as usize];
        let mut filled = 0;
        while filled < sums.len() {
            let offset = HEADER_BYTES + first * 8 + filled as u64;
            match self.sums.read_at(&mut sums[filled..], offset) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) => {
                    self.log_failure(&error);
                    break;
                }
            }
        }
        let (sums, _) = sums.as_chunks();
        let sums = sums.iter().map(|sum| u64::from_le_bytes(*sum));
        sums.map(AtomicU64::new).collect()
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
                // From now on the part is absent: the next reader fetches it.
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
        // Also at the first write: many short processes may each write less than a step.
        let is_due = before == 0 || before / step != (before + bytes.len() as u64) / step;
        if is_due && let Err(error) = self.limit_size() {
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
        // Not this object's file, which is in use.
        for file in found.iter().filter(|file| file.parts != self.parts_path) {
            if total <= self.options.size_bytes {
                return Ok(());
            }
            // Checksums first: without them the parts are absent.
            remove(&file.parts.with_extension("sums"))?;
            remove(&file.parts)?;
            total = total.saturating_sub(file.bytes);
        }
        if total > self.options.size_bytes {
            // An eighth more, so that not each of the next writes has to evict.
            let surplus = total - self.options.size_bytes + self.options.size_bytes / 8;
            self.evict_parts(surplus)?;
        }
        Ok(())
    }

    /// Evicts parts of this object, in the order of their numbers.
    fn evict_parts(&self, surplus_bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, SeekFrom};
        let (mut evicted_bytes, mut is_at_start) = (0, false);
        while evicted_bytes < surplus_bytes {
            let hand = self.hand.load(Ordering::Relaxed);
            // Passes over what the object has beyond its cached parts, however long it is.
            let part = match rustix::fs::seek(&self.parts, SeekFrom::Data(hand)) {
                Ok(found) => found / PART_BYTES,
                Err(Errno::NXIO) if !is_at_start => {
                    self.hand.store(0, Ordering::Relaxed);
                    is_at_start = true;
                    continue;
                }
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let start = part * PART_BYTES;
            self.hand.store(start + PART_BYTES, Ordering::Relaxed);
            self.sums.write_all_at(&[0; 8], HEADER_BYTES + part * 8)?;
            self.set_known(part, 0);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.parts, flags, start, PART_BYTES)?;
            evicted_bytes += PART_BYTES;
        }
        Ok(())
    }
}

/// Removes a file that another process may have removed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
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

    fn size_of(folder: &Path) -> u64 {
        files(folder).unwrap().iter().map(|file| file.bytes).sum()
    }

    #[test]
    fn parts_without_checksums_are_evicted_first() {
        let folder = tempfile::tempdir().unwrap();
        let part = vec![7; PART_BYTES as usize];
        // As after a crash between the removals of an eviction.
        for name in ["a", "b"] {
            fs::write(folder.path().join(format!("{name}.parts")), part.repeat(8)).unwrap();
        }
        let new = cache(folder.path(), "new", 16 * PART_BYTES);
        (0..64).for_each(|number| new.write(number, &part));
        let total = size_of(folder.path());
        assert!(total <= 17 * PART_BYTES, "{total}");
        assert!(!folder.path().join("a.parts").exists() && new.has(63));
    }

    #[test]
    fn first_write_of_a_process_limits_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let part = vec![7; PART_BYTES as usize];
        for e_tag in ["a", "b", "c", "d"] {
            // As one process each: less than the step of the checks.
            let one = cache(folder.path(), e_tag, 1024 * PART_BYTES);
            (0..16).for_each(|number| one.write(number, &part));
        }
        cache(folder.path(), "e", 32 * PART_BYTES).write(0, &part);
        let total = size_of(folder.path());
        assert!(total <= 33 * PART_BYTES, "{total}");
    }

    #[test]
    fn checksums_of_a_huge_object_are_read_lazily() {
        let folder = tempfile::tempdir().unwrap();
        let options = PartCacheOptions {
            folder: folder.path().to_owned(),
            size_bytes: 2 * PART_BYTES,
        };
        let open = |len_bytes| PartCache::open(&options, "https://h/k", "a", len_bytes);
        assert!(open(OBJECT_BYTES_MAX + 1).is_err() && open(u64::MAX).is_err());
        let huge = open(OBJECT_BYTES_MAX).unwrap();
        let part = vec![7; PART_BYTES as usize];
        // Below the greatest offset of a file of ext4.
        let far = (1 << 43) / PART_BYTES;
        for number in [0, far, far + 1, far + 2, far + 3] {
            huge.write(number, &part);
        }
        assert_eq!(huge.read(far + 3).unwrap(), part);
        assert!(!huge.has(0) && !huge.has(OBJECT_BYTES_MAX / PART_BYTES - 1));
        let groups = huge.known.iter().filter(|group| group.get().is_some());
        assert_eq!(groups.count(), 3);
    }

    #[test]
    fn folder_keeps_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let part = vec![7; PART_BYTES as usize];
        let old = cache(folder.path(), "old", 16 * PART_BYTES);
        (0..4).for_each(|number| old.write(number, &part));
        let new = cache(folder.path(), "new", 16 * PART_BYTES);
        (0..64).for_each(|number| new.write(number, &part));
        let total = size_of(folder.path());
        assert!(total <= 17 * PART_BYTES, "{total}");
        assert!(new.read(63).is_some() && new.read(0).is_none());
        assert!(!cache(folder.path(), "old", 1 << 30).has(0));
    }
}
