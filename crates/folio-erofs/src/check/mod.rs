//! The check of an image: every structure is read, and compared with those that refer to it.
//!
//! ```text
//!   mod.rs          the superblock
//!     v
//!   walk.rs         inodes and names, from the root on; counts of links
//!     v
//!   inode.rs        one inode: extended attributes, and the places of its data
//!   directory.rs    the names in one block of a directory
//!     v
//!   image.rs        the image as bytes, and as `erofs-rs` reads it
//!   report.rs       findings and totals
//! ```
//!
//! Above: the command. Linux: the tool is fsck.erofs(1); with `--extract` it decodes contents too.
//!
//! Invariants:
//! 1. Each directory is visited once, and each block of directories belongs to one of them.
//! 2. The work is limited by the size of the image, whatever its bytes are.

mod directory;
mod image;
mod inode;
mod report;
mod walk;

pub use report::{CheckFinding, CheckListener, CheckReport, CheckedStructure};

use crate::format::{COMPAT_CHECKSUM, MAGIC, RawSuperblock, SUPERBLOCK_OFFSET};
use folio::block::Device;
use folio::{Errno, Error, Result};
use image::{Blocks, Image, Reader, ready};
use report::FindingReporter;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;
use walk::Walk;
use zerocopy::FromBytes;

/// Features whose structures are checked: all of Linux 6.10 except for other devices.
const INCOMPAT_CHECKED: u32 = 0x7f;
/// Contents may be on other devices; also a second algorithm of a compressed file.
const INCOMPAT_DEVICE_TABLE: u32 = 8;
/// Bits of the bytes of a block.
const BLOCK_BITS: RangeInclusive<u8> = 9..=16;

/// Checks all structures of an EROFS; compressed contents are decoded. The first `findings_max`
/// findings go to the listener.
///
/// # Errors
///
/// EUCLEAN: the device holds no EROFS; EOPNOTSUPP: it has features that are not checked; EINTR: the
/// listener has stopped the check; those of reads of the device.
pub fn check(
    device: &Arc<dyn Device>,
    findings_max: usize,
    listener: &mut dyn CheckListener,
) -> Result<CheckReport> {
    let mut reporter = FindingReporter {
        listener,
        left: findings_max,
        report: CheckReport::default(),
    };
    let superblock = read_superblock(&**device)?;
    let Some(end) = check_superblock(&**device, &superblock, &mut reporter)? else {
        return Ok(reporter.report);
    };
    let blocks = Blocks {
        device: device.clone(),
        end,
    };
    match ready(Reader::new(blocks.clone()))? {
        Ok(reader) => Walk::new(Image::new(superblock, blocks, reader, reporter)).run(),
        Err(what) => {
            reporter.add(superblock_error(what));
            Ok(reporter.report)
        }
    }
}

fn superblock_error(what: impl Into<String>) -> CheckFinding {
    CheckFinding::error(CheckedStructure::Superblock, what)
}

fn read_superblock(device: &dyn Device) -> Result<RawSuperblock> {
    let mut bytes = [0; size_of::<RawSuperblock>()];
    if device.len_bytes() >= (SUPERBLOCK_OFFSET + bytes.len()) as u64 {
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET as u64)?;
    }
    let found = RawSuperblock::read_from_bytes(&bytes);
    let found = found.ok().filter(|found| found.magic.get() == MAGIC);
    let superblock = found.ok_or_else(|| Error::new(Errno::UCLEAN, "not an erofs"))?;
    let unknown = superblock.feature_incompat.get() & !INCOMPAT_CHECKED;
    if unknown != 0 {
        let what = format!("check of an erofs with the incompatible features {unknown:#x}");
        return Err(Error::unsupported(what));
    }
    let has_devices = superblock.feature_incompat.get() & INCOMPAT_DEVICE_TABLE != 0;
    if has_devices && superblock.extra_devices.get() > 0 {
        return Err(Error::unsupported("check of an erofs on several devices"));
    }
    Ok(superblock)
}

/// Checks the superblock. Returns the end of the last block in bytes; `None` if the rest cannot be
/// checked.
fn check_superblock(
    device: &dyn Device,
    superblock: &RawSuperblock,
    reporter: &mut FindingReporter<'_>,
) -> Result<Option<u64>> {
    if !BLOCK_BITS.contains(&superblock.block_bits) {
        let bits = superblock.block_bits;
        reporter.add(superblock_error(format!("blocks of 2^{bits} bytes")));
        return Ok(None);
    }
    let block_bytes = 1_u64 << superblock.block_bits;
    let block_count = u64::from(superblock.block_count.get());
    reporter.report.block_count = block_count;
    reporter.report.block_size = 1 << superblock.block_bits;
    reporter.report.inode_count = superblock.inode_count.get();
    if superblock.directory_block_bits != 0 {
        reporter.add(superblock_error("directories have blocks of another size"));
        return Ok(None);
    }
    if superblock.feature_compat.get() & COMPAT_CHECKSUM == 0 {
        reporter.add(superblock_error("no checksum").warning());
    } else if checksum(device, block_bytes)? != Some(superblock.checksum.get()) {
        reporter.add(superblock_error("bad checksum"));
    }
    let (end, len) = (block_count * block_bytes, device.len_bytes());
    if end > len {
        let have = len / block_bytes;
        let what = format!("{block_count} blocks, but the image has {have}");
        reporter.add(superblock_error(what));
    }
    Ok(Some(end.min(len)))
}

/// Returns the checksum of the superblock and of the rest of its block. Linux:
/// `erofs_superblock_csum_verify`.
fn checksum(device: &dyn Device, block_bytes: u64) -> Result<Option<u32>> {
    let start = SUPERBLOCK_OFFSET as u64;
    let len = if block_bytes > start {
        block_bytes - start
    } else {
        block_bytes
    };
    if start + len > device.len_bytes() {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    device.read_at(&mut bytes, start)?;
    bytes[offset_of!(RawSuperblock, checksum)..][..4].fill(0);
    // Linux starts with all ones, and does not invert the result.
    Ok(Some(!crc32c::crc32c(&bytes)))
}
