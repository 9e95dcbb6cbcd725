//! The whole machine's memory at one moment, as `sar -r` and /proc/vmstat tell of it, and what
//! changed since another.

use crate::memory::{Memory, meminfo};
use serde::Serialize;
use std::fs;
use std::time::Instant;

/// What /proc tells now. Bytes, unless the name says something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemInfo {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemFree`: used for nothing, not even a cache.
    pub free_bytes: u64,
    /// `MemAvailable`: what a program could get without swapping.
    pub available_bytes: u64,
    /// `Buffers`: pages of block devices, among them most metadata of ext4.
    pub buffers_bytes: u64,
    /// `Cached`: pages of files, those of tmpfs and shared memory among them.
    pub cached_bytes: u64,
    /// `Shmem`: of those, tmpfs and shared memory, which only swapping makes room of.
    pub shared_bytes: u64,
    /// `Dirty`: changed and not written.
    pub dirty_bytes: u64,
    /// `Writeback`: being written.
    pub writeback_bytes: u64,
    /// `Active(file)`: used more than once.
    pub active_file_bytes: u64,
    /// `Inactive(file)`: the first to go.
    pub inactive_file_bytes: u64,
    /// `SReclaimable`: names and inodes that are remembered.
    pub reclaimable_slab_bytes: u64,
    /// `workingset_refault_file`: pages that were read again soon after they had to go, since the
    /// machine started.
    pub refaulted_pages: u64,
    /// `pgpgin`: read from disks since then.
    pub disk_read_bytes: u64,
    /// `pgpgout`: written to disks since then.
    pub disk_written_bytes: u64,
    /// The memory that this control group may use.
    pub group: Memory,
    /// Time lost waiting for memory.
    pub memory_pressure: Option<Pressure>,
    /// Time lost waiting for disks.
    pub io_pressure: Option<Pressure>,
    /// When it was looked at.
    #[serde(skip)]
    pub at: Instant,
}

/// Percent of time in the last 10 seconds (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some_percent: f64,
    /// All of them did.
    pub full_percent: f64,
}

/// What happened between two moments, in each second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Pages that were read again soon after they had to go.
    pub refaulted_pages: f64,
    /// Bytes that disks delivered.
    pub disk_read_bytes: f64,
    /// Bytes that disks took.
    pub disk_written_bytes: f64,
}

impl MemInfo {
    /// How it is now. What this kernel does not tell is 0, or `None`.
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
            // These two count KiB, whatever their names say.
            disk_read_bytes: count("pgpgin").saturating_mul(1024),
            disk_written_bytes: count("pgpgout").saturating_mul(1024),
            group: Memory::here(),
            memory_pressure: pressure(&read("/proc/pressure/memory")),
            io_pressure: pressure(&read("/proc/pressure/io")),
            at: Instant::now(),
        }
    }

    /// What happened since `before`.
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

/// The short averages; without a line `full` they are those of `some` alone.
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
    fn counters_and_pressure_are_read() {
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
    fn rates_are_those_of_a_second() {
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
