//! Directories in memory against a plain map, and against forged bytes.

use super::block::{self, Entries};
use super::hash::{HashVersion, hash};
use super::names::*;
use crate::base::{Errno, InodeNumber, LogicalBlock, Result};
use crate::cache::{CacheOptions, Mapping, PageCache, Writeback};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::vfs::{DirectoryEntry, FileType};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A directory whose blocks are pages of a mapping without a store.
struct Blocks {
    context: DirectoryContext,
    mapping: Mapping,
    _writeback: Arc<Writeback>,
    count: Cell<u32>,
    count_max: u32,
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

    /// The names as a program lists them, in batches of `batch`; `between` runs after each batch.
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
            "block {block} asked for, of {}",
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
}

fn context(block_size: usize, checksum_seed: Option<u32>) -> DirectoryContext {
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

/// Everything that must hold of a directory at rest: the names are the model's, each leaf of the
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
    check_index(blocks, &root, 32, levels, (0, u32::MAX), &mut reached);
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
    (low, high): (u32, u32),
    reached: &mut BTreeSet<u32>,
) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let count = (word(entries_at) >> 16) as usize;
    for position in 0..count {
        let at = entries_at + 8 * position;
        let from = if position == 0 { low } else { word(at) };
        let to = if position + 1 < count {
            word(at + 8)
        } else {
            high
        };
        assert!(low <= from && from <= to && to <= high);
        let child = word(at + 4);
        assert!(reached.insert(child), "block {child} is reached twice");
        let inner = blocks.block(LogicalBlock(child)).unwrap().read().to_vec();
        if levels > 1 {
            check_index(blocks, &inner, 8, levels - 1, (from, to), reached);
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
                    "{hash:x} lies in {from:x}..={to:x}"
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

#[test]
fn small_blocks_grow_an_index_of_two_levels() {
    assert_eq!(random_operations(context(1024, Some(7)), 1, 12_000, 60), 2);
    assert_eq!(random_operations(context(1024, None), 2, 12_000, 60), 2);
}

#[test]
fn large_blocks_grow_an_index() {
    assert_eq!(random_operations(context(4096, Some(7)), 3, 20_000, 30), 1);
    assert_eq!(random_operations(context(4096, Some(7)), 4, 20_000, 255), 2);
    assert_eq!(random_operations(context(2048, Some(7)), 5, 12_000, 255), 2);
}

#[test]
fn every_hash_version_orders_an_index() {
    for default_hash_version in 0..3 {
        for unsigned_hash in [false, true] {
            let context = DirectoryContext {
                default_hash_version,
                unsigned_hash,
                ..context(1024, Some(7))
            };
            assert_eq!(random_operations(context, 6, 2_000, 20), 1);
        }
    }
}

#[test]
fn large_dir_grows_an_index_of_three_levels() {
    let context = DirectoryContext {
        large_dir: true,
        ..context(1024, None)
    };
    assert_eq!(random_operations(context, 7, 70_000, 255), 3);
}

#[test]
fn a_directory_without_dir_index_stays_linear() {
    let context = DirectoryContext {
        dir_index: false,
        has_file_type: false,
        ..context(1024, Some(7))
    };
    let blocks = Blocks::new(context);
    let mut is_indexed = false;
    for number in 0..200 {
        let name = format!("name-{number}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(number + 20),
            FileType::Socket,
        )
        .unwrap();
    }
    assert!(!is_indexed);
    let found = find(&blocks, false, b"name-150").unwrap().unwrap();
    assert_eq!(
        found,
        Found {
            number: InodeNumber(170),
            file_type: None
        }
    );
    assert_eq!(blocks.names().unwrap().len(), 202);
}

#[test]
fn a_full_index_is_no_space_and_nothing_is_lost() {
    let blocks = Blocks::new(context(1024, None));
    let (mut is_indexed, mut random, mut model) = (false, Random(8), Model::new());
    let error = loop {
        let mut name = random.name(1);
        name.resize_with(255, || b'a' + random.below(26) as u8);
        match insert(
            &blocks,
            &mut is_indexed,
            &name,
            InodeNumber(99),
            FileType::Regular,
        ) {
            Ok(()) => model.insert(name, (99, FileType::Regular)),
            Err(error) => break error,
        };
    };
    assert_eq!(error.errno(), Errno::NOSPC);
    assert!(
        error.to_string().contains("directory index full"),
        "{error}"
    );
    assert_eq!(check_all(&blocks, is_indexed, &model), 2);
}

#[test]
fn a_full_device_leaves_the_directory_whole() {
    for count_max in 1..140 {
        let mut blocks = Blocks::new(context(1024, Some(3)));
        blocks.count_max = count_max;
        let (mut is_indexed, mut random, mut model) = (false, Random(9), Model::new());
        loop {
            let name = random.name(255);
            if model.contains_key(&name) {
                continue;
            }
            match insert(
                &blocks,
                &mut is_indexed,
                &name,
                InodeNumber(99),
                FileType::Regular,
            ) {
                Ok(()) => model.insert(name, (99, FileType::Regular)),
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            };
        }
        check_all(&blocks, is_indexed, &model);
    }
}

#[test]
fn names_of_one_hash_may_lie_in_two_leaves() {
    let context = context(1024, Some(7));
    let hash_of = |name: &[u8]| hash(name, HashVersion::HalfMd4, false, &context.hash_seed);
    let mut random = Random(10);
    let mut name = || {
        let mut name = random.name(1);
        name.resize_with(244, || b'a' + random.below(26) as u8);
        name
    };
    let mut by_hash: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let (first, second) = loop {
        let name = name();
        if let Some(other) = by_hash.insert(hash_of(&name), name.clone()) {
            break (other, name);
        }
    };
    let shared = hash_of(&first);
    let below: Vec<_> = by_hash
        .range(..shared)
        .map(|(_, name)| name.clone())
        .take(40)
        .collect();
    let above: Vec<_> = by_hash
        .range(shared + 1..)
        .map(|(_, name)| name.clone())
        .take(40)
        .collect();

    let blocks = Blocks::new(context.clone());
    let (mut is_indexed, mut model) = (false, Model::new());
    let mut add = |name: &[u8]| {
        insert(
            &blocks,
            &mut is_indexed,
            name,
            InodeNumber(77),
            FileType::Regular,
        )
        .unwrap();
        model.insert(name.to_vec(), (77, FileType::Regular));
        check_all(&blocks, is_indexed, &model);
    };
    // Four names fill a leaf; the fifth makes it split after the third, which is the first of the
    // two.
    [&below[0], &below[1], &first, &above[0], &second]
        .into_iter()
        .for_each(|name| add(name));
    let root = blocks.block(LogicalBlock(0)).unwrap().read()[40..44].to_vec();
    assert_eq!(
        root,
        (shared | 1).to_le_bytes(),
        "the second leaf continues the first"
    );
    below[2..].iter().zip(&above[1..]).for_each(|(low, high)| {
        add(low);
        add(high);
    });
    remove(&blocks, true, &first).unwrap();
    assert!(find(&blocks, true, &second).unwrap().is_some());
    assert!(find(&blocks, true, &first).unwrap().is_none());
}

#[test]
fn a_name_that_stays_is_listed_once_whatever_comes_and_goes() {
    for (count, dir_index) in [
        (3, true),
        (20, true),
        (500, true),
        (3_000, true),
        (100, false),
    ] {
        let blocks = Blocks::new(DirectoryContext {
            dir_index,
            ..context(1024, Some(7))
        });
        let mut is_indexed = false;
        let add = |is_indexed: &mut bool, name: String| {
            insert(
                &blocks,
                is_indexed,
                name.as_bytes(),
                InodeNumber(50),
                FileType::Regular,
            )
            .unwrap();
        };
        (0..count).for_each(|number| add(&mut is_indexed, format!("stays-{number:04}")));
        (0..count).for_each(|number| add(&mut is_indexed, format!("goes-{number:04}")));
        let (mut new, mut gone) = (0, 0);
        let listed = blocks.listed(&mut is_indexed, 7, &mut |is_indexed| {
            for _ in 0..9 {
                add(is_indexed, format!("new-{new:080}"));
                new += 1;
                if new >= 4 * count {
                    break;
                }
            }
            if gone < count {
                remove(&blocks, *is_indexed, format!("goes-{gone:04}").as_bytes()).unwrap();
                gone += 1;
            }
        });
        let mut stays: Vec<_> = listed
            .iter()
            .filter(|name| name.starts_with(b"stays-"))
            .collect();
        stays.sort();
        let expected: Vec<_> = (0..count)
            .map(|number| format!("stays-{number:04}").into_bytes())
            .collect();
        assert!(stays.into_iter().eq(&expected), "{count} names");
        assert_eq!(listed[..2], [b".".to_vec(), b"..".to_vec()]);
    }
}

#[test]
fn a_directory_is_emptied_while_it_is_listed() {
    for count in [5, 500] {
        let blocks = Blocks::new(context(1024, Some(7)));
        let mut is_indexed = false;
        let mut model = BTreeSet::new();
        for number in 0..count {
            let name = format!("entry-{number:04}").into_bytes();
            insert(
                &blocks,
                &mut is_indexed,
                &name,
                InodeNumber(50),
                FileType::Regular,
            )
            .unwrap();
            model.insert(name);
        }
        let (mut cookie, mut seen) = (0, BTreeSet::new());
        loop {
            let mut batch = Vec::new();
            iterate(&blocks, is_indexed, cookie, &mut |entry| {
                cookie = entry.next_cookie;
                batch.push(entry.name.to_vec());
                if batch.len() == 7 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for name in batch.into_iter().filter(|name| !is_dot_or_dot_dot(name)) {
                remove(&blocks, is_indexed, &name).unwrap();
                assert!(seen.insert(name));
            }
        }
        assert_eq!(seen, model);
        assert!(is_empty(&blocks).unwrap());
        assert_eq!(
            remove(&blocks, is_indexed, b"entry-0001")
                .unwrap_err()
                .errno(),
            Errno::NOENT
        );
    }
}

#[test]
fn the_parent_of_an_indexed_directory_can_be_replaced() {
    let blocks = Blocks::new(context(1024, Some(7)));
    let mut is_indexed = false;
    for number in 0..100 {
        let name = format!("{number:0100}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(50),
            FileType::Regular,
        )
        .unwrap();
    }
    assert!(is_indexed);
    replace(&blocks, true, b"..", InodeNumber(77), FileType::Directory).unwrap();
    assert_eq!(parent(&blocks).unwrap(), InodeNumber(77));
    assert_eq!(
        find(&blocks, true, b".").unwrap().unwrap().number,
        InodeNumber(12)
    );
    assert_eq!(blocks.names().unwrap().len(), 102);
    let error = insert(
        &blocks,
        &mut is_indexed,
        format!("{:0100}", 5).as_bytes(),
        InodeNumber(1),
        FileType::Fifo,
    );
    assert_eq!(error.unwrap_err().errno(), Errno::EXIST);
}

/// A directory with an index of two levels, or, with few names, a linear one.
fn sample(checksum_seed: Option<u32>, names: u64) -> (Blocks, bool) {
    let blocks = Blocks::new(context(1024, checksum_seed));
    let mut is_indexed = false;
    for number in 0..names {
        let name = format!("{number:0120}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(50),
            FileType::Regular,
        )
        .unwrap();
    }
    (blocks, is_indexed)
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let (blocks, is_indexed) = sample(Some(5), 1500);
    assert!(is_indexed);
    let whole = blocks.names().unwrap();
    for block in 0..blocks.block_count() {
        for at in [0, 4, 6, 9, 16, 28, 30, 34, 40, 500, 1000, 1016, 1022] {
            let at = at as usize;
            blocks.forge(block, |bytes| bytes[at] ^= 0x10);
            let listed = blocks.names();
            blocks.forge(block, |bytes| bytes[at] ^= 0x10);
            // Unused bytes of an index block between its entries and its tail are not covered.
            if let Ok(names) = listed {
                assert_eq!(names, whole, "block {block}, byte {at}");
            }
        }
    }
    blocks.forge(3, |bytes| bytes[600] ^= 1);
    let error = blocks.names().unwrap_err().to_string();
    assert_eq!(error, "directory inode 12, block 3: bad checksum");
}

#[test]
fn forged_entries_are_refused() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 8] = [
        ("bad length 0", |bytes| bytes[28..30].fill(0)),
        ("bad length 8", |bytes| bytes[28] = 8),
        ("bad length 127", |bytes| bytes[28] = 127),
        ("bad length 65532", |bytes| {
            bytes[28..30].copy_from_slice(&[0xfc, 0xff])
        }),
        ("leaves no room", |bytes| {
            bytes[28..30].copy_from_slice(&(1000_u16 - 8).to_le_bytes())
        }),
        ("name of 255 bytes", |bytes| bytes[30] = 255),
        ("empty name", |bytes| bytes[30] = 0),
        ("slash", |bytes| bytes[33] = b'/'),
    ];
    for (what, forge) in forgeries {
        let (blocks, is_indexed) = sample(None, 3);
        assert!(!is_indexed);
        blocks.forge(0, forge);
        let error = blocks.names().unwrap_err();
        assert_eq!(error.errno(), Errno::UCLEAN);
        assert!(error.to_string().contains(what), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("directory inode 12, block 0: entry at byte 24: "),
            "{error}"
        );
    }
    let (blocks, _) = sample(None, 3);
    blocks.forge(0, |bytes| {
        bytes[30] = 2;
        bytes[32..34].copy_from_slice(b"..");
    });
    assert!(
        blocks
            .names()
            .unwrap_err()
            .to_string()
            .contains("out of place")
    );
}

#[test]
fn forged_indexes_are_refused() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let root_forgeries: [Forgery; 11] = [
        ("unknown directory hash version 9", |bytes| bytes[28] = 9),
        ("siphash", |bytes| bytes[28] = 6),
        ("unknown form", |bytes| bytes[29] = 16),
        ("index of 3 levels", |bytes| bytes[30] = 2),
        ("unknown form", |bytes| bytes[31] = 1),
        ("index limit 200, should be 124", |bytes| bytes[32] = 200),
        ("index count 0 of", |bytes| bytes[34] = 0),
        ("index count 125 of", |bytes| bytes[34] = 125),
        ("past the end", |bytes| {
            (0..124).for_each(|entry| bytes[36 + 8 * entry + 2] = 0xff)
        }),
        ("points back to block 0", |bytes| {
            (0..124).for_each(|entry| bytes[36 + 8 * entry..][..4].fill(0))
        }),
        ("no root", |bytes| bytes[16] = 12),
    ];
    for (what, forge) in root_forgeries {
        let (blocks, mut is_indexed) = sample(None, 1500);
        blocks.forge(0, forge);
        let error = find(&blocks, is_indexed, b"nothing").unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(
            error.to_string().contains("directory inode 12, block 0"),
            "{error}"
        );
        assert!(
            insert(
                &blocks,
                &mut is_indexed,
                b"new",
                InodeNumber(5),
                FileType::Fifo
            )
            .is_err()
        );
        assert!(remove(&blocks, is_indexed, b"new").is_err());
    }
    let (blocks, _) = sample(None, 100);
    blocks.forge(0, |bytes| bytes[48..52].fill(0xff));
    assert!(
        find(&blocks, true, b"nothing")
            .unwrap_err()
            .to_string()
            .contains("out of order")
    );
}

#[test]
fn a_forged_chain_of_continued_leaves_ends() {
    let (blocks, _) = sample(None, 1500);
    // Every entry of the root claims to continue the hash of the one name asked for, in one and the
    // same leaf.
    let name = b"nothing";
    let hash = hash(name, HashVersion::HalfMd4, false, &blocks.context.hash_seed);
    blocks.forge(0, |bytes| {
        bytes[30] = 0;
        bytes[34] = 124;
        for entry in 0..124 {
            let at = 32 + 8 * entry;
            if entry > 0 {
                bytes[at..at + 4].copy_from_slice(&(hash | 1).to_le_bytes());
            }
            bytes[at + 4..at + 8].copy_from_slice(&1_u32.to_le_bytes());
        }
    });
    let found = find(&blocks, true, name).unwrap_err();
    assert_eq!(
        found.to_string(),
        "directory inode 12, block 0: index leads to block 1 twice"
    );
    let listed = iterate(&blocks, true, 0, &mut |_| ControlFlow::Continue(()));
    assert!(listed.unwrap_err().to_string().contains("twice"));
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(11);
    for round in 0..3_000 {
        let checksum_seed = None;
        let (blocks, mut is_indexed) = if round % 2 == 0 {
            sample(checksum_seed, 5)
        } else {
            sample(checksum_seed, 30)
        };
        for _ in 0..1 + random.below(6) {
            let block = random.below(u64::from(blocks.block_count())) as u32;
            let (at, value) = (random.below(64) as usize, random.below(256) as u8);
            blocks.forge(block, |bytes| bytes[at] = value);
        }
        let _ = blocks.names();
        let _ = iterate(&blocks, is_indexed, 0, &mut |_| ControlFlow::Continue(()));
        let _ = find(&blocks, is_indexed, b"nothing");
        for number in 0..12 {
            let name = format!("{number:0200}");
            let _ = insert(
                &blocks,
                &mut is_indexed,
                name.as_bytes(),
                InodeNumber(5),
                FileType::Fifo,
            );
            let _ = remove(&blocks, is_indexed, format!("{number:0120}").as_bytes());
        }
        let _ = replace(
            &blocks,
            is_indexed,
            b"..",
            InodeNumber(5),
            FileType::Directory,
        );
        let _ = (parent(&blocks), is_empty(&blocks));
    }
}

#[test]
fn casefolded_directories_are_read_by_exact_bytes_only() {
    let (mut blocks, mut is_indexed) = sample(Some(5), 100);
    blocks.context.casefold = true;
    let name = format!("{:0120}", 50);
    assert!(
        find(&blocks, is_indexed, name.as_bytes())
            .unwrap()
            .is_some()
    );
    let error = insert(
        &blocks,
        &mut is_indexed,
        b"x",
        InodeNumber(5),
        FileType::Fifo,
    )
    .unwrap_err();
    assert!(error.to_string().contains("casefold"), "{error}");
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
}
