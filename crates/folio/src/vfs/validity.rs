//! The validity of cached attributes and names where external writers may change the backing store.
//!
//! ```text
//!   stat, read, append, ...              path walk
//!          v                                 v
//!   AttrValidity: attributes, data      NameValidity: one name in the dentry cache
//!          | expired or invalidated          | expired or invalidated
//!          v                                 v
//!   Inode::revalidate                   Inode::lookup        ask the backing store
//! ```
//!
//! A file system without external writers has none of this. With external writers, an answer of the
//! backing store is valid for a time to live that starts before the question, and until it is
//! invalidated by a change notification. The caller takes a [`RevalidateTicket`] before it asks, so
//! that a change reported between question and answer still invalidates the answer.
//!
//! Linux: `d_revalidate`, `fuse_update_attributes`.

use crate::base::lock::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};
use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The validity of an inode's attributes, data and names. Starts invalid.
#[derive(Default)]
pub struct AttrValidity {
    /// Attributes and data are valid until this time, in nanoseconds of the monotonic clock.
    valid_until_ns: AtomicU64,
    /// Number of invalidations of attributes and data.
    invalidations: AtomicU64,
    /// Whether the file system notifies its listeners when attributes or data change.
    has_change_notifications: AtomicBool,
    /// Whether reads bypass the page cache, so that cached data is never valid.
    is_uncached: bool,
    /// Number of invalidations of the names in a directory.
    name_invalidations: AtomicU64,
    /// Time to live of the names in a directory, in nanoseconds.
    name_ttl_ns: AtomicU64,
    /// Whether names that refer to the inode must be looked up again.
    is_lost: AtomicBool,
    /// The dentry of a directory, found again after an external writer moved the directory. Its
    /// type is known only to the dentry cache, one layer above. Linux: `i_dentry`.
    alias: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

/// A time to live without end, in nanoseconds.
pub const FOREVER_NS: u64 = u64::MAX;

/// Returns the monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Returns whether `until_ns` is in the future. Reads the clock only if the answer depends on it.
#[inline]
fn is_before(until_ns: u64) -> bool {
    until_ns == FOREVER_NS || (until_ns != 0 && now_ns() < until_ns)
}

/// Returns the time left until `until_ns`.
fn left(until_ns: u64) -> Duration {
    match until_ns {
        FOREVER_NS => Duration::MAX,
        0 => Duration::ZERO,
        _ => Duration::from_nanos(until_ns.saturating_sub(now_ns())),
    }
}

/// The time of a question to the backing store. Any later invalidation makes the answer invalid.
#[derive(Debug, Clone, Copy)]
pub struct RevalidateTicket {
    at_ns: u64,
    invalidations: u64,
}

impl RevalidateTicket {
    /// Returns this ticket with the time of `earlier`, for a question that was asked before its
    /// inode was known.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            at_ns: self.at_ns.min(earlier.at_ns),
            ..self
        }
    }

    /// Returns the time at which the answer expires.
    fn expiry_ns(self, ttl_ns: u64) -> u64 {
        if ttl_ns == 0 {
            0
        } else {
            self.at_ns.saturating_add(ttl_ns)
        }
    }
}

impl AttrValidity {
    /// Creates the validity of a file whose reads bypass the page cache: its attributes may be
    /// valid, its cached data never is.
    pub fn uncached() -> Self {
        Self {
            is_uncached: true,
            ..Self::default()
        }
    }

    /// Returns whether attributes may be used without asking the backing store.
    #[inline]
    pub fn is_valid(&self) -> bool {
        is_before(self.valid_until_ns.load(Ordering::Acquire))
    }

    /// Returns whether cached data may be read without any call of the file system.
    #[inline]
    pub fn is_data_valid(&self) -> bool {
        !self.is_uncached && self.is_valid()
    }

    /// Returns how long attributes and data stay valid.
    pub(crate) fn valid_for(&self) -> Duration {
        left(self.valid_until_ns.load(Ordering::Acquire))
    }

    /// Returns a ticket. Called before the backing store is asked for attributes.
    pub fn ticket(&self) -> RevalidateTicket {
        RevalidateTicket {
            at_ns: now_ns(),
            invalidations: self.invalidations.load(Ordering::SeqCst),
        }
    }

    /// Makes attributes and data valid for `ttl_ns` from the ticket on, unless they were
    /// invalidated since.
    pub fn validate(&self, ticket: RevalidateTicket, ttl_ns: u64) {
        if self.invalidations.load(Ordering::SeqCst) != ticket.invalidations {
            return;
        }
        self.valid_until_ns
            .store(ticket.expiry_ns(ttl_ns), Ordering::SeqCst);
        if self.invalidations.load(Ordering::SeqCst) != ticket.invalidations {
            self.valid_until_ns.store(0, Ordering::SeqCst);
        }
    }

    /// Sets whether the file system notifies its listeners when attributes or data change. Holds
    /// until the next revalidation.
    pub fn set_change_notifications(&self, has_change_notifications: bool) {
        self.has_change_notifications
            .store(has_change_notifications, Ordering::Release);
    }

