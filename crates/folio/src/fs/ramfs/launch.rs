//! Open files of a gpufs for launches on the device.

use super::frame_file::{FrameFile, FramePages};
use super::frame_files::FrameFiles;
use super::inode::{InodeBody, RamInode};
use crate::base::{Errno, Error, Result};
use crate::vfs::{FileOperations, HeldFile};
use std::ops::Range;

impl FrameFiles {
    fn find<'f>(&self, held: &'f HeldFile) -> Result<(&'f RamInode, &'f FrameFile)> {
        let inode = held.inode().as_any().downcast_ref::<RamInode>();
        match inode.map(|inode| (inode, &inode.body)) {
            Some((inode, InodeBody::Frames(file))) if self.has(file) => Ok((inode, file)),
            _ => Err(Error::new(Errno::XDEV, "the file is not on this gpufs")),
        }
    }

    /// Checks that the file is on this mount.
    ///
    /// # Errors
    /// EXDEV if it is not.
    pub fn check(&self, held: &HeldFile) -> Result<()> {
        self.find(held).map(drop)
    }

    /// Returns the pages of a file.
    ///
    /// # Errors
    /// EXDEV if the file is not on this mount.
    pub fn pages(&self, held: &HeldFile) -> Result<FramePages> {
        Ok(self.find(held)?.1.pages())
    }

    /// Returns whether a file has the page `index`.
    ///
    /// # Errors
    /// EXDEV if the file is not on this mount.
    pub fn has_page(&self, held: &HeldFile, index: u64) -> Result<bool> {
        Ok(self.find(held)?.1.has_page(index))
    }

    /// Takes over what a launch wrote to a file: its size was `sizes_bytes.start` before the
    /// launch, and the kernel extended it to `sizes_bytes.end`. Sets the times, and clears setuid
    /// and setgid as write(2) does. A size that the host set during the launch stays, unless the
    /// kernel extended the file.
    ///
    /// # Errors
    /// EBADF unless open for writing, EFBIG beyond the largest offset, EXDEV if the file is not on
    /// this mount, EROFS, and those of the device.
    pub fn end_launch(&self, held: &HeldFile, sizes_bytes: Range<u64>) -> Result<()> {
        let (inode, file) = self.find(held)?;
        inode.write_begin(held.caller(), sizes_bytes.end, 0)?;
        held.change(|| {
            file.end_launch(sizes_bytes)?;
            inode.write_end(1)
        })
    }

    /// Sets the bytes past the end of a file to zero, after a launch that failed.
    ///
    /// # Errors
    /// EXDEV if the file is not on this mount, and those of the device.
    pub fn clear_past_end(&self, held: &HeldFile) -> Result<()> {
        let (_, file) = self.find(held)?;
        held.with_lock(|| file.clear_past_end())
    }
}
