//! The ext4 formatter: writes an empty file system with the default layout of mke2fs 1.47.
//!
//! ```text
//!   FormatOptions + device size
//!      |
//!   geometry.rs   counts of blocks, groups and inodes; sizes of journal and reserves
//!      |
//!   layout.rs     the block numbers of all metadata and files
//!      |
//!   write.rs      the bytes, superblock last
//!
//!   content.rs    the least size for a tree of files, by the first two
//! ```
//!
//! Neighbors: `layout::disk` and `layout::checksum` for the bytes, the device trait below. Uses no
//! cache and no VFS. No locks.
//!
//! The layout is complete before the first write. Every used block is then zeroed, with one call
//! per run of used blocks, and only nonzero blocks are written. docs/design/mkfs.md lists the
//! choices of mke2fs that Folio follows and those it does not.

mod content;
pub(super) mod geometry;
mod layout;
mod options;
mod write;

pub use content::{ExtraSpace, FileTreeSize, LeastSize, least_size};
pub use options::FormatOptions;

use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use geometry::Geometry;
use layout::Layout;
use options::{Identity, LABEL_LEN_MAX};

/// Largest device, in pages, that the search for the least size tries.
const LEAST_PAGES_MAX: u64 = 4096;

/// The properties of a new ext4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatReport {
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Bytes per block.
    pub block_size: u32,
    /// Number of blocks.
    pub block_count: u64,
    /// Number of free blocks.
    pub free_block_count: u64,
    /// Number of blocks reserved for root.
    pub reserved_block_count: u64,
    /// Number of inodes.
    pub inode_count: u32,
    /// Number of block groups.
    pub group_count: u32,
    /// Length of the journal in blocks; 0 on devices below 2048 blocks, which get no journal.
    pub journal_block_count: u32,
}

/// Writes an empty ext4 to `device`, over its old contents, and flushes the device.
///
/// # Errors
/// - EINVAL for an option that is out of range or does not fit the device's size.
/// - EROFS for a read-only device.
/// - The device's error if a write fails; the device then has no valid ext4.
///
/// Counterpart: mke2fs(8).
pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    format_device(device, options).map_err(|e| e.at("mkfs.ext4"))
}

/// Lays out a file system. For a device that is too small, the error has the least size.
fn plan(len_bytes: u64, options: &FormatOptions) -> Result<Layout> {
    let layout = |len_bytes| Geometry::new(len_bytes, options).and_then(Layout::new);
    layout(len_bytes).map_err(|error| {
        let sizes = (1..=LEAST_PAGES_MAX).map(|pages| pages * PAGE_SIZE as u64);
        let least = sizes
            .filter(|size| *size > len_bytes)
            .find(|size| layout(*size).is_ok());
        match least {
            None => error,
            Some(least) => Error::new(
                Errno::INVAL,
                format!(
                    "device too small for an ext4: {len_bytes} bytes, at least {least} ({}K) needed",
                    least >> 10
                ),
            ),
        }
    })
}

fn format_device(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the image is read-only"));
    }
    if options.label.len() > LABEL_LEN_MAX {
        let what = format!(
            "invalid label {:?}: {} bytes long, at most {LABEL_LEN_MAX} allowed",
            options.label,
            options.label.len()
        );
        return Err(Error::new(Errno::INVAL, what));
    }
    let layout = plan(device.len_bytes(), options)?;
    let identity = Identity::new(options);
    write::write(device, &layout, &identity)?;
    let geometry = &layout.geometry;
    Ok(FormatReport {
        uuid: identity.uuid,
        block_size: geometry.block_size,
        block_count: geometry.block_count,
        free_block_count: layout.free_block_count(),
        reserved_block_count: geometry.reserved_block_count,
        inode_count: geometry.inode_count(),
        group_count: geometry.group_count,
        journal_block_count: geometry.journal_block_count,
    })
}
