//! Revalidation: asks the host whether cached attributes and data are still valid.
//!
//! A file's data counts as changed when its size or one of its times has changed. That is not
//! enough in two cases, where pages are dropped once more although nothing seems to have changed:
//!
//! - A time has the granularity of a clock tick. Two writes in one tick leave the same time, and
//!   the cached pages may be from between them. As long as the last change is not older than
//!   [`TICK_NS`], pages are dropped at every question (git's index has the same rule for "racy"
//!   entries).
//! - A write sets the time when it begins. Pages read during the write are a mix of old and new
//!   data, and no later time shows that. So pages read when the last change was `a` ago are dropped
//!   when it is `2a` ago: however long a write took, the mix is dropped as long after its end.
//!   After [`SETTLED_NS`] the write has ended.
//!
//! After a write through Folio the time is Folio's, and hides an external change at the same
//! moment: pages are dropped once, [`OWN_NS`] later.
//!
//! Answers carry tickets, drawn before the question. An answer to an earlier question than the last
//! applied one is ignored.

use super::data_state::DataState;
use super::host_calls::{self, Status};
use super::inode::{HostInode, monotonic_ns};
use super::options::CacheMode;
use crate::base::{Result, Timespec};
use crate::vfs::{FOREVER_NS, RevalidateTicket};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering;

/// The coarsest tick of a kernel's clock, in nanoseconds.
const TICK_NS: u64 = 10_000_000;
/// Upper bound on the duration of a write(2), in nanoseconds.
const SETTLED_NS: u64 = 4_000_000_000;
/// Delay after which a change hidden behind a change through Folio is found, in nanoseconds.
const OWN_NS: u64 = 50_000_000;

/// A question to the host.
#[derive(Clone, Copy)]
pub(super) struct HostQuestion {
    ticket: u64,
    validity_ticket: RevalidateTicket,
    /// Whether changes from then on are reported.
    is_notified: bool,
    /// Whether they are reported also if the inode has other names.
    is_watched: bool,
}

/// Returns the age of a time in nanoseconds; 0 for a time in the future.
fn age_ns(then: Timespec) -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let ns = |secs: i64, nanos: i128| i128::from(secs) * 1_000_000_000 + nanos;
    let age = ns(now.tv_sec, now.tv_nsec.into()) - ns(then.secs, then.nanos.into());
    u64::try_from(age.max(0)).unwrap_or(u64::MAX)
}

