//! CLOCK: a queue in which a page that was accessed since gets another round.

use super::list::Lists;
use super::policy::Policy;

pub(super) struct Clock {
    capacity: usize,
    lists: Lists<1>,
    is_referenced: Vec<bool>,
}

impl Clock {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(page_count),
            is_referenced: vec![false; page_count],
        }
    }

    fn evict(&mut self) {
        while let Some(page) = self.lists.pop(0) {
            if !std::mem::take(&mut self.is_referenced[page as usize]) {
                return;
            }
            self.lists.push(0, page);
        }
    }
}

impl Policy for Clock {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list(page).is_some() {
            self.is_referenced[page as usize] = true;
            return true;
        }
        if self.lists.len(0) == self.capacity {
            self.evict();
        }
        self.lists.push(0, page);
        false
    }
}
