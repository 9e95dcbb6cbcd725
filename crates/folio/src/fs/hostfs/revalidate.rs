//! Whether what is in memory is still true: the host is asked, and what it has changed goes.
//!
//! A file's data is taken as changed when its size or one of its times is another. That is not
//! enough in two cases, where pages go once more although nothing seems to have changed:
//!
//! - A time has the granularity of a tick. Two writes in one tick leave the same time, and the
//!   pages may be from between. As long as the last change is not older than [`TICK_NS`], pages are
//!   dropped at every question (git's index has the same rule for "racy" entries).
//! - A write sets the time when it begins. Pages read while it is under way are a mix that nothing
//!   tells of later. So pages read when the last change was `a` ago are dropped when it is `2a`
//!   ago: whatever a write took, the mix is gone as long after its end. After [`SETTLED_NS`] nobody
//!   is writing any more.
//!
//! After a write of our own the time is ours, and a change by somebody else at the same moment
//! hides behind it: pages are dropped once, [`OWN_NS`] later.
//!
//! Answers carry tickets, drawn before the question. An answer to an earlier question than one that
//! was taken over already is of no use.

use super::host::{self, Stamp, Status};
use super::inode::{HostInode, monotonic_ns};
use super::options::CacheMode;
use crate::base::{Result, Timespec};
use crate::cache::Mapping;
use crate::vfs::{FOREVER_NS, RevalidateTicket};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering;

/// The coarsest tick of a kernel's clock.
const TICK_NS: u64 = 10_000_000;
/// No write(2) takes longer.
const SETTLED_NS: u64 = 4_000_000_000;
/// When a change that hides behind one of our own is found.
const OWN_NS: u64 = 50_000_000;

/// What is known of the data in memory.
pub(super) struct Known {
    /// Of the question whose answer this is.
    ticket: u64,
    pub(super) stamp: Stamp,
    /// Pages may be untrue, whatever the stamp says.
    pub(super) is_suspect: bool,
    /// The last change was our own.
    is_own: bool,
    /// Changes of our own that are under way.
    own_count: u32,
    /// Up to when what the host tells may be about a change of our own, by the monotonic clock.
    own_until_ns: u64,
    /// When pages are dropped once more, by the monotonic clock.
    recheck_ns: Option<u64>,
    /// The cache is being written, or has what the host has not: its size counts.
    pub(super) has_unwritten: bool,
    pub(super) is_being_written: bool,
    /// When it was written.
    pub(super) written: Option<Timespec>,
}

impl Known {
    pub(super) fn new(stamp: Stamp) -> Self {
        Self {
            ticket: 0,
            stamp,
            is_suspect: false,
            is_own: false,
            own_count: 0,
            own_until_ns: 0,
            // Nobody has looked how old the stamp is.
            recheck_ns: Some(0),
            has_unwritten: false,
            is_being_written: false,
            written: None,
        }
    }

    /// Once the host has all that the cache took, the host's size and times count.
    pub(super) fn forget_written(&mut self, mapping: &Mapping) {
        if !self.is_being_written && !mapping.is_dirty() {
            self.has_unwritten = false;
            self.written = None;
        }
    }
}

/// A question to the host.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    ticket: u64,
    question: RevalidateTicket,
    /// The host tells of what changes from then on.
    is_told_of: bool,
    /// Also if the inode has other names.
    is_watched: bool,
}

/// How long ago a time was; nothing if it is to come.
fn age_ns(then: Timespec) -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let ns = |secs: i64, nanos: i128| i128::from(secs) * 1_000_000_000 + nanos;
    let age = ns(now.tv_sec, now.tv_nsec.into()) - ns(then.secs, then.nanos.into());
    u64::try_from(age.max(0)).unwrap_or(u64::MAX)
}

/// When pages that are read now are dropped once more, if the last change was so long ago: in how
/// many nanoseconds. `settled_ns` is when nobody writes any more.
fn recheck_after_ns(age_ns: u64, is_own: bool, settled_ns: u64) -> Option<u64> {
    if is_own && age_ns < OWN_NS {
        Some(OWN_NS)
    } else if age_ns < TICK_NS {
        Some(0)
    } else {
        (age_ns < settled_ns).then_some(age_ns)
    }
}

impl HostInode {
    /// To be called before the host is asked about the inode.
    pub(super) fn ask(&self) -> Asked {
        Asked {
            ticket: self.shared.take_ticket(),
            question: self.validity().ticket(),
            is_told_of: self.is_told_of(),
            is_watched: self.watch.is_placed(),
        }
    }

    /// The same, where the host was asked before the inode was known.
    pub(super) fn ask_since(&self, earlier: Asked) -> Asked {
        Asked {
            ticket: earlier.ticket,
            question: self.validity().ticket().since(earlier.question),
            ..self.ask()
        }
    }

