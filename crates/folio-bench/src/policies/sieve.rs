//! SIEVE (Zhang et al., NSDI'24): as CLOCK, but survivors keep their position and new pages go to
//! the head.

use super::list::Lists;
use super::policy::Policy;

pub(super) struct Sieve {
    capacity: usize,
    lists: Lists<1>,
    is_visited: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(page_count),
            is_visited: vec![false; page_count],
            hand: None,
        }
    }

    fn evict(&mut self) {
        let mut at = self.hand.or_else(|| self.lists.tail(0));
        while let Some(page) = at {
            if !std::mem::take(&mut self.is_visited[page as usize]) {
                self.hand = self.lists.newer(page);
                self.lists.remove(page);
                return;
            }
            at = self.lists.newer(page).or_else(|| self.lists.tail(0));
        }
    }
}

impl Policy for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list(page).is_some() {
            self.is_visited[page as usize] = true;
            return true;
        }
        if self.lists.len(0) == self.capacity {
            self.evict();
        }
        self.lists.push(0, page);
        false
    }
}
