//! Files whose contents are in the inode (`inline_data`): stored there with each write, moved to
//! blocks by a write that does not fit.

use crate::base::{Error, Result};
use crate::cache::Mapping;
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::features::Incompat;
use crate::fs::ext4::space::reserved::ReservedBlocks;

impl Ext4Inode {
    /// Returns the contents of a file kept in its inode: `i_block`, continued by the attribute
    /// `system.data`. Shorter than the file if less is stored; the rest reads as zeros.
    pub(crate) fn inline_bytes(&self, state: &InodeState) -> Result<Vec<u8>> {
        let data = self.inline_data(state)?;
        Ok(contents(
            &state.raw.block,
            data.as_deref(),
            state.recorded_size(),
        ))
    }

    /// Keeps the contents of a new inode in it, where the file system has `inline_data`. Returns
    /// whether that is so.
    pub(crate) fn start_inline(&self) -> Result<bool> {
        if !self.fs.volume.has_incompat(Incompat::INLINE_DATA) {
            return Ok(false);
        }
        let mut state = self.state_mut();
        if self.inline_data_max(&state)?.is_none() {
            return Ok(false);
        }
        self.enter_inode(&mut state)?;
        Ok(true)
    }

    /// Moves the contents of an inode without blocks into it, and leaves them empty.
    pub(crate) fn enter_inode(&self, state: &mut InodeState) -> Result<()> {
        self.set_inline_data(state, Some(&[]))?;
        let flags = state.raw.flags.get() & !inode_flags::EXTENTS | inode_flags::INLINE_DATA;
        state.raw.flags.set(flags);
        state.raw.block = [0; 60];
        state.layout = ContentLayout::Inline;
        state.map_is_dirty = false;
        Ok(())
    }

    /// Moves the contents, which the caller keeps, out of an inode. It has no blocks yet.
    pub(crate) fn leave_inode(&self, state: &mut InodeState) -> Result<()> {
        self.set_inline_data(state, None)?;
        let layout = ContentLayout::in_blocks(&self.fs.volume.geometry.features);
        let flags = state.raw.flags.get() & !inode_flags::INLINE_DATA | layout.flags();
        state.raw.flags.set(flags);
        state.raw.block = layout.empty_block_field();
        state.layout = layout;
        state.map_is_dirty = true;
        state.disk_size = 0;
        state.set_recorded_size(0);
        Ok(())
    }

    /// Prepares a change of a file's contents that reaches byte `end`: if they get too long for the
    /// inode, they move to blocks. Returns whether they stay in the inode.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn keep_inline(&self, end: u64, reserved: ReservedBlocks) -> Result<bool> {
        let max = {
            let state = self.state.read();
            if state.layout != ContentLayout::Inline {
                return Ok(false);
            }
            let data_max = self.inline_data_max(&state)?.unwrap_or(0);
            (state.raw.block.len() + data_max) as u64
        };
        let size = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        if end.max(size) <= max {
            return Ok(true);
        }
        self.convert_inline(reserved)?;
        Ok(false)
    }

    /// Stores the contents of an inline file, which its mapping has, in the inode.
    pub(crate) fn store_inline(&self) -> Result<()> {
        let Some(mapping) = &self.common.mapping else {
            return Ok(());
        };
        // `keep_inline` checked that they fit.
        // Before the state is locked: reading a page may lock it, too.
        let bytes = read_start(mapping, mapping.size_bytes() as usize)?;
        let mut state = self.state_mut();
        let (in_field, rest) = bytes.split_at(bytes.len().min(state.raw.block.len()));
        self.set_inline_data(&mut state, Some(rest))?;
        state.raw.block = [0; 60];
        state.raw.block[..in_field.len()].copy_from_slice(in_field);
        state.disk_size = bytes.len() as u64;
        state.set_recorded_size(bytes.len() as u64);
        self.mark_dirty(&mut state);
        Ok(())
    }

    /// Moves the contents of an inline file to blocks. Does nothing for other files.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn convert_inline(&self, reserved: ReservedBlocks) -> Result<()> {
        let len = {
            let state = self.state.read();
            if state.layout != ContentLayout::Inline {
                return Ok(());
            }
            self.inline_bytes(&state)?.len()
        };
        let Some(mapping) = &self.common.mapping else {
            return Err(Error::unsupported("moving a link out of its inode"));
        };
        // Also brings the page into memory, so that no reader finds a hole before the write below.
        let bytes = read_start(mapping, len)?;
        let size = mapping.size_bytes();
        {
            let mut state = self.state_mut();
            self.reserve(
                &mut state,
                0..bytes.len().div_ceil(self.fs.volume.block_size) as u32,
                reserved,
            )?;
            // The bytes leave the inode only in the transaction that maps their blocks.
            self.leave_inode(&mut state)?;
            self.mark_dirty(&mut state);
        }
        if !bytes.is_empty() {
            self.order();
            mapping.write(0, &bytes)?;
        }
        // The file may be longer than what was stored: the rest is a hole.
        if size > bytes.len() as u64 {
            self.raise_disk_size(&mut self.state_mut(), size);
        }
        Ok(())
    }
}

/// Returns the first `len` bytes of a file.
fn read_start(mapping: &Mapping, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    mapping.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the first `size_bytes` of `block_field` (`i_block`) followed by `data` (`system.data`).
fn contents(block_field: &[u8; 60], data: Option<&[u8]>, size_bytes: u64) -> Vec<u8> {
    let mut bytes = [block_field, data.unwrap_or_default()].concat();
    bytes.truncate(usize::try_from(size_bytes).unwrap_or(usize::MAX));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_file_continues_in_the_attribute() {
        assert_eq!(
            contents(&[b'a'; 60], Some(b"bcd"), 62),
            [[b'a'; 60].as_slice(), b"bc"].concat()
        );
        assert_eq!(contents(&[b'a'; 60], None, 3), b"aaa");
        assert_eq!(contents(&[b'a'; 60], None, u64::MAX).len(), 60);
    }
}
