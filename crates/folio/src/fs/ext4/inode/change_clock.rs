//! The clock of the commit thread, by which operations note that they changed something. A note
//! costs two loads, except the first one of each tick.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Counts the ticks of the commit thread. Ticks wrap around.
#[derive(Default)]
pub(crate) struct ChangeClock {
    tick: AtomicU32,
    /// The tick of the last change.
    changed_in: AtomicU32,
    /// Whether the thread pauses until a change wakes it.
    is_resting: AtomicBool,
}

impl ChangeClock {
    /// Notes a change that was made; returns whether the thread must be woken.
    pub(crate) fn note(&self) -> bool {
        let tick = self.tick.load(Ordering::Relaxed);
        if self.changed_in.load(Ordering::Relaxed) == tick {
            return false;
        }
        self.changed_in.store(tick, Ordering::Relaxed);
        self.is_resting.load(Ordering::SeqCst) && self.stop_rest()
    }

    /// Returns the number of the current tick.
    pub(crate) fn tick(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Begins the next tick; returns its number.
    pub(crate) fn advance(&self) -> u32 {
        self.tick.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// Makes the next change wake the thread. The thread looks for changes after this, as those
    /// before may not have.
    pub(crate) fn rest(&self) {
        self.is_resting.store(true, Ordering::SeqCst);
        // A new tick: a change that is noted in the old one would not look at `is_resting`.
        self.advance();
    }

    /// Ends the rest; returns whether no change has ended it.
    pub(crate) fn stop_rest(&self) -> bool {
        self.is_resting.swap(false, Ordering::SeqCst)
    }

    /// Returns the tick of the last change.
    pub(crate) fn last_change(&self) -> u32 {
        self.changed_in.load(Ordering::Relaxed)
    }

    /// Returns how many ticks have begun since the tick `earlier`.
    pub(crate) fn ticks_since(&self, earlier: u32) -> u32 {
        self.tick().wrapping_sub(earlier)
    }
}
