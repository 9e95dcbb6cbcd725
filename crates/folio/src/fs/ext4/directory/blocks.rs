//! The blocks of a directory inode, and the inode's operations on names.

use super::block;
use super::context::{DirectoryBlocks, DirectoryContext, FoundName};
use super::fold::{fold, is_casefolded};
use super::inline_data::InlineDirectory;
use super::names;
use crate::base::{Errno, Error, InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::name_index::NameIndex;
use crate::fs::ext4::inode::state::ContentLayout;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::vfs::{DirectoryEntry, FileType, NameFolding};
use std::ops::ControlFlow;
use std::sync::Arc;

/// `s_encoding_flags`: only UTF-8 is accepted.
const ENCODING_STRICT: u16 = 1;

/// One directory while it is read or changed. The VFS holds its inode lock.
pub(crate) struct OpenDirectory<'a> {
    inode: &'a Ext4Inode,
    context: DirectoryContext,
    /// Whether new blocks may be reserved ones.
    reserved: ReservedBlocks,
}

impl DirectoryBlocks for OpenDirectory<'_> {
    fn context(&self) -> &DirectoryContext {
        &self.context
    }

    fn block_count(&self) -> u32 {
        let blocks = self.inode.state.read().recorded_size() / self.context.block_size as u64;
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    fn block(&self, block: LogicalBlock) -> Result<MetadataBlock> {
        // The state is not locked while the device is read.
        let mapped = self.inode.state.read().map.lookup(block);
        match mapped {
            MappedRange::Data { physical, .. } => self.inode.fs.volume.metadata.block(physical),
            _ => Err(Error::corrupt("is not mapped")),
        }
        .map_err(|e| self.context.in_block(block, e))
    }

    fn append(&self) -> Result<(LogicalBlock, MetadataBlock)> {
        let volume = &self.inode.fs.volume;
        let logical = LogicalBlock(self.block_count());
        let mut state = self.inode.state_mut();
        let physical = self
            .inode
            .append_block(&mut state, logical, self.reserved)?;
        state.set_recorded_size((u64::from(logical.0) + 1) * volume.block_size as u64);
        self.inode.mark_dirty(&mut state);
        drop(state);
        Ok((logical, volume.metadata.new_block(physical)?))
    }

    fn name_index(&self) -> Option<Arc<NameIndex>> {
        self.inode.state.read().name_index.clone()
    }

    fn replace_name_index(&self, index: Option<Arc<NameIndex>>) -> Option<Arc<NameIndex>> {
        std::mem::replace(&mut self.inode.state_mut().name_index, index)
    }
}

