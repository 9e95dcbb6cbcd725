//! ARC (Megiddo and Modha, FAST'03): once seen and often seen, each with its ghosts, which move the
//! border between.

use super::list::Lists;
use super::policy::Policy;

/// Pages seen once, pages seen often, and the numbers of the pages evicted from either.
const ONCE: usize = 0;
const OFTEN: usize = 1;
const GHOSTS_ONCE: usize = 2;
const GHOSTS_OFTEN: usize = 3;

pub(super) struct Arc {
    capacity: usize,
    /// Target number of pages seen once (p).
    target: usize,
    lists: Lists<4>,
}

impl Arc {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        Self {
            capacity,
            target: 0,
            lists: Lists::new(page_count),
        }
    }

    /// Evicts one page and keeps its number as a ghost (REPLACE).
    fn replace(&mut self, is_ghost_often: bool) {
        let once = self.lists.len(ONCE);
        let takes_once =
            once > 0 && (once > self.target || (is_ghost_often && once == self.target));
        let (from, to) = if takes_once || self.lists.len(OFTEN) == 0 {
            (ONCE, GHOSTS_ONCE)
        } else {
            (OFTEN, GHOSTS_OFTEN)
        };
        if let Some(page) = self.lists.pop(from) {
            self.lists.push(to, page);
        }
    }

    /// Makes room for a page that is on no list.
    fn admit(&mut self) {
        let (once, ghosts_once) = (self.lists.len(ONCE), self.lists.len(GHOSTS_ONCE));
        let total = once + ghosts_once + self.lists.len(OFTEN) + self.lists.len(GHOSTS_OFTEN);
        if once + ghosts_once == self.capacity {
            if once < self.capacity {
                self.lists.pop(GHOSTS_ONCE);
                self.replace(false);
            } else {
                self.lists.pop(ONCE);
            }
        } else if total >= self.capacity {
            if total == 2 * self.capacity {
                self.lists.pop(GHOSTS_OFTEN);
            }
            self.replace(false);
        }
    }
}

impl Policy for Arc {
    fn access(&mut self, page: u32) -> bool {
        let (ghosts_once, ghosts_often) =
            (self.lists.len(GHOSTS_ONCE), self.lists.len(GHOSTS_OFTEN));
        match self.lists.list(page) {
            Some(ONCE | OFTEN) => {
                self.lists.move_to(OFTEN, page);
                true
            }
            Some(GHOSTS_ONCE) => {
                self.target =
                    (self.target + (ghosts_often / ghosts_once).max(1)).min(self.capacity);
                self.replace(false);
                self.lists.move_to(OFTEN, page);
                false
            }
            Some(_) => {
                self.target = self
                    .target
                    .saturating_sub((ghosts_once / ghosts_often).max(1));
                self.replace(true);
                self.lists.move_to(OFTEN, page);
                false
            }
            None => {
                self.admit();
                self.lists.push(ONCE, page);
                false
            }
        }
    }
}
