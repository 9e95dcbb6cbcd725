//! The VFS's calls: checks each, runs it in one transaction, and updates times and link counts.
//!
//! ```text
//!   VFS -> change(): begin_change -> handle -> names (directory/), data (file/), attributes (xattr/)
//!                       ^                |
//!                       `- ENOSPC: commit frees blocks, then once more
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | `Inode` and `FileOperations` of the VFS |
//! | `symlink.rs` | targets of symbolic links |
//! | `trim.rs` | discarding free space |
//! | `evict.rs` | freeing an inode without names, with its last reference |
//!
//! Neighbors: the VFS above, which holds the inode locks; all other parts of a mounted ext4 below.
//!
//! Lock order: an operation's handle (`Volume::start`) is taken after the VFS's inode locks and
//! before all locks of ext4.
//!
//! Invariants:
//! 1. All changes of one operation are made under one handle, except by write(2): `write_begin` and
//!    `write_end` have one each.
//! 2. An operation that can be rejected is rejected before its first change.
//! 3. An operation that fails with ENOSPC can be run again.

mod evict;
mod symlink;
mod trim;

use crate::base::{Errno, Error, InodeNumber, Result};
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::links::{add_directory_link, check_links, drop_directory_link};
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::layout::features::RoCompat;
use crate::fs::ext4::space::reserved::{ReservedBlocks, ReservedBlocksOwners};
use crate::vfs::{
    AttributeChange, Credentials, DirectoryEntry, FallocateMode, FileExtent, FileOperations,
    FileType, Inode, InodeCommon, InodeFlags, NameFolding, NewInode, Opened, RenameFlags,
    RenameRequest, SeekKind, SetTime, XattrFlags,
};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

