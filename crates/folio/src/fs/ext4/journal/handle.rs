//! Handles: keep all changes of an operation in one transaction. Linux: `jbd2_journal_start`.
//!
//! ```text
//!   operation      ---[ handle ]---            many at once
//!   data write        ---[ store ]---          many at once, also inside an operation
//!   commit                             ---[ operations stopped ][ stores stopped: copy ]---
//! ```
//!
//! An operation makes its changes under a handle, so that a commit includes all of them or none.
//! Data is allocated and written under a separate store handle, so that the journal never maps
//! blocks before their data is written. A commit stops operations first; data that must be on the
//! device before the commit can then still be written.

use crate::base::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;

thread_local! {
    /// Number of nested operations of this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The locks by which a commit stops operations and data writes. Linux:
/// `jbd2_journal_lock_updates`.
#[derive(Default)]
pub(crate) struct OperationGate {
    operations: RwLock<()>,
    stores: RwLock<()>,
}

/// A running operation. Linux: `handle_t`.
pub(crate) struct Handle<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Proof that no operation runs and none can begin.
pub(super) struct OperationsStopped<'a> {
    gate: &'a OperationGate,
    _guard: RwLockWriteGuard<'a, ()>,
}

/// Proof that neither operations nor data writes run. They wait until it is dropped.
pub(crate) struct AllStopped<'a> {
    _stores: RwLockWriteGuard<'a, ()>,
    operations: OperationsStopped<'a>,
}

impl OperationGate {
    /// Begins an operation. Waits for a commit that is copying blocks, unless this thread is inside
    /// another operation.
    pub(crate) fn start(&self) -> Handle<'_> {
        let guard = if is_within_operation() {
            // The outer operation blocks the commit. Waiting here behind that commit would be a
            // deadlock.
            self.operations.read_recursive()
        } else {
            self.operations.read()
        };
        DEPTH.set(DEPTH.get() + 1);
        Handle { _guard: guard }
    }

    /// Begins to allocate and write data.
    pub(crate) fn start_store(&self) -> RwLockReadGuard<'_, ()> {
        // May be inside an operation. A commit waits for operations first, so it never waits for
        // stores while an operation is open.
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
            operations: self,
        }
    }
}

impl<'a> AllStopped<'a> {
    pub(super) fn resume_stores(self) -> OperationsStopped<'a> {
        self.operations
    }
}

/// Returns whether this thread is inside an operation, so that it must not wait for a commit.
pub(crate) fn is_within_operation() -> bool {
    DEPTH.get() > 0
}
