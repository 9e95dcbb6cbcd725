//! Answers to requests.

use folio::ext4::{BlockRun, InodeFields, JournalDump, RawDirectoryEntry};
use std::collections::BTreeMap;

/// The answer to a request.
pub(super) enum Answer {
    Stat(Box<InodeFields>),
    Blocks(Vec<BlockRun>),
    Bmap(u64),
    Icheck(Vec<u64>, BTreeMap<u64, u32>),
    Ncheck(Vec<u32>, BTreeMap<u32, Vec<Vec<u8>>>),
    /// Each entry, with its inode if that can be read.
    Ls(Vec<(RawDirectoryEntry, Option<InodeFields>)>, LsOptions),
    Testb(Vec<(u64, bool)>),
    Testi(u32, bool),
    Logdump(JournalDump),
}

/// Options of the request `ls`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LsOptions {
    /// Show the fields of inodes.
    pub(super) is_long: bool,
    /// Show unused entries too.
    pub(super) shows_unused: bool,
}
