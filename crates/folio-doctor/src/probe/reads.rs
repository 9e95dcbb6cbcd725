//! Two reads of the same part of a file: the source of the bytes, and the cost.

use super::fact::{Fact, RESIDENCY_HIDDEN, cpu_ns, switches, unmapped};
use crate::text::reason;
use folio_pagecache::{ResidencyReport, residency_of};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes asked for in one call.
const PIECE: usize = 1 << 20;
/// A larger sample gives the same result.
const SAMPLE_MAX: u64 = 64 << 20;
/// The kernel reads ahead by less, unless a disk's read_ahead_kb says more.
const READAHEAD_MAX: u64 = 32 << 20;
/// How often what is in memory is read again; the round with the fewest waits counts.
const ROUNDS: usize = 4;
/// From so much on rates mean something.
const RATE_MIN: u64 = 8 << 20;
/// Multiple of memcpy's time from which on a copy is measured again before it is reported.
const SUSPECT: u64 = 2;
/// How often that is, and how long it is left alone in between.
const COPIES: u64 = 8;
const BETWEEN: Duration = Duration::from_millis(2);
/// What O_DIRECT wants buffers to start at.
const ALIGN: usize = 4096;

/// What reading a part of a file twice did.
#[derive(Debug, Clone, PartialEq)]
pub struct Reads {
    /// The part, from the file's start on.
    pub sampled_bytes: u64,
    /// Of that part, in memory before.
    pub resident_before_bytes: Fact<u64>,
    /// In memory after.
    pub resident_after_bytes: Fact<u64>,
    /// Of that, still in memory once the file was opened again.
    pub resident_reopened_bytes: Fact<u64>,
    /// Whether the file can be mapped into memory.
    pub is_mappable: Fact<bool>,
    /// The first pass.
    pub first: Pass,
    /// The round with the fewest waits of the passes after it.
    pub again: Pass,
    /// Nanoseconds that a copy of as many bytes takes in this process.
    pub memcpy_ns: Fact<u64>,
    /// Another part, past the page cache; only where the first pass came from the device.
    pub direct: Fact<Pass>,
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// Bytes read.
    pub bytes: u64,
    /// Calls of pread(2).
    pub calls: u64,
    /// How often the reader waited.
    pub switches: u64,
    /// Bytes that came from a device on behalf of this process; none where the kernel does not
    /// count.
    pub device_bytes: Option<u64>,
    /// Time on a processor.
    pub cpu_ns: u64,
    /// Time.
    pub wall_ns: u64,
}

impl Pass {
    /// Waits for each call.
    pub(crate) fn switches_per_call(&self) -> f64 {
        self.switches as f64 / self.calls.max(1) as f64
    }

    /// Waits for each MiB.
    pub(crate) fn switches_per_mib(&self) -> f64 {
        self.switches as f64 * f64::from(1 << 20) / self.bytes.max(1) as f64
    }

    /// Bytes in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns.max(1) as f64
    }
}

/// Reads the start of the file again and again, `limit_bytes` in all at most.
pub(super) fn probe(path: &Path, file: &File, size_bytes: u64, limit_bytes: u64) -> Fact<Reads> {
    let sampled_bytes = size_bytes.min(SAMPLE_MAX).min(limit_bytes / 4);
    if size_bytes == 0 {
        return Err("the file is empty, or reports no size".to_owned());
    }
    if sampled_bytes == 0 {
        return Err(format!("no more than {limit_bytes} bytes may be read"));
    }
    let failed = |error: io::Error| format!("read: {}", reason(&error));
    let range = 0..sampled_bytes;
    let resident_before_bytes = resident(file, range.clone());
    let mut buf = vec![0; PIECE.min(usize::try_from(sampled_bytes).unwrap_or(PIECE))];
    let first = pass(file, range.clone(), &mut buf).map_err(failed)?;
    let mut left = limit_bytes - first.bytes;
    let mut again: Option<Pass> = None;
    for _ in 0..ROUNDS {
        // A quarter is kept for the device.
        if left < sampled_bytes * 2 && again.is_some() {
            break;
        }
        let round = pass(file, range.clone(), &mut buf).map_err(failed)?;
        left = left.saturating_sub(round.bytes);
        if again.is_none_or(|best| (round.switches, round.cpu_ns) < (best.switches, best.cpu_ns)) {
            again = Some(round);
        }
    }
    let mut again = again.ok_or("nothing was read")?;
    let memcpy_ns = memcpy_ns(sampled_bytes);
    if memcpy_ns
        .as_ref()
        .is_ok_and(|copy| again.cpu_ns / SUSPECT >= *copy)
    {
        // Half is kept for the device.
        left -= copied_again(file, &mut again, &mut buf, left / 2).map_err(failed)?;
    }
    let resident_after_bytes = resident(file, range.clone());
    Ok(Reads {
        sampled_bytes,
        resident_before_bytes,
        resident_after_bytes,
        resident_reopened_bytes: reopened(file).and_then(|again| resident(&again, range)),
        is_mappable: is_mappable(file),
        memcpy_ns,
        direct: direct(path, file, &first, size_bytes, left),
        first,
        again,
    })
}

