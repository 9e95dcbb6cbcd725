//! Inodes found by their number alone, for file handles. Linux: fs/exportfs/expfs.c.

use super::FileType;
use super::dentry::{Dentry, Location};
use super::inode::Inode;
use super::walk::Context;
use crate::base::{Errno, InodeNumber, Result};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most directories on the way to the root: more only where the parents of a damaged image form a
/// circle.
const DEPTH_MAX: usize = 1 << 16;

impl Context<'_> {
    /// Returns the inode `number` of the file system whose root is `root`. A directory has its
    /// place in the tree; a file has no name, since its inode does not know its directory.
    ///
    /// # Errors
    /// ESTALE if the inode is not in use, or the file system finds none by number; also for a
    /// directory that is moved meanwhile.
    pub(crate) fn by_number(&self, root: &Location, number: InodeNumber) -> Result<Location> {
        let inode = root.mount.file_system().inode(number)?;
        let dentry = if inode.common().file_type == FileType::Directory {
            self.connect(root, inode)?
        } else {
            Dentry::new_unnamed(&root.dentry, inode, false)
        };
        Ok(Location {
            mount: root.mount.clone(),
            dentry,
        })
    }

    /// Returns the dentry of a directory: from its parents' numbers up to the root, and then from
    /// names down to it. Linux: `reconnect_path`.
    fn connect(&self, root: &Location, directory: Arc<dyn Inode>) -> Result<Arc<Dentry>> {
        let root_number = root.inode().common().number;
        let mut path = Vec::new();
        let mut at = directory;
        while at.common().number != root_number {
            if path.len() == DEPTH_MAX {
                return Err(Errno::LOOP.into());
            }
            let parent = at.parent_number()?;
            path.push(at);
            at = root.mount.file_system().inode(parent)?;
        }
        let mut dentry = root.dentry.clone();
        for inode in path.iter().rev() {
            let name = name_in(&**dentry.inode(), inode.common().number)?;
            let child = self.child(&dentry, &name)?;
            dentry = child.ok_or(Errno::STALE)?;
            if !Arc::ptr_eq(dentry.inode(), inode) {
                return Err(Errno::STALE.into());
            }
        }
        Ok(dentry)
    }
}

/// Returns the name of the inode `number` in a directory. Linux: `get_name`.
fn name_in(directory: &dyn Inode, number: InodeNumber) -> Result<Vec<u8>> {
    let mut name = None;
    let _lock = directory.common().lock.read();
    directory.read_directory(0, &mut |entry| {
        if entry.number != number || matches!(entry.name, b"." | b"..") {
            return ControlFlow::Continue(());
        }
        name = Some(entry.name.to_vec());
        ControlFlow::Break(())
    })?;
    Ok(name.ok_or(Errno::STALE)?)
}
