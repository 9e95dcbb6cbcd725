//! The journal as a ring of blocks: its location on the device and its superblock.

use super::disk::*;
use crate::base::lock::Mutex;
use crate::base::{Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::crc32c;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The location of the journal's blocks: runs of (first device block, number of blocks), in order.
#[derive(Debug, Clone)]
pub(crate) struct JournalBlocks {
    /// Bytes per block.
    pub(crate) block_size: usize,
    /// Number of blocks of the file system, the upper bound of block numbers in the journal.
    pub(crate) block_count: u64,
    /// The runs.
    pub(crate) runs: Vec<(u64, u32)>,
}

impl JournalBlocks {
    /// Returns the device block of the journal's block `at`, and the number of contiguous blocks
    /// from there.
    pub(super) fn run_at(&self, at: u32) -> Result<(u64, u32)> {
        let mut left = at;
        for (first, len) in &self.runs {
            if left < *len {
                return Ok((first + u64::from(left), len - left));
            }
            left -= len;
        }
        Err(Error::corrupt(format!("block {at} is not mapped")))
    }
}

/// An open journal with checked sizes and features.
pub(super) struct Ring {
    pub(super) blocks: JournalBlocks,
    pub(super) device: Arc<dyn Device>,
    pub(super) superblock: RawJournalSuperblock,
    /// `s_feature_incompat`, 0 for a superblock of version 1.
    pub(super) features: u32,
    /// One past the last block of the ring; the area of fast commits follows.
    pub(super) end: u32,
    /// Seed of checksums, with checksum versions 2 and 3.
    pub(super) seed: Option<u32>,
    pub(super) error: JournalError,
}

/// The error in the journal's superblock (`s_errno`), which a replay keeps, unlike the mark in the
/// file system's superblock. Locked during each write of the journal's superblock: a failure writes
/// that without the log's lock.
pub(super) type JournalError = Arc<Mutex<u32>>;

/// Writes the error into the journal's superblock, which is at `offset` on `device`; durable after
/// a flush. Linux: `jbd2_journal_update_sb_errno`.
pub(super) fn write_error(
    error: &JournalError,
    value: u32,
    device: &dyn Device,
    offset: u64,
) -> Result<()> {
    let mut error = error.lock();
    *error = value;
    let mut bytes = [0; size_of::<RawJournalSuperblock>()];
    device.read_at(&mut bytes, offset)?;
    let mut raw: RawJournalSuperblock = zerocopy::transmute!(bytes);
    raw.errno = value.into();
    if raw.feature_incompat.get() & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0 {
        raw.checksum = superblock_checksum(&raw).into();
    }
    device.write_at(raw.as_bytes(), offset)
}

impl Ring {
    /// Opens the journal in `blocks`.
    ///
    /// # Errors
    /// EUCLEAN for an inconsistent superblock, EOPNOTSUPP for unknown features.
    pub(super) fn open(blocks: JournalBlocks, device: Arc<dyn Device>) -> Result<Self> {
        let available: u64 = blocks.runs.iter().map(|(_, len)| u64::from(*len)).sum();
        let mut bytes = vec![0; blocks.block_size];
        let Some((first, _)) = blocks.runs.first() else {
            return Err(Error::corrupt("has no blocks"));
        };
        device.read_at(&mut bytes, first * blocks.block_size as u64)?;
        let (raw, _) = RawJournalSuperblock::read_from_prefix(&bytes)
            .map_err(|_| Error::corrupt("superblock truncated"))?;
        let block_type = raw.header.block_type.get();
        if raw.header.magic.get() != MAGIC
            || !matches!(block_type, TYPE_SUPERBLOCK_V1 | TYPE_SUPERBLOCK_V2)
        {
            return Err(Error::corrupt("superblock: bad magic or type"));
        }
        let features = if block_type == TYPE_SUPERBLOCK_V2 {
            raw.feature_incompat.get()
        } else {
            0
        };
        let known = INCOMPAT_REVOKE
            | INCOMPAT_64BIT
            | INCOMPAT_ASYNC_COMMIT
            | INCOMPAT_CSUM_V2
            | INCOMPAT_CSUM_V3
            | INCOMPAT_FAST_COMMIT;
        if features & !known != 0 {
            return Err(Error::unsupported(format!(
                "journal feature bits {:#x}",
                features & !known
            )));
        }
        let has_checksums = check_features(&raw, features)?;
        if has_checksums && raw.checksum.get() != superblock_checksum(&raw) {
            return Err(Error::corrupt("superblock: bad checksum"));
        }
        let fast = match (
            features & INCOMPAT_FAST_COMMIT != 0,
            raw.fast_commit_blocks.get(),
        ) {
            (false, _) => 0,
            (true, 0) => FAST_COMMIT_BLOCKS_DEFAULT,
            (true, count) => count,
        };
        let (count, first, start) = (raw.block_count.get(), raw.first.get(), raw.start.get());
        let end = count.saturating_sub(fast);
        let is_sane = raw.block_size.get() as usize == blocks.block_size
            && u64::from(count) <= available
            && first >= 1
            && first < end
            && (start == 0 || (first..end).contains(&start));
        if !is_sane {
            let what = format!(
                "superblock: {count} blocks, first {first}, start {start}, {available} available"
            );
            return Err(Error::corrupt(what));
        }
        let seed = has_checksums.then(|| crc32c(!0, &raw.uuid));
        Ok(Self {
            blocks,
            device,
            superblock: raw,
            features,
            end,
            seed,
            error: Arc::new(Mutex::new(raw.errno.get())),
        })
    }

    /// Writes the superblock with its checksum; durable after a flush.
    pub(super) fn write_superblock(&mut self) -> Result<()> {
        let error = self.error.lock();
        self.superblock.errno = (*error).into();
        if self.seed.is_some() {
            self.superblock.checksum = superblock_checksum(&self.superblock).into();
        }
        self.device
            .write_at(self.superblock.as_bytes(), self.device_offset(0)?)
    }

    /// Returns the block `count` after `at` in the ring; `count` is at most the ring's length.
    pub(super) fn after(&self, at: u32, count: u32) -> u32 {
        let next = u64::from(at) + u64::from(count);
        let end = u64::from(self.end);
        let wrapped = if next >= end {
            next - end + u64::from(self.superblock.first.get())
        } else {
            next
        };
        wrapped as u32
    }

    /// Reads the journal's block `at`.
    pub(super) fn read(&self, at: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.blocks.block_size];
        self.device.read_at(&mut bytes, self.device_offset(at)?)?;
        Ok(bytes)
    }

    /// Returns the offset on the device, in bytes, of the journal's block `at`.
    pub(super) fn device_offset(&self, at: u32) -> Result<u64> {
        Ok(self.blocks.run_at(at)?.0 * self.blocks.block_size as u64)
    }
}