/// Reads a small resident part again, at other moments: on a busy machine processors are shared,
/// and earlier rounds may have been interrupted. Returns the bytes read.
fn copied_again(
    file: &File,
    again: &mut Pass,
    buf: &mut [u8],
    limit_bytes: u64,
) -> io::Result<u64> {
    let mut read = 0;
    while read + RATE_MIN <= limit_bytes.min(again.bytes.saturating_mul(COPIES)) {
        std::thread::park_timeout(BETWEEN);
        let round = pass(file, 0..RATE_MIN.min(again.bytes), buf)?;
        read += round.bytes;
        let whole =
            u128::from(round.cpu_ns) * u128::from(again.bytes) / u128::from(round.bytes.max(1));
        again.cpu_ns = again.cpu_ns.min(u64::try_from(whole).unwrap_or(u64::MAX));
    }
    Ok(read)
}

fn resident(file: &File, range: Range<u64>) -> Fact<u64> {
    match residency_of(file, range) {
        Ok(ResidencyReport::Known(found)) => Ok(found.resident_bytes),
        Ok(ResidencyReport::Unknown(_)) => Err(RESIDENCY_HIDDEN.to_owned()),
        Err(error) => Err(unmapped(&error)),
    }
}

/// The same file opened anew, as the next program will: FUSE servers may have its pages dropped
/// then.
fn reopened(file: &File) -> Fact<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|error| reason(&error))
}

fn is_mappable(file: &File) -> Fact<bool> {
    match folio_pagecache::cached_ranges(file, 0..1, |_| {}) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Ok(false)
        }
        Err(error) => Err(reason(&error)),
    }
}