impl Inode for Ext4Inode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        (self.common.file_type == FileType::Regular).then_some(self)
    }

    fn set_attributes(&self, caller: &Credentials, change: &AttributeChange) -> Result<()> {
        self.change(Some(caller), |reserved| {
            self.check_mutable(false)?;
            // Before the first change: an owner without an entry may need space for it.
            self.fs
                .add_owners([change.uid, change.gid, None], reserved)?;
            if let Some(size_bytes) = change.size_bytes {
                self.check_contents_mutable()?;
                self.prepare_size(size_bytes, reserved)?;
            }
            {
                let mut state = self.state_mut();
                self.apply(&mut state, change, reserved)?;
                self.mark_dirty(&mut state);
            }
            change
                .size_bytes
                .map_or(Ok(()), |size| self.set_size(size, reserved))
        })
    }

    fn flags(&self) -> Result<InodeFlags> {
        let visible = self.state.read().raw.flags.get() & inode_flags::VISIBLE;
        Ok(InodeFlags::from_bits_retain(visible))
    }

    fn project(&self) -> Result<u32> {
        let has_projects = self.fs.volume.geometry.features.ro_compat;
        if has_projects.contains(RoCompat::PROJECT) {
            Ok(self.state.read().raw.projid.get())
        } else {
            Ok(0)
        }
    }

    fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        self.change(None, |_| {
            let mut state = self.state_mut();
            let old = state.raw.flags.get();
            // chattr(1) passes back what it has read.
            let changed = (old ^ flags.bits()) & inode_flags::VISIBLE;
            if changed & !inode_flags::MODIFIABLE != 0 {
                return Err(Error::new(
                    Errno::OPNOTSUPP,
                    format!(
                        "flags {:#x} cannot be changed",
                        changed & !inode_flags::MODIFIABLE
                    ),
                ));
            }
            // Linux ignores flags that the file type does not have: `ext4_mask_flags`.
            let possible = match self.common.file_type {
                FileType::Directory => inode_flags::MODIFIABLE,
                _ => inode_flags::MODIFIABLE & !inode_flags::MODIFIABLE_IN_DIRECTORIES,
            };
            state.raw.flags = (old ^ changed & possible).into();
            state.set_changed(self.fs.volume.now());
            self.mark_dirty(&mut state);
            Ok(())
        })
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        self.fs.volume.check_alive()?;
        let Some(found) = self.find_name(name).map_err(|e| self.handle_error(e))? else {
            return Ok(None);
        };
        let number = found.number.0;
        if number < self.fs.volume.geometry.first_inode.into() && number != u64::from(ROOT_INODE) {
            let what = format!("a name leads to the reserved inode {number}");
            return Err(self.handle_error(Error::corrupt(what)));
        }
        let inode = self.fs.inode(number).map_err(|e| e.at("ext4"))?;
        Ok(Some(inode))
    }

    fn name_folding(&self) -> Option<NameFolding> {
        Ext4Inode::name_folding(self)
    }

    fn create(
        &self,
        caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        self.change(Some(caller), |reserved| {
            self.check_mutable(true)?;
            let inode = self.new_inode(new, reserved)?;
            let added = self.insert_name(name, inode.number, new.file_type, reserved);
            self.keep_or_discard(&inode, added)?;
            let mut state = self.state_mut();
            if new.file_type == FileType::Directory {
                add_directory_link(&mut state);
            }
            self.note_names_changed(&mut state);
            drop(state);
            let inode: Arc<dyn Inode> = inode;
            Ok(inode)
        })
    }

    fn create_unnamed(&self, caller: &Credentials, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        self.change(Some(caller), |reserved| {
            let inode = self.new_inode(new, reserved)?;
            let mut state = inode.state_mut();
            state.raw.links_count = 0.into();
            drop(state);
            // The list would keep the inode alive; as an orphan it is written at once instead.
            inode.forget_dirty();
            inode.mark_dirty(&mut inode.state_mut());
            let inode: Arc<dyn Inode> = inode;
            Ok(inode)
        })
    }

    fn link(&self, caller: &Credentials, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.change(Some(caller), |reserved| {
            let target = self.same_fs(target)?;
            self.check_mutable(true)?;
            target.check_mutable(false)?;
            self.check_project(target)?;
            check_links(&self.fs.volume, &target.state.read(), false)?;
            self.insert_name(name, target.number, target.common.file_type, reserved)?;
            let mut state = target.state_mut();
            let links = state.raw.links_count.get() + 1;
            state.raw.links_count = links.into();
            state.set_changed(self.fs.volume.now());
            // The file may have had no name (`O_TMPFILE`).
            self.fs.orphans.lock().remove(target.number);
            target.mark_dirty(&mut state);
            drop(state);
            target.note_named();
            self.note_names_changed(&mut self.state_mut());
            Ok(())
        })
    }

    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.change(None, |_| {
            let target = self.same_fs(target)?;
            self.check_mutable(false)?;
            target.check_mutable(false)?;
            // First: it may fail, and nothing after it can.
            self.remove_name(name)?;
            self.fs.note_published();
            self.note_names_changed(&mut self.state_mut());
            target.drop_link();
            Ok(())
        })
    }

    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.change(None, |_| {
            let target = self.same_fs(target)?;
            self.check_mutable(false)?;
            target.check_mutable(false)?;
            if !target.is_empty_directory()? {
                return Err(Errno::NOTEMPTY.into());
            }
            // First: it may fail, and nothing after it can.
            self.remove_name(name)?;
            target.drop_all_links();
            let mut state = self.state_mut();
            drop_directory_link(&mut state);
            self.note_names_changed(&mut state);
            Ok(())
        })
    }

    fn rename(&self, request: &RenameRequest<'_>) -> Result<()> {
        let RenameRequest { name, new_name, .. } = *request;
        let is_exchange = request.flags.contains(RenameFlags::EXCHANGE);
        if request.replaced.is_some() && !is_exchange {
            // Outside of the handle: a commit waits for handles, and would wait for this data.
            self.same_fs(request.source)?.prepare_replacing();
        }
        self.change(Some(request.caller), |reserved| {
            let source = self.same_fs(request.source)?;
            let new_parent = self.same_fs(request.new_parent)?;
            let replaced = request.replaced.map(|r| self.same_fs(r)).transpose()?;
            for changed in [Some(self), Some(source), Some(new_parent), replaced]
                .into_iter()
                .flatten()
            {
                changed.check_mutable(false)?;
            }
            new_parent.check_project(source)?;
            if let Some(other) = replaced.filter(|_| is_exchange) {
                self.check_project(other)?;
            }
            source.note_named();
            if let Some(other) = replaced.filter(|_| is_exchange) {
                other.note_named();
            }
            // Before the first change: there may be no space for it.
            let whiteout = request
                .whiteout
                .map(|new| self.new_inode(new, reserved))
                .transpose()?;
            let renamed = match (replaced, is_exchange) {
                (Some(other), true) => self.exchange(name, source, new_parent, new_name, other),
                (None, true) => Err(Errno::NOENT.into()),
                (replaced, false) => {
                    let left = whiteout.as_deref();
                    self.move_name(request, left, source, new_parent, replaced, reserved)
                }
            };
            match &whiteout {
                Some(whiteout) => self.keep_or_discard(whiteout, renamed),
                None => renamed,
            }
        })
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs.volume.check_alive()?;
        self.iterate_names(cookie, sink)
            .map_err(|e| self.handle_error(e))
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        self.parent_of_directory().map_err(|e| self.handle_error(e))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match self.common.file_type {
            FileType::Symlink => self.target().map_err(|e| self.handle_error(e)),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn touch_accessed(&self) -> Result<()> {
        if self.fs.volume.is_read_only {
            return Ok(());
        }
        self.change(None, |_| {
            let mut state = self.state_mut();
            state.set_accessed(self.fs.volume.now());
            self.note_times(&mut state);
            Ok(())
        })
    }

    fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        self.extents_in(range)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.fs
            .sync_inode(self, data_only)
            .map_err(|e| e.at("ext4"))
    }

    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.fs.check_namespace(name)?;
        self.fs.volume.check_alive()?;
        self.xattr_value(name).map_err(|e| self.handle_error(e))
    }

    fn set_xattr(
        &self,
        caller: &Credentials,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.fs.check_namespace(name)?;
        self.change_xattr(caller, name, Some(value), flags)
    }

    fn remove_xattr(&self, caller: &Credentials, name: &[u8]) -> Result<()> {
        self.fs.check_namespace(name)?;
        self.change_xattr(caller, name, None, XattrFlags::empty())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = self.xattr_names().map_err(|e| self.handle_error(e))?;
        names.retain(|name| self.fs.check_namespace(name).is_ok());
        Ok(names)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl FileOperations for Ext4Inode {
    fn write_begin(&self, caller: &Credentials, offset: u64, len_bytes: u64) -> Result<()> {
        let appends = self
            .common
            .mapping
            .as_ref()
            .is_some_and(|m| offset >= m.size_bytes());
        self.change(Some(caller), |reserved| {
            self.check_mutable(appends)?;
            self.check_contents_mutable()?;
            self.begin_write(offset, len_bytes, reserved)
        })
    }

    fn free_beyond_end(&self) -> Result<()> {
        self.change(None, |reserved| {
            self.check_mutable(false)?;
            self.remove_beyond_end(reserved)
        })
    }

    fn write_end(&self, written_bytes: u64) -> Result<()> {
        if written_bytes == 0 {
            return Ok(());
        }
        let _handle = self.fs.volume.start();
        let is_inline = self.state.read().layout == ContentLayout::Inline;
        if is_inline {
            self.store_inline().map_err(|e| self.handle_error(e))?;
        }
        let now = self.fs.volume.now();
        let mut state = self.state_mut();
        state.set_modified(now);
        state.set_changed(now);
        let size_bytes = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        if size_bytes > state.disk_size {
            // More than times changed, so the inode must not wait for them (`lazytime`).
            self.mark_times_dirty(&mut state);
        } else {
            self.note_times(&mut state);
        }
        drop(state);
        self.fs.note_change();
        Ok(())
    }

    fn open(&self, is_written: bool) -> Result<Option<Opened>> {
        if is_written {
            self.check_contents_mutable()?;
        }
        Ok(None)
    }

    fn close_written(&self) {
        self.note_closed();
    }

    fn fallocate(
        &self,
        caller: &Credentials,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.change(Some(caller), |reserved| {
            self.check_mutable(false)?;
            self.check_contents_mutable()?;
            self.change_allocation(mode, offset, len_bytes, reserved)
        })
    }

    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        self.seek_from(kind, offset)
    }
}

