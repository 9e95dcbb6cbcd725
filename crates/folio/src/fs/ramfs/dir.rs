//! The entries of one directory: by name, and in order of creation for readdir.

use crate::vfs::Inode;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Size in bytes of one entry in a directory's size, as in tmpfs (`BOGO_DIRENT_SIZE`).
pub(super) const ENTRY_BYTES: u64 = 20;
/// The first cookie after those of `.` and `..`.
pub(super) const FIRST_COOKIE: u64 = 2;

/// One entry.
pub(super) struct Entry {
    pub(super) name: Arc<[u8]>,
    pub(super) inode: Arc<dyn Inode>,
}

/// The entries of one directory. An entry keeps its cookie for life, so that readdir continues at
/// the same entry.
pub(super) struct Directory {
    by_name: HashMap<Arc<[u8]>, u64, foldhash::fast::RandomState>,
    by_cookie: BTreeMap<u64, Entry>,
    next_cookie: u64,
    /// Whether entries may be added; false once the directory is removed.
    pub(super) is_live: bool,
}

impl Directory {
    pub(super) fn new() -> Self {
        Self {
            by_name: HashMap::default(),
            by_cookie: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
            is_live: true,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.by_name.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Arc<dyn Inode>> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|entry| &entry.inode)
    }

    /// Sets the inode of `name`; returns the previous inode. An existing entry keeps its cookie.
    pub(super) fn set(&mut self, name: &[u8], inode: Arc<dyn Inode>) -> Option<Arc<dyn Inode>> {
        if let Some(entry) = self
            .by_name
            .get(name)
            .and_then(|cookie| self.by_cookie.get_mut(cookie))
        {
            return Some(std::mem::replace(&mut entry.inode, inode));
        }
        let name: Arc<[u8]> = name.into();
        self.by_name.insert(name.clone(), self.next_cookie);
        self.by_cookie
            .insert(self.next_cookie, Entry { name, inode });
        self.next_cookie += 1;
        None
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let cookie = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie).map(|entry| entry.inode)
    }

    /// Returns the entries from `cookie` on.
    pub(super) fn entries_from(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        self.by_cookie
            .range(cookie..)
            .map(|(cookie, entry)| (*cookie, entry))
    }

    /// Removes and returns every inode, when the directory itself is freed.
    pub(super) fn take_all(&mut self) -> Vec<Arc<dyn Inode>> {
        self.by_name.clear();
        std::mem::take(&mut self.by_cookie)
            .into_values()
            .map(|entry| entry.inode)
            .collect()
    }
}