/// Reads a range once, in pieces as large as the buffer.
fn pass(file: &File, range: Range<u64>, buf: &mut [u8]) -> io::Result<Pass> {
    let (switches_before, device_before) = (switches(), device_bytes());
    let (cpu_before, start) = (cpu_ns(), Instant::now());
    let mut pass = Pass::default();
    let mut at = range.start;
    while at < range.end {
        let want = buf
            .len()
            .min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        match file.read_at(&mut buf[..want], at) {
            Ok(0) => break,
            Ok(count) => {
                at += count as u64;
                pass.calls += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    pass.wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    pass.cpu_ns = cpu_ns().saturating_sub(cpu_before);
    let waited = switches().and_then(|after| Ok(after.saturating_sub(switches_before?)));
    pass.switches = waited.map_err(io::Error::other)?;
    pass.device_bytes = device_bytes().and_then(|after| Some(after.saturating_sub(device_before?)));
    pass.bytes = at - range.start;
    match pass.bytes {
        0 => Err(io::Error::other("the file ended before its size")),
        _ => Ok(pass),
    }
}

/// What block devices have read for this process.
fn device_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("read_bytes:"))?
        .trim()
        .parse()
        .ok()
}

/// What a bare copy of so many bytes into a buffer of a reader's size takes, from memory that no
/// processor's cache holds.
fn memcpy_ns(len_bytes: u64) -> Fact<u64> {
    if len_bytes < RATE_MIN {
        return Err("the file is too small to measure a rate".to_owned());
    }
    let source = vec![1_u8; SAMPLE_MAX as usize];
    let mut target = vec![0_u8; PIECE];
    let best = (0..2).map(|_| {
        let before = cpu_ns();
        for piece in source.chunks(PIECE) {
            target[..piece.len()].copy_from_slice(black_box(piece));
            black_box(&mut target);
        }
        cpu_ns().saturating_sub(before)
    });
    let best = best.min().unwrap_or_default();
    Ok(
        u64::try_from(u128::from(best) * u128::from(len_bytes) / u128::from(SAMPLE_MAX))
            .unwrap_or(u64::MAX),
    )
}

/// Returns the sequential rate of the device, measured where the file is not in any cache.
fn direct(path: &Path, file: &File, first: &Pass, size_bytes: u64, left: u64) -> Fact<Pass> {
    let came = first
        .device_bytes
        .ok_or("the kernel does not count what devices read")?;
    if first.bytes < RATE_MIN || came < first.bytes / 2 {
        return Err("too little of the file came from the device".to_owned());
    }
    let part = |skipped: u64| {
        let start = (first.bytes + skipped).next_multiple_of(PIECE as u64);
        let end = size_bytes.min(start.saturating_add(left.min(SAMPLE_MAX)));
        let end = end / PIECE as u64 * PIECE as u64;
        (end >= start.saturating_add(RATE_MIN)).then_some(start..end)
    };
    // The kernel has read ahead behind the sample.
    let part = part(READAHEAD_MAX).or_else(|| part(0)).ok_or(
        "the file is too small, or too little may be read, to measure the device beside it",
    )?;
    // Reading past the cache would write what is dirty.
    match residency_of(file, part.clone()) {
        Ok(ResidencyReport::Known(found))
            if found.resident_bytes <= (part.end - part.start) / 10
                && found.dirty_bytes == Some(0) => {}
        _ => return Err("too much of what follows the sample is in memory".to_owned()),
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let opened =
        opened.map_err(|error| format!("the file system has no O_DIRECT: {}", reason(&error)))?;
    let mut buf = vec![0; 4 * PIECE + ALIGN];
    let skip = buf.as_ptr().align_offset(ALIGN).min(ALIGN);
    pass(&File::from(opened), part, &mut buf[skip..skip + 4 * PIECE])
        .map_err(|error| format!("O_DIRECT: {}", reason(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_our_own_is_read_twice_within_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&vec![7; 3 << 20], 0).unwrap();
        let reads = probe(file.path(), file.as_file(), 3 << 20, 8 << 20).unwrap();
        assert_eq!(
            (reads.sampled_bytes, reads.first.bytes),
            (2 << 20, 2 << 20),
            "a quarter of the limit"
        );
        assert_eq!(reads.again.calls, 2);
        assert_eq!(reads.resident_reopened_bytes, reads.resident_after_bytes);
        assert!(probe(file.path(), file.as_file(), 3 << 20, 0).is_err());
        assert!(probe(file.path(), file.as_file(), 0, 8 << 20).is_err());
    }

    /// A busy processor must not look like a slow copy.
    #[test]
    fn slow_copy_is_measured_again_within_the_limit() {
        let file = tempfile::tempfile().unwrap();
        let len = usize::try_from(RATE_MIN).unwrap();
        file.write_all_at(&vec![7; len], 0).unwrap();
        let mut buf = vec![0; PIECE];
        let slow = Pass {
            bytes: RATE_MIN,
            cpu_ns: u64::MAX,
            ..Pass::default()
        };
        let mut again = slow;
        assert_eq!(
            copied_again(&file, &mut again, &mut buf, 3 * RATE_MIN).unwrap(),
            3 * RATE_MIN
        );
        assert!(again.cpu_ns < u64::MAX && again.bytes == RATE_MIN);
        assert_eq!(
            copied_again(&file, &mut again, &mut buf, u64::MAX).unwrap(),
            COPIES * RATE_MIN
        );
        let mut again = slow;
        assert_eq!(
            copied_again(&file, &mut again, &mut buf, RATE_MIN - 1).unwrap(),
            0
        );
        assert_eq!(again, slow);
    }

    #[test]
    fn rates_and_waits_of_nothing_are_nothing() {
        let pass = Pass::default();
        assert_eq!(
            (
                pass.switches_per_call(),
                pass.switches_per_mib(),
                pass.rate()
            ),
            (0.0, 0.0, 0.0)
        );
        let pass = Pass {
            bytes: 2 << 20,
            calls: 2,
            switches: 6,
            ..pass
        };
        assert_eq!(
            (pass.switches_per_call(), pass.switches_per_mib()),
            (3.0, 3.0)
        );
    }
}
