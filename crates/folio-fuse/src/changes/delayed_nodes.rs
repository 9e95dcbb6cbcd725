//! Nodes to be checked a moment later, each with what is known of it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Nodes that are due `delay` after they were added.
pub(super) struct DelayedNodes<T> {
    delay: Duration,
    nodes: Mutex<HashMap<u64, (Instant, T)>>,
}

impl<T> DelayedNodes<T> {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            nodes: Mutex::default(),
        }
    }

    /// Adds a node, or postpones it; returns whether it is the only one.
    pub(super) fn add_or_postpone(&self, node: u64, known: T) -> bool {
        let mut nodes = self.nodes.lock();
        let is_first = nodes.is_empty();
        nodes.insert(node, (Instant::now(), known));
        is_first
    }

    /// Adds a node unless it is there; returns whether it is the only one.
    pub(super) fn add(&self, node: u64, known: T) -> bool {
        let mut nodes = self.nodes.lock();
        let is_first = nodes.is_empty();
        nodes.entry(node).or_insert_with(|| (Instant::now(), known));
        is_first
    }

    /// Returns the time until the next node is due.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let nodes = self.nodes.lock();
        let first = nodes.values().map(|(at, _)| *at).min()?;
        Some((first + self.delay).saturating_duration_since(Instant::now()))
    }

    /// Takes the nodes that are due.
    pub(super) fn take_due(&self) -> Vec<(u64, T)> {
        let now = Instant::now();
        let mut nodes = self.nodes.lock();
        nodes
            .extract_if(|_, (at, _)| *at + self.delay <= now)
            .map(|(node, (_, known))| (node, known))
            .collect()
    }
}
