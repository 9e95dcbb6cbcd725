//! Damage that an operation found, and failed commits: what `errors=` demands. Linux:
//! `ext4_handle_error`.

use crate::base::{Error, ErrorKind};
use crate::fs::ext4::layout::disk::{STATE_ERROR, SUPERBLOCK_OFFSET};
use crate::fs::ext4::options::ErrorPolicy;
use crate::fs::ext4::volume::{FAILURE_DEAD, FAILURE_NONE, FAILURE_READ_ONLY, Volume};
use std::sync::atomic::Ordering;

impl Volume {
    /// Handles a failed write of a commit: without space below, the commit can be repeated, else
    /// the journal is aborted. Returns the error.
    pub(crate) fn fail_commit(&self, error: Error) -> Error {
        if error.is_out_of_space() {
            tracing::warn!(%error, "no space for a commit: it is repeated");
            error.at("journal")
        } else {
            self.fail_journal(error)
        }
    }

    /// Aborts the journal, which cannot be written: all further changes fail, whatever `errors=`
    /// demands. Returns the error.
    pub(crate) fn fail_journal(&self, error: Error) -> Error {
        if let Some(journal) = self.journal.get() {
            journal.abort();
        }
        tracing::error!(%error, "the journal cannot be written: changes are refused from now on");
        self.fail(match self.options.errors {
            ErrorPolicy::Panic => FAILURE_DEAD,
            _ => FAILURE_READ_ONLY,
        });
        error.at("journal")
    }

    /// Handles an error of an operation: damage is marked in the superblock, and `errors=` decides
    /// what is allowed from now on.
    pub(crate) fn note_damage(&self, error: &Error) {
        if error.kind() != ErrorKind::Corrupt || self.is_read_only {
            return;
        }
        tracing::error!(%error, policy = ?self.options.errors, "ext4 is damaged");
        match self.options.errors {
            ErrorPolicy::Continue => self.fail(FAILURE_NONE),
            ErrorPolicy::RemountReadOnly => self.fail(FAILURE_READ_ONLY),
            ErrorPolicy::Panic => self.fail(FAILURE_DEAD),
        }
    }

    /// Ends all changes, because another host has mounted the file system. It is not written any
    /// more, not even its superblock.
    pub(crate) fn fail_shared(&self, error: &Error) {
        tracing::error!(%error, "changes are refused from now on");
        self.failure_level
            .fetch_max(FAILURE_READ_ONLY, Ordering::AcqRel);
        if let Some(journal) = self.journal.get() {
            journal.abort();
        }
    }

    /// Marks the failure in the superblock, so that e2fsck checks the file system, and lowers what
    /// is allowed to `level`.
    fn fail(&self, level: u8) {
        let before = self.failure_level.fetch_max(level, Ordering::AcqRel);
        // The journal goes first: a running commit must not log more of a damaged state.
        if level != FAILURE_NONE
            && let Some(journal) = self.journal.get()
        {
            journal.abort();
        }
        let mut superblock = self.superblock.lock();
        let is_marked = superblock.raw.state.get() & STATE_ERROR != 0;
        superblock.raw.state = (superblock.raw.state.get() | STATE_ERROR).into();
        if is_marked && before >= level {
            return;
        }
        let bytes = superblock.to_bytes(self.now());
        // With the lock: these bytes must not overwrite the recovery flag of a first change. Best
        // effort: the device itself may have failed.
        if self.is_changed.load(Ordering::Acquire)
            && let Some(journal) = self.journal.get()
        {
            // Checkpoints and replays write copies of the superblock from before the mark. Before
            // the first change there is neither, and no unmount would clear the record.
            let _ = journal.record_error(&*self.device, true);
        }
        let _ = self
            .device
            .write_at(&bytes, SUPERBLOCK_OFFSET)
            .and_then(|()| self.device.flush());
    }
}
