//! Renames: renameat2(2). Linux: fs/namei.c (`do_renameat2`, `vfs_rename`),
//! Documentation/filesystems/directory-locking.rst.

use super::attributes::FileType;
use super::credentials::Access;
use super::dentry::{Dentry, Location, Name};
use super::dentry_cache::NameSlot;
use super::inode::{Inode, RenameFlags, RenameRequest};
use super::permission::check_access;
use super::walk::{Context, Last, Walk};
use crate::base::lock::RwLockWriteGuard;
use crate::base::{Errno, Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

type Locks<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 4]>;

/// The old or the new name of a rename.
struct Side<'a> {
    parent: &'a Arc<Dentry>,
    name: &'a [u8],
    has_trailing_slash: bool,
}

impl Context<'_> {
    /// Moves or exchanges names: renameat2(2).
    pub(crate) fn rename(
        &self,
        old_start: &Location,
        old_path: &[u8],
        new_start: &Location,
        new_path: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let conflicting = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(conflicting) {
            return Err(Errno::INVAL.into());
        }
        let mut old_walk = Walk::new(self, old_start, old_path)?;
        let old_last = old_walk.go_to_last()?;
        let mut new_walk = Walk::new(self, new_start, new_path)?;
        let new_last = new_walk.go_to_last()?;
        let mount = &old_walk.at().mount;
        if !Arc::ptr_eq(mount, &new_walk.at().mount) {
            return Err(Errno::XDEV.into());
        }
        let Last::Name(old_range) = old_last else {
            return Err(Errno::BUSY.into());
        };
        let Last::Name(new_range) = new_last else {
            let no_replace = flags.contains(RenameFlags::NOREPLACE);
            return Err(if no_replace {
                Errno::EXIST.into()
            } else {
                Errno::BUSY.into()
            });
        };
        mount.check_writable()?;
        let old = Side {
            parent: &old_walk.at().dentry,
            name: old_walk.name(&old_range),
            has_trailing_slash: old_walk.has_trailing_slash(&old_range),
        };
        let new = Side {
            parent: &new_walk.at().dentry,
            name: new_walk.name(&new_range),
            has_trailing_slash: new_walk.has_trailing_slash(&new_range),
        };
        // Two dentries may have the same inode after an external writer moved a directory.
        if Arc::ptr_eq(old.parent.inode(), new.parent.inode()) {
            let _renaming = mount.lock_moving_directories(&**old.parent.inode());
            let locks = SmallVec::from_iter([old.parent.inode().common().lock.write()]);
            self.rename_locked(&old, &new, flags, locks)?;
            return mount.sync_names_if_required(&**old.parent.inode());
        }
        {
            let _renaming = mount.rename_lock.lock();
            let locks = lock_parents(old.parent, new.parent);
            self.rename_locked(&old, &new, flags, locks)?;
        }
        mount.sync_names_if_required(&**new.parent.inode())?;
        mount.sync_names_if_required(&**old.parent.inode())
    }

    /// Looks up both names with the directories locked, checks them, and renames.
    fn rename_locked<'a>(
        &self,
        old: &Side<'a>,
        new: &Side<'a>,
        flags: RenameFlags,
        locks: Locks<'a>,
    ) -> Result<()> {
        let source = self
            .child_locked(old.parent, old.name)?
            .ok_or(Errno::NOENT)?;
        let target = self.child_locked(new.parent, new.name)?;
        let target = target.filter(|target| !is_other_spelling(old, new, &source, target));
        self.check_rename(old, new, &source, target.as_ref(), flags)?;
        if let Some(target) = &target
            && Arc::ptr_eq(source.inode(), target.inode())
        {
            return Ok(());
        }
        self.check_rename_permission(old, new, &source, target.as_ref(), flags)?;
        let whiteout = if flags.contains(RenameFlags::WHITEOUT) {
            let directory = &**old.parent.inode();
            Some(self.inode_init(directory, FileType::CharacterDevice, 0)?)
        } else {
            None
        };
        let removed = {
            let _moved = lock_moved(
                &source,
                target.as_ref(),
                !Arc::ptr_eq(old.parent, new.parent),
            );
            let is_mountpoint = |dentry: &Arc<Dentry>| dentry.is_mountpoint();
            if source.is_mountpoint() || target.as_ref().is_some_and(is_mountpoint) {
                return Err(Error::new(Errno::BUSY, "a file system is mounted here"));
            }
            let request = RenameRequest {
                name: old.name,
                source: source.inode(),
                new_parent: new.parent.inode(),
                new_name: new.name,
                replaced: target.as_ref().map(|target| target.inode()),
                whiteout: whiteout.as_ref().map(|init| &init.new),
                flags,
                caller: self.credentials,
            };
            old.parent.inode().rename(&request)?;
            let left = match &whiteout {
                Some(_) => old.parent.inode().lookup(old.name)?,
                None => None,
            };
            let left = left.map(|inode| Dentry::new_child(old.parent, old.name, inode));
            let dentries = &self.vfs.dentries;
            let (old_name, new_name) = cached_names(old, new, &source, target.as_ref());
            let from = NameSlot::new(old.parent, &old_name);
            let to = NameSlot::new(new.parent, &new_name);
            match &target {
                Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                    dentries.exchange(from, &source, to, target)
                }
                _ => dentries.rename(from, &source, to, target.as_deref(), left),
            }
        };
        drop(locks);
        // This may be the last reference to a replaced inode; it is dropped after the locks.
        drop(target);
        self.vfs.drop_removed(removed);
        Ok(())
    }

    /// Checks names and their types, in the kernel's order.
    fn check_rename(
        &self,
        old: &Side<'_>,
        new: &Side<'_>,
        source: &Arc<Dentry>,
        target: Option<&Arc<Dentry>>,
        flags: RenameFlags,
    ) -> Result<()> {
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Errno::EXIST.into());
        }
        if is_exchange {
            let target = target.ok_or(Errno::NOENT)?;
            if new.has_trailing_slash && !target.is_directory() {
                return Err(Errno::NOTDIR.into());
            }
        }
        if !source.is_directory()
            && (old.has_trailing_slash || (!is_exchange && new.has_trailing_slash))
        {
            return Err(Errno::NOTDIR.into());
        }
        let is_parent =
            |dentry: &Dentry, side: &Side<'_>| Arc::ptr_eq(dentry.inode(), side.parent.inode());
        if source.is_directory() && (source.is_ancestor_of(new.parent) || is_parent(source, new)) {
            return Err(Errno::INVAL.into());
        }
        if let Some(target) = target
            && target.is_directory()
            && (target.is_ancestor_of(old.parent) || is_parent(target, old))
        {
            return Err(if is_exchange {
                Errno::INVAL.into()
            } else {
                Errno::NOTEMPTY.into()
            });
        }
        if new.parent.is_deleted() {
            return Err(Errno::NOENT.into());
        }
        Ok(())
    }

    /// Checks permissions, and the types of the replaced inode. Linux: `vfs_rename`, `may_delete`.
    fn check_rename_permission(
        &self,
        old: &Side<'_>,
        new: &Side<'_>,
        source: &Arc<Dentry>,
        target: Option<&Arc<Dentry>>,
        flags: RenameFlags,
    ) -> Result<()> {
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        let to_other_directory = !Arc::ptr_eq(old.parent, new.parent);
        self.check_removal(old.parent, source)?;
        match target {
            None => {
                let directory = &**new.parent.inode();
                check_access(directory, self.credentials, Access::WRITE | Access::EXECUTE)?;
            }
            Some(target) => {
                self.check_removal(new.parent, target)?;
                if !is_exchange && source.is_directory() != target.is_directory() {
                    return Err(if source.is_directory() {
                        Errno::NOTDIR.into()
                    } else {
                        Errno::ISDIR.into()
                    });
                }
            }
        }
        // Moving a directory to another parent changes its `..` entry.
        if to_other_directory && source.is_directory() {
            check_access(&**source.inode(), self.credentials, Access::WRITE)?;
        }
        if to_other_directory
            && is_exchange
            && let Some(target) = target
            && target.is_directory()
        {
            check_access(&**target.inode(), self.credentials, Access::WRITE)?;
        }
        Ok(())
    }
}

