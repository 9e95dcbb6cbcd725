//! A snapshot of the machine's memory, in the terms of `sar -r` and /proc/vmstat, and the rates
//! between two snapshots.

use crate::memory::{Memory, meminfo};
use serde::Serialize;
use std::fs;
use std::time::Instant;

/// A snapshot from /proc. Values are in bytes unless the name has another unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemInfo {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemFree`: unused, not even for a cache.
    pub free_bytes: u64,
    /// `MemAvailable`: available to programs without swapping.
    pub available_bytes: u64,
    /// `Buffers`: pages of block devices, including most metadata of ext4.
    pub buffers_bytes: u64,
    /// `Cached`: pages of files, including tmpfs and shared memory.
    pub cached_bytes: u64,
    /// `Shmem`: the part of `Cached` in tmpfs and shared memory, which only swapping can evict.
    pub shared_bytes: u64,
    /// `Dirty`: waiting for writeback.
    pub dirty_bytes: u64,
    /// `Writeback`: being written.
    pub writeback_bytes: u64,
    /// `Active(file)`: used more than once.
    pub active_file_bytes: u64,
    /// `Inactive(file)`: evicted first.
    pub inactive_file_bytes: u64,
    /// `SReclaimable`: mostly cached dentries and inodes.
    pub reclaimable_slab_bytes: u64,
    /// `workingset_refault_file`: pages read again soon after eviction, since boot.
    pub refaulted_pages: u64,
    /// `pgpgin`: read from disks since boot.
    pub disk_read_bytes: u64,
    /// `pgpgout`: written to disks since boot.
    pub disk_written_bytes: u64,
    /// Memory limit of this control group.
    pub group: Memory,
    /// Pressure stall time of memory; null if the kernel does not report it.
    pub memory_pressure: Option<Pressure>,
    /// Pressure stall time of I/O; null if the kernel does not report it.
    pub io_pressure: Option<Pressure>,
    /// Time of the snapshot.
    #[serde(skip)]
    pub at: Instant,
}

/// Percent of time in the last 10 seconds (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pressure {
    /// Time in which at least one task waited (`some`).
    pub some_percent: f64,
    /// Time in which all tasks waited (`full`).
    pub full_percent: f64,
}

/// Rates per second between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rates {
    /// Pages read again soon after eviction.
    pub refaulted_pages: f64,
    /// Bytes read from disks.
    pub disk_read_bytes: f64,
    /// Bytes written to disks.
    pub disk_written_bytes: f64,
}

impl MemInfo {
    /// Takes a snapshot. Values that this kernel does not report are 0 or `None`.
    pub fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (memory, vm) = (read("/proc/meminfo"), read("/proc/vmstat"));
        let of = |name| meminfo(&memory, name).unwrap_or(0);
        let count = |name| vmstat(&vm, name).unwrap_or(0);
        Self {
            total_bytes: of("MemTotal"),
            free_bytes: of("MemFree"),
            available_bytes: of("MemAvailable"),
            buffers_bytes: of("Buffers"),
            cached_bytes: of("Cached"),
            shared_bytes: of("Shmem"),
            dirty_bytes: of("Dirty"),
            writeback_bytes: of("Writeback"),
            active_file_bytes: of("Active(file)"),
            inactive_file_bytes: of("Inactive(file)"),
            reclaimable_slab_bytes: of("SReclaimable"),
            refaulted_pages: count("workingset_refault_file"),
            // These two are in KiB in spite of their names.
            disk_read_bytes: count("pgpgin").saturating_mul(1024),
            disk_written_bytes: count("pgpgout").saturating_mul(1024),
            group: Memory::here(),
            memory_pressure: pressure(&read("/proc/pressure/memory")),
            io_pressure: pressure(&read("/proc/pressure/io")),
            at: Instant::now(),
        }
    }

    /// Returns the rates since `before`.
    pub fn since(&self, before: &Self) -> Rates {
        let seconds = self
            .at
            .saturating_duration_since(before.at)
            .as_secs_f64()
            .max(1e-9);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates {
            refaulted_pages: rate(self.refaulted_pages, before.refaulted_pages),
            disk_read_bytes: rate(self.disk_read_bytes, before.disk_read_bytes),
            disk_written_bytes: rate(self.disk_written_bytes, before.disk_written_bytes),
        }
    }
}

fn vmstat(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Parses the 10-second averages of a pressure file, which may lack the line `full`.
fn pressure(text: &str) -> Option<Pressure> {
    let average = |kind: &str| {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(kind))?;
        line.split_whitespace()
            .find_map(|word| word.strip_prefix("avg10="))?
            .parse::<f64>()
            .ok()
    };
    Some(Pressure {
        some_percent: average("some")?,
        full_percent: average("full").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_pressure_are_parsed() {
        let text = "workingset_refault_anon 5\nworkingset_refault_file 17\npgpgin 3\n";
        assert_eq!(vmstat(text, "workingset_refault_file"), Some(17));
        assert_eq!(vmstat(text, "workingset_refault"), None);
        let text = "some avg10=0.15 avg60=1.44 avg300=3.11 total=20\nfull avg10=0.10 avg60=1.0 avg300=2.5 total=8\n";
        assert_eq!(
            pressure(text),
            Some(Pressure {
                some_percent: 0.15,
                full_percent: 0.1
            })
        );
        assert_eq!(pressure(""), None);
    }

    #[test]
    fn rates_are_per_second() {
        let now = MemInfo::now();
        let mut then = now.clone();
        then.at = now
            .at
            .checked_sub(std::time::Duration::from_secs(2))
            .unwrap();
        let mut now = now;
        now.refaulted_pages = then.refaulted_pages + 10;
        assert_eq!(now.since(&then).refaulted_pages, 5.0);
        assert!(now.total_bytes > now.free_bytes && now.group.total_bytes <= now.total_bytes);
    }
}
