//! Verdicts over facts, in the order of the layers a call passes; nothing here looks at the
//! machine.

mod attributes;
mod backing;
pub(crate) mod blocks;
mod cure;
mod device;
mod file_system;
mod first_write_cost;
mod memory;
mod page_cache;
mod remedy;
mod workload;

pub use workload::judge as judge_workload;
pub(crate) use workload::{is_asked_finding, is_tiny_finding};

use crate::finding::Check;
use crate::probe::{Facts, Kind};

/// What the facts mean, from the layer nearest to the program down.
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(attributes::judge(facts));
    if matches!(facts.kind, Kind::BlockDevice | Kind::Special) {
        checks.push(page_cache::bypassed(facts));
        return checks;
    }
    if facts.kind == Kind::File {
        checks.push(page_cache::bypassed(facts));
        if facts.size_bytes == 0 {
            // What has no contents is neither in memory nor anywhere else.
            checks.extend(file_system::judge(facts));
            return checks;
        }
        checks.extend(page_cache::dropped(facts));
        checks.extend(page_cache::cold(facts));
        checks.extend(page_cache::slow_copy(facts));
        checks.extend(memory::judge(facts));
    }
    checks.extend(file_system::judge(facts));
    if facts.kind == Kind::File {
        checks.extend(blocks::judge(facts));
        checks.extend(device::judge(facts));
    }
    checks.extend(device::first_writes(facts));
    checks
}

#[cfg(test)]
mod scene {
    //! Facts of a file that has no fault, to be spoiled by tests.

    use crate::probe::attributes::Attributes;
    use crate::probe::blocks::Blocks;
    use crate::probe::layers::{FileSystem, Layer, Step};
    use crate::probe::memory::{During, Pressure};
    use crate::probe::reads::{Pass, Reads};
    use crate::probe::{Facts, Kind};
    use folio_pagecache::Residency;

    pub(super) const SIZE: u64 = 64 << 20;

    /// The whole file, each time from memory.
    fn reads() -> Reads {
        let pass = Pass {
            bytes: SIZE,
            calls: 64,
            switches: 0,
            device_bytes: Some(0),
            cpu_ns: 8_000_000,
            wall_ns: 9_000_000,
        };
        Reads {
            sampled_bytes: SIZE,
            resident_before_bytes: Ok(SIZE),
            resident_after_bytes: Ok(SIZE),
            resident_reopened_bytes: Ok(SIZE),
            is_mappable: Ok(true),
            first: pass,
            again: pass,
            memcpy_ns: Ok(7_000_000),
            direct: Err("too little of the file came from the device".into()),
        }
    }

    /// A file of 64 MiB on a file system of this type, in memory, in one piece.
    pub(super) fn healthy(fs_type: &str) -> Facts {
        let file_system = FileSystem {
            fs_type: fs_type.into(),
            source: "/srv/source".into(),
            mount_point: "/mnt".into(),
            root: "/".into(),
            options: vec!["rw".into(), "relatime".into()],
            ..FileSystem::default()
        };
        let residency = Residency {
            size_bytes: SIZE,
            resident_bytes: SIZE,
            dirty_bytes: Some(0),
            writeback_bytes: Some(0),
            evicted_bytes: Some(0),
            recently_evicted_bytes: Some(0),
        };
        Facts {
            path: "/mnt/file".into(),
            kind: Kind::File,
            size_bytes: SIZE,
            chain: vec![Step {
                depth: 0,
                layer: Layer::FileSystem(file_system),
            }],
            attributes: Ok(Attributes {
                calls: 32,
                switches: 0,
                call_ns: 500,
                forced_switches: 0,
                trusted_ns: None,
                asked_after_ns: None,
            }),
            blocks: Ok(Blocks {
                size_bytes: SIZE,
                allocated_bytes: SIZE,
                fragments: 1,
                placed_bytes: SIZE,
                is_complete: true,
                ..Blocks::default()
            }),
            image: None,
            residency: Ok(residency),
            reads: Ok(reads()),
            pressure: Pressure {
                total_bytes: 8 << 30,
                available_bytes: 4 << 30,
                limit_hits: Some(0),
                memory_some_percent: Some(0.0),
                io_some_percent: Some(0.0),
                during: Some(During {
                    refaulted_pages: Some(0),
                    memory_wait_us: Some(0),
                }),
                groups: Vec::new(),
            },
            rewrite: None,
            disk_writes: None,
        }
    }

    /// The causes of all faults that are found.
    pub(super) fn faults(facts: &Facts) -> Vec<&'static str> {
        let is_fault = |check: &crate::Check| check.verdict == crate::Verdict::Fault;
        super::judge(facts)
            .into_iter()
            .filter(is_fault)
            .map(|check| check.cause)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::scene::{faults, healthy};
    use super::*;
    use crate::Verdict;

    #[test]
    fn a_healthy_file_has_no_fault() {
        for fs_type in [
            "ext4",
            "xfs",
            "tmpfs",
            "overlay",
            "fuse.bindfs",
            "nfs4",
            "virtiofs",
        ] {
            assert_eq!(faults(&healthy(fs_type)), [""; 0], "{fs_type}");
        }
    }

    #[test]
    fn empty_file_is_not_judged_by_its_content() {
        let mut facts = healthy("ext4");
        facts.size_bytes = 0;
        facts.reads = Err("empty".into());
        let found = |facts: &Facts| {
            judge(facts)
                .into_iter()
                .map(|check| check.layer)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&facts), ["attributes", "page-cache", "file-system"]);
        for kind in [Kind::BlockDevice, Kind::Special] {
            facts.kind = kind;
            assert_eq!(found(&facts), ["attributes", "page-cache"]);
        }
    }

    #[test]
    fn unknown_verdict_has_no_numbers() {
        let mut facts = healthy("ext4");
        facts.attributes = Err("statx: not permitted".into());
        facts.blocks = Err("no FIEMAP".into());
        facts.residency = Err("unknown".into());
        facts.reads = Err("no".into());
        for check in judge(&facts) {
            if check.verdict == Verdict::Unknown {
                assert!(
                    check.numbers.is_empty() && check.evidence.is_empty(),
                    "{check:?}"
                );
                assert!(!check.says.is_empty(), "{check:?}");
            }
        }
        assert!(
            judge(&facts)
                .iter()
                .filter(|check| check.verdict == Verdict::Unknown)
                .count()
                >= 4
        );
        assert_eq!(faults(&facts), [""; 0]);
    }

    #[test]
    fn every_fault_has_evidence_and_a_remedy() {
        let mut facts = healthy("fuse.bindfs");
        if let Ok(attributes) = &mut facts.attributes {
            attributes.switches = 96;
        }
        for check in judge(&facts)
            .iter()
            .filter(|check| check.verdict == Verdict::Fault)
        {
            assert!(
                !check.evidence.is_empty() && !check.remedies.is_empty(),
                "{check:?}"
            );
            assert!(
                check.certainty.is_some() && !check.numbers.is_empty(),
                "{check:?}"
            );
        }
    }
}
