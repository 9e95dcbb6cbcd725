//! A file inside an image, read through Folio, whose counters report what the host's kernel does
//! not.
//!

use crate::finding::{Certainty, Check};
use crate::judge::blocks::is_fragmented;
use crate::probe::blocks::{Blocks, DELALLOC, INLINE, UNKNOWN, UNWRITTEN};
use crate::text::{bytes, quote, reason};
use folio::cache::Counters;
use folio::syscall::OpenFlags;
use folio::vfs::{ExtentPlace, FileExtent};
use folio::{Kernel, Process, Result};
use folio_pagecache::Extent;
use std::path::Path;

/// Bytes of a page, in which counters count.
const PAGE: u64 = 4096;
/// Bytes asked for in one call.
const PIECE: usize = 1 << 20;
/// A larger sample gives the same result.
const SAMPLE_MAX: u64 = 64 << 20;

/// What was found out about a file inside an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inside {
    /// Read in each pass.
    sampled_bytes: u64,
    /// What the page cache did in the first pass, and in the second.
    first: Pages,
    again: Pages,
    /// Pages that the cache held afterwards.
    held: u64,
    blocks: std::result::Result<Blocks, String>,
}

/// Pages that a pass looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    hits: u64,
    misses: u64,
    ahead: u64,
}

/// Reads a part of the regular file `path` twice, `limit_bytes` in all at most, and judges. The
/// size comes first.
///
/// `name` is the path as messages have it. Errors: those of open(2) and read(2).
pub fn inside(
    kernel: &Kernel,
    process: &Process,
    path: &Path,
    name: &str,
    limit_bytes: u64,
) -> Result<(u64, Vec<Check>)> {
    let fd = process.open(path, OpenFlags::empty(), 0)?;
    let looked = process.fstat(fd).and_then(|found| {
        let sampled_bytes = found.size_bytes.min(SAMPLE_MAX).min(limit_bytes / 2);
        let pass = || -> Result<Pages> {
            let before = kernel.counters();
            let mut buf = vec![0; PIECE];
            let mut at = 0;
            while at < sampled_bytes {
                let want = PIECE.min(usize::try_from(sampled_bytes - at).unwrap_or(PIECE));
                match process.pread(fd, &mut buf[..want], at)? {
                    0 => break,
                    count => at += count as u64,
                }
            }
            Ok(Pages::between(&before, &kernel.counters()))
        };
        let (first, again) = (pass()?, pass()?);
        let blocks = process.fiemap(fd, 0..found.size_bytes, false);
        let blocks = blocks
            .map(|all| summed(&all, found.size_bytes))
            .map_err(|error| reason(&error));
        let held = kernel.counters().file_pages;
        Ok((
            found.size_bytes,
            Inside {
                sampled_bytes,
                first,
                again,
                held,
                blocks,
            },
        ))
    });
    let closed = process.close(fd);
    let (size_bytes, found) = looked?;
    closed?;
    Ok((size_bytes, found.judge(name)))
}

impl Pages {
    fn between(before: &Counters, after: &Counters) -> Self {
        Self {
            hits: after.hits.saturating_sub(before.hits),
            misses: after.misses.saturating_sub(before.misses),
            ahead: after.readahead_pages.saturating_sub(before.readahead_pages),
        }
    }
}

fn summed(extents: &[FileExtent], size_bytes: u64) -> Blocks {
    let found: Vec<Extent> = extents.iter().map(as_fiemap).collect();
    Blocks::of(&found, size_bytes, true)
}

/// The same extent with FIEMAP's flags.
fn as_fiemap(found: &FileExtent) -> Extent {
    let (place, flags) = match found.place {
        ExtentPlace::Data(place) => (place, 0),
        ExtentPlace::Unwritten(place) => (place, UNWRITTEN),
        ExtentPlace::Delayed => (0, DELALLOC | UNKNOWN),
        ExtentPlace::Inline => (0, INLINE),
    };
    let mut extent = Extent::default();
    (extent.offset, extent.len_bytes, extent.place, extent.flags) =
        (found.offset, found.len_bytes, place, flags);
    extent
}

