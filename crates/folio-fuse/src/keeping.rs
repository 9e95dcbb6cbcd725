//! What a kernel keeps of a mount, and until when.

use crate::options::Passthrough;
use crate::wire::{self, DataCache, open};
use rustix::time::{ClockId, clock_getres};
use std::sync::LazyLock;
use std::time::Duration;

/// Who else changes the file system, and how the kernel learns of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// Nobody does.
    None,
    /// Others do, and the kernel is told at once.
    Push,
    /// Others do, and the kernel asks again when a time to live is over.
    Ttl,
}

/// What the kernel's page cache holds of files that are not passed through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pages {
    /// What was read or written; writes reach Folio before write(2) returns.
    #[default]
    Clean,
    /// What was written reaches Folio later: by fsync(2), or when the kernel thinks fit.
    WrittenBack,
    /// Nothing.
    None,
}

/// What the kernel keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachePolicy {
    pub(crate) invalidation: Invalidation,
    pub(crate) pages: Pages,
    /// Whether files of the host are handed to the kernel where it takes them.
    pub(crate) passthrough: Passthrough,
}

/// From here on a time to live means that changes are told of.
const TOLD_TTL: Duration = Duration::from_secs(3600);
/// From this size on, a file that is only read is passed through.
const PASSED_MIN_BYTES: u64 = 256 << 10;
/// How much later than promised a change may be seen.
const GRACE: Duration = Duration::from_millis(5);

/// What to tell the kernel so that it believes for `ttl`. It counts in ticks of its clock, rounds
/// up, and believes to the end of the last one.
pub(crate) fn in_ticks(ttl: Duration) -> Duration {
    static TICK: LazyLock<Duration> = LazyLock::new(|| {
        let tick = clock_getres(ClockId::RealtimeCoarse);
        Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32)
    });
    whole_ticks(ttl, *TICK)
}

fn whole_ticks(ttl: Duration, tick: Duration) -> Duration {
    let tick_ns = tick.as_nanos().max(1);
    match ttl >= TOLD_TTL {
        true => ttl,
        false => {
            let ticks = ((ttl + GRACE).as_nanos() / tick_ns).saturating_sub(1);
            if ttl.is_zero() {
                ttl
            } else {
                tick * u32::try_from(ticks).unwrap_or(u32::MAX)
            }
        }
    }
}

impl CachePolicy {
    /// What the kernel behind /dev/fuse may believe and keep, in the words of the protocol. The
    /// file system knows for how long.
    pub(crate) fn options(self) -> wire::ClientOptions {
        let mut options = match self.invalidation {
            Invalidation::None => wire::ClientOptions::exclusive(),
            Invalidation::Push | Invalidation::Ttl => wire::ClientOptions::shared(wire::FOREVER),
        };
        if self.pages == Pages::None {
            options.data = DataCache::None;
        }
        options.writeback = self.pages == Pages::WrittenBack;
        options
    }

    pub(crate) fn is_shared(self) -> bool {
        self.invalidation != Invalidation::None
    }

    /// Files of at least this size are handed to the kernel, and all that are written; `None` if
    /// none are.
    ///
    /// The kernel reads long pieces by itself as fast as on the host, and writes ten times as fast
    /// as through a server. But it asks for the attributes after each such read, since it does not
    /// know the time of access. So small files that are only read are better off in its cache, if
    /// it is told of changes; if not, it would ask for those anyway.
    pub(crate) fn passed_through(self) -> Option<u64> {
        match self.passthrough {
            _ if !self.is_shared() || self.pages != Pages::Clean => None,
            Passthrough::Never => None,
            Passthrough::Auto if self.invalidation == Invalidation::Push => Some(PASSED_MIN_BYTES),
            Passthrough::Auto | Passthrough::Always => Some(0),
        }
    }

    /// What the kernel does with the pages of a file that is opened. `is_told` says whether changes
    /// of it are told of, and `is_same` whether its contents are as they were when the kernel
    /// opened it last, or known to be in its pages.
    pub(crate) fn pages(self, is_told: bool, is_same: bool) -> u32 {
        match (self.pages, self.invalidation) {
            (Pages::None, _) => open::DIRECT_IO,
            // Nobody would tell of a change.
            (_, Invalidation::Push) if !is_told => open::DIRECT_IO,
            // Pages that are mapped are never asked for again.
            _ if !is_same => 0,
            _ => open::KEEP_CACHE,
        }
    }

    /// What the kernel does with the listing of a directory that is opened. Where it is not told of
    /// changes it knows them by the time of modification, and two changes within one tick of the
    /// clock have the same.
    pub(crate) fn listing(self, is_told: bool) -> u32 {
        match self.invalidation {
            Invalidation::Ttl => 0,
            Invalidation::Push if !is_told => 0,
            _ => open::KEEP_CACHE | open::CACHE_DIR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeping(invalidation: Invalidation, pages: Pages) -> CachePolicy {
        CachePolicy {
            invalidation,
            pages,
            passthrough: Passthrough::Auto,
        }
    }

    #[test]
    fn pages_are_kept_only_where_changes_are_noticed() {
        let (keep, direct) = (open::KEEP_CACHE, open::DIRECT_IO);
        let told = keeping(Invalidation::Push, Pages::Clean);
        assert_eq!(
            (told.pages(true, true), told.pages(false, true)),
            (keep, direct)
        );
        assert_eq!(told.pages(true, false), 0);
        assert_eq!(told.listing(false), 0);
        let asked = keeping(Invalidation::Ttl, Pages::Clean);
        assert_eq!(
            (asked.pages(false, true), asked.pages(false, false)),
            (keep, 0)
        );
        assert_eq!(
            keeping(Invalidation::None, Pages::Clean).pages(true, true),
            keep
        );
        assert_eq!(
            keeping(Invalidation::Push, Pages::None).pages(true, true),
            direct
        );
    }

    #[test]
    fn a_time_to_live_in_ticks_ends_in_time() {
        let ms = Duration::from_millis;
        for tick in [ms(1), ms(4), ms(10)] {
            for ttl in 0..200 {
                let told = whole_ticks(ms(ttl), tick);
                assert!(told.as_nanos().is_multiple_of(tick.as_nanos()) && told <= ms(ttl + 5));
                assert!(
                    told.is_zero() || told + tick <= ms(ttl + 5),
                    "{ttl} ms: {told:?} of {tick:?}"
                );
            }
        }
        assert_eq!(whole_ticks(ms(30), ms(4)), ms(28));
        assert_eq!(whole_ticks(TOLD_TTL, ms(4)), TOLD_TTL);
    }

    #[test]
    fn small_files_are_cached_where_changes_are_told_of() {
        let with = |invalidation, passthrough| {
            CachePolicy {
                invalidation,
                pages: Pages::Clean,
                passthrough,
            }
            .passed_through()
        };
        assert_eq!(
            with(Invalidation::Push, Passthrough::Auto),
            Some(PASSED_MIN_BYTES)
        );
        assert_eq!(with(Invalidation::Ttl, Passthrough::Auto), Some(0));
        assert_eq!(with(Invalidation::Push, Passthrough::Always), Some(0));
        assert_eq!(with(Invalidation::Push, Passthrough::Never), None);
        assert_eq!(with(Invalidation::None, Passthrough::Always), None);
        assert_eq!(
            keeping(Invalidation::Push, Pages::None).passed_through(),
            None
        );
    }
}
