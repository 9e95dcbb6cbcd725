//! The cache policy of a mount: what the kernel keeps, and until when.

use crate::client_options::{ClientOptions, DataCache, FOREVER};
use crate::wire::abi::open;
use rustix::time::{ClockId, clock_getres};
use std::sync::LazyLock;
use std::time::Duration;

/// How the kernel's caches are invalidated when external writers change the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// Not needed: there are no external writers.
    None,
    /// Changes are pushed to the kernel at once.
    Push,
    /// The kernel revalidates when a TTL has expired.
    Ttl,
}

/// What the kernel's page cache holds of files that are not passed through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PageCaching {
    /// Data read and written; writes reach Folio before write(2) returns.
    #[default]
    Writethrough,
    /// The same, but writes reach Folio later: at fsync(2), or at the kernel's writeback.
    Writeback,
    /// Nothing.
    None,
}

/// Whether the kernel reads and writes files of the host by itself, past the server
/// (`FUSE_PASSTHROUGH`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Passthrough {
    /// If it can (Linux 6.9, and a server with root's capabilities), unless the kernel opens files
    /// without a request: it passes a file through only after one.
    #[default]
    Auto,
    /// Required: without it the mount fails.
    Always,
    /// Not permitted.
    Never,
}

/// What the kernel keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachePolicy {
    pub(crate) invalidation: Invalidation,
    pub(crate) page_caching: PageCaching,
    pub(crate) passthrough: Passthrough,
    /// Whether the kernel opens files by itself, without a request. It then keeps all pages until a
    /// notice, and passes no file through.
    pub(crate) skips_open: bool,
}

/// From this TTL on, changes are pushed, so that it need not be exact.
const PUSHED_TTL: Duration = Duration::from_secs(3600);
/// Files of at least this size are passed through even if they are only read.
const PASSED_MIN_BYTES: u64 = 256 << 10;
/// Longest delay beyond the TTL after which a change is seen.
const GRACE: Duration = Duration::from_millis(5);

/// Returns the TTL to send so that the kernel's validity ends after `ttl`. The kernel counts in
/// ticks of its clock, rounds up, and counts the last one in full.
pub(super) fn in_ticks(ttl: Duration) -> Duration {
    static TICK: LazyLock<Duration> = LazyLock::new(|| {
        let tick = clock_getres(ClockId::RealtimeCoarse);
        Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32)
    });
    whole_ticks(ttl, *TICK)
}

fn whole_ticks(ttl: Duration, tick: Duration) -> Duration {
    if ttl >= PUSHED_TTL || ttl.is_zero() {
        return ttl;
    }
    let tick_ns = tick.as_nanos().max(1);
    let ticks = ((ttl + GRACE).as_nanos() / tick_ns).saturating_sub(1);
    tick * u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// The contents of a file at an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenedContents {
    /// The same as at the kernel's last open, or known to be in its pages.
    Unchanged,
    Changed,
}

impl CachePolicy {
    /// Returns the options of the kernel as a client. The file system limits the TTL.
    pub(crate) fn client_options(self) -> ClientOptions {
        let mut options = match self.invalidation {
            Invalidation::None => ClientOptions::exclusive(),
            Invalidation::Push | Invalidation::Ttl => ClientOptions::shared(FOREVER),
        };
        if self.page_caching == PageCaching::None {
            options.data = DataCache::None;
        }
        options.writeback = self.page_caching == PageCaching::Writeback;
        options
    }

    pub(crate) fn is_shared(self) -> bool {
        self.invalidation != Invalidation::None
    }

    /// Returns the size in bytes from which files are passed through to the kernel if they are only
    /// read; `None` if no files are passed through.
    ///
    /// The kernel reads large ranges by itself as fast as on the host, and writes ten times as fast
    /// as through a server. But it asks for the attributes after each such read, since it does not
    /// know the access time. So small files that are only read perform better in its cache, if
    /// changes are pushed; if not, it would ask for the attributes anyway.
    pub(crate) fn passthrough_len_min(self) -> Option<u64> {
        match self.passthrough {
            _ if !self.is_shared() || self.page_caching != PageCaching::Writethrough => None,
            _ if self.skips_open => None,
            Passthrough::Never => None,
            Passthrough::Auto if self.invalidation == Invalidation::Push => Some(PASSED_MIN_BYTES),
            Passthrough::Auto | Passthrough::Always => Some(0),
        }
    }

