//! Compaction: copies what the generations below an open image hold into the image, beside
//! requests, and then drops the generations from its chain.

use super::change::reopen;
use super::generation;
use super::image::LiveImage;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::block::file::{HostFile, remote};
use crate::block::image::{BackingName, ChainImage};
use crate::block::qcow2::{self, Qcow2Device};
use crate::block::tools::throttle::Throttle;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size in bytes of the largest copy for which a fork waits.
const PIECE_BYTES: u64 = 256 << 10;
/// Size in bytes of the largest range of zeros for which a fork waits.
const ZEROS_BYTES: u64 = 1 << 30;

/// Options of [`LiveImage::compact`].
pub struct CompactOptions<'a> {
    /// The backing file that stays below the image; if not given, the first one that no fork made.
    pub base: Option<PathBuf>,
    /// Largest number of bytes of data to copy in a second; 0 for any.
    pub bytes_per_sec: u64,
    /// Called before each piece; if it returns true, the call fails with EINTR.
    pub is_canceled: &'a dyn Fn() -> bool,
    /// Called after each piece with its size in bytes of the disk.
    pub progress: &'a dyn Fn(u64),
}

impl Default for CompactOptions<'_> {
    fn default() -> Self {
        Self {
            base: None,
            bytes_per_sec: 0,
            is_canceled: &|| false,
            progress: &|_| {},
        }
    }
}

/// The generations that a compaction drops.
struct Merge {
    /// The chain that the compaction works on.
    epoch: u64,
    /// Depth of the last generation, where 0 is the image itself.
    depth: u32,
    generations: Vec<PathBuf>,
    base: Option<Base>,
}

/// The image below the generations.
struct Base {
    device: Arc<dyn Device>,
    /// Its name in the image.
    name: BackingName,
}

impl LiveImage {
    /// Copies into the image what the generations below it hold and the image does not, while
    /// requests go on, and then drops them from its chain. A range that a guest writes or discards
    /// meanwhile keeps the guest's version.
    ///
    /// Returns the paths of the generations that the image no longer uses, the newest first. They
    /// stay on the disk: forks may use them.
    ///
    /// # Errors
    ///
    /// - EAGAIN if the image was forked, snapshotted or shrunk meanwhile; the copied part counts
    ///   for the next call, unless the image was forked.
    /// - EINTR if the call was canceled, EBUSY if another compaction runs.
    /// - ENOENT if `base` is not below the image.
    /// - EOPNOTSUPP with internal snapshots, which read from the generations, and for a remote
    ///   image.
    /// - EROFS for an image that is open read-only.
    /// - Else those of a read and of a write.
    ///
    /// QEMU: `block-stream`.
    pub fn compact(&self, options: &CompactOptions<'_>) -> Result<Vec<PathBuf>> {
        let compact = || {
            let Some(_only) = self.compaction.try_lock() else {
                return Err(Error::new(Errno::BUSY, "the image is being compacted"));
            };
            let Some(merge) = self.begin_merge(options.base.as_deref())? else {
                return Ok(Vec::new());
            };
            let throttle = Throttle::new(options.bytes_per_sec);
            let mut at = 0;
            loop {
                if (options.is_canceled)() {
                    return Err(Error::new(Errno::INTR, "canceled"));
                }
                if let Some((count, copied_bytes)) = self.merge_step(&merge, at)? {
                    at += count;
                    (options.progress)(count);
                    throttle.wait(copied_bytes, options.is_canceled);
                    continue;
                }
                // While requests go on: less is left to flush when they wait.
                self.flush()?;
                if self.end_merge(&merge, at)? {
                    return Ok(merge.generations);
                }
            }
        };
        compact().map_err(|error| self.at_image(error))
    }

    /// Returns the work of a compaction; none without generations.
    fn begin_merge(&self, base: Option<&Path>) -> Result<Option<Merge>> {
        let _file = self.begin_change()?;
        let chain = self.chain();
        let depth = match base {
            Some(base) => depth_of(base, &chain)? - 1,
            None => generation::count(&chain),
        };
        if depth == 0 {
            return Ok(None);
        }
        let epoch = self.slot.epoch()?;
        let below = self.slot.request_in(epoch, |device| {
            device.check_rebase()?;
            Ok(device.parts().backing)
        })?;
        let device = (0..depth).fold(below, |device, _| backing_of(&*device?));
        let base = match (device, &chain[depth..]) {
            (Some(device), [above, found, ..]) => Some(Base {
                device,
                name: self.base_name(above, found)?,
            }),
            (None, [_]) => None,
            _ => {
                return Err(Error::new(
                    Errno::IO,
                    "the chain of backing files is unknown",
                ));
            }
        };
        let generations = chain.into_iter().skip(1).take(depth);
        Ok(Some(Merge {
            epoch,
            // At most 64.
            depth: depth as u32,
            generations: generations.map(|image| image.path).collect(),
            base,
        }))
    }