/// Checks that the features agree; returns whether the log has checksums of version 2 or 3.
fn check_features(raw: &RawJournalSuperblock, features: u32) -> Result<bool> {
    let (both, is_v2) = (
        INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3,
        raw.header.block_type.get() == TYPE_SUPERBLOCK_V2,
    );
    let has_checksums = features & both != 0;
    let unknown = if is_v2 {
        raw.feature_ro_compat.get()
    } else {
        0
    };
    let what = if features & both == both {
        "checksums of versions 2 and 3 at once".to_owned()
    } else if has_checksums && raw.feature_compat.get() & COMPAT_CHECKSUM != 0 {
        "checksums of version 1 beside a later version".to_owned()
    } else if has_checksums && raw.checksum_type != CHECKSUM_CRC32C {
        format!("checksum type {}", raw.checksum_type)
    } else if unknown != 0 {
        format!("journal feature ro_compat bits {unknown:#x}")
    } else {
        return Ok(has_checksums);
    };
    Err(Error::unsupported(what))
}

fn superblock_checksum(raw: &RawJournalSuperblock) -> u32 {
    let bytes = raw.as_bytes();
    let crc = crc32c(!0, &bytes[..SUPERBLOCK_CHECKSUM_OFFSET]);
    crc32c(
        crc32c(crc, &[0; 4]),
        &bytes[SUPERBLOCK_CHECKSUM_OFFSET + 4..],
    )
}
