//! Directories in memory, compared to a plain map.

use super::block::{self, Entries};
use super::context::{DirectoryBlocks, DirectoryContext, FoundName};
use super::hash::{HashVersion, hash};
use super::leaf::is_dot_or_dot_dot;
use super::names::*;
use crate::base::{Errno, InodeNumber, LogicalBlock, Result};
use crate::cache::{CacheOptions, Mapping, PageCache, Writeback};
use crate::fs::ext4::inode::name_index::NameIndex;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::vfs::{DirectoryEntry, FileType};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::ops::RangeInclusive;
use std::sync::Arc;

mod changes;
mod forged;

/// A directory whose blocks are pages of a mapping without a store.
struct Blocks {
    context: DirectoryContext,
    mapping: Mapping,
    _writeback: Arc<Writeback>,
    count: Cell<u32>,
    count_max: u32,
    name_index: RefCell<Option<Arc<NameIndex>>>,
}

impl Blocks {
    fn new(context: DirectoryContext) -> Self {
        let cache = PageCache::new(CacheOptions {
            budget_bytes: 1 << 30,
            dirty_background_bytes: 1 << 30,
            dirty_bytes: 1 << 30,
            background_writeback: false,
            ..CacheOptions::default()
        });
        let writeback = cache.writeback();
        let mapping = Mapping::without_store(&writeback, 1 << 40, None);
        let blocks = Self {
            context,
            mapping,
            _writeback: writeback,
            count: Cell::new(0),
            count_max: u32::MAX,
            name_index: RefCell::default(),
        };
        initialize(&blocks, InodeNumber(12), InodeNumber(2)).unwrap();
        blocks
    }

    /// Changes a block's bytes and leaves its checksum alone.
    fn forge(&self, block: u32, change: impl FnOnce(&mut [u8])) {
        change(&mut self.block(LogicalBlock(block)).unwrap().write());
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        iterate_by_position(self, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// Lists the names in batches of `batch`; `between` runs after each batch.
    fn listed(
        &self,
        is_indexed: &mut bool,
        batch: usize,
        between: &mut dyn FnMut(&mut bool),
    ) -> Vec<Vec<u8>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let start = all.len();
            iterate(self, *is_indexed, cookie, &mut |entry| {
                assert!(entry.next_cookie > cookie && entry.next_cookie <= i64::MAX as u64);
                cookie = entry.next_cookie;
                all.push(entry.name.to_vec());
                if all.len() - start == batch {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            if all.len() == start {
                return all;
            }
            between(is_indexed);
        }
    }
}

impl DirectoryBlocks for Blocks {
    fn context(&self) -> &DirectoryContext {
        &self.context
    }

    fn block_count(&self) -> u32 {
        self.count.get()
    }

    fn block(&self, block: LogicalBlock) -> Result<MetadataBlock> {
        assert!(
            block.0 < self.count.get(),
            "block {block} of {} read",
            self.count.get()
        );
        let page = self.mapping.page(block.0.into())?;
        Ok(MetadataBlock::from_page(page, self.context.block_size))
    }

    fn append(&self) -> Result<(LogicalBlock, MetadataBlock)> {
        let block = LogicalBlock(self.count.get());
        if block.0 >= self.count_max {
            return Err(Errno::NOSPC.into());
        }
        self.count.set(block.0 + 1);
        let appended = self.block(block)?;
        appended.write().fill(0);
        Ok((block, appended))
    }

    fn name_index(&self) -> Option<Arc<NameIndex>> {
        self.name_index.borrow().clone()
    }

    fn replace_name_index(&self, index: Option<Arc<NameIndex>>) -> Option<Arc<NameIndex>> {
        self.name_index.replace(index)
    }
}

pub(super) fn context(block_size: usize, checksum_seed: Option<u32>) -> DirectoryContext {
    DirectoryContext {
        block_size,
        number: InodeNumber(12),
        checksum_seed,
        hash_seed: [1, 2, 3, 4],
        default_hash_version: 1,
        unsigned_hash: false,
        has_file_type: true,
        large_dir: false,
        dir_index: true,
        casefold: false,
        strict_encoding: false,
    }
}

/// A small generator (Marsaglia's xorshift64), so that a failing run can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn name(&mut self, len_max: u64) -> Vec<u8> {
        let len = 1 + self.below(len_max) as usize;
        (0..len).map(|_| b'a' + self.below(26) as u8).collect()
    }
}

type Model = BTreeMap<Vec<u8>, (u64, FileType)>;

/// Checks a directory at rest: the names are those of the model, each leaf of the
/// index is reached once and holds only hashes of its range. Returns the number of index levels, 0
/// if linear.
fn check_all(blocks: &Blocks, is_indexed: bool, model: &Model) -> usize {
    let (mut seen, mut seen_again) = (Model::new(), Model::new());
    let add = |seen: &mut Model, entry: &DirectoryEntry<'_>| {
        if !is_dot_or_dot_dot(entry.name) {
            let value = (entry.number.0, entry.file_type.unwrap());
            assert!(
                seen.insert(entry.name.to_vec(), value).is_none(),
                "{:?} twice",
                entry.name
            );
        }
        ControlFlow::Continue(())
    };
    iterate(blocks, is_indexed, 0, &mut |entry| add(&mut seen, entry)).unwrap();
    iterate_by_position(blocks, 0, &mut |entry| add(&mut seen_again, entry)).unwrap();
    assert_eq!(&seen, model);
    assert_eq!(&seen_again, model);
    for (name, (number, file_type)) in model {
        let found = find(blocks, is_indexed, name)
            .unwrap()
            .expect("a name of the model");
        assert_eq!(
            (found.number.0, found.file_type),
            (*number, Some(*file_type))
        );
    }
    assert_eq!(parent(blocks).unwrap(), InodeNumber(2));
    assert_eq!(is_empty(blocks).unwrap(), model.is_empty());
    if !is_indexed {
        return 0;
    }
    let root = blocks.block(LogicalBlock(0)).unwrap().read().to_vec();
    let mut reached = BTreeSet::from([0]);
    let levels = usize::from(root[30]) + 1;
    check_index(blocks, &root, 32, levels, 0..=u32::MAX, &mut reached);
    assert_eq!(
        reached.len() as u32,
        blocks.block_count(),
        "every block is in the tree"
    );
    levels
}

