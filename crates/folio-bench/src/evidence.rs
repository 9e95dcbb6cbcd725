//! Evidence collected beside the clock: the share in the page cache, bytes from the device, and
//! context switches. Without it a figure of the device looks the same as the speed of memory.

use crate::command::Used;
use crate::outcome::{Context, Outcome};
use crate::report::{Evidence, Sample};
use folio_pagecache::{ResidencyReport, residency};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::time::Instant;

/// Bytes that this process has caused to be read from devices, and to be written to them (proc(5),
/// /proc/pid/io). Writes count when a page becomes dirty. `None` where the kernel does not report
/// them.
#[derive(Debug, Clone, Copy)]
struct Moved {
    read_bytes: f64,
    written_bytes: f64,
}

impl Moved {
    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/io").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let of = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line?.trim().parse::<f64>().ok()
        };
        Some(Self {
            read_bytes: of("read_bytes")?,
            written_bytes: of("write_bytes")?,
        })
    }
}

/// Does `work` of so many operations on `files`; returns its seconds, with what was seen.
pub(crate) fn watched(
    files: &[&File],
    operations: u64,
    work: impl FnOnce() -> Outcome,
) -> Outcome<Sample> {
    let cached_before = cached_share(files);
    let (moved, used) = (Moved::now(), Used::now());
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let used_after = Used::now();
    let moved = moved.zip(Moved::now());
    let evidence = Evidence {
        cached_before,
        cached_after: cached_share(files),
        device_read_bytes: moved.map(|(before, after)| after.read_bytes - before.read_bytes),
        device_written_bytes: moved
            .map(|(before, after)| after.written_bytes - before.written_bytes),
        cpu_seconds: Some(used_after.cpu_seconds - used.cpu_seconds),
        switches: (operations > 0)
            .then(|| (used_after.switches - used.switches) / operations as f64),
        ..Evidence::default()
    };
    Ok(Sample::of(seconds).with(evidence))
}

/// Returns the share of the files' bytes in the kernel's page cache; `None` where the kernel does
/// not report it.
pub(crate) fn cached_share(files: &[&File]) -> Option<f64> {
    let (mut size, mut resident) = (0, 0);
    for file in files {
        let Ok(ResidencyReport::Known(found)) = residency(file) else {
            return None;
        };
        size += found.size_bytes;
        resident += found.resident_bytes;
    }
    (size > 0).then(|| resident as f64 / size as f64)
}

/// Makes the kernel write the files and forget them, without root: POSIX_FADV_DONTNEED.
pub(crate) fn forget(files: &[&File]) -> Outcome {
    for file in files {
        rustix::fs::fdatasync(file).at("fdatasync")?;
        fadvise(file, 0, None, Advice::DontNeed).at("fadvise")?;
    }
    Ok(())
}

/// What is cold may have this share in memory.
const COLD_MOST: f64 = 0.05;
/// A run that reads less than this share from the device measures memory.
const DEVICE_LEAST: f64 = 0.05;

/// Turns the seconds of a read into a rate in MiB a second, with a label for what it is.
pub(crate) fn rate(bytes: u64, sample: Sample, is_cold: bool) -> Sample {
    let label = label(bytes, sample.evidence, is_cold);
    sample
        .map(|seconds| mib_per_second(bytes, seconds))
        .labeled(label)
}

/// Returns a rate in MiB a second.
pub(crate) fn mib_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9)
}

/// What a read is, if it is not what it is called.
pub(crate) fn label(bytes: u64, evidence: Evidence, is_cold: bool) -> Option<&'static str> {
    let read_bytes = evidence.device_read_bytes;
    let is_memory = read_bytes.is_some_and(|read| read < bytes as f64 * DEVICE_LEAST);
    if !is_cold {
        return is_memory.then_some("memory speed");
    }
    match evidence.cached_before {
        None => Some("whether it was cold is not known"),
        Some(share) if share > COLD_MOST => Some("not cold: it could not be put out of memory"),
        Some(_) => is_memory.then_some("not from the device: a layer below has it in memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_device_are_read_from_proc() {
        let moved = Moved::parse("rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n")
            .expect("both");
        assert_eq!((moved.read_bytes, moved.written_bytes), (4096.0, 8192.0));
        assert!(Moved::parse("rchar: 1\n").is_none());
    }

    #[test]
    fn reads_are_named_for_what_they_are() {
        let seen = |cached_before, read: f64| Evidence {
            cached_before,
            device_read_bytes: Some(read),
            ..Evidence::default()
        };
        for (cached, read, is_cold, beginning) in [
            (Some(0.0), 1000.0, true, ""),
            (Some(0.5), 500.0, true, "not cold"),
            (Some(0.0), 0.0, true, "not from"),
            (None, 0.0, true, "whether it was cold is not known"),
            (Some(1.0), 0.0, false, "memory speed"),
            (Some(1.0), 900.0, false, ""),
        ] {
            let label = label(1000, seen(cached, read), is_cold).unwrap_or_default();
            assert!(label.starts_with(beginning), "{label}");
            assert_eq!(label.is_empty(), beginning.is_empty(), "{label}");
        }
    }

    #[test]
    fn work_is_watched() {
        let file = tempfile::tempfile().expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], 0).expect("written");
        let sample = watched(&[&file], 1, || Ok(())).expect("done");
        let cached = sample.evidence.cached_after;
        assert!(
            sample.value >= 0.0 && cached.is_none_or(|share| share > 0.9),
            "{sample:?}"
        );
        assert!(watched(&[], 0, || Err("why".into())).is_err());
    }
}
