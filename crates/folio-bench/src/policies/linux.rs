//! Linux without MGLRU, simplified: inactive and active list, a second read activates, and so does
//! a page that comes back sooner than the active list is long (refault distance, mm/workingset.c,
//! as its comment describes it).

use super::list::Lists;
use super::policy::Policy;

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

pub(super) struct Linux {
    capacity: usize,
    lists: Lists<2>,
    is_referenced: Vec<bool>,
    /// Evictions and activations so far, and what they were when a page left; 0 for never.
    age: u64,
    left_at: Vec<u64>,
}

impl Linux {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        let lists = Lists::new(page_count);
        Self {
            capacity,
            lists,
            is_referenced: vec![false; page_count],
            age: 1,
            left_at: vec![0; page_count],
        }
    }

    /// Shrinks the active list while it is the longer one, and evicts the oldest inactive page.
    fn evict(&mut self) {
        while self.lists.len(ACTIVE) > self.lists.len(INACTIVE) {
            let Some(page) = self.lists.pop(ACTIVE) else {
                break;
            };
            self.lists.push(INACTIVE, page);
        }
        if let Some(page) = self.lists.pop(INACTIVE) {
            self.is_referenced[page as usize] = false;
            self.left_at[page as usize] = self.age;
            self.age += 1;
        }
    }
}

impl Policy for Linux {
    fn access(&mut self, page: u32) -> bool {
        let at = page as usize;
        match self.lists.list(page) {
            Some(INACTIVE) if self.is_referenced[at] => {
                self.is_referenced[at] = false;
                self.age += 1;
                self.lists.move_to(ACTIVE, page);
                true
            }
            Some(_) => {
                self.is_referenced[at] = true;
                true
            }
            None => {
                if self.lists.len(INACTIVE) + self.lists.len(ACTIVE) == self.capacity {
                    self.evict();
                }
                let left_at = self.left_at[at];
                let is_refault =
                    left_at != 0 && self.age - left_at <= self.lists.len(ACTIVE) as u64;
                self.lists
                    .push(if is_refault { ACTIVE } else { INACTIVE }, page);
                // The read that brings a page in marks it as any other read does.
                self.is_referenced[at] = true;
                false
            }
        }
    }
}