    /// What the host tells now.
    pub(super) fn status(&self) -> Result<Status> {
        if self.is_root() {
            return host::status(&*self.shared.root_fd);
        }
        self.status_if_open()
            .unwrap_or_else(|| self.status_by_name())
    }

    /// Asks the host, unless somebody else does so after this was called.
    pub(super) fn ask_host(&self) -> Result<()> {
        let before = self.asked_count.load(Ordering::SeqCst);
        let _asking = self.revalidating.lock();
        if self.answered_count.load(Ordering::SeqCst) > before {
            return Ok(());
        }
        self.watch_if_pushed();
        let count = self.asked_count.fetch_add(1, Ordering::SeqCst) + 1;
        let asked = self.ask();
        let status = self.status()?;
        self.take_over(asked, &status);
        self.answered_count.store(count, Ordering::SeqCst);
        Ok(())
    }

    /// Takes over an answer that somebody got who asked about a name.
    pub(super) fn adopt(&self, asked: Asked, status: &Status) {
        let _asking = self.revalidating.lock();
        self.take_over(asked, status);
    }

    /// The same, but for who may hold the lock of an inode below.
    pub(super) fn adopt_unless_busy(&self, asked: Asked, status: &Status) {
        if let Some(_asking) = self.revalidating.try_lock() {
            self.take_over(asked, status);
        }
    }

    /// Takes over what the host tells. The caller holds `revalidating`.
    fn take_over(&self, asked: Asked, status: &Status) {
        let mut known = self.known.lock();
        if asked.ticket <= known.ticket {
            return;
        }
        let is_pushed = self.is_pushed(asked, status);
        let now_ns = monotonic_ns();
        let age_ns = age_ns(status.stamp.changed);
        let is_changed = known.stamp != status.stamp;
        let is_due = known.recheck_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let is_dropped = is_changed || is_due || known.is_suspect;
        known.ticket = asked.ticket;
        known.stamp = status.stamp;
        known.is_own &= !is_changed;
        if is_dropped {
            let settled_ns = if is_pushed { TICK_NS } else { SETTLED_NS };
            let after_ns = recheck_after_ns(age_ns, known.is_own, settled_ns);
            known.recheck_ns = after_ns.map(|after_ns| now_ns.saturating_add(after_ns));
            known.is_suspect = false;
        }
        let recheck_ns = known.recheck_ns;
        let size_bytes = self.size_with_unwritten(&mut known, status.stamp.size_bytes);
        self.publish(status, known.written);
        drop(known);
        if is_changed {
            self.common.attributes.invalidate_acls();
        }
        if let Some(mapping) = &self.common.mapping {
            // A reader at this moment shall see no zeros that nobody wrote: not those behind the
            // old end in a page, nor those that the host has behind the new one.
            if size_bytes < mapping.size_bytes() {
                mapping.set_size_bytes(size_bytes);
            }
            if is_dropped {
                mapping.drop_clean();
            }
            let known = self.known.lock();
            // A read may have found an earlier end meanwhile, or a change of our own another.
            if known.ticket == asked.ticket && !known.is_suspect {
                let unwritten = if known.has_unwritten {
                    mapping.size_bytes()
                } else {
                    0
                };
                mapping.set_size_bytes(size_bytes.max(unwritten));
            }
        }
        self.validity().set_change_notifications(
            is_pushed && self.shared.options.pushed_ttl_ns() == FOREVER_NS,
        );
        self.validity().validate(
            asked.question,
            self.believed_ns(is_pushed, recheck_ns, now_ns, age_ns),
        );
    }

    /// The size, where the host tells `size_bytes` and the cache may have more.
    fn size_with_unwritten(&self, known: &mut Known, size_bytes: u64) -> u64 {
        let Some(mapping) = self.common.mapping.as_ref().filter(|_| known.has_unwritten) else {
            return size_bytes;
        };
        known.forget_written(mapping);
        if known.has_unwritten {
            size_bytes.max(mapping.size_bytes())
        } else {
            size_bytes
        }
    }

    /// A read found the end of the file on the host before the end that is known: it has become
    /// shorter.
    pub(super) fn note_end(&self, asked: Asked, size_bytes: u64) {
        let Some(mapping) = &self.common.mapping else {
            return;
        };
        let mut known = self.known.lock();
        let is_news = asked.ticket > known.ticket && !known.has_unwritten;
        if is_news && size_bytes < mapping.size_bytes() {
            mapping.set_size_bytes(size_bytes);
            known.is_suspect = true;
            drop(known);
            self.doubt();
        }
    }

    /// Whether the host tells of what changes after an answer.
    fn is_pushed(&self, asked: Asked, status: &Status) -> bool {
        let is_alone = self.is_directory() || status.link_count == 1;
        asked.is_watched || (asked.is_told_of && is_alone)
    }