impl Ext4Inode {
    /// Runs one operation on behalf of `caller` in one transaction, without one with the reserved
    /// blocks. `act` runs again after a commit if it fails with ENOSPC.
    ///
    /// # Errors
    /// EROFS on a read-only mount; otherwise those of `act`.
    pub(crate) fn change<T>(
        &self,
        caller: Option<&Credentials>,
        act: impl Fn(ReservedBlocks) -> Result<T>,
    ) -> Result<T> {
        let options = &self.fs.volume.options;
        let owners = ReservedBlocksOwners {
            uid: options.reserved_uid,
            gid: options.reserved_gid,
        };
        let reserved = caller.map_or(ReservedBlocks::Usable, |caller| owners.blocks_for(caller));
        let mut is_last = false;
        loop {
            self.fs.begin_change()?;
            let done = {
                let _handle = self.fs.volume.start();
                act(reserved)
            };
            // Also after a failure, which may come after a part was changed.
            self.fs.note_change();
            let error = match done {
                Err(error) if error.errno() == Errno::NOSPC && !is_last => error,
                done => return done.map_err(|e| self.handle_error(e)),
            };
            is_last = true;
            // The handle is dropped: a commit waits for all of them.
            if !self.fs.commit_for_space()? {
                return Err(self.handle_error(error));
            }
        }
    }

