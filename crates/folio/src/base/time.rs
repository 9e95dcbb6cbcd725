//! Time stamps, and the clock that they come from.

use nix::libc;
use rustix::time::{ClockId, clock_gettime};

/// Seconds and nanoseconds since 1970-01-01 00:00 UTC; `nanos` is always below 1,000,000,000.
///
/// Times before 1970 have negative `secs` and still count `nanos` forward, as `struct timespec`
/// does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timespec {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds past `secs`.
    pub nanos: u32,
}

impl Timespec {
    /// Creates the time `secs` seconds and `nanos` nanoseconds after the epoch.
    pub const fn new(secs: i64, nanos: u32) -> Self {
        Self { secs, nanos }
    }
}

/// The source of the current time.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The host's real-time clock.
    #[default]
    System,
    /// A fixed time, for reproducible images (`SOURCE_DATE_EPOCH`).
    Fixed(Timespec),
}

impl Clock {
    /// Returns the current time. The host's is that of its last timer tick, a few milliseconds ago
    /// at most. Linux: `ktime_get_coarse_real_ts64`, which stamps inodes too.
    pub fn now(&self) -> Timespec {
        match self {
            Self::Fixed(time) => *time,
            Self::System => {
                let now = clock_gettime(ClockId::RealtimeCoarse);
                Timespec::new(now.tv_sec, now.tv_nsec as u32)
            }
        }
    }

    /// Returns the seconds of [`Clock::now`], for a third of the instructions. Linux:
    /// `ktime_get_real_seconds`.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn now_secs(&self) -> i64 {
        match self {
            Self::Fixed(time) => time.secs,
            // SAFETY: with a null pointer, time(2) only returns a value.
            Self::System => unsafe { libc::time(std::ptr::null_mut()) },
        }
    }
}