/// Returns whether a rename changes only the spelling of a name, in a directory that has one entry
/// for all spellings and stores the last one. Linux's vfat: `vfat_revalidate_ci`.
fn is_other_spelling(
    old: &Side<'_>,
    new: &Side<'_>,
    source: &Arc<Dentry>,
    target: &Arc<Dentry>,
) -> bool {
    let is_same = old.parent.folds_names()
        && Arc::ptr_eq(old.parent, new.parent)
        && Arc::ptr_eq(source.inode(), target.inode());
    if !is_same {
        return false;
    }
    // A damaged directory was an error of the lookup.
    let stored = old.parent.inode().stored_name(old.name);
    stored.ok().flatten().is_some_and(|stored| {
        stored != new.name && old.parent.key(&stored) == old.parent.key(new.name)
    })
}

/// Returns the names under which the cache has both sides: a replaced name is spelled as before.
fn cached_names(
    old: &Side<'_>,
    new: &Side<'_>,
    source: &Dentry,
    target: Option<&Arc<Dentry>>,
) -> (Name, Name) {
    let kept = target.map(|target| target.cached_name(new.parent, new.name));
    let new_name = kept.unwrap_or_else(|| new.name.into());
    (source.cached_name(old.parent, old.name), new_name)
}

/// Locks two directories, the ancestor first; unrelated ones by address. The caller holds the
/// mount's rename lock.
fn lock_parents<'a>(old: &'a Arc<Dentry>, new: &'a Arc<Dentry>) -> Locks<'a> {
    let new_first = new.is_ancestor_of(old)
        || (!old.is_ancestor_of(new) && address(new.inode()) < address(old.inode()));
    let (first, second) = if new_first { (new, old) } else { (old, new) };
    let mut locks = SmallVec::from_iter([first.inode().common().lock.write()]);
    // One directory may have two names in a damaged image.
    if !Arc::ptr_eq(first.inode(), second.inode()) {
        locks.push(second.inode().common().lock.write());
    }
    locks
}

/// Locks the inodes that move or are replaced: directories before files, each by address. A
/// directory that stays in its parent needs no lock, unless it is replaced.
fn lock_moved<'a>(
    source: &'a Arc<Dentry>,
    target: Option<&'a Arc<Dentry>>,
    moves_up_or_down: bool,
) -> Locks<'a> {
    let mut inodes: SmallVec<[&'a Arc<dyn Inode>; 2]> = SmallVec::new();
    if !source.is_directory() || moves_up_or_down {
        inodes.push(source.inode());
    }
    inodes.extend(target.map(|target| target.inode()));
    inodes.sort_by_key(|inode| {
        (
            inode.common().file_type != FileType::Directory,
            address(inode),
        )
    });
    inodes.dedup_by_key(|inode| address(inode));
    inodes
        .iter()
        .map(|inode| inode.common().lock.write())
        .collect()
}

fn address(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>() as usize
}
