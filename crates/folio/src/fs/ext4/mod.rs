//! ext4: a file system on a device, compatible in both directions with mke2fs 1.47 and the kernel.
//!
//! ```text
//!   repair/ check/ inspect/ mkfs/ resize/ tune.rs    offline tools, off every mount's path
//!      |
//!   mount.rs       mount and unmount: replay, journal, root; mmp.rs: multiple mount protection
//!      |
//!   operations/    the VFS's calls; symbolic links; eviction
//!      |
//!   commit/        transactions: commit thread, sync, orphans, failures, fast-commit replay
//!      |
//!   directory/     names in blocks, hash trees and inodes
//!      |
//!   file/          pages, delayed allocation, fallocate, ordering (auto_da_alloc)
//!      |
//!   xattr/         extended attributes, ACLs
//!      |
//!   inode/         inodes in memory: state, dirty lists, the table on disk
//!      |
//!   volume.rs      shared by all inodes: device, superblock, metadata, space, journal
//!      |
//!   map/           file block -> device block: extents, block maps, delayed blocks
//!      |
//!   space/         free blocks and inodes, groups, bitmaps
//!      |
//!   journal/       jbd2: the log, its replay; metadata blocks in the page cache
//!      |
//!   options.rs     mount options
//!      |
//!   layout/        bytes on disk: superblock, features, checksums, extents
//!      |
//!   [device trait]
//! ```
//!
//! Each folder uses those below it, never those above. `cargo xtask tidy` checks that.
//!
//! Neighbors: the VFS above; the page cache beside (file data by one mapping per inode, metadata by
//! one per device); a block device below. Knows no other file system.
//!
//! Lock order, outermost first: the VFS's inode locks; the right to commit (`Journal::committer`);
//! an operation's handle (`Volume::start`); pages; a store's handle (`OperationGate::start_store`);
//! `Ext4Inode::state`; `Ext4::orphans`; `Volume::superblock`; `Volume::space`; metadata pages. The
//! lists of inodes in `Ext4` and `Volume::first_error` are leaves: nothing is locked, and no inode
//! dropped, while one is held. A thread within an operation never waits for a commit, and a commit
//! drops no inode without names (`Ext4::retire`).
//!
//! Invariants:
//! 1. A block is reserved (`Space::reserve`) before a page that needs it becomes dirty.
//! 2. Extents reach the inode table only through `Ext4Inode::flush`; bitmaps and descriptors only
//!    through `Space::flush`. Both stay in memory until a commit, or without a journal until a
//!    sync.
//! 3. A freed block is used again only after the transaction that freed it is durable. The cache
//!    drops a freed metadata block before that.
//! 4. From the first change until unmount, the superblock on the device demands a replay of the
//!    journal, or without a journal a check by e2fsck.
//! 5. An inode with dirty fields or pages is on the list of dirty inodes, which keeps it alive. An
//!    inode without names is on no list, and is written to the table with every change.
//! 6. All changes of one operation are made under one handle, except by write(2): `write_begin` and
//!    `write_end` have one each.

mod check;
mod commit;
mod directory;
mod file;
mod inode;
mod inspect;
mod journal;
mod layout;
mod map;
mod mkfs;
mod mmp;
mod mount;
mod operations;
mod options;
mod repair;
mod resize;
mod space;
mod tune;
mod volume;
mod xattr;

pub use check::{
    CheckFinding, CheckListener, CheckOptions, CheckPhase, CheckReport, CheckedStructure,
    FindingLocation, Severity, check,
};
pub(crate) use inode::Ext4;
pub use inspect::{
    BlockRun, Ext4Inspector, FieldValue, InodeContent, InodeFields, InodeTime, JournalDump,
    JournalFields, LogRecord, LogRecordKind, LoggedBlock, RawDirectoryEntry, RunKind,
    SuperblockField, SuperblockSummary, UsedBlocks, summarize,
};
pub use mkfs::{
    ExtraSpace, FileTreeSize, FormatOptions, FormatReport, LeastSize, format, least_size,
};
pub(crate) use options::words_known;
pub use repair::{RepairPlan, UndoReport, plan_repair, undo_repair};
pub use resize::{FileSystemSize, ResizeOptions, ResizeReport, plan_resize, resize};
pub use tune::{ReservedBlockCount, TuneOptions, tune};
