//! The VFS's traits, implemented for inodes in memory.

use super::dir::FIRST_COOKIE;
use super::frame_file::FrameFile;
use super::inode::{DirectoryGuard, InodeBody, RamInode};
use crate::base::{Errno, InodeNumber, Result};
use crate::cache::{Borrowed, Mapping, WriteSource};
use crate::vfs::{
    ACL_ACCESS, ACL_DEFAULT, Acl, AttributeChange, Credentials, DirectoryEntry, FallocateMode,
    FileOperations, FileType, Inode, InodeCommon, NewInode, RenameFlags, RenameRequest, SeekKind,
    WriteAt, XattrFlags, buffered_borrow, buffered_read, buffered_write, set_access_acl,
};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The largest file size in bytes (`MAX_LFS_FILESIZE`).
const SIZE_MAX: u64 = i64::MAX as u64;
/// Most bytes that one borrow copies from device memory.
const BORROW_MAX: usize = 1 << 20;

impl RamInode {
    fn directory(&self) -> Result<DirectoryGuard<'_>> {
        match &self.body {
            InodeBody::Directory(directory) => Ok(DirectoryGuard {
                entry_count: &self.entry_count,
                directory: directory.lock(),
            }),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, InodeBody::Directory(_))
    }

    /// Removes one link, or both links of a directory.
    fn drop_link(&self) {
        let now = self.now();
        let mut state = self.state_mut();
        if !self.is_directory() && state.link_count > 1 {
            self.shared.limits.release_inode();
        }
        state.link_count = if self.is_directory() {
            0
        } else {
            state.link_count.saturating_sub(1)
        };
        state.changed = now;
    }

    fn count_subdirectory(&self, difference: i32) {
        let mut state = self.state_mut();
        state.link_count = state.link_count.saturating_add_signed(difference);
    }

    fn note_changed(&self) {
        let now = self.now();
        self.state_mut().changed = now;
    }

    /// Forbids new entries of a directory that is being removed; ENOTEMPTY if it has entries.
    fn close_directory(&self) -> Result<()> {
        let mut directory = self.directory()?;
        if !directory.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        directory.is_live = false;
        Ok(())
    }
}

/// The data of files in device memory.
impl RamInode {
    #[cold]
    fn write_frames(
        &self,
        file: &FrameFile,
        caller: &Credentials,
        at: WriteAt,
        bytes: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => file.size_bytes(),
        };
        self.write_begin(caller, offset, bytes.len() as u64)?;
        let count = file.write(offset, bytes)?;
        self.write_end(count as u64)?;
        Ok((offset + count as u64, count))
    }

    /// Returns a copy: the pages are not in the host's memory.
    #[cold]
    fn borrow_frames(&self, file: &FrameFile, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        let mut bytes = vec![0; len_bytes.min(BORROW_MAX)];
        let count = file.read(offset, &mut bytes)?;
        let copy = Mapping::without_store(&self.shared.writeback, 0, None);
        let count = copy.write_from(0, &WriteSource::from(&bytes[..count]))?;
        copy.borrow(0, count)
    }
}

/// Returns the inode as this file system's type; EXDEV if it belongs to another file system.
fn own(inode: &Arc<dyn Inode>) -> Result<&RamInode> {
    Ok(inode.as_any().downcast_ref().ok_or(Errno::XDEV)?)
}

