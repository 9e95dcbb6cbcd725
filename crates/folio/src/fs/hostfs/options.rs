//! Mount options of hostfs.
//!
//! | option | effect |
//! |---|---|
//! | `ttl=` | how long attributes, names and data are valid: `0`, `inf`, or a number with `us`, `ms` or `s`; default 1 ms |
//! | `cache=` | `writethrough`, `writeback` (writes go to the cache first), `host` (only the host caches data) or `none` |
//! | `push=` | change notifications by the host: `auto`, `inotify` or `off` |
//! | `squash=UID:GID` | all files appear to belong to these; owners on the host are hidden |
//! | `map=u:INSIDE:OUTSIDE:COUNT` | users (`g:` groups) from INSIDE on are those from OUTSIDE on at the host; may be repeated |
//! | `xattr=` | `on` or `off` |

use super::owners::{IdRange, Owners};
use crate::base::{Error, Owner, Result};
use crate::vfs::{FOREVER_NS, MountOptions};
use std::str::FromStr;

/// The default time to live of attributes, in nanoseconds: one clock tick, as in other shared
/// folders.
const TTL_DEFAULT_NS: u64 = 1_000_000;

/// The cache policy for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CacheMode {
    /// Cache reads; writes reach the host before they return.
    #[default]
    WriteThrough,
    /// Cache reads and writes; writeback follows later.
    WriteBack,
    /// Cache no data, as the host's page cache does; only attributes and names are cached. For
    /// clients that cache data themselves and need no third copy.
    Host,
    /// Cache nothing.
    Off,
}

impl CacheMode {
    /// Returns whether reads go through the page cache.
    pub(super) fn reads_from_cache(self) -> bool {
        matches!(self, Self::WriteThrough | Self::WriteBack)
    }
}

/// The source of change notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PushMode {
    /// inotify(7) where the file system supports it.
    #[default]
    Auto,
    /// inotify(7); otherwise the mount fails.
    Inotify,
    /// None.
    Off,
}

/// The mount options of hostfs, parsed from the words of mount(8): `"ttl=5ms,cache=writeback"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostfsOptions {
    /// Time to live of answers in nanoseconds; `None` for the default.
    ttl_ns: Option<u64>,
    pub(super) cache: CacheMode,
    pub(super) push: PushMode,
    pub(super) owners: Owners,
    pub(super) has_xattrs: bool,
}

impl HostfsOptions {
    /// Returns the time to live of an answer without change notifications, in nanoseconds.
    pub(super) fn ttl_ns(&self) -> u64 {
        self.ttl_ns.unwrap_or(TTL_DEFAULT_NS)
    }

    /// Returns the time to live of an answer with change notifications, in nanoseconds.
    pub(super) fn notified_ttl_ns(&self) -> u64 {
        self.ttl_ns.unwrap_or(FOREVER_NS)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "ttl" => self.ttl_ns = Some(parse_ttl(value)?),
            "cache" => {
                self.cache = match value {
                    "writethrough" => CacheMode::WriteThrough,
                    "writeback" => CacheMode::WriteBack,
                    "host" => CacheMode::Host,
                    "none" => CacheMode::Off,
                    _ => return None,
                }
            }
            "push" => {
                self.push = match value {
                    "auto" => PushMode::Auto,
                    "inotify" => PushMode::Inotify,
                    "off" => PushMode::Off,
                    _ => return None,
                }
            }
            "squash" => {
                let (uid, gid) = value.split_once(':')?;
                self.owners.squash = Some(Owner::new(uid.parse().ok()?, gid.parse().ok()?));
            }
            "map" => match value.split_once(':')? {
                ("u", range) => self.owners.users.push(parse_range(range)?),
                ("g", range) => self.owners.groups.push(parse_range(range)?),
                _ => return None,
            },
            "xattr" => {
                self.has_xattrs = match value {
                    "on" => true,
                    "off" => false,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl Default for HostfsOptions {
    fn default() -> Self {
        Self {
            ttl_ns: None,
            cache: CacheMode::default(),
            push: PushMode::default(),
            owners: Owners::default(),
            has_xattrs: true,
        }
    }
}

/// The names of the options.
pub(crate) const HOSTFS_WORDS: [&str; 6] = ["ttl", "cache", "push", "squash", "map", "xattr"];

impl FromStr for HostfsOptions {
    type Err = Error;

    /// Parses options. EINVAL for an unknown option or an invalid value.
    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self::default();
        MountOptions::parse_words(text, &HOSTFS_WORDS, |name, value| options.set(name, value))?;
        options.owners.check()?;
        Ok(options)
    }
}

fn parse_ttl(text: &str) -> Option<u64> {
    match text {
        "0" => return Some(0),
        "inf" => return Some(FOREVER_NS),
        _ => {}
    }
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let unit_ns = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ns)
}

fn parse_range(text: &str) -> Option<IdRange> {
    let mut numbers = text.split(':').map(|number| number.parse::<u32>().ok());
    let range = IdRange {
        inside: numbers.next()??,
        outside: numbers.next()??,
        count: numbers.next()??,
    };
    let fits = |start: u32| start.checked_add(range.count).is_some();
    (numbers.next().is_none() && range.count > 0 && fits(range.inside) && fits(range.outside))
        .then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;

    #[test]
    fn options_parse_to_their_values() {
        let parse = |text: &str| text.parse::<HostfsOptions>();
        let options = parse("").unwrap();
        assert_eq!(options, HostfsOptions::default());
        assert_eq!(
            (options.ttl_ns(), options.notified_ttl_ns()),
            (1_000_000, FOREVER_NS)
        );
        for (text, ttl_ns) in [
            ("0", 0),
            ("inf", FOREVER_NS),
            ("5ms", 5_000_000),
            ("2s", 2_000_000_000),
            ("7us", 7_000),
        ] {
            let options = parse(&format!("ttl={text}")).unwrap();
            assert_eq!(
                (options.ttl_ns(), options.notified_ttl_ns()),
                (ttl_ns, ttl_ns),
                "{text}"
            );
        }
        assert_eq!(
            parse("cache=writeback").unwrap().cache,
            CacheMode::WriteBack
        );
        assert_eq!(parse("cache=host").unwrap().cache, CacheMode::Host);
        assert_eq!(parse("cache=none").unwrap().cache, CacheMode::Off);
        assert_eq!(parse("push=off").unwrap().push, PushMode::Off);
        assert!(!parse("xattr=off").unwrap().has_xattrs);
        let options = parse("map=u:0:1000:1,map=u:1:100000:65535,map=g:0:1000:1").unwrap();
        assert_eq!(
            (options.owners.users.len(), options.owners.groups.len()),
            (2, 1)
        );
        for text in [
            "ttl=1",
            "ttl=",
            "ttl=ms",
            "ttl=1h",
            "ttl=-1ms",
            "ttl=99999999999999s",
            "cache=",
            "cache=loose",
            "push=on",
            "squash=1",
            "squash=a:b",
            "map=u:0:0",
            "map=x:0:0:1",
            "map=u:0:0:0",
            "map=u:0:0:1:1",
            "map=u:4294967295:0:2",
            "map=u:0:5:10,map=u:9:50:1",
            "map=u:0:5:10,map=u:50:9:1",
            "xattr=maybe",
            "squash=1:1,map=u:0:0:1",
            "colour=red",
        ] {
            assert_eq!(parse(text).unwrap_err().errno(), Errno::INVAL, "{text}");
        }
        assert_eq!(
            parse("colour=red").unwrap_err().to_string(),
            "unknown mount option \"colour=red\""
        );
    }
}