impl Ext4Inode {
    /// Gives the directory a block without entries where it has a hole, for a repair: the first one
    /// has `.` and `..`, which is the root.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn fill_directory(&self, logical: LogicalBlock) -> Result<()> {
        let OpenDirectory { context, .. } = self.open_directory();
        let root = InodeNumber(ROOT_INODE.into());
        self.append_metadata(logical, |bytes| {
            if logical.0 == 0 {
                return names::write_dots(&context, bytes, context.number, root);
            }
            block::write_unused(&mut bytes[..block::region_len(&context)]);
            block::seal(&context, bytes);
            Ok(())
        })
    }

    fn open_directory(&self) -> OpenDirectory<'_> {
        let state = self.state.read();
        let geometry = &self.fs.volume.geometry;
        let context = DirectoryContext {
            block_size: self.fs.volume.block_size,
            number: InodeNumber(self.number.into()),
            checksum_seed: self
                .fs
                .volume
                .inode_checksum_seed(self.number, state.raw.generation.get()),
            hash_seed: geometry.raw.hash_seed.map(|word| word.get()),
            default_hash_version: geometry.raw.def_hash_version,
            unsigned_hash: geometry.has_unsigned_hash(),
            has_file_type: geometry.features.incompat.contains(Incompat::FILETYPE),
            large_dir: geometry.features.incompat.contains(Incompat::LARGE_DIR),
            dir_index: geometry.features.compat.contains(Compat::DIR_INDEX),
            casefold: is_casefolded(state.raw.flags.get()),
            strict_encoding: geometry.raw.encoding_flags.get() & ENCODING_STRICT != 0,
        };
        OpenDirectory {
            inode: self,
            context,
            reserved: ReservedBlocks::Kept,
        }
    }

    /// Returns the directory for a change that may append blocks.
    fn growing_directory(&self, reserved: ReservedBlocks) -> OpenDirectory<'_> {
        OpenDirectory {
            reserved,
            ..self.open_directory()
        }
    }

    fn is_indexed(&self) -> bool {
        let flags = self.state.read().raw.flags.get();
        // With both flags the index has the hashes of the names before encryption.
        let is_by_key = flags & inode_flags::CASEFOLD != 0 && !is_casefolded(flags);
        flags & inode_flags::INDEX != 0
            && !is_by_key
            && self
                .fs
                .volume
                .geometry
                .features
                .compat
                .contains(Compat::DIR_INDEX)
    }

    /// Returns the entries of an inline directory; `None` if the directory has blocks.
    fn inline_directory(&self) -> Result<Option<InlineDirectory>> {
        let state = self.state.read();
        if state.layout != ContentLayout::Inline {
            return Ok(None);
        }
        Ok(Some(InlineDirectory {
            block_field: state.raw.block,
            data: self.inline_data(&state)?.unwrap_or_default(),
        }))
    }

    fn store_inline_directory(&self, directory: &InlineDirectory) -> Result<()> {
        let mut state = self.state_mut();
        self.set_inline_data(&mut state, Some(&directory.data))?;
        state.raw.block = directory.block_field;
        state.set_recorded_size(directory.size_bytes());
        self.mark_dirty(&mut state);
        Ok(())
    }

    /// Moves the entries of an inline directory to its first block. Without space for the block,
    /// nothing changes.
    fn move_entries_to_block(
        &self,
        directory: &InlineDirectory,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let blocks = self.growing_directory(reserved);
        let mut bytes = vec![0; blocks.context.block_size];
        // First: damaged entries must be found before the inode changes.
        directory.write_block(&blocks.context, &mut bytes)?;
        self.leave_inode(&mut self.state_mut())?;
        match blocks.append() {
            Ok((_, block)) => {
                block.write().copy_from_slice(&bytes);
                Ok(())
            }
            Err(error) => {
                self.enter_inode(&mut self.state_mut())?;
                self.store_inline_directory(directory)?;
                Err(error)
            }
        }
    }

    /// Returns the function that makes names equal that are one name in this directory.
    pub(crate) fn name_folding(&self) -> Option<NameFolding> {
        let flags = self.state.read().raw.flags.get();
        is_casefolded(flags).then_some(fold as NameFolding)
    }

    /// Looks up `name`.
    pub(crate) fn find_name(&self, name: &[u8]) -> Result<Option<FoundName>> {
        let blocks = self.open_directory();
        match self.inline_directory()? {
            Some(inline) => inline.find(&blocks.context, name),
            None => names::find(&blocks, self.is_indexed(), name),
        }
    }

    /// Checks that `name`, which may be `..`, can be replaced, and removed unless it is `..`.
    ///
    /// # Errors
    /// ENOENT; EUCLEAN for damage.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<()> {
        let blocks = self.open_directory();
        names::new_entry(
            &blocks.context,
            name,
            blocks.context.number,
            FileType::Regular,
        )?;
        match self.find_name(name)? {
            Some(_) => Ok(()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Inserts `name` for the inode `number`.
    ///
    /// # Errors
    /// EEXIST; ENOSPC; ENAMETOOLONG.
    pub(crate) fn insert_name(
        &self,
        name: &[u8],
        number: u32,
        file_type: FileType,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let number = InodeNumber(number.into());
        let blocks = self.growing_directory(reserved);
        if let Some(mut inline) = self.inline_directory()? {
            let entry = names::new_entry(&blocks.context, name, number, file_type)?;
            names::check_new_name(&blocks.context, name)?;
            let data_max = self.inline_data_max(&self.state.read())?.unwrap_or(0);
            if inline.insert(&blocks.context, &entry, data_max)? {
                return self.store_inline_directory(&inline);
            }
            self.move_entries_to_block(&inline, reserved)?;
        }
        let was_indexed = self.is_indexed();
        let mut is_indexed = was_indexed;
        let result = names::insert(&blocks, &mut is_indexed, name, number, file_type);
        // Also after an error: the index may be made, and the name not inserted.
        if is_indexed != was_indexed {
            let mut state = self.state_mut();
            state.raw.flags |= inode_flags::INDEX;
            self.mark_dirty(&mut state);
        }
        result
    }

    /// Removes `name`.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn remove_name(&self, name: &[u8]) -> Result<()> {
        let blocks = self.open_directory();
        if let Some(mut inline) = self.inline_directory()? {
            names::check_removable(name)?;
            inline.remove(&blocks.context, name)?;
            return self.store_inline_directory(&inline);
        }
        names::remove(&blocks, self.is_indexed(), name).map(drop)
    }

    /// Points `name`, which may be `..`, to another inode.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn replace_name(&self, name: &[u8], number: u32, file_type: FileType) -> Result<()> {
        let number = InodeNumber(number.into());
        let blocks = self.open_directory();
        if let Some(mut inline) = self.inline_directory()? {
            let entry = names::new_entry(&blocks.context, name, number, file_type)?;
            inline.replace(&blocks.context, &entry)?;
            return self.store_inline_directory(&inline);
        }
        names::replace(&blocks, self.is_indexed(), name, number, file_type).map(drop)
    }

    /// Writes the entries of a new directory: `.` and `..`, or in the inode only its parent.
    pub(crate) fn initialize_directory(&self, parent: u32, reserved: ReservedBlocks) -> Result<()> {
        if self.start_inline()? {
            return self.store_inline_directory(&InlineDirectory::new(parent));
        }
        let own = InodeNumber(self.number.into());
        let blocks = self.growing_directory(reserved);
        names::initialize(&blocks, own, InodeNumber(parent.into()))
    }

    /// Whether the directory has no names except `.` and `..`.
    pub(crate) fn is_empty_directory(&self) -> Result<bool> {
        let blocks = self.open_directory();
        match self.inline_directory()? {
            Some(inline) => inline.is_empty(&blocks.context),
            None => names::is_empty(&blocks),
        }
    }

    /// Returns the inode of `..`.
    pub(crate) fn parent_of_directory(&self) -> Result<InodeNumber> {
        match self.inline_directory()? {
            Some(inline) => Ok(inline.parent()),
            None => names::parent(&self.open_directory()),
        }
    }

    /// Implements `read_directory` of the VFS.
    pub(crate) fn iterate_names(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let blocks = self.open_directory();
        match self.inline_directory()? {
            Some(inline) => inline.iterate(&blocks.context, cookie, sink),
            None => names::iterate(&blocks, self.is_indexed(), cookie, sink),
        }
    }
}