    /// Handles an error of this inode. Adds the inode to it, unless it is a plain errno.
    fn handle_error(&self, error: Error) -> Error {
        self.fs.volume.note_damage(&error);
        match error.kind() {
            crate::base::ErrorKind::Errno => error,
            _ => error.at(format!("inode {}", self.number)).at("ext4"),
        }
    }

    /// Sets (`Some`) or removes (`None`) one extended attribute.
    fn change_xattr(
        &self,
        caller: &Credentials,
        name: &[u8],
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        self.change(Some(caller), |reserved| {
            let change = self.plan_xattr(name, value)?;
            self.apply_xattr(change, flags, reserved)
        })
    }

    /// Checks the flags of chattr(1).
    ///
    /// # Errors
    /// EPERM on an immutable inode, or on an append-only one unless the change only appends.
    fn check_mutable(&self, only_appends: bool) -> Result<()> {
        let flags = self.state.read().raw.flags.get();
        let refused = inode_flags::IMMUTABLE | if only_appends { 0 } else { inode_flags::APPEND };
        if flags & refused == 0 {
            Ok(())
        } else {
            Err(Errno::PERM.into())
        }
    }

    /// Checks that the contents may change at all.
    ///
    /// # Errors
    /// EPERM for a verity file, ENOKEY for an encrypted one, as in Linux.
    fn check_contents_mutable(&self) -> Result<()> {
        let flags = self.state.read().raw.flags.get();
        if flags & inode_flags::VERITY != 0 {
            let why = "the contents of a verity file cannot change";
            return Err(Error::new(Errno::PERM, why));
        }
        if flags & inode_flags::ENCRYPT != 0 {
            return Err(Error::new(Errno::NOKEY, "contents are encrypted"));
        }
        Ok(())
    }

    /// Checks that `target` can get a name in this directory, whose files may all have to belong to
    /// its project.
    ///
    /// # Errors
    /// EXDEV, as in Linux.
    fn check_project(&self, target: &Ext4Inode) -> Result<()> {
        let (flags, project) = {
            let state = self.state.read();
            (state.raw.flags.get(), state.raw.projid.get())
        };
        let is_foreign = flags & inode_flags::PROJECT_INHERIT != 0
            && project != target.state.read().raw.projid.get();
        if is_foreign {
            let why = "the directory and the file belong to different projects";
            return Err(Error::new(Errno::XDEV, why));
        }
        Ok(())
    }

