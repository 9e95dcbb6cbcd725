//! Handles: what belongs together is in one transaction. Linux: `jbd2_journal_start`.
//!
//! ```text
//!   an operation      ---[ handle ]---            many at once
//!   data to its place    ---[ store ]---          many at once, also within an operation
//!   a commit                            ---[ operations stopped ][ stores stopped: copy ]---
//! ```
//!
//! An operation changes what it changes under a handle, so that a commit sees all of it or nothing.
//! Data is placed and written under a handle of its own, so that blocks never reach the journal
//! before the bytes they hold. A commit stops operations first: meanwhile data that must be on the
//! device before it can still be written.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;

thread_local! {
    /// Operations that this thread is within, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// What a commit stops.
#[derive(Default)]
pub(crate) struct Gate {
    operations: RwLock<()>,
    stores: RwLock<()>,
}

/// An operation under way.
pub(crate) struct Handle<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// No operation is under way, and none begins.
pub(super) struct OperationsStopped<'a> {
    gate: &'a Gate,
    _guard: RwLockWriteGuard<'a, ()>,
}

/// Nothing changes.
pub(super) struct AllStopped<'a> {
    _stores: RwLockWriteGuard<'a, ()>,
    _operations: OperationsStopped<'a>,
}

impl Gate {
    /// Begins an operation; waits for a commit that is making its copy, unless it is part of
    /// another operation.
    pub(crate) fn start(&self) -> Handle<'_> {
        let guard = match is_within_operation() {
            // The one outside keeps the commit away; waiting here behind one that waits for it
            // would be for ever.
            true => self.operations.read_recursive(),
            false => self.operations.read(),
        };
        DEPTH.set(DEPTH.get() + 1);
        Handle { _guard: guard }
    }

    /// Begins to place and write data.
    pub(crate) fn start_store(&self) -> RwLockReadGuard<'_, ()> {
        // May be part of an operation, which a commit waits for first: nobody waits for stores with
        // it open.
        self.stores.read_recursive()
    }

    pub(super) fn stop_operations(&self) -> OperationsStopped<'_> {
        OperationsStopped {
            gate: self,
            _guard: self.operations.write(),
        }
    }
}

impl<'a> OperationsStopped<'a> {
    pub(super) fn stop_stores(self) -> AllStopped<'a> {
        AllStopped {
            _stores: self.gate.stores.write(),
            _operations: self,
        }
    }
}

/// Whether this thread is within an operation, and so must not wait for a commit.
pub(crate) fn is_within_operation() -> bool {
    DEPTH.get() > 0
}
