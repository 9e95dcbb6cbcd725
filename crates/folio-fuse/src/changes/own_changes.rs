//! The client's own changes, which may hide changes by external writers.
//!
//! A file system that watches the host also receives events for the client's own writes. It ignores
//! events shortly after one of those. So once the client has not changed a node for a moment, the
//! node is compared with how the client left it.

use crate::nodes::ContentVersion;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Delay from a node's last change to its comparison. Longer than the moment during which fs/hostfs
/// ignores events, 50 ms.
const DELAY: Duration = Duration::from_millis(60);

/// Nodes that the client changed a moment ago.
#[derive(Default)]
pub(super) struct OwnChanges {
    /// Whether the file system reports external changes, which can then be hidden.
    is_enabled: AtomicBool,
    nodes: Mutex<HashMap<u64, OwnChange>>,
}

/// The state in which the client left a node.
struct OwnChange {
    at: Instant,
    version: ContentVersion,
}

impl OwnChanges {
    pub(super) fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Adds a node that was changed now; returns whether it is the only one.
    pub(super) fn add(&self, node: u64, version: ContentVersion) -> bool {
        let at = Instant::now();
        let mut nodes = self.nodes.lock();
        let is_first = nodes.is_empty();
        nodes.insert(node, OwnChange { at, version });
        is_first
    }

    /// Returns the time until the next comparison is due.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let nodes = self.nodes.lock();
        let first = nodes.values().map(|change| change.at).min()?;
        Some((first + DELAY).saturating_duration_since(Instant::now()))
    }

    /// Takes the nodes to compare now, and how they were left.
    pub(super) fn take_due(&self) -> Vec<(u64, ContentVersion)> {
        let now = Instant::now();
        let mut nodes = self.nodes.lock();
        nodes
            .extract_if(|_, change| change.at + DELAY <= now)
            .map(|(node, change)| (node, change.version))
            .collect()
    }
}