    /// Returns `other` if it belongs to the same file system.
    ///
    /// # Errors
    /// EXDEV.
    fn same_fs<'a>(&self, other: &'a Arc<dyn Inode>) -> Result<&'a Ext4Inode> {
        match other.as_any().downcast_ref::<Ext4Inode>() {
            Some(inode) if Arc::ptr_eq(&inode.fs, &self.fs) => Ok(inode),
            _ => Err(Errno::XDEV.into()),
        }
    }

    /// Changes all attributes of `change` except the size.
    fn apply(
        &self,
        state: &mut InodeState,
        change: &AttributeChange,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let now = self.fs.volume.now();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if let Some(mode) = change.mode {
            // First: the ACL may need space, the mode does not.
            if self.fs.volume.options.acl {
                self.change_acl_mode(state, mode, reserved)?;
            }
            state.raw.mode = (state.raw.mode.get() & 0xF000 | mode & 0o7777).into();
        }
        self.change_owner(state, change.uid, change.gid)?;
        if change.size_bytes.is_some() {
            state.set_modified(now);
        }
        if let Some(set) = change.accessed {
            state.set_accessed(time(set));
        }
        if let Some(set) = change.modified {
            state.set_modified(time(set));
        }
        state.set_changed(now);
        Ok(())
    }

    /// Allocates an inode, which has no name yet.
    fn new_inode(&self, new: &NewInode<'_>, reserved: ReservedBlocks) -> Result<Arc<Ext4Inode>> {
        let fs = &self.fs;
        fs.limit_dirty_inodes()?;
        let parent = self.state.read().raw;
        let project = fs.volume.inherited_project(&parent);
        // Before the slot is allocated, so that ENOSPC leaves nothing to undo.
        fs.add_owners([Some(new.uid), Some(new.gid), Some(project)], reserved)?;
        let is_directory = new.file_type == FileType::Directory;
        let number = fs.volume.space.lock().allocate_inode(
            &fs.volume.geometry,
            &fs.volume.metadata,
            self.number,
            is_directory,
        )?;
        let inode = Ext4Inode::create(fs, number, new, &parent);
        let made = match new.file_type {
            FileType::Directory => inode.initialize_directory(self.number, reserved),
            FileType::Symlink => inode.store_target(new.target, reserved),
            FileType::Regular => inode.start_inline().map(drop),
            _ => Ok(()),
        };
        self.keep_or_discard(&inode, made)?;
        let mut state = inode.state_mut();
        if is_directory {
            state.raw.links_count = 2.into();
        }
        inode.mark_dirty(&mut state);
        drop(state);
        Ok(fs.remember(inode))
    }

    /// Returns `step`. If it failed, the new inode is evicted with its last reference.
    fn keep_or_discard(&self, inode: &Arc<Ext4Inode>, step: Result<()>) -> Result<()> {
        if step.is_err() {
            inode.drop_all_links();
        }
        step
    }

    /// Renames `source`, over `replaced` if there is one. The inode `left`, if there is one, gets
    /// the old name.
    fn move_name(
        &self,
        request: &RenameRequest<'_>,
        left: Option<&Ext4Inode>,
        source: &Ext4Inode,
        new_parent: &Ext4Inode,
        replaced: Option<&Ext4Inode>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let RenameRequest { name, new_name, .. } = *request;
        let file_type = source.common.file_type;
        let is_directory = file_type == FileType::Directory;
        let changes_parent = self.number != new_parent.number;
        // The new name is inserted first. What follows must not be refused.
        self.check_name(name)?;
        if is_directory && changes_parent {
            source.check_name(b"..")?;
        }
        match replaced {
            Some(other) => {
                if other.common.file_type == FileType::Directory && !other.is_empty_directory()? {
                    return Err(Errno::NOTEMPTY.into());
                }
                new_parent.replace_name(new_name, source.number, file_type)?;
            }
            None => {
                if is_directory && changes_parent {
                    check_links(&self.fs.volume, &new_parent.state.read(), true)?;
                }
                new_parent.insert_name(new_name, source.number, file_type, reserved)?;
            }
        }
        match left {
            Some(left) => self.replace_name(name, left.number, left.common.file_type)?,
            None => self.remove_name(name)?,
        }
        if is_directory && changes_parent {
            source.replace_name(b"..", new_parent.number, FileType::Directory)?;
            drop_directory_link(&mut self.state_mut());
            add_directory_link(&mut new_parent.state_mut());
        }
        match replaced {
            Some(other) if other.common.file_type == FileType::Directory => {
                other.drop_all_links();
                drop_directory_link(&mut new_parent.state_mut());
            }
            Some(other) => other.drop_link(),
            None => {}
        }
        self.note_moved(source, new_parent);
        Ok(())
    }

    /// Exchanges the names of `source` and `other`.
    fn exchange(
        &self,
        name: &[u8],
        source: &Ext4Inode,
        new_parent: &Ext4Inode,
        new_name: &[u8],
        other: &Ext4Inode,
    ) -> Result<()> {
        let is_directory = |inode: &Ext4Inode| inode.common.file_type == FileType::Directory;
        let moves = [(source, self, new_parent), (other, new_parent, self)];
        let moved_directories = moves
            .iter()
            .filter(|(moved, from, to)| from.number != to.number && is_directory(moved));
        // The new name is replaced first. What follows must not be refused.
        self.check_name(name)?;
        for (moved, _, to) in moved_directories.clone() {
            moved.check_name(b"..")?;
            if is_directory(source) != is_directory(other) {
                check_links(&self.fs.volume, &to.state.read(), true)?;
            }
        }
        new_parent.replace_name(new_name, source.number, source.common.file_type)?;
        self.replace_name(name, other.number, other.common.file_type)?;
        for (moved, from, to) in moved_directories {
            moved.replace_name(b"..", to.number, FileType::Directory)?;
            drop_directory_link(&mut from.state_mut());
            add_directory_link(&mut to.state_mut());
        }
        let mut state = other.state_mut();
        state.set_changed(self.fs.volume.now());
        other.mark_dirty(&mut state);
        drop(state);
        self.note_moved(source, new_parent);
        Ok(())
    }

    /// Marks both directories and `source` as changed by a rename.
    fn note_moved(&self, source: &Ext4Inode, new_parent: &Ext4Inode) {
        self.note_names_changed(&mut self.state_mut());
        new_parent.note_names_changed(&mut new_parent.state_mut());
        let mut state = source.state_mut();
        state.set_changed(self.fs.volume.now());
        source.mark_dirty(&mut state);
    }

    /// Marks a directory whose names changed.
    fn note_names_changed(&self, state: &mut InodeState) {
        let now = self.fs.volume.now();
        state.set_modified(now);
        state.set_changed(now);
        self.mark_dirty(state);
    }

    /// Removes one link. Without any left, the inode is evicted with its last reference.
    fn drop_link(&self) {
        let mut state = self.state_mut();
        let links = state.raw.links_count.get().saturating_sub(1);
        state.raw.links_count = links.into();
        state.set_changed(self.fs.volume.now());
        if links > 0 {
            return self.mark_dirty(&mut state);
        }
        drop(state);
        // Off the lists, which would keep it alive: the last reference must evict it.
        self.forget_dirty();
        self.note_unnamed();
    }

    /// Removes all links: the inode is evicted with its last reference.
    fn drop_all_links(&self) {
        self.state_mut().raw.links_count = 0.into();
        self.forget_dirty();
        self.note_unnamed();
    }

    /// Makes an inode without names an orphan, until its last reference is dropped.
    fn note_unnamed(&self) {
        let mut state = self.state_mut();
        if let Err(error) = self.end_hold(&mut state) {
            self.fs
                .volume
                .note_error(error.at(format!("inode {}", self.number)));
        }
        self.mark_dirty(&mut state);
    }
}
