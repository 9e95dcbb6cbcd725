//! Lists of inodes by number, which keep their inodes alive.

use crate::base::Timespec;
use crate::base::lock::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

type ByNumber<I> = HashMap<u32, Arc<I>, foldhash::fast::FixedState>;

/// Inodes by number. Its lock is a leaf: nothing is locked, and no inode dropped, while it is held.
pub(crate) struct InodeList<I>(Mutex<ByNumber<I>>);

impl<I> Default for InodeList<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I> InodeList<I> {
    /// Lists `inode`; returns what was listed under its number.
    pub(crate) fn insert(&self, number: u32, inode: Arc<I>) -> Option<Arc<I>> {
        self.0.lock().insert(number, inode)
    }

    /// Removes one inode and returns it.
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<I>> {
        self.0.lock().remove(&number)
    }

    /// Returns the listed inodes, which stay listed.
    pub(crate) fn all(&self) -> Vec<Arc<I>> {
        self.0.lock().values().cloned().collect()
    }

    /// Removes all inodes and returns them.
    pub(crate) fn take(&self) -> Vec<Arc<I>> {
        std::mem::take(&mut *self.0.lock()).into_values().collect()
    }

    /// Removes the inodes for which `is_done` holds, and returns them.
    pub(crate) fn take_if(&self, is_done: impl Fn(&I) -> bool) -> Vec<Arc<I>> {
        let mut inodes = self.0.lock();
        let done: Vec<u32> = inodes
            .iter()
            .filter(|(_, inode)| is_done(inode))
            .map(|(number, _)| *number)
            .collect();
        done.iter()
            .filter_map(|number| inodes.remove(number))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// The inodes whose times alone changed (`lazytime`); empty without that option.
pub(crate) struct LazyTimes<I> {
    pub(crate) is_enabled: bool,
    waiting: Mutex<LazyInodes<I>>,
}

struct LazyInodes<I> {
    inodes: ByNumber<I>,
    /// When the first of them was listed.
    since: Timespec,
}

impl<I> LazyTimes<I> {
    /// `is_enabled`: whether the mount has `lazytime`.
    pub(crate) fn new(is_enabled: bool) -> Self {
        Self {
            is_enabled,
            waiting: Mutex::new(LazyInodes {
                inodes: HashMap::default(),
                since: Timespec::default(),
            }),
        }
    }

    /// Lists `inode`, whose times changed `now`; returns what was listed under its number.
    pub(crate) fn insert(
        &self,
        number: u32,
        inode: Arc<I>,
        now: impl FnOnce() -> Timespec,
    ) -> Option<Arc<I>> {
        let mut waiting = self.waiting.lock();
        if waiting.inodes.is_empty() {
            waiting.since = now();
        }
        waiting.inodes.insert(number, inode)
    }

    /// Removes all inodes and returns them.
    pub(crate) fn take(&self) -> Vec<Arc<I>> {
        std::mem::take(&mut self.waiting.lock().inodes)
            .into_values()
            .collect()
    }

    /// Removes one inode, because it is written or unlinked. The caller drops it with nothing
    /// locked.
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<I>> {
        if self.is_enabled {
            self.waiting.lock().inodes.remove(&number)
        } else {
            None
        }
    }

    /// Whether more than `inodes_max` inodes wait at `now`, or the first for `age_max_secs`.
    pub(crate) fn is_due(&self, now: Timespec, age_max_secs: i64, inodes_max: usize) -> bool {
        let waiting = self.waiting.lock();
        let age_secs = now.secs.saturating_sub(waiting.since.secs);
        !waiting.inodes.is_empty()
            && (age_secs >= age_max_secs || waiting.inodes.len() > inodes_max)
    }
}
