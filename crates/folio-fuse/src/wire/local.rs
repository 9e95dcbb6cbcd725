//! What is so where the asking kernel is this machine's own, behind /dev/fuse: it is told of
//! changes, counts in ticks that are known here, and may read and write files of the host by
//! itself.

use super::abi::{self, InHeader, InitIn, OpenOut, init, op, open};
use crate::adapter::Adapter;
use crate::backing::Backings;
use crate::keeping::{CachePolicy, Invalidation, in_ticks};
use crate::options::Passthrough;
use folio::{Errno, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a kernel that cannot forget all names at once may believe that there is no such name:
/// of those it knows it is told one by one, but nobody knows what it was told was missing.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// This machine's kernel.
pub(crate) struct Local {
    keeping: CachePolicy,
    backings: Option<Backings>,
    /// The only user besides root whose calls are answered.
    only_user: Option<u32>,
    forgets_names_at_once: AtomicBool,
    /// Whether the kernel takes files of the host.
    takes_files: AtomicBool,
}

impl Local {
    /// `only_user` and root alone are answered, if there is one; `backings` hands files to the
    /// kernel.
    pub(crate) fn new(
        keeping: CachePolicy,
        backings: Option<Backings>,
        only_user: Option<u32>,
    ) -> Self {
        let (forgets_names_at_once, takes_files) = Default::default();
        Self {
            keeping,
            backings,
            only_user,
            forgets_names_at_once,
            takes_files,
        }
    }

    /// Whether the kernel is told of changes, so that it drops no pages by itself.
    pub(super) fn is_told(&self) -> bool {
        self.keeping.invalidation == Invalidation::Push
    }

    /// Capabilities beyond those that every kernel is asked for, and those that this one is not.
    pub(super) fn adjust(&self, wanted: u64) -> u64 {
        let mut wanted = wanted & !(init::AUTO_INVAL_DATA | init::EXPLICIT_INVAL_DATA);
        wanted |= match self.keeping.invalidation {
            // Changes that are told of are the only ones to drop pages for: by itself the kernel
            // would take a new time of modification for a change by others, and drop the pages that
            // it has just written.
            Invalidation::None | Invalidation::Push => init::EXPLICIT_INVAL_DATA,
            Invalidation::Ttl => init::AUTO_INVAL_DATA,
        };
        if self.keeping.is_shared() {
            wanted &= !init::NO_OPENDIR_SUPPORT;
        }
        if self.only_user.is_some() {
            // The kernel does not know whom to keep out; to open is to ask.
            wanted &= !(init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT);
        }
        if self.backings.is_some() {
            wanted |= init::PASSTHROUGH;
        }
        wanted
    }

    /// Takes in what both sides can do.
    pub(super) fn begin(&self, told: &InitIn, agreed: u64) -> Result<()> {
        self.forgets_names_at_once
            .store(told.minor >= abi::MINOR_EPOCHS, Ordering::Relaxed);
        let takes_files = agreed & init::PASSTHROUGH != 0;
        self.takes_files.store(takes_files, Ordering::Relaxed);
        match self.keeping.passthrough {
            Passthrough::Always if !takes_files => Err(Errno::OPNOTSUPP.into()),
            _ => Ok(()),
        }
    }

    /// Whether it is none of the user's business; what the kernel asks for by itself may have any.
    pub(super) fn shuts_out(&self, header: &InHeader) -> bool {
        const BY_ITSELF: [u32; 12] = [
            op::INIT,
            op::DESTROY,
            op::READ,
            op::WRITE,
            op::READDIR,
            op::READDIRPLUS,
            op::FORGET,
            op::BATCH_FORGET,
            op::FSYNC,
            op::FSYNCDIR,
            op::RELEASE,
            op::RELEASEDIR,
        ];
        self.only_user
            .is_some_and(|user| header.uid != 0 && header.uid != user)
            && !BY_ITSELF.contains(&header.opcode)
    }

    /// For how long the kernel may believe that a name is missing.
    pub(super) fn missing_ttl(&self, ttl: Duration) -> Duration {
        match self.is_told() && !self.forgets_names_at_once.load(Ordering::Relaxed) {
            true => ttl.min(MISSING_TTL),
            false => ttl,
        }
    }

    /// What to tell the kernel so that it believes for `ttl`.
    pub(super) fn ttl(&self, ttl: Duration) -> Duration {
        in_ticks(ttl)
    }

    /// What the kernel is told of a file that is open now.
    pub(super) fn opened(
        &self,
        adapter: &Adapter,
        (node, file): (u64, u64),
        is_written: bool,
    ) -> OpenOut {
        let backings = self
            .backings
            .as_ref()
            .filter(|_| self.takes_files.load(Ordering::Relaxed));
        let backing =
            backings.and_then(|backings| backings.open(adapter, (node, file), is_written));
        match backing {
            Some(backing) => OpenOut {
                file,
                open_flags: open::PASSTHROUGH,
                backing,
            },
            None => OpenOut {
                file,
                open_flags: self.kept(adapter, node),
                backing: 0,
            },
        }
    }

    /// A file of the node is closed.
    pub(super) fn closed(&self, adapter: &Adapter, node: u64) {
        if let Some(backings) = &self.backings {
            backings.close(adapter, node);
        }
    }

    /// What the kernel keeps of a file that is opened.
    fn kept(&self, adapter: &Adapter, node: u64) -> u32 {
        let is_same = match self.keeping.invalidation {
            Invalidation::None => true,
            Invalidation::Push => !adapter.take_rewritten(node),
            Invalidation::Ttl => adapter.is_as_opened_before(node),
        };
        self.keeping
            .pages(self.is_told() && adapter.is_told_of(node), is_same)
    }

    /// What the kernel keeps of the listing of a directory that is opened.
    pub(super) fn listing(&self, adapter: &Adapter, node: u64) -> u32 {
        self.keeping
            .listing(self.is_told() && adapter.is_told_of(node))
    }
}
