//! The state of written bytes: allocated or not, dirty or not, as the file system and the page
//! cache report it.

use super::blocks::{self, Blocks};
use super::fact::Fact;
use crate::text::bytes;
use folio_pagecache::{ResidencyReport, residency};
use std::fs::File;

/// Bytes written each time.
pub(super) const LEN: usize = 1 << 20;
/// The kernel may write back by itself in between; the majority of the tries decides.
pub(super) const TRIES: usize = 5;

/// The state of written bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// By FIEMAP.
    pub blocks: Fact<Blocks>,
    /// Changed and not being written, by cachestat(2).
    pub dirty_bytes: Option<u64>,
    /// Being written, by cachestat(2).
    pub writeback_bytes: Option<u64>,
}

impl State {
    pub(super) fn of(file: &File) -> Self {
        let (dirty_bytes, writeback_bytes) = match residency(file) {
            Ok(ResidencyReport::Known(found)) => (found.dirty_bytes, found.writeback_bytes),
            _ => (None, None),
        };
        Self {
            blocks: blocks::probe(file, LEN as u64),
            dirty_bytes,
            writeback_bytes,
        }
    }

    /// Returns whether the written bytes are still in memory only; `None` if unknown.
    ///
    /// Btrfs reports extents once the write has ended, and clean pages once it has begun: either
    /// suffices.
    pub(crate) fn waits(&self) -> Option<bool> {
        let half = LEN as u64 / 2;
        let is_delayed = self
            .blocks
            .as_ref()
            .ok()
            .map(|found| found.delayed_bytes >= half);
        let is_dirty = self.dirty_bytes.map(|dirty| dirty >= half);
        match (is_delayed, is_dirty) {
            (None, None) => None,
            _ => Some(is_delayed != Some(false) && is_dirty != Some(false)),
        }
    }

    /// Describes the state, as far as it is known.
    pub(crate) fn describe(&self) -> String {
        let delayed = self
            .blocks
            .as_ref()
            .ok()
            .map(|found| (found.delayed_bytes, "without a place"));
        let dirty = self.dirty_bytes.map(|count| (count, "dirty"));
        let writeback = self.writeback_bytes.map(|count| (count, "in writeback"));
        let parts = [delayed, dirty, writeback].into_iter().flatten();
        parts
            .map(|(count, what)| format!("{} {what}", bytes(count)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
