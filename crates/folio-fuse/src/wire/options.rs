//! What the kernel that asks may believe and keep, and the words of `-o` for it.

use folio::{Errno, Error, Result};
use std::time::Duration;

/// How the kernel that asks may keep data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataCache {
    /// Not at all: every read and write comes here.
    None,
    /// In its page cache, as long as the file's size and times tell that nobody else has changed
    /// it.
    Kept,
}

/// What the kernel that asks may believe and keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long names and attributes are believed at most; the file system may know better.
    pub ttl_max: Duration,
    /// How data is kept.
    pub data: DataCache,
    /// Whether others change the files meanwhile: data is then dropped when attributes tell so,
    /// else when the kernel is told ([`super::Notice`]).
    pub has_external_writers: bool,
    /// Whether writes may stay in the asking kernel for a while. What others read meanwhile is old.
    pub writeback: bool,
    /// Whether listing a directory looks its entries up as well.
    pub readdirplus: bool,
    /// Whether every change is refused.
    pub read_only: bool,
    /// The generation of all inodes: a kernel that comes with what another server told it, and
    /// finds another generation, gives up what it has open rather than take one inode for the
    /// other.
    pub generation: u32,
}

/// What `ttl=inf` comes to: so long that nobody counts it, and far from what a kernel cannot add to
/// its clock.
pub const FOREVER: Duration = Duration::from_secs(1 << 30);

/// What is believed for so long is not asked again when it is opened.
const OPEN_TTL_MAX: Duration = Duration::from_millis(10);

impl ClientOptions {
    /// For a file system that nobody else changes: everything is believed for good.
    pub fn exclusive() -> Self {
        Self {
            ttl_max: FOREVER,
            data: DataCache::Kept,
            has_external_writers: false,
            writeback: false,
            readdirplus: true,
            read_only: false,
            generation: 0,
        }
    }

    /// For one that others change too: names and attributes are believed for `ttl_max` at most.
    pub fn shared(ttl_max: Duration) -> Self {
        Self {
            has_external_writers: true,
            ttl_max,
            ..Self::exclusive()
        }
    }

    /// Whether files are opened here. Where that would tell the kernel no more than what it
    /// believes it need not ask, which saves a request for each open(2) and close(2). Else an open
    /// is when it sees what others have written.
    pub(super) fn asks_at_open(&self) -> bool {
        self.data == DataCache::None || self.has_external_writers && self.ttl_max > OPEN_TTL_MAX
    }

    /// The words that are about the asking kernel, those with a value without it.
    pub const OPTION_NAMES: [&str; 6] = [
        "writeback",
        "nowriteback",
        "readdirplus",
        "noreaddirplus",
        "ttl",
        "cache",
    ];

    /// Obeys one word of `-o`; `false` if it is not about the asking kernel. `ttl` and `cache` may
    /// be about what is shared as well.
    pub fn set(&mut self, word: &str) -> Result<bool> {
        match word.split_once('=') {
            None => match word {
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

/// Reads a time: a number with `us`, `ms` or `s`, or `0`, or `inf`.
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
            format!("ttl={text}: no time; write 0, 5ms, 1.5s or inf"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let millis = |text| parse_ttl(text).map(|ttl| ttl.as_micros()).ok();
        assert_eq!(millis("0"), Some(0));
        assert_eq!(millis("5ms"), Some(5000));
        assert_eq!(millis("1.5s"), Some(1_500_000));
        assert_eq!(millis("250us"), Some(250));
        assert_eq!(parse_ttl("inf").ok(), Some(FOREVER));
        for text in ["", "s", "-1s", "1", "1h", "nan", "1e300", "inf s"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }

    #[test]
    fn words_are_obeyed_or_left() {
        let mut options = ClientOptions::exclusive();
        assert!(options.set("writeback").unwrap() && options.set("ttl=1s").unwrap());
        assert!(options.writeback && options.ttl_max == Duration::from_secs(1));
        assert!(!options.set("noatime").unwrap() && !options.set("data=journal").unwrap());
        assert!(!options.set("cache=writethrough").unwrap() && options.data == DataCache::Kept);
        assert!(options.set("cache=none").unwrap() && options.data == DataCache::None);
        assert_eq!(options.ttl_max, Duration::ZERO);
    }
}