impl Inode for RamInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        matches!(self.body, InodeBody::Regular | InodeBody::Frames(_)).then_some(self)
    }

    fn set_attributes(&self, _caller: &Credentials, change: &AttributeChange) -> Result<()> {
        self.set_attributes(change)
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok(self.directory()?.get(name).cloned())
    }

    fn create(
        &self,
        _caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let mut directory = self.directory()?;
        if !directory.is_live {
            return Err(Errno::NOENT.into());
        }
        let inode = RamInode::new(&self.shared, new)?;
        inode.set_parent(self.number());
        let inode: Arc<dyn Inode> = Arc::new(inode);
        directory.set(name, inode.clone());
        drop(directory);
        if new.file_type == FileType::Directory {
            self.count_subdirectory(1);
        }
        self.note_modified();
        Ok(inode)
    }

    fn create_unnamed(&self, _caller: &Credentials, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let inode = RamInode::new(&self.shared, new)?;
        inode.state_mut().link_count = 0;
        Ok(Arc::new(inode))
    }

    fn link(&self, _caller: &Credentials, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let own_target = own(target)?;
        let mut directory = self.directory()?;
        if !directory.is_live {
            return Err(Errno::NOENT.into());
        }
        {
            let now = self.now();
            let mut state = own_target.state_mut();
            let link_count = state.link_count.checked_add(1).ok_or(Errno::MLINK)?;
            if state.link_count > 0 {
                self.shared.limits.take_inode()?;
            }
            state.link_count = link_count;
            state.changed = now;
        }
        directory.set(name, target.clone());
        drop(directory);
        self.note_modified();
        Ok(())
    }

    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let removed = self.directory()?.remove(name).ok_or(Errno::NOENT)?;
        own(target)?.drop_link();
        self.note_modified();
        drop(removed);
        Ok(())
    }

    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let own_target = own(target)?;
        own_target.close_directory()?;
        let removed = self.directory()?.remove(name).ok_or(Errno::NOENT)?;
        own_target.drop_link();
        self.count_subdirectory(-1);
        self.note_modified();
        drop(removed);
        Ok(())
    }

    fn rename(&self, request: &RenameRequest<'_>) -> Result<()> {
        let RenameRequest {
            name,
            source,
            new_parent,
            new_name,
            replaced,
            whiteout,
            flags,
            ..
        } = *request;
        // Before the first change: there may be no inode left.
        let whiteout = whiteout
            .map(|new| RamInode::new(&self.shared, new))
            .transpose()?;
        let own_source = own(source)?;
        let own_parent = own(new_parent)?;
        let own_replaced = replaced.map(own).transpose()?;
        let to_other_directory = self.number() != own_parent.number();
        if let (true, Some(target)) = (flags.contains(RenameFlags::EXCHANGE), replaced) {
            self.directory()?.set(name, target.clone());
            own_parent.directory()?.set(new_name, source.clone());
        } else {
            if let Some(target) = own_replaced {
                if target.is_directory() {
                    target.close_directory()?;
                    own_parent.count_subdirectory(-1);
                }
                target.drop_link();
            }
            let mut directory = self.directory()?;
            let moved = directory.remove(name).ok_or(Errno::NOENT)?;
            if let Some(whiteout) = whiteout {
                directory.set(name, Arc::new(whiteout));
            }
            drop(directory);
            let replaced = own_parent.directory()?.set(new_name, moved);
            drop(replaced);
        }
        let moves_back = own_replaced.filter(|_| flags.contains(RenameFlags::EXCHANGE));
        for (moved, from, to) in [
            (Some(own_source), self, own_parent),
            (moves_back, own_parent, self),
        ] {
            let Some(moved) = moved else { continue };
            if to_other_directory && moved.is_directory() {
                moved.set_parent(to.number());
                from.count_subdirectory(-1);
                to.count_subdirectory(1);
            }
            moved.note_changed();
        }
        self.note_modified();
        if to_other_directory {
            own_parent.note_modified();
        }
        Ok(())
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = self.directory()?;
        let parent = self.state.read().parent;
        let dots: [(&[u8], InodeNumber); 2] = [(b".", self.number()), (b"..", parent)];
        for (at, (name, number)) in dots
            .into_iter()
            .enumerate()
            .skip(cookie.min(FIRST_COOKIE) as usize)
        {
            let file_type = Some(FileType::Directory);
            let entry = DirectoryEntry {
                name,
                number,
                file_type,
                next_cookie: at as u64 + 1,
            };
            if sink(&entry).is_break() {
                return Ok(());
            }
        }
        for (cookie, entry) in directory.entries_from(cookie.max(FIRST_COOKIE)) {
            let common = entry.inode.common();
            let (number, file_type) = (common.number, Some(common.file_type));
            let entry = DirectoryEntry {
                name: &entry.name,
                number,
                file_type,
                next_cookie: cookie + 1,
            };
            if sink(&entry).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        if self.is_directory() {
            Ok(self.state.read().parent)
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            InodeBody::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn touch_accessed(&self) -> Result<()> {
        let now = self.now();
        self.state_mut().accessed = now;
        Ok(())
    }

    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.state.read().xattrs.get(name).cloned())
    }

    fn set_xattr(
        &self,
        _caller: &Credentials,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let now = self.now();
        let mut state = self.state_mut();
        let mut mode = state.mode;
        let mut value = Some(value.to_vec());
        if let (ACL_ACCESS | ACL_DEFAULT, Some(bytes)) = (name, &value) {
            value = match Acl::from_xattr(bytes)? {
                Some(acl) if name == ACL_ACCESS => {
                    let (new, stored) = set_access_acl(acl, mode);
                    mode = new;
                    stored.map(|acl| acl.to_xattr())
                }
                acl => acl.map(|acl| acl.to_xattr()),
            };
        }
        let is_there = state.xattrs.contains_key(name);
        if is_there && flags.contains(XattrFlags::CREATE) {
            return Err(Errno::EXIST.into());
        }
        if !is_there && flags.contains(XattrFlags::REPLACE) {
            return Err(Errno::NODATA.into());
        }
        match value {
            Some(value) => drop(state.xattrs.insert(name.to_vec(), value)),
            // The mode expresses the ACL, or the ACL is empty.
            None => drop(state.xattrs.remove(name)),
        }
        state.mode = mode;
        state.changed = now;
        Ok(())
    }

    fn remove_xattr(&self, _caller: &Credentials, name: &[u8]) -> Result<()> {
        let now = self.now();
        let mut state = self.state_mut();
        state.xattrs.remove(name).ok_or(Errno::NODATA)?;
        state.changed = now;
        Ok(())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.state.read().xattrs.keys().cloned().collect())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileOperations for RamInode {
    fn write_begin(&self, _caller: &Credentials, offset: u64, len_bytes: u64) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        if end > SIZE_MAX {
            Err(Errno::FBIG.into())
        } else {
            Ok(())
        }
    }

    fn write_end(&self, written_bytes: u64) -> Result<()> {
        if written_bytes > 0 {
            self.note_modified();
        }
        Ok(())
    }

    fn fallocate(
        &self,
        _caller: &Credentials,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let end = offset
            .checked_add(len_bytes)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(Errno::FBIG)?;
        use FallocateMode::{
            Allocate, AllocateKeepSize, CollapseRange, InsertRange, PunchHole, ZeroRange,
            ZeroRangeKeepSize,
        };
        match mode {
            // Linux's tmpfs does not support these, either.
            CollapseRange | InsertRange => return Err(Errno::OPNOTSUPP.into()),
            PunchHole => self.punch(offset..end)?,
            Allocate | AllocateKeepSize => self.allocate(offset..end)?,
            ZeroRange | ZeroRangeKeepSize => self.zero_range(offset..end)?,
        }
        if matches!(mode, Allocate | ZeroRange) {
            self.grow(end)?;
        }
        self.note_modified();
        Ok(())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match &self.body {
            InodeBody::Frames(file) => file.read(offset, buf),
            _ => buffered_read(self, offset, buf),
        }
    }

    fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        match &self.body {
            InodeBody::Frames(file) => self.borrow_frames(file, offset, len_bytes),
            _ => buffered_borrow(self, offset, len_bytes),
        }
    }

    fn write(
        &self,
        caller: &Credentials,
        at: WriteAt,
        bytes: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        match &self.body {
            InodeBody::Frames(file) => self.write_frames(file, caller, at, bytes),
            _ => buffered_write(self, caller, at, bytes),
        }
    }

    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        if let InodeBody::Frames(file) = &self.body {
            let size_bytes = file.size_bytes();
            return Ok(match kind {
                SeekKind::Data => file.next_data(offset).filter(|found| *found < size_bytes),
                SeekKind::Hole => {
                    Some(file.next_hole(offset).clamp(offset, size_bytes.max(offset)))
                }
            });
        }
        let mapping = self.mapping()?;
        let size_bytes = mapping.size_bytes();
        Ok(match kind {
            SeekKind::Data => mapping
                .next_cached(offset)
                .map(|cached| cached.max(offset))
                .filter(|found| *found < size_bytes),
            SeekKind::Hole => Some(
                mapping
                    .next_absent(offset)
                    .clamp(offset, size_bytes.max(offset)),
            ),
        })
    }
}
