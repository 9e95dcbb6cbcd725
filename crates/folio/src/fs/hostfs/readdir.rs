//! Directory listing: the entries as the host reports them.

use super::host_calls::{self, retry};
use super::inode::HostInode;
use crate::base::{InodeNumber, Result};
use crate::vfs::{DirectoryEntry, FileType};
use rustix::fs::{RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// Size in bytes of the buffer for one host call. Of a longer one a client that looks entries up,
/// 200 at a time, would use a part, and the host reads the rest again at the next call.
const ENTRIES_BYTES: usize = 8 << 10;

impl HostInode {
    /// Calls `sink` for each entry from the host's `cookie` on.
    pub(super) fn list(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        // A description of its own: the position of the cached one is shared.
        let fd = host_calls::open_directory(&*self.reach()?)?;
        if cookie > 0 {
            retry(|| rustix::fs::seek(&fd, SeekFrom::Start(cookie)))?;
        }
        let mut buf = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut entries = RawDir::new(&fd, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let file_type = host_calls::file_type(entry.file_type());
            let entry = DirectoryEntry {
                name,
                number: self.number_of(name, entry.ino()),
                file_type: if matches!(name, b"." | b"..") {
                    Some(FileType::Directory)
                } else {
                    file_type
                },
                next_cookie: entry.next_entry_cookie(),
            };
            if sink(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the inode number of an entry. The parent of the root is hidden.
    fn number_of(&self, name: &[u8], host_number: u64) -> InodeNumber {
        match name {
            b"." => self.common.number,
            b".." => self.parent_number(),
            _ => self
                .shared
                .inode_numbers
                .number(self.identity.device, host_number),
        }
    }

    /// Returns the inode number of `..`; the root is its own parent.
    pub(super) fn parent_number(&self) -> InodeNumber {
        self.location()
            .map_or(self.common.number, |location| location.parent.common.number)
    }
}
