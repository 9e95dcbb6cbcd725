//! What others may change behind our back, and until when it is believed. Linux: `d_revalidate`,
//! `fuse_update_attributes`.
//!
//! ```text
//!   stat, read, append, ...        path walk
//!          v                           v
//!   Coherence: attributes, data    Belief: one name, in the dentry cache
//!          | not believed any more     | not believed any more
//!          v                           v
//!   Inode::revalidate              Inode::lookup        ask what lies behind
//! ```
//!
//! A file system that nobody else changes has none of this. Where others do, an answer is believed
//! for a time to live that counts from before the question, and until somebody doubts it: a change
//! that was told of. Who asks takes a [`Question`] first, so that a change told of meanwhile is not
//! forgotten when the answer comes.

use super::dentry::Dentry;
use super::{Attributes, Inode, InodeNumber};
use crate::base::Result;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What is known of an inode that others may change. All of it is doubted at first.
#[derive(Default)]
pub struct Coherence {
    /// Up to when attributes and data are believed, by [`now_ns`].
    believed_until_ns: AtomicU64,
    /// How often attributes and data were doubted.
    doubts: AtomicU64,
    /// Whether the file system tells of changes.
    is_told_of: AtomicBool,
    /// How often the names in a directory were doubted.
    name_doubts: AtomicU64,
    /// How long a name in a directory is believed, in nanoseconds.
    names_ttl_ns: AtomicU64,
    /// A directory's dentry, which is found again when others have moved the directory.
    dentry: Mutex<Weak<Dentry>>,
}

/// A time to live that never ends.
pub const FOREVER_NS: u64 = u64::MAX;

/// Nanoseconds of the monotonic clock, which does not jump.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Whether it is earlier than that; without a look at the clock if that is never or always so.
#[inline]
fn is_before(until_ns: u64) -> bool {
    until_ns == FOREVER_NS || (until_ns != 0 && now_ns() < until_ns)
}

/// How long it is until then.
fn left(until_ns: u64) -> Duration {
    match until_ns {
        FOREVER_NS => Duration::MAX,
        0 => Duration::ZERO,
        _ => Duration::from_nanos(until_ns.saturating_sub(now_ns())),
    }
}

/// When something was asked; what was told of later counts against the answer.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    at_ns: u64,
    doubts: u64,
}

impl Question {
    /// The same question, but it was asked when `earlier` was, of somebody whose name was not known
    /// then.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            at_ns: self.at_ns.min(earlier.at_ns),
            ..self
        }
    }

    /// Up to when the answer is believed.
    fn until_ns(self, ttl_ns: u64) -> u64 {
        if ttl_ns == 0 {
            0
        } else {
            self.at_ns.saturating_add(ttl_ns)
        }
    }
}

impl Coherence {
    /// Whether attributes and data may be used without asking.
    #[inline]
    pub fn is_believed(&self) -> bool {
        is_before(self.believed_until_ns.load(Ordering::Acquire))
    }

    /// For how long attributes and data may still be used without asking.
    pub(crate) fn believed_for(&self) -> Duration {
        left(self.believed_until_ns.load(Ordering::Acquire))
    }

    /// To be called before what lies behind is asked for attributes.
    pub fn ask(&self) -> Question {
        Question {
            at_ns: now_ns(),
            doubts: self.doubts.load(Ordering::SeqCst),
        }
    }

    /// Believes the answer for `ttl_ns` from the question on, unless it was doubted meanwhile.
    pub fn believe(&self, question: Question, ttl_ns: u64) {
        if self.doubts.load(Ordering::SeqCst) != question.doubts {
            return;
        }
        self.believed_until_ns
            .store(question.until_ns(ttl_ns), Ordering::SeqCst);
        if self.doubts.load(Ordering::SeqCst) != question.doubts {
            self.believed_until_ns.store(0, Ordering::SeqCst);
        }
    }

    /// Notes whether the file system tells its listeners when attributes and data change, until it
    /// asks again.
    pub fn set_told_of(&self, is_told_of: bool) {
        self.is_told_of.store(is_told_of, Ordering::Release);
    }

    pub(crate) fn is_told_of(&self) -> bool {
        self.is_told_of.load(Ordering::Acquire)
    }

    /// Attributes or data have changed, or may have.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        self.believed_until_ns.store(0, Ordering::SeqCst);
    }

    /// Names in the directory have changed, or may have.
    pub fn doubt_names(&self) {
        self.name_doubts.fetch_add(1, Ordering::SeqCst);
    }

    /// How long a name that is found in the directory from now on is believed.
    pub fn believe_names_for(&self, ttl_ns: u64) {
        self.names_ttl_ns.store(ttl_ns, Ordering::SeqCst);
    }

    /// The dentry that the directory had last, if anybody uses it.
    pub(super) fn dentry(&self) -> Option<Arc<Dentry>> {
        self.dentry.lock().upgrade()
    }

    pub(super) fn set_dentry(&self, dentry: &Arc<Dentry>) {
        *self.dentry.lock() = Arc::downgrade(dentry);
    }

    /// To be called before what lies behind is asked for a name.
    pub(super) fn ask_for_name(&self) -> Question {
        Question {
            at_ns: now_ns(),
            doubts: self.name_doubts.load(Ordering::SeqCst),
        }
    }
}

