//! OPT (Belady): evicts the page whose next access is farthest in the future. An upper bound for
//! all other policies.

use super::policy::Policy;
use std::collections::BinaryHeap;

pub(super) struct Opt {
    capacity: usize,
    /// For each access, the index of the next access to its page; `u32::MAX` for none.
    next_use: Vec<u32>,
    now: usize,
    /// The index of the next access to each cached page; 0 for pages that are not cached.
    held_until: Vec<u32>,
    held_count: usize,
    /// Next use and page; entries that `held_until` contradicts are old.
    queue: BinaryHeap<(u32, u32)>,
}

impl Opt {
    pub(super) fn new(capacity: usize, accesses: &[u32]) -> Self {
        let page_count = accesses.iter().max().map_or(0, |page| *page as usize + 1);
        let mut seen = vec![u32::MAX; page_count];
        let mut next_use = vec![u32::MAX; accesses.len()];
        for (at, page) in accesses.iter().enumerate().rev() {
            next_use[at] = std::mem::replace(&mut seen[*page as usize], at as u32);
        }
        let held_until = vec![0; page_count];
        Self {
            capacity,
            next_use,
            now: 0,
            held_until,
            held_count: 0,
            queue: BinaryHeap::new(),
        }
    }
}

impl Policy for Opt {
    fn access(&mut self, page: u32) -> bool {
        let next = self.next_use[self.now];
        self.now += 1;
        let is_hit = self.held_until[page as usize] != 0;
        if !is_hit {
            if self.held_count == self.capacity {
                while let Some((until, page)) = self.queue.pop() {
                    if self.held_until[page as usize] == until {
                        self.held_until[page as usize] = 0;
                        self.held_count -= 1;
                        break;
                    }
                }
            }
            self.held_count += 1;
        }
        self.held_until[page as usize] = next;
        self.queue.push((next, page));
        is_hit
    }
}
