//! LRU: evicts the page with the oldest access.

use super::list::Lists;
use super::policy::Policy;

pub(super) struct Lru {
    capacity: usize,
    lists: Lists<1>,
}

impl Lru {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(page_count),
        }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u32) -> bool {
        let is_hit = self.lists.list(page).is_some();
        if !is_hit && self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.move_to(0, page);
        is_hit
    }
}
