//! An inode as its check sees it: raw fields, and what they say together.

use super::sets::InodeKind;
use crate::fs::ext4::layout::disk::{INODE_BASE_LEN, RawInode, inode_flags as flags};

/// Length of `i_block` in bytes. A shorter target of a symbolic link is stored there.
pub(super) const FAST_SYMLINK_MAX: u64 = 60;

/// An inode that is being checked.
pub(super) struct InodeView<'a> {
    pub(super) number: u32,
    pub(super) raw: &'a RawInode,
    /// All bytes of the inode.
    pub(super) bytes: &'a [u8],
    pub(super) kind: InodeKind,
    pub(super) flags: u32,
    pub(super) size: u64,
}

impl InodeView<'_> {
    /// Returns whether `flag` is set.
    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns the block of extended attributes; 0 for none (`i_file_acl`).
    pub(super) fn xattr_block(&self) -> u64 {
        u64::from(self.raw.file_acl_high.get()) << 32 | u64::from(self.raw.file_acl_lo.get())
    }

    /// Returns the bytes after the fields, which may hold extended attributes; empty if
    /// `i_extra_isize` is invalid.
    pub(super) fn xattr_area(&self) -> &[u8] {
        let start = INODE_BASE_LEN + usize::from(self.raw.extra_isize.get());
        if self.bytes.len() > INODE_BASE_LEN && start > INODE_BASE_LEN {
            self.bytes.get(start..).unwrap_or_default()
        } else {
            &[]
        }
    }

    /// Returns whether any field of size, flags or mapping is set.
    pub(super) fn is_nonempty(&self) -> bool {
        self.size != 0
            || self.flags != 0
            || self.raw.blocks_lo.get() != 0
            || self.raw.blocks_high.get() != 0
            || self.xattr_block() != 0
            || self.raw.block.iter().any(|&byte| byte != 0)
    }

    /// Returns whether the inode is a special file by its mode, and has what only a file with
    /// content has.
    pub(super) fn has_foreign_content(&self) -> bool {
        // A block of attributes is counted, too.
        let has_blocks = self.raw.blocks_lo.get() != 0 && self.xattr_block() == 0;
        // A device has its number there.
        let has_map = self.raw.block.iter().any(|byte| *byte != 0);
        let has_content = (has_map && (self.size != 0 || has_blocks))
            || self.has(flags::EXTENTS | flags::INLINE_DATA);
        self.is_special_file() && has_content
    }

    /// Returns whether the inode is a device, a FIFO or a socket.
    pub(super) fn is_special_file(&self) -> bool {
        matches!(
            self.kind,
            InodeKind::CharacterDevice
                | InodeKind::BlockDevice
                | InodeKind::Fifo
                | InodeKind::Socket
        )
    }

    /// Returns whether inodes of this kind may map blocks.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(
            self.kind,
            InodeKind::Regular | InodeKind::Directory | InodeKind::Symlink
        )
    }

    pub(super) fn is_fast_symlink(&self) -> bool {
        self.kind == InodeKind::Symlink && self.size < FAST_SYMLINK_MAX
    }
}
