//! One process whose calls the server answers.

use super::arena::Arena;
use super::registry::{Registration, SharedProcess};
use folio::Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLockReadGuard};

/// A process with one program. Ends when its socket is closed.
pub(super) struct Client {
    pub(super) arena: Arena,
    process: SharedProcess,
    is_ended: AtomicBool,
    /// Dropped last: the files are closed by then.
    pub(super) registration: Registration,
}

impl Client {
    pub(super) fn new(registration: Registration, arena: Arena, process: SharedProcess) -> Self {
        Self {
            arena,
            process,
            is_ended: AtomicBool::new(false),
            registration,
        }
    }

    /// Returns the process for one call, which must not wait for another process.
    pub(super) fn process(&self) -> RwLockReadGuard<'_, Process> {
        self.process
            .process
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the process, with no call in progress.
    pub(super) fn change(&self, change: impl FnOnce(&mut Process)) {
        let mut process = self
            .process
            .process
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut process);
    }

    /// Returns the state of the process for its next program.
    pub(super) fn share(&self) -> SharedProcess {
        self.process.clone()
    }

    /// Returns whether the process has ended: calls that wait fail.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Marks the process as ended.
    pub(super) fn set_ended(&self) {
        self.is_ended.store(true, Ordering::Release);
    }
}