    /// Returns the name of `base` in the image: as `above`, which names it now, has it.
    fn base_name(&self, above: &ChainImage, base: &ChainImage) -> Result<BackingName> {
        let format = Some(base.format);
        let recorded = qcow2::backing_of(&HostFile::open_unlocked(&above.path)?)?;
        let is_beside = generation::is_beside(&self.path, &above.path)?;
        let name = match recorded {
            Some((name, _)) if is_beside || remote(&base.path).is_some() => name,
            _ => generation::name_for(&self.path, &base.path)?,
        };
        Ok(BackingName { name, format })
    }

    /// Copies a first part of the disk from `at` on; returns its size and how many bytes were
    /// copied, or none at the end of the disk.
    fn merge_step(&self, merge: &Merge, at: u64) -> Result<Option<(u64, u64)>> {
        self.slot.request_in(merge.epoch, |device| {
            let left = device.len_bytes().saturating_sub(at);
            if left == 0 {
                return Ok(None);
            }
            let (entry, count) = device.map_entry(at, left)?;
            let is_own = entry.depth == 0 && entry.is_present;
            if is_own || entry.depth > merge.depth {
                return Ok(Some((count, 0)));
            }
            if !entry.is_zero {
                let count = device.pull(at..at + count.min(PIECE_BYTES))?;
                return Ok(Some((count, count)));
            }
            let base_bytes = merge
                .base
                .as_ref()
                .map_or(0, |base| base.device.len_bytes());
            match base_bytes.saturating_sub(at) {
                // Without a base, what has no entry reads as zeros.
                0 => Ok(Some((count, 0))),
                hidden => hide(device, at, count, hidden).map(Some),
            }
        })
    }

    /// Drops the generations from the chain; returns false if the disk has grown behind `at`.
    fn end_merge(&self, merge: &Merge, at: u64) -> Result<bool> {
        let _file = self.begin_change()?;
        let mut exclusive = self.slot.exclusive();
        exclusive.check_epoch(merge.epoch)?;
        if exclusive.qcow2()?.len_bytes() > at {
            return Ok(false);
        }
        exclusive.end_epoch();
        reopen(&mut exclusive, &|parts| {
            let base = merge.base.as_ref();
            qcow2::rename_backing(&*parts.file, base.map(|base| &base.name))?;
            parts.backing = base.map(|base| base.device.clone());
            Ok(())
        })?;
        self.chain.lock().drain(1..=merge.generations.len());
        Ok(true)
    }
}

/// Makes a first part of `count` bytes zeros over a base that has `hidden` bytes there; returns its
/// size and how many bytes were written.
fn hide(device: &Qcow2Device, at: u64, count: u64, hidden: u64) -> Result<(u64, u64)> {
    let cluster = device.cluster_bytes();
    let count = count.min(hidden.next_multiple_of(cluster)).min(ZEROS_BYTES);
    let in_cluster = at % cluster;
    let count = if in_cluster != 0 {
        count.min(cluster - in_cluster)
    } else if count > cluster && at + count != device.len_bytes() {
        count - count % cluster
    } else {
        count
    };
    if device.pull_zeros(at..at + count)? {
        return Ok((count, 0));
    }
    let count = device.pull(at..at + count.min(PIECE_BYTES))?;
    Ok((count, count))
}

/// Returns the backing file of an open image.
fn backing_of(device: &dyn Device) -> Option<Arc<dyn Device>> {
    let lower = device.lower_devices().into_iter();
    lower
        .rev()
        .find(|lower| !lower.is_written)
        .map(|lower| lower.device)
}

/// Returns the place of a backing file in a chain.
///
/// # Errors
///
/// ENOENT if it is not below the top image.
fn depth_of(base: &Path, chain: &[ChainImage]) -> Result<usize> {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let wanted = identity(base);
    let is_base = |image: &ChainImage| match wanted {
        Some(_) => identity(&image.path) == wanted,
        None => image.path == base,
    };
    let found = chain.iter().skip(1).position(is_base);
    found.map(|index| index + 1).ok_or_else(|| {
        let why = format!("no backing file {} in the chain", base.display());
        Error::new(Errno::NOENT, why)
    })
}
