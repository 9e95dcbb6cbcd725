//! How a host directory is mounted.
//!
//! | option | what it does |
//! |---|---|
//! | `ttl=` | how long attributes, names and data are believed: `0`, `inf`, or a number with `us`, `ms` or `s`; 1 ms |
//! | `cache=` | `writethrough`, `writeback` (the cache is written first), `host` (data is left to the host's own cache) or `none` |
//! | `push=` | whether the host tells of changes: `auto`, `inotify` or `off` |
//! | `squash=UID:GID` | everything belongs to these; who owns it on the host is nobody's business |
//! | `map=u:INSIDE:OUTSIDE:COUNT` | users (`g:` groups) from INSIDE on are those from OUTSIDE on at the host; may be repeated |
//! | `xattr=` | `on` or `off` |

use super::owners::{IdRange, Owners};
use crate::base::{Error, Result};
use crate::vfs::{FOREVER_NS, MountOptions};
use std::str::FromStr;

/// Attributes are believed so long unless told otherwise: as the shared folders did of which the
/// story tells, a tick.
const TTL_DEFAULT_NS: u64 = 1_000_000;

/// What the cache does with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CacheMode {
    /// Reads are kept; writes reach the host before they return.
    #[default]
    WriteThrough,
    /// Writes stay in memory until they are written back.
    WriteBack,
    /// The host's page cache keeps data, Folio keeps the rest: who caches what it reads from here
    /// needs no third copy.
    Host,
    /// Nothing is kept.
    Off,
}

impl CacheMode {
    /// Returns whether reads go through the page cache.
    pub(super) fn reads_from_cache(self) -> bool {
        matches!(self, Self::WriteThrough | Self::WriteBack)
    }
}

/// How changes by others are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Push {
    /// Where it works.
    #[default]
    Auto,
    /// By inotify(7), or the mount fails.
    Inotify,
    /// Not at all.
    Off,
}

/// How a host directory is mounted. Parsed from the words of mount(8): `"ttl=5ms,cache=writeback"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostfsOptions {
    /// How long answers are believed, in nanoseconds; `None` if nothing was said.
    ttl_ns: Option<u64>,
    pub(super) cache: CacheMode,
    pub(super) push: Push,
    pub(super) owners: Owners,
    pub(super) has_xattrs: bool,
}

impl HostfsOptions {
    /// How long an answer is believed if nobody tells of changes, in nanoseconds.
    pub(super) fn ttl_ns(&self) -> u64 {
        self.ttl_ns.unwrap_or(TTL_DEFAULT_NS)
    }

    /// The same where changes are told of.
    pub(super) fn pushed_ttl_ns(&self) -> u64 {
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
                    "auto" => Push::Auto,
                    "inotify" => Push::Inotify,
                    "off" => Push::Off,
                    _ => return None,
                }
            }
            "squash" => {
                let (uid, gid) = value.split_once(':')?;
                self.owners.squash = Some((uid.parse().ok()?, gid.parse().ok()?));
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
            push: Push::default(),
            owners: Owners::default(),
            has_xattrs: true,
        }
    }
}

/// The options that there are, without their values.
pub(crate) const HOSTFS_WORDS: [&str; 6] = ["ttl", "cache", "push", "squash", "map", "xattr"];

impl FromStr for HostfsOptions {
    type Err = Error;

    /// EINVAL for an option or value that there is not.
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
    fn words_are_understood() {
        let parse = |text: &str| text.parse::<HostfsOptions>();
        let options = parse("").unwrap();
        assert_eq!(options, HostfsOptions::default());
        assert_eq!(
            (options.ttl_ns(), options.pushed_ttl_ns()),
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
                (options.ttl_ns(), options.pushed_ttl_ns()),
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
        assert_eq!(parse("push=off").unwrap().push, Push::Off);
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
