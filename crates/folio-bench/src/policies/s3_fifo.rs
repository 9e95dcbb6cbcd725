//! S3-FIFO (Yang et al., SOSP'23): a small probation queue, a main queue, and the ghosts: numbers
//! of the pages evicted from the small one.

use super::list::Lists;
use super::policy::Policy;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;
const FREQUENCY_MAX: u8 = 3;
/// Hits in the probation queue that move a page to the main queue.
const PROMOTED_FROM: u8 = 2;

pub(super) struct S3Fifo {
    capacity: usize,
    small_max: usize,
    lists: Lists<3>,
    frequency: Vec<u8>,
}

impl S3Fifo {
    pub(super) fn new(capacity: usize, page_count: usize) -> Self {
        let small_max = (capacity / 10).max(1);
        Self {
            capacity,
            small_max,
            lists: Lists::new(page_count),
            frequency: vec![0; page_count],
        }
    }

    fn evict(&mut self) {
        let is_small_full = self.lists.len(SMALL) >= self.small_max || self.lists.len(MAIN) == 0;
        if !(is_small_full && self.evict_small()) {
            self.evict_main();
        }
    }

    /// Evicts from the small queue; returns whether a page left the cache.
    fn evict_small(&mut self) -> bool {
        while let Some(page) = self.lists.pop(SMALL) {
            if self.frequency[page as usize] < PROMOTED_FROM {
                if self.lists.len(GHOST) >= self.capacity - self.small_max {
                    self.lists.pop(GHOST);
                }
                self.lists.push(GHOST, page);
                return true;
            }
            self.frequency[page as usize] = 0;
            self.lists.push(MAIN, page);
        }
        false
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.lists.pop(MAIN) {
            match self.frequency[page as usize] {
                0 => return,
                frequency => self.frequency[page as usize] = frequency - 1,
            }
            self.lists.push(MAIN, page);
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let found = self.lists.list(page);
        if matches!(found, Some(SMALL | MAIN)) {
            let frequency = &mut self.frequency[page as usize];
            *frequency = (*frequency + 1).min(FREQUENCY_MAX);
            return true;
        }
        // A ghost leaves its list before further ghosts are added.
        self.lists.remove(page);
        if self.lists.len(SMALL) + self.lists.len(MAIN) == self.capacity {
            self.evict();
        }
        self.frequency[page as usize] = 0;
        self.lists
            .push(if found.is_some() { MAIN } else { SMALL }, page);
        false
    }
}
