//! Advisory locks on whole files: flock(2). A lock belongs to the open file, so that descriptors
//! made by dup(2) share it, and the last close releases it.

use super::owner::OwnerId;
use bitflags::bitflags;
use smallvec::SmallVec;

bitflags! {
    /// The operation of flock(2): exactly one of `SH`, `EX` and `UN`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlockOperation: u32 {
        /// Take a lock that several open files may have.
        const SH = 1;
        /// Take a lock that no other open file has.
        const EX = 2;
        /// Fail with EAGAIN instead of waiting.
        const NB = 4;
        /// Release the lock.
        const UN = 8;
    }
}

/// The lock that one open file has on an inode.
struct Holder {
    owner: OwnerId,
    is_exclusive: bool,
}

/// The locks on one whole file.
#[derive(Default)]
pub(super) struct Flocks(SmallVec<[Holder; 1]>);

/// The result of an attempt to lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The owner has the lock; it has released the one before if it `has_released`.
    Locked { has_released: bool },
    /// Another owner has a conflicting lock.
    Blocked { has_released: bool },
}

impl Flocks {
    /// Takes or converts the lock of `owner`. As in Linux, a conversion first releases the old
    /// lock.
    pub(super) fn lock(&mut self, owner: OwnerId, is_exclusive: bool) -> Attempt {
        let held = self.0.iter().position(|holder| holder.owner == owner);
        if let Some(at) = held {
            if self.0[at].is_exclusive == is_exclusive {
                return Attempt::Locked {
                    has_released: false,
                };
            }
            self.0.remove(at);
        }
        let has_released = held.is_some();
        let is_free = if is_exclusive {
            self.0.is_empty()
        } else {
            self.0.iter().all(|holder| !holder.is_exclusive)
        };
        if !is_free {
            return Attempt::Blocked { has_released };
        }
        self.0.push(Holder {
            owner,
            is_exclusive,
        });
        Attempt::Locked { has_released }
    }

    pub(super) fn release(&mut self, owner: OwnerId) {
        self.0.retain(|holder| holder.owner != owner);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
