//! What happens after damage was met or a commit failed: `errors=`. Linux: `ext4_handle_error`.

use crate::base::{Errno, Error, ErrorKind, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::layout::disk::{STATE_ERROR, SUPERBLOCK_OFFSET};
use crate::fs::ext4::options::ErrorPolicy;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far a mounted file system can be used.
#[derive(Default)]
pub(crate) struct Failure(AtomicU8);

const NONE: u8 = 0;
const READ_ONLY: u8 = 1;
const DEAD: u8 = 2;

impl Ext4 {
    /// EROFS for changes after a failure that `errors=remount-ro` answers, EIO after one under
    /// `errors=panic`.
    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.failure.0.load(Ordering::Acquire) {
            NONE => Ok(()),
            READ_ONLY => Err(Error::new(
                Errno::ROFS,
                "the file system is read-only after an error",
            )),
            _ => self.check_alive(),
        }
    }

    /// EIO for everything after a failure under `errors=panic`.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.failure.0.load(Ordering::Acquire) {
            DEAD => Err(Error::new(
                Errno::IO,
                "the file system failed (errors=panic)",
            )),
            _ => Ok(()),
        }
    }

    /// The journal cannot be written: nothing can be changed any more, whatever `errors=` says.
    /// Returns the error.
    pub(crate) fn fail_journal(&self, error: Error) -> Error {
        if let Some(journal) = self.journal.get() {
            journal.abort();
        }
        tracing::error!(%error, "the journal cannot be written: changes are refused from now on");
        self.fail(match self.options.errors {
            ErrorPolicy::Panic => DEAD,
            _ => READ_ONLY,
        });
        error.at("journal")
    }

    /// Acts on an error of an operation: damage is noted in the superblock and answered as
    /// `errors=` says.
    pub(crate) fn notice(&self, error: &Error) {
        if error.kind() != ErrorKind::Corrupt || self.is_read_only {
            return;
        }
        tracing::error!(%error, policy = ?self.options.errors, "ext4 is damaged");
        match self.options.errors {
            ErrorPolicy::Continue => self.fail(NONE),
            ErrorPolicy::RemountReadOnly => self.fail(READ_ONLY),
            ErrorPolicy::Panic => self.fail(DEAD),
        }
    }

    /// Notes the failure in the superblock, for e2fsck to look, and goes on as far as `level`
    /// allows.
    fn fail(&self, level: u8) {
        let before = self.failure.0.fetch_max(level, Ordering::AcqRel);
        if level != NONE
            && let Some(journal) = self.journal.get()
        {
            journal.abort();
        }
        let mut superblock = self.superblock.lock();
        let is_noted = superblock.raw.state.get() & STATE_ERROR != 0;
        superblock.raw.state = (superblock.raw.state.get() | STATE_ERROR).into();
        if is_noted && before >= level {
            return;
        }
        let bytes = superblock.to_bytes(self.now());
        drop(superblock);
        // As well as it goes: the device may be what failed.
        let _ = self
            .device
            .write_at(&bytes, SUPERBLOCK_OFFSET)
            .and_then(|()| self.device.flush());
    }
}
