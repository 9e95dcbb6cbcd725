//! The blocks of a directory inode, and the inode's operations on names.

use super::context::{DirectoryBlocks, DirectoryContext, FoundName};
use super::inline_data::InlineDirectory;
use super::names;
use crate::base::{Error, InodeNumber, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::ContentLayout;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::extent::Extent;
use crate::fs::ext4::layout::features::{Compat, Incompat};
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::Purpose;
use crate::vfs::{DirectoryEntry, FileType};
use std::ops::ControlFlow;

/// One directory while it is read or changed. The VFS holds its inode lock.
pub(crate) struct OpenDirectory<'a> {
    inode: &'a Ext4Inode,
    context: DirectoryContext,
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
        let mapped = self.inode.state.read().map.lookup(block);
        match mapped {
            MappedRange::Data { physical, .. } => self.inode.fs.volume.metadata.block(physical),
            _ => Err(Error::corrupt("is not mapped")),
        }
        .map_err(|e| self.context.in_block(block, e))
    }

    fn append(&self) -> Result<(LogicalBlock, MetadataBlock)> {
        let fs = &self.inode.fs;
        let logical = LogicalBlock(self.block_count());
        let mut state = self.inode.state_mut();
        if state.layout != ContentLayout::Extents {
            return Err(Error::unsupported(
                "adding blocks to a directory that has a block map (ext3)",
            ));
        }
        let goal = state.map.goal(logical);
        let run = fs.volume.space.lock().allocate(
            &fs.volume.geometry,
            &fs.volume.metadata,
            goal,
            1,
            Purpose::Metadata,
            false,
        )?;
        let extent = Extent {
            logical: logical.0,
            len: 1,
            physical: run.start,
            is_unwritten: false,
        };
        state.map.insert(extent);
        if let Err(error) = self.inode.reserve_tree(&mut state, 0) {
            let at = u64::from(logical.0);
            state.map.remove(at..at + 1);
            fs.volume.free_data(run)?;
            return Err(error);
        }
        state.map_is_dirty = true;
        state.charge_blocks(1, fs.volume.block_size);
        let size = (u64::from(logical.0) + 1) * fs.volume.block_size as u64;
        state.set_recorded_size(size);
        self.inode.mark_dirty(&mut state);
        drop(state);
        Ok((
            logical,
            fs.volume.metadata.new_block(PhysicalBlock(run.start))?,
        ))
    }
}

impl Ext4Inode {
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
            casefold: state.raw.flags.get() & inode_flags::CASEFOLD != 0,
        };
        OpenDirectory {
            inode: self,
            context,
        }
    }

    fn is_indexed(&self) -> bool {
        let has_flag = self.state.read().raw.flags.get() & inode_flags::INDEX != 0;
        has_flag
            && self
                .fs
                .volume
                .geometry
                .features
                .compat
                .contains(Compat::DIR_INDEX)
    }

    /// Calls `visit` with an inline directory; returns `None` if the directory has blocks.
    fn with_inline<T>(
        &self,
        visit: impl FnOnce(&InlineDirectory<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        let (block, data) = {
            let state = self.state.read();
            if state.layout != ContentLayout::Inline {
                return None;
            }
            match self.inline_data(&state) {
                Ok(data) => (state.raw.block, data),
                Err(error) => return Some(Err(error)),
            }
        };
        let number = InodeNumber(self.number.into());
        let has_file_type = self.fs.volume.has_incompat(Incompat::FILETYPE);
        Some(visit(&InlineDirectory::new(
            number,
            &block,
            data.as_deref(),
            has_file_type,
        )))
    }

    /// Checks that the directory has blocks, which Folio can change.
    fn check_not_inline(&self) -> Result<()> {
        match self.state.read().layout {
            ContentLayout::Inline => Err(Error::unsupported(
                "changing a directory kept in its inode (inline_data)",
            )),
            _ => Ok(()),
        }
    }

    /// Looks up `name`.
    pub(crate) fn find_name(&self, name: &[u8]) -> Result<Option<FoundName>> {
        if let Some(found) = self.with_inline(|inline| inline.find(name)) {
            return found;
        }
        names::find(&self.open_directory(), self.is_indexed(), name)
    }

    /// Inserts `name` for the inode `number`.
    ///
    /// # Errors
    /// EEXIST; ENOSPC; ENAMETOOLONG.
    pub(crate) fn insert_name(&self, name: &[u8], number: u32, file_type: FileType) -> Result<()> {
        self.check_not_inline()?;
        let was_indexed = self.is_indexed();
        let mut is_indexed = was_indexed;
        let blocks = self.open_directory();
        let result = names::insert(
            &blocks,
            &mut is_indexed,
            name,
            InodeNumber(number.into()),
            file_type,
        );
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
        self.check_not_inline()?;
        names::remove(&self.open_directory(), self.is_indexed(), name).map(drop)
    }

    /// Points `name` to another inode.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn replace_name(&self, name: &[u8], number: u32, file_type: FileType) -> Result<()> {
        self.check_not_inline()?;
        let number = InodeNumber(number.into());
        names::replace(
            &self.open_directory(),
            self.is_indexed(),
            name,
            number,
            file_type,
        )
        .map(drop)
    }

    /// Writes the first block of a new directory, with `.` and `..`.
    pub(crate) fn initialize_directory(&self, parent: u32) -> Result<()> {
        let own = InodeNumber(self.number.into());
        names::initialize(&self.open_directory(), own, InodeNumber(parent.into()))
    }

    /// Whether the directory has no names except `.` and `..`.
    pub(crate) fn is_empty_directory(&self) -> Result<bool> {
        match self.with_inline(|inline| inline.is_empty()) {
            Some(result) => result,
            None => names::is_empty(&self.open_directory()),
        }
    }

    /// Returns the inode of `..`.
    pub(crate) fn parent_of_directory(&self) -> Result<InodeNumber> {
        match self.with_inline(|inline| Ok(inline.parent())) {
            Some(result) => result,
            None => names::parent(&self.open_directory()),
        }
    }

    /// Implements `read_directory` of the VFS.
    pub(crate) fn iterate_names(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        match self.with_inline(|inline| inline.iterate(cookie, sink)) {
            Some(result) => result,
            None => names::iterate(&self.open_directory(), self.is_indexed(), cookie, sink),
        }
    }
}