    /// How long an answer is believed.
    fn believed_ns(
        &self,
        is_pushed: bool,
        recheck_ns: Option<u64>,
        now_ns: u64,
        age_ns: u64,
    ) -> u64 {
        let is_regular = self.common.mapping.is_some();
        if is_regular && self.shared.options.cache == CacheMode::Off {
            return 0;
        }
        let options = &self.shared.options;
        let ttl_ns = if is_pushed {
            options.pushed_ttl_ns()
        } else {
            options.ttl_ns()
        };
        match recheck_ns.filter(|_| is_regular) {
            Some(at_ns) => ttl_ns.min(
                at_ns
                    .saturating_sub(now_ns)
                    .max(TICK_NS.saturating_sub(age_ns)),
            ),
            None => ttl_ns,
        }
    }

    /// We have made it: what the host tells of it at first is about that.
    pub(super) fn note_own(&self) {
        self.known.lock().own_until_ns = monotonic_ns().saturating_add(OWN_NS);
    }

    /// Whether what the host told just now is but what we did ourselves: a change of our own is
    /// under way, or was made a moment ago and the host tells what we know.
    pub(super) fn is_changed_by_us(&self) -> bool {
        let known = self.known.lock();
        if known.own_count > 0 {
            return true;
        }
        let is_recent = monotonic_ns() < known.own_until_ns;
        drop(known);
        is_recent
            && self
                .status()
                .is_ok_and(|status| self.known.lock().stamp == status.stamp)
    }
}

/// A change of our own that is under way.
pub(super) struct OwnChange<'a>(&'a HostInode);

impl HostInode {
    /// After a change of our own the size is the host's; if that is another than ours, somebody
    /// else was there, too.
    fn settle_size(&self, known: &mut Known, size_bytes: u64) {
        let Some(mapping) = self
            .common
            .mapping
            .as_ref()
            .filter(|_| !known.has_unwritten)
        else {
            return;
        };
        if mapping.size_bytes() != size_bytes {
            mapping.set_size_bytes(size_bytes);
            known.is_suspect = true;
            self.doubt();
        }
    }

    /// Begins a change of our own: what others changed until now is not to be taken as ours.
    pub(super) fn begin_own(&self) -> Result<OwnChange<'_>> {
        let status = self.status()?;
        let mut known = self.known.lock();
        if known.stamp != status.stamp {
            known.is_suspect = true;
        }
        known.own_count += 1;
        Ok(OwnChange(self))
    }
}

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let mut known = self.0.known.lock();
        known.own_count -= 1;
        known.own_until_ns = monotonic_ns().saturating_add(OWN_NS);
    }
}

impl OwnChange<'_> {
    /// The host has made the change: what it tells now is known, and pages stay. Returns what it
    /// tells.
    pub(super) fn end(self) -> Result<Status> {
        let inode = self.0;
        let asked = inode.ask();
        let status = inode.status()?;
        let mut known = inode.known.lock();
        let now_ns = monotonic_ns();
        // Somebody else may have seen it, and dropped pages; or more.
        if asked.ticket > known.ticket {
            known.ticket = asked.ticket;
            known.stamp = status.stamp;
            known.is_own = true;
            let recheck_ns = now_ns.saturating_add(OWN_NS);
            known.recheck_ns = Some(
                known
                    .recheck_ns
                    .map_or(recheck_ns, |at_ns| at_ns.min(recheck_ns)),
            );
            inode.settle_size(&mut known, status.stamp.size_bytes);
            inode.publish(&status, known.written);
            inode.common.attributes.invalidate_acls();
            if known.is_suspect {
                inode.doubt();
            } else if inode.validity().is_valid() {
                // Not longer than until pages are dropped once more.
                let believed_ns =
                    inode.believed_ns(inode.is_pushed(asked, &status), known.recheck_ns, now_ns, 0);
                inode.validity().validate(asked.question, believed_ns);
            }
        }
        drop(known);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_dropped_until_they_are_proven() {
        let after = |age_ns| recheck_after_ns(age_ns, false, SETTLED_NS);
        assert_eq!(after(0), Some(0));
        assert_eq!(after(TICK_NS - 1), Some(0));
        assert_eq!(after(TICK_NS), Some(TICK_NS));
        assert_eq!(after(1_000_000_000), Some(1_000_000_000));
        assert_eq!(after(SETTLED_NS), None);
        assert_eq!(recheck_after_ns(0, true, SETTLED_NS), Some(OWN_NS));
        assert_eq!(recheck_after_ns(OWN_NS, true, SETTLED_NS), Some(OWN_NS));
        assert_eq!(recheck_after_ns(TICK_NS, false, TICK_NS), None);
    }

    #[test]
    fn a_time_to_come_has_no_age() {
        let now = clock_gettime(ClockId::Realtime);
        assert_eq!(age_ns(Timespec::new(now.tv_sec + 100, 0)), 0);
        assert!(age_ns(Timespec::new(now.tv_sec - 100, 0)) >= 100_000_000_000);
        assert!(age_ns(Timespec::new(i64::MIN, 0)) > SETTLED_NS);
    }
}