impl Inside {
    fn judge(&self, name: &str) -> Vec<Check> {
        let mut checks = Vec::new();
        if self.sampled_bytes == 0 {
            checks.push(Check::unknown(
                "page-cache",
                "evicted",
                "nothing was read: an empty file, or nothing may be",
            ));
        } else {
            checks.push(self.second_read(name));
            let brought = Check::note(
                "page-cache",
                "cold",
                "what came from the image in the first read",
            );
            let evidence = format!(
                "{} hits, {} misses, {} pages brought in ahead of the reader",
                self.first.hits, self.first.misses, self.first.ahead
            );
            let brought = brought
                .with_evidence(evidence)
                .with("misses", self.first.misses);
            checks.push(
                brought
                    .with("hits", self.first.hits)
                    .with("readahead_pages", self.first.ahead),
            );
        }
        match &self.blocks {
            Ok(blocks) => checks.push(pieces(blocks, name)),
            Err(why) => checks.push(Check::unknown("blocks", "fragmented", why.clone())),
        }
        checks
    }

    fn second_read(&self, name: &str) -> Check {
        let (hits, misses) = (self.again.hits, self.again.misses);
        let evidence = format!(
            "{hits} hits and {misses} misses in the second read of {}",
            bytes(self.sampled_bytes)
        );
        let check = match misses {
            0 => Check::fine(
                "memory",
                "evicted",
                "Folio's page cache is large enough for what was read",
            ),
            _ => {
                let room = (self.sampled_bytes * 2).next_power_of_two().max(64 << 20) >> 20;
                let says =
                    "Folio's page cache is too small: bytes are evicted before they are read again";
                Check::fault("memory", "evicted", Certainty::Certain, says).with_remedy(format!(
                    "folio --cache {room}M cat {}",
                    quote(Path::new(name))
                ))
            }
        };
        check
            .with_evidence(evidence)
            .with("hits", hits)
            .with("misses", misses)
            .with("held_bytes", self.held * PAGE)
    }
}

fn pieces(blocks: &Blocks, name: &str) -> Check {
    let mean = blocks.placed_bytes / blocks.fragments.max(1);
    let holes = match blocks.hole_bytes + blocks.unwritten_bytes {
        0 => String::new(),
        count => format!(", {} holes or never written", bytes(count)),
    };
    let count = match blocks.fragments {
        1 => "one piece".to_owned(),
        many => format!("{many} pieces"),
    };
    let evidence = format!("{} in {count}{holes}", bytes(blocks.placed_bytes));
    let check = if is_fragmented(blocks) {
        let (old, new) = (
            quote(Path::new(name)),
            quote(Path::new(&format!("{name}.new"))),
        );
        Check::note("blocks", "fragmented", "fragmented in its file system")
            .with_remedy(format!("folio cp -a {old} {new} && folio mv {new} {old}"))
    } else {
        Check::fine("blocks", "fragmented", "not fragmented in its file system")
    };
    check
        .with_evidence(evidence)
        .with("fragments", blocks.fragments)
        .with("mean_bytes", mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    fn found(misses: u64, fragments: u64) -> Vec<Check> {
        let size_bytes = 8 << 20;
        let blocks = Blocks {
            size_bytes,
            placed_bytes: size_bytes,
            fragments,
            is_complete: true,
            ..Blocks::default()
        };
        let again = Pages {
            hits: 2048 - misses,
            misses,
            ahead: 0,
        };
        let first = Pages {
            hits: 2000,
            misses: 48,
            ahead: 2000,
        };
        Inside {
            sampled_bytes: size_bytes,
            first,
            again,
            held: 2048,
            blocks: Ok(blocks),
        }
        .judge("disk.img:/a b")
    }

    #[test]
    fn second_read_misses_are_a_fault() {
        let faults = |checks: Vec<Check>| {
            checks
                .into_iter()
                .filter(|check| check.verdict == Verdict::Fault)
                .map(|check| check.cause)
                .collect()
        };
        let none: Vec<&str> = faults(found(0, 1));
        assert!(none.is_empty());
        let both: Vec<&str> = faults(found(100, 2048));
        assert_eq!(both, ["evicted"]);
        assert_eq!(found(0, 2048)[2].verdict, Verdict::Note);
        assert_eq!(found(0, 1)[2].evidence, "8 MiB in one piece");
        assert!(found(100, 1)[0].remedies[0].starts_with("folio --cache 64M cat 'disk.img:/a b'"));
    }
}
