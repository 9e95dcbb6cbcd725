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
//! ```
//!
//! Neighbors: `layout::disk` and `layout::checksum` for the bytes, the device trait below. Uses no
//! cache and no VFS. No locks.
//!
//! The layout is complete before the first write. Every used block is then zeroed, with one call
//! per run of used blocks, and only nonzero blocks are written. docs/design/mkfs.md lists the
//! choices of mke2fs that Folio follows and those it does not.

mod geometry;
mod layout;
mod options;
mod write;

pub use options::FormatOptions;

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use geometry::Geometry;
use layout::Layout;
use options::{Identity, LABEL_LEN_MAX};

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
    let geometry = Geometry::new(device.len_bytes(), options)?;
    let layout = Layout::new(geometry)?;
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
