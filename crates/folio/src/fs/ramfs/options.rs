//! Mount options of tmpfs (mount(8), tmpfs(5)), of ramfs, which has only `mode=`, and of gpufs.

use crate::base::{Error, Owner, PAGE_SIZE, Result};
use crate::vfs::MountOptions;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Default share of the page cache for a tmpfs, in percent.
const SHARE_PERCENT: u64 = 50;
/// Sizes of a page of a gpufs in bytes; the largest is the default.
const FRAME_BYTES: RangeInclusive<u64> = 4 << 10..=64 << 10;

/// The mount options of a tmpfs, parsed from the words of mount(8):
/// `"size=64m,nr_inodes=1k,mode=1777"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TmpfsOptions {
    /// Limit of memory for data (`size=`, `nr_blocks=`).
    pub(super) size: TmpfsSize,
    /// Limit of inodes (`nr_inodes=`); each additional hard link of a file counts as one. 0 means
    /// no limit, `None` half the number of pages in the page cache.
    pub(super) inode_count: Option<u64>,
    /// Permission bits of the root directory (`mode=`, octal).
    pub(super) mode: u16,
    /// Owner of the root directory (`uid=`, `gid=`).
    pub(super) owner: Owner,
}

/// The limit of memory for data of a tmpfs. The page cache's own budget applies, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TmpfsSize {
    /// Size in bytes, rounded up to whole pages; 0 means no limit.
    Bytes(u64),
    /// Share of the page cache or the device in percent; 0 means no limit.
    CachePercent(u64),
}

impl Default for TmpfsOptions {
    fn default() -> Self {
        Self {
            size: TmpfsSize::CachePercent(SHARE_PERCENT),
            inode_count: None,
            mode: 0o1777,
            owner: Owner::ROOT,
        }
    }
}

impl TmpfsOptions {
    /// Returns the limits in pages and inodes for a page cache of `cache_bytes`; `None` means no
    /// limit.
    pub(super) fn limits(&self, cache_bytes: u64) -> (Option<u64>, Option<u64>) {
        const PAGE: u64 = PAGE_SIZE as u64;
        let cache_pages = cache_bytes / PAGE;
        let pages = match self.size {
            TmpfsSize::Bytes(bytes) => bytes.div_ceil(PAGE),
            TmpfsSize::CachePercent(percent) => {
                let bytes = u128::from(cache_pages * PAGE) * u128::from(percent) / 100;
                u64::try_from(bytes.div_ceil(PAGE.into())).unwrap_or(u64::MAX)
            }
        };
        let inodes = self.inode_count.unwrap_or((cache_pages / 2).max(1));
        (
            Some(pages).filter(|pages| *pages > 0),
            Some(inodes).filter(|inodes| *inodes > 0),
        )
    }
}

impl FromStr for TmpfsOptions {
    type Err = Error;

    /// Parses options. EINVAL for an unknown option or an invalid value.
    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self::default();
        MountOptions::parse_words(text, &Self::NAMES, |name, value| options.set(name, value))?;
        Ok(options)
    }
}

impl TmpfsOptions {
    const NAMES: [&str; 6] = ["size", "nr_blocks", "nr_inodes", "mode", "uid", "gid"];

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "size" => self.size = parse_size(value)?,
            "nr_blocks" => {
                self.size = TmpfsSize::Bytes(parse_number(value)?.checked_mul(PAGE_SIZE as u64)?);
            }
            "nr_inodes" => self.inode_count = Some(parse_number(value)?),
            "mode" => self.mode = parse_mode(value)?,
            "uid" => self.owner.uid = value.parse().ok()?,
            "gid" => self.owner.gid = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

/// The mount options of a gpufs: `"size=4g,page=64k,mode=1777"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GpufsOptions {
    /// Limit of device memory for data in bytes or percent (`size=`).
    size: TmpfsSize,
    /// Size of a page in bytes (`page=`).
    pub(super) page_bytes: u64,
    /// Permission bits of the root directory (`mode=`, octal).
    pub(super) mode: u16,
}

impl GpufsOptions {
    const NAMES: [&str; 3] = ["size", "page", "mode"];

