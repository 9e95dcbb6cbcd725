//! The number of requests that a server has handled, by operation: fewer requests for the same work
//! are what makes a mount fast. And what it could not store.

use crate::wire::op;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operation numbers with a counter of their own. Unknown operations share the counter 0.
const NUMBERS: usize = op::STATX as usize + 1;

/// Counters of one server, by operation.
pub struct RequestCounts {
    requests: [AtomicU64; NUMBERS],
    lost_bytes: AtomicU64,
    lost_events: AtomicU64,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; NUMBERS],
            lost_bytes: AtomicU64::new(0),
            lost_events: AtomicU64::new(0),
        }
    }
}

impl RequestCounts {
    pub(super) fn add(&self, opcode: u32) {
        self.counter(opcode).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests with this operation ([`crate::wire::op`]).
    pub fn get(&self, opcode: u32) -> u64 {
        self.counter(opcode).load(Ordering::Relaxed)
    }

    pub(super) fn add_lost(&self, bytes: u64) {
        self.lost_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an event of an external change that could not be raised, or a queue of them that
    /// overflowed.
    pub(crate) fn add_lost_event(&self) {
        self.lost_events.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes that could not be stored after a program had written them: through a
    /// memory map, or with delayed writes.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes.load(Ordering::Relaxed)
    }

    /// Returns the operations with at least one request, with their names, and the number of each.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = (0_u32..).zip(&self.requests);
        counts.filter_map(|(number, count)| {
            let count = count.load(Ordering::Relaxed);
            let known = op::NAMES.iter().find(|(known, _)| *known == number);
            (count > 0).then_some((known.map_or("OTHER", |(_, name)| name), count))
        })
    }

    fn counter(&self, opcode: u32) -> &AtomicU64 {
        self.requests
            .get(opcode as usize)
            .unwrap_or(&self.requests[0])
    }
}

/// Writes each operation with at least one request, and events that were lost: `LOOKUP 3, WRITE 1`.
impl fmt::Display for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.named() {
            write!(f, "{separator}{name} {count}")?;
            separator = ", ";
        }
        match self.lost_events.load(Ordering::Relaxed) {
            0 => Ok(()),
            lost => write!(f, "{separator}lost events {lost}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_print_known_and_other_operations() {
        let counts = RequestCounts::default();
        assert_eq!(counts.to_string(), "");
        for opcode in [op::WRITE, op::LOOKUP, op::WRITE, 4096, u32::MAX] {
            counts.add(opcode);
        }
        assert_eq!(counts.get(op::WRITE), 2);
        assert_eq!(counts.to_string(), "OTHER 2, LOOKUP 1, WRITE 2");
        counts.add_lost_event();
        let text = "OTHER 2, LOOKUP 1, WRITE 2, lost events 1";
        assert_eq!(counts.to_string(), text);
    }
}