/// Up to when what the dentry cache says of one name is believed.
#[derive(Default)]
pub(super) struct Belief {
    until_ns: AtomicU64,
    doubts: AtomicU64,
}

impl Belief {
    /// Believes what was found when `question` was asked. Whoever sees this sees what was found,
    /// too.
    pub(super) fn renew(&self, question: Question, directory: &Coherence) {
        // Between the two stores the answer is believed shorter than it might be, never longer.
        self.until_ns.store(0, Ordering::Release);
        self.doubts.store(question.doubts, Ordering::Release);
        let ttl_ns = directory.names_ttl_ns.load(Ordering::SeqCst);
        self.until_ns
            .store(question.until_ns(ttl_ns), Ordering::Release);
    }

    /// Believes nothing.
    pub(super) fn end(&self) {
        self.until_ns.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn holds(&self, directory: &Coherence) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        self.doubts.load(Ordering::Acquire) == directory.name_doubts.load(Ordering::SeqCst)
            && is_before(until_ns)
    }

    /// For how long the name may still be used without asking.
    pub(super) fn left(&self, directory: &Coherence) -> Duration {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        let is_doubted =
            self.doubts.load(Ordering::Acquire) != directory.name_doubts.load(Ordering::SeqCst);
        if is_doubted {
            Duration::ZERO
        } else {
            left(until_ns)
        }
    }
}

/// Whether attributes and data of an inode may be used without asking.
#[inline]
pub(crate) fn is_believed(inode: &dyn Inode) -> bool {
    inode
        .common()
        .coherence
        .as_ref()
        .is_none_or(Coherence::is_believed)
}

/// Asks what lies behind, unless attributes and data may be used without.
#[inline]
pub(crate) fn revalidate(inode: &dyn Inode) -> Result<()> {
    if is_believed(inode) {
        Ok(())
    } else {
        inode.revalidate()
    }
}

/// Everything stat(2) tells, as far as it is known without asking.
#[inline]
pub(crate) fn known_attributes(inode: &dyn Inode) -> Option<Attributes> {
    is_believed(inode).then(|| inode.attributes())
}

/// Everything stat(2) tells.
pub(crate) fn attributes(inode: &dyn Inode) -> Result<Attributes> {
    revalidate(inode)?;
    Ok(inode.attributes())
}

/// What others have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attributes, contents or both of an inode.
    Inode(InodeNumber),
    /// What a name in a directory leads to, or that it does.
    Name(InodeNumber, &'a [u8]),
    /// Nobody knows: everything may have changed.
    Everything,
}

/// Is told what others have changed; what is asked from then on is answered as it is now.
pub trait ChangeListener: Send + Sync {
    /// Something has changed. Called by a thread of the file system's own that holds no lock.
    fn changed(&self, change: Change<'_>);

    /// There is one more warning ([`FileSystem::warnings`](super::FileSystem::warnings)). Called by
    /// whoever met the reason, with locks held: it must not wait.
    fn warned(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_for_its_time_and_until_it_is_doubted() {
        let coherence = Coherence::default();
        assert!(!coherence.is_believed(), "nothing was asked yet");
        coherence.believe(coherence.ask(), FOREVER_NS);
        assert!(coherence.is_believed());
        coherence.doubt();
        assert!(!coherence.is_believed());
        coherence.believe(coherence.ask(), 0);
        assert!(!coherence.is_believed(), "always ask");
        let long_ago = Question {
            at_ns: 1,
            ..coherence.ask()
        };
        coherence.believe(long_ago, 1_000);
        assert!(
            !coherence.is_believed(),
            "the time to live counts from the question"
        );
    }

    #[test]
    fn a_change_told_of_while_the_answer_was_under_way_is_not_forgotten() {
        let coherence = Coherence::default();
        let question = coherence.ask();
        coherence.doubt();
        coherence.believe(question, FOREVER_NS);
        assert!(!coherence.is_believed());
    }

    #[test]
    fn a_name_is_believed_until_names_of_its_directory_are_doubted() {
        let directory = Coherence::default();
        directory.believe_names_for(FOREVER_NS);
        let belief = Belief::default();
        assert!(!belief.holds(&directory));
        let question = directory.ask_for_name();
        belief.renew(question, &directory);
        assert!(belief.holds(&directory));
        directory.doubt_names();
        assert!(!belief.holds(&directory));
        belief.renew(question, &directory);
        assert!(!belief.holds(&directory), "asked before the change");
        belief.renew(directory.ask_for_name(), &directory);
        assert!(belief.holds(&directory));
    }
}
