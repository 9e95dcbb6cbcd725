//! Files with equal blocks: a later one gets the blocks of the earlier one.

use crate::output::BlockOutput;
use foldhash::quality::FixedState;
use folio::Result;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;

/// Returns the hash of blocks whose last one is `block`.
pub(crate) fn hash_after(before: u64, block: &[u8]) -> u64 {
    FixedState::with_seed(before).hash_one(block)
}

/// The number of blocks of a file, and their hash.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    count: u32,
    hash: u64,
}

/// The blocks of all files so far.
#[derive(Default)]
pub(crate) struct Duplicates {
    starts: HashMap<Key, u32>,
}

impl Duplicates {
    /// Returns where the last `count` blocks of the image are: they are dropped if an earlier file
    /// has the same. `hash` is that of the blocks.
    pub(crate) fn share(
        &mut self,
        output: &mut BlockOutput,
        start: u32,
        count: u32,
        hash: u64,
    ) -> Result<u32> {
        match self.starts.entry(Key { count, hash }) {
            Entry::Vacant(vacant) => Ok(*vacant.insert(start)),
            Entry::Occupied(known) => {
                let known = *known.get();
                // Different blocks may have the same hash.
                if !output.are_equal(known, start, count)? {
                    return Ok(start);
                }
                output.truncate(start);
                Ok(known)
            }
        }
    }
}
