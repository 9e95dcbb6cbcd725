//! Fixes: changes that answer findings, collected by a check on behalf of a repair.

use crate::fs::ext4::layout::disk::{RawInode, RawSuperblock};
use std::ops::Range;

/// A change of the raw superblock; the repair updates its checksum.
pub(in crate::fs::ext4) type SuperblockChange = Box<dyn FnOnce(&mut RawSuperblock)>;
/// A change of the raw inode; the repair updates its checksum.
pub(in crate::fs::ext4) type InodeChange = Box<dyn FnOnce(&mut RawInode)>;
/// A change of a whole block, its checksum included.
pub(in crate::fs::ext4) type BlockChange = Box<dyn FnOnce(&mut [u8])>;

/// The counted state of a group, to replace its bitmaps and counts.
pub(in crate::fs::ext4) struct GroupState {
    pub(in crate::fs::ext4) number: u32,
    pub(in crate::fs::ext4) block_bitmap: u64,
    pub(in crate::fs::ext4) inode_bitmap: u64,
    /// Clusters in use, one bit each.
    pub(in crate::fs::ext4) blocks: Vec<u64>,
    pub(in crate::fs::ext4) block_bits: u32,
    /// Inodes in use, one bit each.
    pub(in crate::fs::ext4) inodes: Vec<u64>,
    pub(in crate::fs::ext4) inode_bits: u32,
    pub(in crate::fs::ext4) directories: u32,
    /// Inodes at the end of the table that were never used, and are not read.
    pub(in crate::fs::ext4) unused_inodes: u32,
    /// The inode bitmap was never written, and no inode is in use.
    pub(in crate::fs::ext4) has_no_inodes: bool,
}

/// One change that answers a finding.
pub(in crate::fs::ext4) enum Fix {
    /// Changes the primary superblock.
    Superblock(SuperblockChange),
    /// Replaces the primary superblock by the backup in this block.
    RestoreSuperblock(Box<RawSuperblock>),
    /// Writes a group's bitmaps and descriptor.
    Group(Box<GroupState>),
    /// Marks all inodes of a group's table as written, so that the next check reads them.
    WholeInodeTable(u32),
    /// Changes an inode.
    Inode(u32, InodeChange),
    /// Inverts a bit of an inode, counted from the lowest bit of its first byte, after which its
    /// checksum is right.
    InodeBit(u32, usize),
    /// Changes a block.
    Block(u64, BlockChange),
    /// Releases or truncates an orphan, as a mount does.
    Orphan,
    /// Gives an inode without a name one in lost+found.
    Reconnect(u32),
    /// Makes a journal, when nothing else is left.
    NewJournal,
    /// Gives a file its own copies of blocks that have another owner, too: its inode number, and
    /// the blocks' numbers in it.
    Unshare(u32, Range<u32>),
    /// Gives a directory empty blocks where it has none: its inode number, and the blocks' numbers
    /// in it.
    FillDirectory(u32, Range<u32>),
}

/// The fixes of one check.
#[derive(Default)]
pub(in crate::fs::ext4) struct Fixes {
    pub(in crate::fs::ext4) fixes: Vec<Fix>,
    /// Those of the journal's inode and superblock. Without them it may not be readable, and what
    /// it holds may answer the other findings.
    pub(in crate::fs::ext4) journal: Vec<Fix>,
    /// Number of fixes that `e2fsck -p` would leave to `e2fsck -y`.
    pub(in crate::fs::ext4) beyond_preen: u64,
}

impl Fixes {
    /// Number of changes collected, at most; a repair continues with the next check.
    pub(super) const MAX: usize = 1 << 16;
}