    /// Returns what the kernel does with the pages of a file that is opened (`FOPEN_*`).
    pub(super) fn pages(self, has_notifications: bool, contents: OpenedContents) -> u32 {
        match (self.page_caching, self.invalidation) {
            (PageCaching::None, _) => open::DIRECT_IO,
            // No change would be pushed.
            (_, Invalidation::Push) if !has_notifications => open::DIRECT_IO,
            // Mapped pages are never revalidated.
            _ if contents == OpenedContents::Changed => 0,
            _ => open::KEEP_CACHE,
        }
    }

    /// Returns whether the kernel may open directories by itself, without a request, and keep their
    /// listings until a notice.
    pub(super) fn skips_opendir(self) -> bool {
        self.invalidation == Invalidation::Push && self.page_caching != PageCaching::None
    }

    /// Returns what the kernel does with the listing of a directory that is opened (`FOPEN_*`).
    /// Without pushed changes it would compare the mtime, which two changes within one tick of the
    /// clock share; so it keeps none. It keeps none either where it caches no pages.
    pub(super) fn listing(self, has_notifications: bool) -> u32 {
        match self.invalidation {
            _ if self.page_caching == PageCaching::None => 0,
            Invalidation::Ttl => 0,
            Invalidation::Push if !has_notifications => 0,
            _ => open::KEEP_CACHE | open::CACHE_DIR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OpenedContents::{Changed, Unchanged};
    use super::*;

    fn policy(invalidation: Invalidation, page_caching: PageCaching) -> CachePolicy {
        CachePolicy {
            invalidation,
            page_caching,
            passthrough: Passthrough::Auto,
            skips_open: false,
        }
    }

    #[test]
    fn pages_without_notifications_are_not_kept() {
        let (keep, direct) = (open::KEEP_CACHE, open::DIRECT_IO);
        let push = policy(Invalidation::Push, PageCaching::Writethrough);
        assert_eq!(
            (push.pages(true, Unchanged), push.pages(false, Unchanged)),
            (keep, direct)
        );
        assert_eq!(push.pages(true, Changed), 0);
        assert_eq!(push.listing(false), 0);
        let ttl = policy(Invalidation::Ttl, PageCaching::Writethrough);
        assert_eq!(
            (ttl.pages(false, Unchanged), ttl.pages(false, Changed)),
            (keep, 0)
        );
        assert_eq!(
            policy(Invalidation::None, PageCaching::Writethrough).pages(true, Unchanged),
            keep
        );
        assert_eq!(
            policy(Invalidation::Push, PageCaching::None).pages(true, Unchanged),
            direct
        );
    }

    #[test]
    fn ttl_in_ticks_ends_within_grace() {
        let ms = Duration::from_millis;
        for tick in [ms(1), ms(4), ms(10)] {
            for ttl in 0..200 {
                let sent = whole_ticks(ms(ttl), tick);
                assert!(sent.as_nanos().is_multiple_of(tick.as_nanos()) && sent <= ms(ttl + 5));
                assert!(
                    sent.is_zero() || sent + tick <= ms(ttl + 5),
                    "{ttl} ms: {sent:?} of {tick:?}"
                );
            }
        }
        assert_eq!(whole_ticks(ms(30), ms(4)), ms(28));
        assert_eq!(whole_ticks(PUSHED_TTL, ms(4)), PUSHED_TTL);
    }

    #[test]
    fn small_files_with_push_are_not_passed_through() {
        let len_min = |invalidation, passthrough| {
            CachePolicy {
                passthrough,
                ..policy(invalidation, PageCaching::Writethrough)
            }
            .passthrough_len_min()
        };
        assert_eq!(
            len_min(Invalidation::Push, Passthrough::Auto),
            Some(PASSED_MIN_BYTES)
        );
        assert_eq!(len_min(Invalidation::Ttl, Passthrough::Auto), Some(0));
        assert_eq!(len_min(Invalidation::Push, Passthrough::Always), Some(0));
        assert_eq!(len_min(Invalidation::Push, Passthrough::Never), None);
        assert_eq!(len_min(Invalidation::None, Passthrough::Always), None);
        assert_eq!(
            policy(Invalidation::Push, PageCaching::None).passthrough_len_min(),
            None
        );
        let skips_open = CachePolicy {
            skips_open: true,
            ..policy(Invalidation::Push, PageCaching::Writethrough)
        };
        assert_eq!(skips_open.passthrough_len_min(), None);
    }
}
