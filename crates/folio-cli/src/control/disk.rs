//! A served disk, as the control socket sees it.

use super::protocol::Order;
use folio::block::{CompactOptions, Device, Fork, LiveImage};
use folio::{Errno, Error, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Generations below an image from which on it is compacted without an order: each read of old data
/// searches all of them.
const GENERATIONS_USUAL: usize = 8;

/// What the command that serves knows of a disk.
pub(crate) trait ServedDisk: Sync {
    /// Returns the counters of requests; null if they are not counted.
    fn counts(&self) -> Value;

    /// Returns the counters of the page cache, if there is one above the image.
    fn cache_counters(&self) -> Option<Value> {
        None
    }

    /// Returns how the disk is served.
    fn options(&self) -> Value;

    /// Flushes what is above the image, and the image.
    fn flush(&self) -> Result<()>;

    /// Flushes, and calls `work` while no file system above the image changes it.
    fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.flush()?;
        work()
    }

    /// Fails if a file there would wait for the end of a freeze.
    fn check_path(&self, path: &Path) -> Result<()> {
        let _ = path;
        Ok(())
    }

    /// Calls `change`, which resizes the image, and informs the clients of the new size.
    fn resize(&self, change: &dyn Fn() -> Result<()>) -> Result<()>;
}

/// A disk that orders can change.
pub(crate) struct ControlledDisk<'a> {
    name: String,
    image: &'a LiveImage,
    served: &'a dyn ServedDisk,
    is_canceled: AtomicBool,
    is_compacting: AtomicBool,
}

impl<'a> ControlledDisk<'a> {
    pub(crate) fn new(name: String, image: &'a LiveImage, served: &'a dyn ServedDisk) -> Self {
        Self {
            name,
            image,
            served,
            is_canceled: AtomicBool::new(false),
            is_compacting: AtomicBool::new(false),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Ends a compaction.
    pub(super) fn cancel(&self) {
        self.is_canceled.store(true, Ordering::Relaxed);
    }

    /// Obeys an order; returns what it asked for, or what was done.
    pub(super) fn obey(&self, order: &Order) -> Result<Value> {
        let image = self.image;
        match order {
            Order::Stats => Ok(self.stats()),
            Order::Options => Ok(self.served.options()),
            Order::Flush => {
                self.served.flush()?;
                Ok(json!({}))
            }
            Order::Snapshot { name } => {
                self.served.freeze_while(&mut || image.snapshot(name))?;
                Ok(json!({ "snapshot": name }))
            }
            Order::Fork { new } => {
                let forked = self.fork(new)?;
                let generation = forked.generation.map(|path| path.display().to_string());
                Ok(json!({
                    "fork": new.display().to_string(),
                    "generation": generation,
                    "generations": forked.generations,
                }))
            }
            Order::Resize { size, may_shrink } => {
                let len_bytes = size.of(image.len_bytes());
                let len_bytes = len_bytes
                    .filter(|len_bytes| *len_bytes > 0)
                    .ok_or_else(|| Error::new(Errno::INVAL, "the new size is out of range"))?;
                self.served
                    .resize(&|| image.resize(len_bytes, *may_shrink))?;
                Ok(json!({ "size": image.len_bytes() }))
            }
            Order::Compact => {
                let unused = self.compact()?;
                Ok(json!({ "unused": unused }))
            }
        }
    }

    fn fork(&self, new: &Path) -> Result<Fork> {
        // The generation is beside the image.
        for path in [self.image.path(), new] {
            self.served.check_path(path)?;
        }
        let mut forked = None;
        self.served.freeze_while(&mut || {
            forked = Some(self.image.fork(new)?);
            Ok(())
        })?;
        forked.ok_or_else(|| Errno::IO.into())
    }

    fn stats(&self) -> Value {
        let chain: Vec<_> = self
            .image
            .chain()
            .iter()
            .map(|image| image.path.display().to_string())
            .collect();
        let mut stats = json!({
            "image": self.name,
            "size": self.image.len_bytes(),
            "requests": self.served.counts(),
            "chain": chain,
            "generations": self.image.generations(),
        });
        if let Some(counters) = self.served.cache_counters() {
            stats["cache"] = counters;
        }
        stats
    }

    /// Copies the generations into the image; returns their paths, which the image uses no more.
    fn compact(&self) -> Result<Vec<String>> {
        let is_canceled = || self.is_canceled.load(Ordering::Relaxed);
        let options = CompactOptions {
            is_canceled: &is_canceled,
            ..CompactOptions::default()
        };
        let unused = self.image.compact(&options)?;
        Ok(unused
            .iter()
            .map(|path| path.display().to_string())
            .collect())
    }

    /// Whether the chain is so long that it is compacted without an order.
    pub(super) fn should_compact(&self) -> bool {
        self.image.generations() >= GENERATIONS_USUAL
            && !self.is_compacting.swap(true, Ordering::Relaxed)
    }

    /// Compacts without an order. After a failure the next fork tries again; it fails itself when
    /// the chain is too long.
    pub(super) fn compact_by_itself(&self) {
        match self.compact() {
            Ok(unused) => tracing::info!(?unused, image = self.name, "compacted"),
            Err(error) => tracing::warn!(%error, image = self.name, "not compacted"),
        }
        self.is_compacting.store(false, Ordering::Relaxed);
    }
}
