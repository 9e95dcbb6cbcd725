//! Options of one client: its permission checks, what its kernel may cache, and their `-o` names.

use folio::{Errno, Error, Result};
use std::time::Duration;

/// Which side checks permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionChecks {
    /// The client's kernel checks them before it sends a request (`default_permissions`): it knows
    /// supplementary groups, capabilities and ACLs, which requests do not carry. New inodes belong
    /// to the requesting user.
    ByClient,
    /// Neither side: every request acts as the superuser, which owns new inodes.
    Off,
}

/// How the client's kernel caches file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataCache {
    /// No caching: every read and write is a request.
    None,
    /// In its page cache, as long as size and times show no change by external writers.
    Kept,
}

/// What the client's kernel may cache, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Longest validity of names and attributes; the file system may grant less.
    pub ttl_max: Duration,
    /// How file data is cached.
    pub data: DataCache,
    /// Whether external writers change the files. If so, the client drops its data when attributes
    /// change; else when it receives a [`Notice`](crate::wire::Notice).
    pub has_external_writers: bool,
    /// Whether the client may delay writes (`FUSE_WRITEBACK_CACHE`). Other readers see old data
    /// meanwhile.
    pub writeback: bool,
    /// Whether listing a directory looks its entries up as well.
    pub readdirplus: bool,
    /// Whether every change fails with EROFS.
    pub read_only: bool,
    /// Whether all inodes are presented as the superuser's. The file system keeps their owners.
    pub hides_owners: bool,
    /// Generation of all inodes. A client that reconnects to a restarted server finds another
    /// generation. It then drops its open files instead of mistaking one inode for another.
    pub generation: u32,
}

/// The meaning of `ttl=inf`: 34 years, which a kernel can add to its clock without overflow.
pub const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A longer validity than this requires revalidation at open(2), and lasts from a listing to the
/// use of its entries.
const OPEN_TTL_MAX: Duration = Duration::from_millis(10);

impl ClientOptions {
    /// For a file system without external writers: all entries stay valid.
    pub fn exclusive() -> Self {
        Self {
            ttl_max: FOREVER,
            data: DataCache::Kept,
            has_external_writers: false,
            writeback: false,
            readdirplus: true,
            read_only: false,
            hides_owners: false,
            generation: 0,
        }
    }

    /// For a file system with external writers: names and attributes are valid for `ttl_max` at
    /// most.
    pub fn shared(ttl_max: Duration) -> Self {
        Self {
            has_external_writers: true,
            ttl_max,
            ..Self::exclusive()
        }
    }

    /// Whether the client sends `FUSE_OPEN`. With external writers, open(2) is when it sees their
    /// changes. If names and attributes are valid so briefly that an open reveals nothing newer,
    /// the client skips it, which saves one request for each open(2) and close(2).
    pub(crate) fn needs_open(&self) -> bool {
        self.data == DataCache::None || self.has_external_writers && self.ttl_max > OPEN_TTL_MAX
    }

    /// Whether the client keeps listings of directories. Of a listing that it keeps it asks for
    /// each name again whose entry has expired. A listing that it reads again has the entries of
    /// all names, if they stay valid long enough to be used.
    pub(crate) fn keeps_listings(&self) -> bool {
        let expires = self.has_external_writers && self.ttl_max < FOREVER;
        let has_usable_entries = self.readdirplus && self.ttl_max > OPEN_TTL_MAX;
        self.data == DataCache::Kept && !(expires && has_usable_entries)
    }

    /// Names of the `-o` options that [`ClientOptions::apply`] accepts, without their values.
    pub const OPTION_NAMES: [&str; 6] = [
        "writeback",
        "nowriteback",
        "readdirplus",
        "noreaddirplus",
        "ttl",
        "cache",
    ];

    /// Applies one `-o` option; returns false if it is not about the client. `ttl` and `cache` may
    /// also concern the shared file system.
    ///
    /// # Errors
    /// EINVAL for an invalid `ttl`.
    pub fn apply(&mut self, option: &str) -> Result<bool> {
        match option.split_once('=') {
            None => match option {
                "writeback" => self.writeback = true,
                "nowriteback" => self.writeback = false,
                "readdirplus" => self.readdirplus = true,
                "noreaddirplus" => self.readdirplus = false,
                _ => return Ok(false),
            },
            Some(("ttl", time)) => self.ttl_max = parse_ttl(time)?,
            Some(("cache", "none")) => {
                self.data = DataCache::None;
                self.ttl_max = Duration::ZERO;
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses a duration: a number with `us`, `ms` or `s`, or `0`, or `inf`.
///
/// # Errors
/// EINVAL for other text, and for more than [`FOREVER`].
pub fn parse_ttl(text: &str) -> Result<Duration> {
    if text == "inf" {
        return Ok(FOREVER);
    }
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_secs = match &text[digits.len()..] {
        "" if digits == "0" => 0.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => f64::NAN,
    };
    let secs = digits
        .parse::<f64>()
        .map_or(f64::NAN, |number| number * unit_secs);
    let ttl = Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|ttl| *ttl <= FOREVER);
    ttl.ok_or_else(|| {
        Error::new(
            Errno::INVAL,
            format!("invalid ttl={text}: expected 0, 5ms, 1.5s or inf"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_with_unit_parses_to_duration() {
        let micros = |text| parse_ttl(text).map(|ttl| ttl.as_micros()).ok();
        assert_eq!(micros("0"), Some(0));
        assert_eq!(micros("5ms"), Some(5000));
        assert_eq!(micros("1.5s"), Some(1_500_000));
        assert_eq!(micros("250us"), Some(250));
        assert_eq!(parse_ttl("inf").ok(), Some(FOREVER));
        for text in ["", "s", "-1s", "1", "1h", "nan", "1e300", "inf s"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }

    #[test]
    fn apply_unrelated_option_returns_false() {
        let mut options = ClientOptions::exclusive();
        assert!(options.apply("writeback").unwrap() && options.apply("ttl=1s").unwrap());
        assert!(options.writeback && options.ttl_max == Duration::from_secs(1));
        assert!(!options.apply("noatime").unwrap() && !options.apply("data=journal").unwrap());
        assert!(!options.apply("cache=writethrough").unwrap() && options.data == DataCache::Kept);
        assert!(options.apply("cache=none").unwrap() && options.data == DataCache::None);
        assert_eq!(options.ttl_max, Duration::ZERO);
    }
}
