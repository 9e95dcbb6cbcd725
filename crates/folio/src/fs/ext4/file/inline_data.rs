//! Files whose contents are in the inode (`inline_data`): read there, moved to blocks by a change.

use crate::base::{Error, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::layout::disk::inode_flags;

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

    /// Moves the contents of an inline file to blocks, which every change except to its attributes
    /// needs. Does nothing for other files.
    ///
    /// # Errors
    /// EOPNOTSUPP for an inline directory or symbolic link.
    pub(crate) fn convert_inline(&self) -> Result<()> {
        let bytes = {
            let state = self.state.read();
            if state.layout != ContentLayout::Inline {
                return Ok(());
            }
            self.inline_bytes(&state)?
        };
        let Some(mapping) = &self.common.mapping else {
            return Err(Error::unsupported(
                "changing a directory or link kept in its inode (inline_data)",
            ));
        };
        {
            let mut state = self.state_mut();
            self.reserve(
                &mut state,
                0..bytes.len().div_ceil(self.fs.volume.block_size) as u32,
            )?;
            self.remove_inline_data(&mut state)?;
            state.layout = ContentLayout::Extents;
            state.map_is_dirty = true;
            // The bytes leave the inode only in the transaction that maps their blocks.
            state.disk_size = 0;
            let flags = state.raw.flags.get() & !inode_flags::INLINE_DATA | inode_flags::EXTENTS;
            state.raw.flags.set(flags);
            self.mark_dirty(&mut state);
        }
        self.order();
        mapping.write(0, &bytes).map(drop)
    }
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