/// Returns the delay in nanoseconds after which pages read now are dropped once more, if the last
/// change was `age_ns` ago. After `settled_ns` no write is in progress.
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
    /// Begins a question to the host about the inode.
    pub(super) fn ask(&self) -> HostQuestion {
        HostQuestion {
            ticket: self.shared.take_ticket(),
            validity_ticket: self.validity().ticket(),
            is_notified: self.is_notified(),
            is_watched: self.watch.is_active(),
        }
    }

    /// Returns a question that was asked at the time of `earlier`, before the inode was known.
    pub(super) fn ask_since(&self, earlier: HostQuestion) -> HostQuestion {
        HostQuestion {
            ticket: earlier.ticket,
            validity_ticket: self.validity().ticket().since(earlier.validity_ticket),
            ..self.ask()
        }
    }

    /// Returns the host's current status of the inode.
    pub(super) fn status(&self) -> Result<Status> {
        if self.is_root() {
            return host_calls::status(&*self.shared.root_fd);
        }
        self.status_if_open()
            .unwrap_or_else(|| self.status_by_name())
    }

    /// Asks the host, unless another thread asks after this call began.
    pub(super) fn ask_host(&self) -> Result<()> {
        // Before the lock: a question that begins after this answers this caller, too.
        let before = self.asked_count.load(Ordering::SeqCst);
        let _asking = self.revalidating.lock();
        if self.answered_count.load(Ordering::SeqCst) > before {
            return Ok(());
        }
        // The watch before the question: a change in between is reported.
        self.watch_inode();
        let count = self.asked_count.fetch_add(1, Ordering::SeqCst) + 1;
        let question = self.ask();
        let status = self.status()?;
        self.apply_locked(question, &status);
        self.answered_count.store(count, Ordering::SeqCst);
        Ok(())
    }

    /// Applies the answer to a question about a name of the inode.
    pub(super) fn apply(&self, question: HostQuestion, status: &Status) {
        let _asking = self.revalidating.lock();
        self.apply_locked(question, status);
    }

    /// Applies an answer, unless another thread revalidates the inode. For a caller that may hold
    /// the lock of a descendant.
    pub(super) fn apply_unless_busy(&self, question: HostQuestion, status: &Status) {
        if let Some(_asking) = self.revalidating.try_lock() {
            self.apply_locked(question, status);
        }
    }

    /// Applies an answer of the host. The caller holds `revalidating`.
    fn apply_locked(&self, question: HostQuestion, status: &Status) {
        let mut state = self.data_state.lock();
        if question.ticket <= state.ticket {
            return;
        }
        let is_notified = self.will_be_notified(question, status);
        let now_ns = monotonic_ns();
        let age_ns = age_ns(status.stamp.changed);
        let is_changed = state.stamp != status.stamp;
        let is_due = state.recheck_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let drops_pages = is_changed || is_due || state.is_suspect;
        state.ticket = question.ticket;
        state.stamp = status.stamp;
        state.is_own &= !is_changed;
        if drops_pages {
            let settled_ns = if is_notified { TICK_NS } else { SETTLED_NS };
            let after_ns = recheck_after_ns(age_ns, state.is_own, settled_ns);
            state.recheck_ns = after_ns.map(|after_ns| now_ns.saturating_add(after_ns));
            state.is_suspect = false;
        }
        let recheck_ns = state.recheck_ns;
        let size_bytes = self.size_with_unwritten(&mut state, status.stamp.size_bytes);
        self.publish(status, state.written);
        drop(state);
        if is_changed {
            self.common.attributes.invalidate_acls();
        }
        if let Some(mapping) = &self.common.mapping {
            // A concurrent reader must not see zeros that were never written: neither those after
            // the old end in a page, nor those that the host has after the new end.
            if size_bytes < mapping.size_bytes() {
                mapping.set_size_bytes(size_bytes);
            }
            if drops_pages {
                mapping.drop_clean();
            }
            let state = self.data_state.lock();
            // Meanwhile a read may have found an earlier end, or a change through Folio a new one.
            if state.ticket == question.ticket && state.end_ticket <= question.ticket {
                let unwritten = if state.has_unwritten {
                    mapping.size_bytes()
                } else {
                    0
                };
                mapping.set_size_bytes(size_bytes.max(unwritten));
            }
        }
        self.validity().set_change_notifications(
            is_notified && self.shared.options.notified_ttl_ns() == FOREVER_NS,
        );
        // Last: a reader that finds the answer valid must find the new size, and no old page.
        self.validity().validate(
            question.validity_ticket,
            self.valid_for_ns(is_notified, recheck_ns, now_ns, age_ns),
        );
    }

    /// Returns the size if the host reports `size_bytes` and the cache may have more.
    fn size_with_unwritten(&self, state: &mut DataState, size_bytes: u64) -> u64 {
        let Some(mapping) = self.common.mapping.as_ref().filter(|_| state.has_unwritten) else {
            return size_bytes;
        };
        state.forget_written(mapping);
        if state.has_unwritten {
            size_bytes.max(mapping.size_bytes())
        } else {
            size_bytes
        }
    }

    /// Shortens the file after a read found its end on the host before the cached end.
    pub(super) fn note_end(&self, question: HostQuestion, size_bytes: u64) {
        let Some(mapping) = &self.common.mapping else {
            return;
        };
        let mut state = self.data_state.lock();
        let is_newer = question.ticket > state.ticket && !state.has_unwritten;
        if is_newer && size_bytes < mapping.size_bytes() {
            mapping.set_size_bytes(size_bytes);
            state.end_ticket = question.ticket;
            state.is_suspect = true;
            drop(state);
            self.invalidate();
        }
    }

    /// Returns whether changes after an answer will be reported.
    fn will_be_notified(&self, question: HostQuestion, status: &Status) -> bool {
        let has_one_name = self.is_directory() || status.link_count == 1;
        question.is_watched || (question.is_notified && has_one_name)
    }

    /// Returns how long an answer is valid, in nanoseconds.
    fn valid_for_ns(
        &self,
        is_notified: bool,
        recheck_ns: Option<u64>,
        now_ns: u64,
        age_ns: u64,
    ) -> u64 {
        let is_regular = self.common.mapping.is_some();
        if is_regular && self.shared.options.cache == CacheMode::Off {
            return 0;
        }
        let options = &self.shared.options;
        let ttl_ns = if is_notified {
            options.notified_ttl_ns()
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

    /// Notes that the inode was created through Folio: the first notifications are about that.
    pub(super) fn note_own(&self) {
        let mut state = self.data_state.lock();
        state.own_until_ns = monotonic_ns().saturating_add(OWN_NS);
        state.own_stamp = Some(state.stamp);
    }

    /// Returns whether a notification that just arrived is about a change through Folio: one is in
    /// progress, or one was made a moment ago and the host's stamps are the known ones.
    pub(super) fn is_own_change(&self) -> bool {
        loop {
            let asked = {
                let state = self.data_state.lock();
                if state.own_count > 0 {
                    return true;
                }
                if monotonic_ns() >= state.own_until_ns {
                    return false;
                }
                state.ticket
            };
            let Ok(status) = self.status() else {
                return false;
            };
            let state = self.data_state.lock();
            // The status may be that of a change through Folio that began meanwhile.
            if state.own_count > 0 {
                return true;
            }
            // If one has ended meanwhile, or another thread has asked: compares with that state.
            if state.ticket == asked {
                return state.stamp == status.stamp;
            }
        }
    }
}

/// A change through Folio in progress.
pub(super) struct OwnChange<'a>(&'a HostInode);