    pub(crate) fn has_change_notifications(&self) -> bool {
        self.has_change_notifications.load(Ordering::Acquire)
    }

    /// Invalidates attributes and data: they have changed, or may have.
    pub fn invalidate(&self) {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        self.valid_until_ns.store(0, Ordering::SeqCst);
    }

    /// Invalidates the names in the directory: they have changed, or may have.
    pub fn invalidate_names(&self) {
        self.name_invalidations.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the file system did not find the inode at any name known to it, so that the name
    /// by which a caller found it is wrong, or new to the file system.
    pub fn set_lost(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }

    /// Notes that a lookup found the inode; returns whether it was lost.
    pub fn set_found(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Sets the time to live of names that are found in the directory from now on.
    pub fn set_name_ttl(&self, ttl_ns: u64) {
        self.name_ttl_ns.store(ttl_ns, Ordering::SeqCst);
    }

    /// Returns the dentry that the directory had last, if it is still in use.
    pub(super) fn alias<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let alias = self.alias.lock().as_ref()?.upgrade()?;
        alias.downcast().ok()
    }

    pub(super) fn set_alias<T: Any + Send + Sync>(&self, dentry: &Arc<T>) {
        let alias: Weak<T> = Arc::downgrade(dentry);
        *self.alias.lock() = Some(alias);
    }

    /// Returns a ticket. Called before the backing store is asked for a name.
    pub(super) fn name_ticket(&self) -> RevalidateTicket {
        RevalidateTicket {
            at_ns: now_ns(),
            invalidations: self.name_invalidations.load(Ordering::SeqCst),
        }
    }
}

/// The validity of one name in the dentry cache. Starts invalid.
#[derive(Default)]
pub(super) struct NameValidity {
    valid_until_ns: AtomicU64,
    invalidations: AtomicU64,
}

impl NameValidity {
    /// Makes the name valid as of `ticket`. A thread that sees it valid also sees what the lookup
    /// found.
    pub(super) fn validate(&self, ticket: RevalidateTicket, directory: &AttrValidity) {
        // Between the stores the name expires earlier than it might, never later.
        self.valid_until_ns.store(0, Ordering::Release);
        self.invalidations
            .store(ticket.invalidations, Ordering::Release);
        let ttl_ns = directory.name_ttl_ns.load(Ordering::SeqCst);
        self.valid_until_ns
            .store(ticket.expiry_ns(ttl_ns), Ordering::Release);
    }

    /// Makes the name invalid.
    pub(super) fn invalidate(&self) {
        self.valid_until_ns.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_valid(&self, directory: &AttrValidity) -> bool {
        let valid_until_ns = self.valid_until_ns.load(Ordering::Acquire);
        self.is_current(directory) && is_before(valid_until_ns)
    }

    /// Returns how long the name stays valid.
    pub(super) fn valid_for(&self, directory: &AttrValidity) -> Duration {
        let valid_until_ns = self.valid_until_ns.load(Ordering::Acquire);
        if self.is_current(directory) {
            left(valid_until_ns)
        } else {
            Duration::ZERO
        }
    }

    /// Returns whether no name of the directory was invalidated since the lookup.
    #[inline]
    fn is_current(&self, directory: &AttrValidity) -> bool {
        self.invalidations.load(Ordering::Acquire)
            == directory.name_invalidations.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_valid_until_expiry_or_invalidation() {
        let validity = AttrValidity::default();
        assert!(!validity.is_valid(), "starts invalid");
        validity.validate(validity.ticket(), FOREVER_NS);
        assert!(validity.is_valid());
        validity.invalidate();
        assert!(!validity.is_valid());
        validity.validate(validity.ticket(), 0);
        assert!(!validity.is_valid(), "a time to live of zero");
        let old = RevalidateTicket {
            at_ns: 1,
            ..validity.ticket()
        };
        validity.validate(old, 1_000);
        assert!(
            !validity.is_valid(),
            "the time to live starts at the question"
        );
    }

    #[test]
    fn change_between_question_and_answer_invalidates() {
        let validity = AttrValidity::default();
        let ticket = validity.ticket();
        validity.invalidate();
        validity.validate(ticket, FOREVER_NS);
        assert!(!validity.is_valid());
    }

    #[test]
    fn uncached_data_is_never_valid() {
        let validity = AttrValidity::uncached();
        validity.validate(validity.ticket(), FOREVER_NS);
        assert!(validity.is_valid() && !validity.is_data_valid());
    }

    #[test]
    fn name_is_valid_until_its_directory_invalidates() {
        let directory = AttrValidity::default();
        directory.set_name_ttl(FOREVER_NS);
        let name = NameValidity::default();
        assert!(!name.is_valid(&directory));
        let ticket = directory.name_ticket();
        name.validate(ticket, &directory);
        assert!(name.is_valid(&directory));
        directory.invalidate_names();
        assert!(!name.is_valid(&directory));
        name.validate(ticket, &directory);
        assert!(!name.is_valid(&directory), "asked before the change");
        name.validate(directory.name_ticket(), &directory);
        assert!(name.is_valid(&directory));
    }
}
