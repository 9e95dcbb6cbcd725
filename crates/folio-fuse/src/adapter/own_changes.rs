//! Changes of the kernel's own, behind which those of others may hide.
//!
//! A file system that is told of changes hears of those of the kernel, too, and takes what it hears
//! within a moment of one for that. So once nobody has changed a node for a moment, it is looked at
//! whether it still is as it was left.

use super::{Adapter, Version};
use folio::syscall::Handle;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When a node is looked at after the last change. Longer than the moment of fs/hostfs, which is 50
/// ms.
const AFTER: Duration = Duration::from_millis(60);

/// Nodes that were changed a moment ago.
#[derive(Default)]
pub(super) struct OwnChanges {
    /// Whether others' changes are told of, so that they can hide.
    is_needed: AtomicBool,
    nodes: Mutex<HashMap<u64, Left>>,
}

/// How a node was left.
struct Left {
    at: Instant,
    version: Version,
}

impl OwnChanges {
    /// When the next node is to be looked at: in how long.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let nodes = self.nodes.lock();
        let first = nodes.values().map(|left| left.at).min()?;
        Some((first + AFTER).saturating_duration_since(Instant::now()))
    }

    /// Nodes that are to be looked at now, and how they were left.
    pub(super) fn take_due(&self) -> Vec<(u64, Version)> {
        let now = Instant::now();
        let mut nodes = self.nodes.lock();
        nodes
            .extract_if(|_, left| left.at + AFTER <= now)
            .map(|(node, left)| (node, left.version))
            .collect()
    }
}

impl Adapter {
    /// From now on others' changes are told of.
    pub(super) fn watch_own(&self) {
        self.changes.own.is_needed.store(true, Ordering::Relaxed);
    }

    /// Notes that the kernel has changed what is behind `handle`.
    pub(super) fn note_own(&self, handle: &Handle) {
        let own = &self.changes.own;
        if !own.is_needed.load(Ordering::Relaxed) {
            return;
        }
        let left = Left {
            at: Instant::now(),
            version: Version::of(&handle.attributes()),
        };
        let mut nodes = own.nodes.lock();
        let is_first = nodes.is_empty();
        nodes.insert(self.id(handle.number()), left);
        drop(nodes);
        if is_first {
            self.changes.request_wake();
        }
    }
}