fn check_index(
    blocks: &Blocks,
    bytes: &[u8],
    entries_at: usize,
    levels: usize,
    hashes: RangeInclusive<u32>,
    reached: &mut BTreeSet<u32>,
) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let count = (word(entries_at) >> 16) as usize;
    for position in 0..count {
        let at = entries_at + 8 * position;
        let from = if position == 0 {
            *hashes.start()
        } else {
            word(at)
        };
        let to = if position + 1 < count {
            word(at + 8)
        } else {
            *hashes.end()
        };
        assert!(*hashes.start() <= from && from <= to && to <= *hashes.end());
        let child = word(at + 4);
        assert!(reached.insert(child), "block {child} is reached twice");
        let inner = blocks.block(LogicalBlock(child)).unwrap().read().to_vec();
        if levels > 1 {
            check_index(blocks, &inner, 8, levels - 1, from..=to, reached);
            continue;
        }
        for entry in Entries::new(block::checked_region(&blocks.context, &inner).unwrap()) {
            let entry = entry.unwrap();
            if !entry.is_unused() {
                let hash = hash(
                    entry.name,
                    HashVersion::from_disk(blocks.context.default_hash_version).unwrap(),
                    blocks.context.unsigned_hash,
                    &blocks.context.hash_seed,
                );
                assert!(
                    hash >= from & !1 && hash <= to,
                    "{hash:x} is in {from:x}..={to:x}"
                );
            }
        }
    }
}

/// Runs `steps` random operations, mostly insertions, and returns the number of index levels at the
/// end.
fn random_operations(context: DirectoryContext, seed: u64, steps: u64, name_len_max: u64) -> usize {
    let blocks = Blocks::new(context);
    let (mut is_indexed, mut model, mut random) = (false, Model::new(), Random(seed));
    let mut pool: Vec<Vec<u8>> = Vec::new();
    for step in 0..steps {
        let known =
            (!pool.is_empty()).then(|| pool[random.below(pool.len() as u64) as usize].clone());
        match (random.below(10), known) {
            (0, Some(name)) => {
                let removed = remove(&blocks, is_indexed, &name).map(|found| found.number.0);
                let expected = model.remove(&name).map(|(number, _)| number);
                assert_eq!(removed.ok(), expected, "seed {seed}, step {step}");
            }
            (1, Some(name)) => {
                let replaced = replace(
                    &blocks,
                    is_indexed,
                    &name,
                    InodeNumber(step + 100),
                    FileType::Fifo,
                );
                let old = replaced.map(|found| found.number.0);
                let expected = model.get(&name).map(|(number, _)| *number);
                assert_eq!(old.ok(), expected, "seed {seed}, step {step}");
                if let Some(value) = model.get_mut(&name) {
                    *value = (step + 100, FileType::Fifo);
                }
            }
            _ => {
                let name = random.name(name_len_max);
                if model.contains_key(&name) {
                    continue;
                }
                insert(
                    &blocks,
                    &mut is_indexed,
                    &name,
                    InodeNumber(step + 100),
                    FileType::Regular,
                )
                .unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                model.insert(name.clone(), (step + 100, FileType::Regular));
                pool.push(name);
            }
        }
    }
    check_all(&blocks, is_indexed, &model)
}
