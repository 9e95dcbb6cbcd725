//! The local kernel as a client.

use super::backing::Backings;
use super::cache_policy::{CachePolicy, Invalidation, OpenedContents, Passthrough, in_ticks};
use crate::nodes::NodeTable;
use crate::wire::abi::{self, InHeader, InitIn, init, open};
use crate::wire::op;
use folio::syscall::OpenHandle;
use folio::{Errno, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest validity of a negative entry in a kernel that cannot invalidate all names at once. Known
/// names are then invalidated one by one, but there is no list of the negative entries.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(1);

/// The local kernel.
pub(crate) struct LocalClient {
    policy: CachePolicy,
    /// Files passed through to the kernel, if it may have any.
    backings: Option<Backings>,
    /// The only user besides root with access.
    only_user: Option<u32>,
    /// Whether requests may come over io_uring.
    may_use_uring: bool,
    /// The words of `-o`.
    given: Vec<String>,
    /// Whether the kernel can invalidate all names at once.
    has_epochs: AtomicBool,
    /// Whether the kernel supports passthrough.
    has_passthrough: AtomicBool,
}

impl LocalClient {
    pub(crate) fn new(
        policy: CachePolicy,
        backings: Option<Backings>,
        only_user: Option<u32>,
        may_use_uring: bool,
        given: Vec<String>,
    ) -> Self {
        Self {
            policy,
            backings,
            only_user,
            may_use_uring,
            given,
            has_epochs: AtomicBool::new(false),
            has_passthrough: AtomicBool::new(false),
        }
    }

    /// Returns whether changes are pushed, so that the kernel drops no pages by itself.
    pub(crate) fn is_pushed(&self) -> bool {
        self.policy.invalidation == Invalidation::Push
    }

    /// Returns whether the mount was made with this word of `-o`.
    pub(crate) fn was_given(&self, word: &str) -> bool {
        self.given.iter().any(|given| given == word)
    }

    /// Returns whether the kernel opens files of the host by itself.
    pub(crate) fn skips_open(&self) -> bool {
        self.policy.skips_open
    }

    /// Returns whether the kernel opens directories of the host by itself.
    pub(crate) fn skips_opendir(&self) -> bool {
        self.policy.skips_opendir() && self.only_user.is_none()
    }

    /// Adjusts the capabilities to ask for to this kernel.
    pub(crate) fn adjust_capabilities(&self, wanted: u64) -> u64 {
        let mut wanted = wanted & !(init::AUTO_INVAL_DATA | init::EXPLICIT_INVAL_DATA);
        wanted |= match self.policy.invalidation {
            Invalidation::None => init::EXPLICIT_INVAL_DATA,
            // Pages are dropped for pushed changes, and when a reply has another size: a page with
            // old bytes must not become longer. With AUTO_INVAL_DATA the kernel would take a new
            // mtime for an external change, and drop the pages that it has just written.
            Invalidation::Push => 0,
            Invalidation::Ttl => init::AUTO_INVAL_DATA,
        };
        if self.policy.is_shared() && !self.skips_opendir() {
            wanted &= !init::NO_OPENDIR_SUPPORT;
        }
        if self.policy.skips_open {
            wanted |= init::NO_OPEN_SUPPORT;
        }
        if self.only_user.is_some() {
            // The kernel does not know the users without access: each open is checked here.
            wanted &= !(init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT);
        }
        if self.backings.is_some() {
            wanted |= init::PASSTHROUGH;
        }
        if self.may_use_uring {
            wanted |= init::OVER_IO_URING;
        }
        wanted
    }

    /// Takes over the capabilities that both sides have.
    ///
    /// # Errors
    /// EOPNOTSUPP if passthrough is required and the kernel has none.
    pub(crate) fn negotiate(&self, args: &InitIn, capabilities: u64) -> Result<()> {
        let has_epochs = args.minor >= abi::MINOR_EPOCHS;
        self.has_epochs.store(has_epochs, Ordering::Relaxed);
        let has_passthrough = capabilities & init::PASSTHROUGH != 0;
        self.has_passthrough
            .store(has_passthrough, Ordering::Relaxed);
        match self.policy.passthrough {
            Passthrough::Always if !has_passthrough => Err(Errno::OPNOTSUPP.into()),
            _ => Ok(()),
        }
    }

    /// Returns whether the requesting user has no access. Requests that the kernel makes by itself
    /// may have any user.
    pub(crate) fn denies(&self, header: &InHeader) -> bool {
        const MADE_BY_KERNEL: [u32; 12] = [
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
            && !MADE_BY_KERNEL.contains(&header.opcode)
    }

    /// Returns the validity of a negative entry.
    pub(crate) fn negative_ttl(&self, ttl: Duration) -> Duration {
        if self.is_pushed() && !self.has_epochs.load(Ordering::Relaxed) {
            ttl.min(NEGATIVE_TTL_MAX)
        } else {
            ttl
        }
    }

    /// Returns the validity to send so that the kernel's ends after `ttl`.
    pub(crate) fn ttl(&self, ttl: Duration) -> Duration {
        in_ticks(ttl)
    }

    /// Counts a file that is opened; returns the flags of the reply and the backing file's id.
    pub(crate) fn open(
        &self,
        nodes: &NodeTable,
        node: u64,
        file: &OpenHandle,
        writes: bool,
    ) -> (u32, u32) {
        let backing = match &self.backings {
            Some(backings) if self.has_passthrough.load(Ordering::Relaxed) => {
                backings.open(nodes, node, file, writes)
            }
            _ => None,
        };
        match backing {
            Some(backing) => (open::PASSTHROUGH, backing),
            None => (self.open_flags(nodes, node), 0),
        }
    }

    /// Counts a file that is closed; returns whether it ended a passthrough with writes.
    pub(crate) fn close(&self, nodes: &NodeTable, node: u64) -> bool {
        self.backings
            .as_ref()
            .is_some_and(|backings| backings.close(nodes, node))
    }

    /// Returns what the kernel does with the pages of a file that is opened.
    fn open_flags(&self, nodes: &NodeTable, node: u64) -> u32 {
        let is_unchanged = match self.policy.invalidation {
            Invalidation::None => true,
            Invalidation::Push => !nodes.take_rewritten(node),
            Invalidation::Ttl => nodes.is_as_opened_before(node),
        };
        let has_notifications = self.is_pushed() && nodes.has_change_notifications(node);
        let contents = if is_unchanged {
            OpenedContents::Unchanged
        } else {
            OpenedContents::Changed
        };
        self.policy.pages(has_notifications, contents)
    }

    /// Returns what the kernel does with the listing of a directory that is opened.
    pub(crate) fn open_directory(&self, nodes: &NodeTable, node: u64) -> u32 {
        self.policy
            .listing(self.is_pushed() && nodes.has_change_notifications(node))
    }
}