    /// Returns the limit in bytes of a device that has `device_bytes`; 0 means all of it.
    pub(super) fn len_bytes(&self, device_bytes: u64) -> u64 {
        match self.size {
            TmpfsSize::Bytes(0) | TmpfsSize::CachePercent(0) => device_bytes,
            TmpfsSize::Bytes(bytes) => bytes.next_multiple_of(self.page_bytes),
            TmpfsSize::CachePercent(percent) => {
                let bytes = u128::from(device_bytes) * u128::from(percent) / 100;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "size" => self.size = parse_size(value)?,
            "page" => {
                let bytes = parse_number(value)?;
                let is_valid = bytes.is_power_of_two() && FRAME_BYTES.contains(&bytes);
                self.page_bytes = is_valid.then_some(bytes)?;
            }
            "mode" => self.mode = parse_mode(value)?,
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for GpufsOptions {
    type Err = Error;

    /// Parses options. EINVAL for an unknown option or an invalid value.
    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self {
            size: TmpfsSize::CachePercent(SHARE_PERCENT),
            page_bytes: *FRAME_BYTES.end(),
            mode: 0o755,
        };
        MountOptions::parse_words(text, &Self::NAMES, |name, value| options.set(name, value))?;
        Ok(options)
    }
}

/// Returns the permission bits of a ramfs's root directory. Linux's ramfs ignores unknown options;
/// here they fail with EINVAL.
pub(super) fn ramfs_root_mode(words: &str) -> Result<u16> {
    let mut mode = 0o755;
    MountOptions::parse_words(words, &["mode"], |_, value| {
        mode = parse_mode(value)?;
        Some(())
    })?;
    Ok(mode)
}

fn parse_size(text: &str) -> Option<TmpfsSize> {
    Some(match text.strip_suffix('%') {
        Some(percent) => TmpfsSize::CachePercent(percent.parse().ok()?),
        None => TmpfsSize::Bytes(parse_number(text)?),
    })
}

fn parse_mode(octal: &str) -> Option<u16> {
    Some(u16::from_str_radix(octal, 8).ok()? & 0o7777)
}

/// Parses a number with a suffix for a power of 1024. Linux: `memparse`.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        "p" | "P" => 5,
        "e" | "E" => 6,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;

    #[test]
    fn tmpfs_options_parse_to_their_values() {
        let parse = |text: &str| text.parse::<TmpfsOptions>();
        let options = parse("size=64m,nr_inodes=1k,mode=1770,uid=7,gid=8").unwrap();
        let expected = TmpfsOptions {
            size: TmpfsSize::Bytes(64 << 20),
            inode_count: Some(1024),
            mode: 0o1770,
            owner: Owner::new(7, 8),
        };
        assert_eq!(options, expected);
        assert_eq!(options.limits(1 << 20), (Some(64 << 8), Some(1024)));
        assert_eq!(parse("").unwrap(), TmpfsOptions::default());
        assert_eq!(
            TmpfsOptions::default().limits(1 << 20),
            (Some(128), Some(128))
        );
        assert_eq!(
            parse("size=4097,nr_inodes=0").unwrap().limits(1 << 20),
            (Some(2), None)
        );
        assert_eq!(
            parse("nr_blocks=3").unwrap().limits(1 << 20),
            (Some(3), Some(128))
        );
        assert_eq!(parse("size=0").unwrap().limits(1 << 20), (None, Some(128)));
        assert_eq!(parse("size=0%").unwrap().limits(1 << 20), (None, Some(128)));
        assert_eq!(
            parse("size=25%").unwrap().limits(1 << 20),
            (Some(64), Some(128))
        );
        for text in [
            "size",
            "size=",
            "size=x",
            "size=1q",
            "size=-1",
            "size=64mm",
            "size=17e",
            "mode=8",
            "color=red",
            "uid=k",
        ] {
            assert_eq!(parse(text).unwrap_err().errno(), Errno::INVAL, "{text}");
        }
        assert_eq!(
            parse("color=red").unwrap_err().to_string(),
            "unknown mount option \"color=red\""
        );
    }

    #[test]
    fn ramfs_accepts_only_the_mode_option() {
        assert_eq!(ramfs_root_mode("").unwrap(), 0o755);
        assert_eq!(ramfs_root_mode("mode=1777").unwrap(), 0o1777);
        let errors =
            ["size=1m", "mode=9"].map(|text| ramfs_root_mode(text).unwrap_err().to_string());
        assert_eq!(
            errors,
            [
                "unknown mount option \"size=1m\"",
                "invalid value in mount option \"mode=9\""
            ]
        );
    }

    #[test]
    fn gpufs_options_parse_to_their_values() {
        let parse = |text: &str| text.parse::<GpufsOptions>();
        let options = parse("size=10k,page=4k,mode=1777").unwrap();
        assert_eq!((options.page_bytes, options.mode), (4096, 0o1777));
        assert_eq!(options.len_bytes(1 << 30), 12 << 10);
        let options = parse("").unwrap();
        assert_eq!((options.page_bytes, options.mode), (64 << 10, 0o755));
        assert_eq!(options.len_bytes(1 << 30), 1 << 29);
        assert_eq!(parse("size=0").unwrap().len_bytes(1 << 30), 1 << 30);
        for text in ["page=2k", "page=128k", "page=5k", "nr_inodes=7", "mode=9"] {
            assert_eq!(parse(text).unwrap_err().errno(), Errno::INVAL, "{text}");
        }
    }
}
