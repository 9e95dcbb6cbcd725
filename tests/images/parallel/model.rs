//! A disk's expected content, block by block, shared by threads that read and change the disk.
//!
//! Each block of 512 bytes has a lock. A thread holds the locks of all blocks of an operation, so
//! that the content of each block is known exactly, whatever other threads do in the same cluster.

use crate::support::random::{Random, mix};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of a block in bytes.
pub(crate) const BLOCK: usize = 512;
/// The bytes of a block that identify it and its version; noise follows.
const NAME: usize = 8;
/// Size in bytes of the noise from which the rest of a block is taken.
const NOISE: usize = 1 << 20;

/// The version of a block's content: 0 for zeros.
pub(crate) type Version = u32;

/// The content that a disk must have.
pub(crate) struct SharedModel {
    blocks: Vec<Mutex<Version>>,
    next: AtomicU32,
    noise: Vec<u8>,
}

/// The locked blocks of an operation.
pub(crate) struct Locked<'a> {
    first: usize,
    versions: Vec<MutexGuard<'a, Version>>,
}

impl SharedModel {
    /// Returns the model of a disk of `count` blocks of zeros.
    pub(crate) fn new(count: usize) -> Self {
        let mut random = Random::new(0);
        Self {
            blocks: (0..count).map(|_| Mutex::new(0)).collect(),
            next: AtomicU32::new(1),
            noise: (0..NOISE / 8)
                .flat_map(|_| random.next().to_le_bytes())
                .collect(),
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns a version that no block has had.
    pub(crate) fn new_version(&self) -> Version {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks the blocks of a range, in order.
    pub(crate) fn lock(&self, range: Range<usize>) -> Locked<'_> {
        Locked {
            first: range.start,
            versions: self.blocks[range].iter().map(lock_block).collect(),
        }
    }

    /// Returns the versions of all blocks.
    pub(crate) fn versions(&self) -> Vec<Version> {
        let locked = self.lock(0..self.count());
        locked.versions.iter().map(|version| **version).collect()
    }

    /// Replaces the versions of all blocks, and their number.
    pub(crate) fn set_versions(&mut self, versions: impl IntoIterator<Item = Version>) {
        self.blocks = versions.into_iter().map(Mutex::new).collect();
    }

    /// Returns the content of all blocks.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count() * BLOCK];
        let blocks = bytes.chunks_exact_mut(BLOCK).zip(self.versions());
        for (block, (bytes, version)) in blocks.enumerate() {
            self.fill_block(bytes, block, version);
        }
        bytes
    }

    /// Fills `bytes` with version `version` of the blocks from `first` on.
    pub(crate) fn fill(&self, bytes: &mut [u8], first: usize, version: Version) {
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
            self.fill_block(bytes, block, version);
        }
    }

    fn fill_block(&self, bytes: &mut [u8], block: usize, version: Version) {
        if version == 0 {
            return bytes.fill(0);
        }
        bytes[..NAME].copy_from_slice(&Self::name(block, version));
        bytes[NAME..].copy_from_slice(self.noise_of(block, version));
    }

    /// Whether `bytes` are this version of a block.
    fn is_version(&self, bytes: &[u8], block: usize, version: Version) -> bool {
        if version == 0 {
            return bytes.iter().all(|byte| *byte == 0);
        }
        bytes[..NAME] == Self::name(block, version)
            && bytes[NAME..] == *self.noise_of(block, version)
    }

    fn name(block: usize, version: Version) -> [u8; NAME] {
        ((block as u64) << 32 | u64::from(version)).to_be_bytes()
    }

    fn noise_of(&self, block: usize, version: Version) -> &[u8] {
        let key = mix((block as u64) << 32 | u64::from(version));
        let start = key as usize % (NOISE - BLOCK);
        &self.noise[start..start + BLOCK - NAME]
    }

    /// Asserts that no bytes are those of another block, read while other threads may write: each
    /// byte of the block's number is its own or zero.
    #[track_caller]
    pub(crate) fn assert_not_foreign(&self, bytes: &[u8], first: usize) {
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK)) {
            let own = (block as u32).to_be_bytes();
            let found = &bytes[..own.len()];
            assert!(
                found.iter().zip(own).all(|(a, b)| *a == 0 || *a == b),
                "block {block} shows {}",
                describe(bytes)
            );
        }
    }
}

impl Locked<'_> {
    /// Sets the version of all blocks.
    pub(crate) fn set(&mut self, version: Version) {
        self.versions.iter_mut().for_each(|block| **block = version);
    }

    /// Asserts that `bytes` are the content of the blocks.
    #[track_caller]
    pub(crate) fn assert_equal(&self, model: &SharedModel, bytes: &[u8]) {
        let blocks = self.versions.iter().zip(bytes.chunks_exact(BLOCK));
        for (block, (version, bytes)) in (self.first..).zip(blocks) {
            assert!(
                model.is_version(bytes, block, **version),
                "block {block} must have version {version}, but is {}",
                describe(bytes)
            );
        }
    }

    /// Asserts that the first `count` blocks are zeros.
    #[track_caller]
    pub(crate) fn assert_zeros(&self, count: usize) {
        let versions = self.versions.iter().take(count);
        for (block, version) in (self.first..).zip(versions) {
            assert_eq!(**version, 0, "hole in block {block}");
        }
    }

    /// Takes the content of discarded blocks: as before, or zeros.
    #[track_caller]
    pub(crate) fn discarded(&mut self, model: &SharedModel, bytes: &[u8]) {
        let blocks = self.versions.iter_mut().zip(bytes.chunks_exact(BLOCK));
        for (block, (version, bytes)) in (self.first..).zip(blocks) {
            if model.is_version(bytes, block, 0) {
                **version = 0;
            }
            assert!(
                model.is_version(bytes, block, **version),
                "discarded block {block} had version {version}, but is {}",
                describe(bytes)
            );
        }
    }
}

fn lock_block(block: &Mutex<Version>) -> MutexGuard<'_, Version> {
    block.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Describes the content of a block.
fn describe(bytes: &[u8]) -> String {
    let number = |at: usize| {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        u32::from_be_bytes(bytes)
    };
    format!("version {} of block {}", number(4), number(0))
}