impl HostInode {
    /// Takes over the host's size after a change through Folio. A size other than the cached one
    /// means that an external writer changed the file, too.
    fn apply_own_size(&self, state: &mut DataState, size_bytes: u64) {
        let Some(mapping) = self
            .common
            .mapping
            .as_ref()
            .filter(|_| !state.has_unwritten)
        else {
            return;
        };
        if mapping.size_bytes() != size_bytes {
            mapping.set_size_bytes(size_bytes);
            state.is_suspect = true;
            self.invalidate();
        }
    }

    /// Begins a change through Folio. External changes until now do not count as part of it.
    pub(super) fn begin_own(&self) -> Result<OwnChange<'_>> {
        let status = self.status()?;
        let mut state = self.data_state.lock();
        // An external change until here must not count as ours: the pages are dropped.
        if state.stamp != status.stamp {
            state.is_suspect = true;
        }
        state.own_count += 1;
        Ok(OwnChange(self))
    }
}

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let mut state = self.0.data_state.lock();
        state.own_count -= 1;
        state.own_until_ns = monotonic_ns().saturating_add(OWN_NS);
    }
}

impl OwnChange<'_> {
    /// Ends a change that the host has made: applies the host's status, and keeps cached pages.
    /// Returns the status.
    pub(super) fn end(self) -> Result<Status> {
        let inode = self.0;
        let question = inode.ask();
        let status = inode.status()?;
        let mut state = inode.data_state.lock();
        state.own_stamp = Some(status.stamp);
        let now_ns = monotonic_ns();
        // Another thread may have applied a later answer, and dropped pages.
        if question.ticket > state.ticket {
            state.ticket = question.ticket;
            state.stamp = status.stamp;
            state.is_own = true;
            let recheck_ns = now_ns.saturating_add(OWN_NS);
            state.recheck_ns = Some(
                state
                    .recheck_ns
                    .map_or(recheck_ns, |at_ns| at_ns.min(recheck_ns)),
            );
            inode.apply_own_size(&mut state, status.stamp.size_bytes);
            inode.publish(&status, state.written);
            inode.common.attributes.invalidate_acls();
            if state.is_suspect {
                inode.invalidate();
            } else if inode.validity().is_valid() {
                // At most until pages are dropped once more.
                let is_notified = inode.will_be_notified(question, &status);
                let valid_for_ns = inode.valid_for_ns(is_notified, state.recheck_ns, now_ns, 0);
                inode
                    .validity()
                    .validate(question.validity_ticket, valid_for_ns);
            }
        }
        drop(state);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_rechecked_until_settled() {
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
    fn future_time_has_age_zero() {
        let now = clock_gettime(ClockId::Realtime);
        assert_eq!(age_ns(Timespec::new(now.tv_sec + 100, 0)), 0);
        assert!(age_ns(Timespec::new(now.tv_sec - 100, 0)) >= 100_000_000_000);
        assert!(age_ns(Timespec::new(i64::MIN, 0)) > SETTLED_NS);
    }
}
