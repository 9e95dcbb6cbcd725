//! The context of a directory: what its blocks are checked against, and where they come from.

use super::fold::SoughtName;
use super::hash::{HashVersion, hash};
use crate::base::{Error, InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::inode::name_index::NameIndex;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::vfs::FileType;
use std::sync::Arc;

/// Properties of one directory and its file system, against which blocks are checked and written.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryContext {
    /// Bytes of a block: 1024, 2048 or 4096.
    pub(crate) block_size: usize,
    /// The directory's own inode.
    pub(crate) number: InodeNumber,
    /// With metadata_csum: crc32c over the file system's seed, the inode number and its generation.
    pub(crate) checksum_seed: Option<u32>,
    /// `s_hash_seed`.
    pub(crate) hash_seed: [u32; 4],
    /// `s_def_hash_version`, for indexes made from now on.
    pub(crate) default_hash_version: u8,
    /// `s_flags`: names are hashed as unsigned bytes.
    pub(crate) unsigned_hash: bool,
    /// Feature filetype: entries record the type.
    pub(crate) has_file_type: bool,
    /// Feature large_dir: indexes may have three levels.
    pub(crate) large_dir: bool,
    /// Feature dir_index: directories may be indexed.
    pub(crate) dir_index: bool,
    /// The inode's casefold flag: names are compared and hashed without case.
    pub(crate) casefold: bool,
    /// Names in a casefolded directory must be UTF-8 (`strict` of the superblock's encoding).
    pub(crate) strict_encoding: bool,
}

impl DirectoryContext {
    /// Adds the directory and its block to `error`.
    pub(crate) fn in_block(&self, block: LogicalBlock, error: Error) -> Error {
        error.at(format!("directory inode {}, block {block}", self.number))
    }

    /// Returns `name`, to look for it in the directory.
    pub(crate) fn sought<'a>(&self, name: &'a [u8]) -> SoughtName<'a> {
        SoughtName::new(name, self.casefold)
    }

    /// Returns the hash of `name`, by which an index orders it.
    pub(crate) fn hash(&self, version: HashVersion, name: &SoughtName<'_>) -> u32 {
        hash(name.hashed(), version, self.unsigned_hash, &self.hash_seed)
    }

    /// Returns the file type of an entry's code, where entries record it.
    pub(crate) fn type_of(&self, code: u8) -> Option<FileType> {
        if self.has_file_type {
            file_type_of(code)
        } else {
            None
        }
    }

    /// Returns the code that an entry records for `file_type`.
    pub(crate) fn type_code(&self, file_type: FileType) -> u8 {
        if self.has_file_type {
            file_type_code(file_type)
        } else {
            0
        }
    }
}

/// The blocks of a directory. Tests have it in memory.
pub(crate) trait DirectoryBlocks {
    /// Returns the directory's properties.
    fn context(&self) -> &DirectoryContext;

    /// Returns the number of blocks (the directory's size over the block size).
    fn block_count(&self) -> u32;

    /// Returns one block.
    ///
    /// # Errors
    /// EUCLEAN for a hole.
    fn block(&self, block: LogicalBlock) -> Result<MetadataBlock>;

    /// Appends a zeroed block. The directory's size has grown when this returns.
    ///
    /// # Errors
    /// ENOSPC.
    fn append(&self) -> Result<(LogicalBlock, MetadataBlock)>;

    /// Returns the index in memory of a linear directory, if it has one.
    fn name_index(&self) -> Option<Arc<NameIndex>>;

    /// Replaces that index, and returns the old one.
    fn replace_name_index(&self, index: Option<Arc<NameIndex>>) -> Option<Arc<NameIndex>>;
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundName {
    /// The inode that the entry names.
    pub(crate) number: InodeNumber,
    /// Its type, if the directory records it.
    pub(crate) file_type: Option<FileType>,
}

/// Returns the code of `file_type` in directory entries (`EXT4_FT_*`).
pub(crate) fn file_type_code(file_type: FileType) -> u8 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharacterDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

/// Returns the file type of an entry's code; `None` for no code or an unknown one.
pub(crate) fn file_type_of(code: u8) -> Option<FileType> {
    match code {
        1 => Some(FileType::Regular),
        2 => Some(FileType::Directory),
        3 => Some(FileType::CharacterDevice),
        4 => Some(FileType::BlockDevice),
        5 => Some(FileType::Fifo),
        6 => Some(FileType::Socket),
        7 => Some(FileType::Symlink),
        _ => None,
    }
}
