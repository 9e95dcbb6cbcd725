//! Whether the disk is the limit of what has to come from it, and whether it allocates at first
//! writes.

use super::first_write_cost::{FirstWriteCost, VARIES};
use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::text::{bytes, quote, round};

const LAYER: &str = "device";
const CAUSE: &str = "device-limit";
/// From so much of the device's own rate on, nothing above it is to blame.
const AT_LIMIT: f64 = 0.7;
/// Below that, what reads ahead leaves the device waiting.
const FAR_BELOW: f64 = 0.4;

/// Readahead in KiB that keeps a fast disk busy.
const READAHEAD_KIB: u64 = 4096;

pub(super) fn judge(facts: &Facts) -> Option<Check> {
    let reads = facts.reads.as_ref().ok()?;
    let direct = match &reads.direct {
        Ok(direct) => direct,
        Err(why) => return Some(Check::unknown(LAYER, CAUSE, why.clone())),
    };
    let share = round(reads.first.rate() / direct.rate().max(1.0), 2);
    let rate = |rate: f64| bytes(rate as u64);
    let mut evidence = format!(
        "a cold part came at {}/s, the part beside it past the page cache at {}/s",
        rate(reads.first.rate()),
        rate(direct.rate())
    );
    let pressure = facts.pressure.io_some_percent;
    if let Some(percent) = pressure {
        evidence.push_str(&format!(
            ", tasks waited for a device {percent}% of the last minute"
        ));
    }
    let check = if share >= AT_LIMIT {
        Check::note(
            LAYER,
            CAUSE,
            "the limit: nothing above it slows down what has to come from it",
        )
        .with_remedy(format!("folio warm {}", quote(&facts.path)))
    } else if share < FAR_BELOW {
        let disk = facts.chain.iter().find_map(|step| match &step.layer {
            crate::Layer::Disk(disk) => Some(disk),
            _ => None,
        });
        let disk = disk.filter(|disk| disk.read_ahead_kb.is_none_or(|kib| kib < READAHEAD_KIB));
        let says =
            "not the limit: it could read faster than it is asked to; readahead may be too small";
        let check = Check::note(LAYER, CAUSE, says);
        match disk {
            Some(disk) => check.with_remedy(format!(
                "blockdev --setra {} /dev/{}",
                READAHEAD_KIB * 2,
                disk.name
            )),
            None => check,
        }
    } else {
        Check::fine(LAYER, CAUSE, "not the limit alone")
    };
    let check = check.with_evidence(evidence).with("share_of_device", share);
    Some(match pressure {
        Some(percent) => check.with("io_some_percent", percent),
        None => check,
    })
}

/// First writes to an area that take so many times what later ones take are slow. The time of a
/// request itself is part of both.
const SLOW_FIRST_WRITE: f64 = 1.25;
/// From so many times on nothing else explains them.
const CLEAR_RATIO: f64 = 2.0;

/// Judges what first writes to parts of the disk cost, if that was tried.
pub(super) fn first_writes(facts: &Facts) -> Option<Check> {
    const CAUSE: &str = "allocates-at-first-write";
    let tried = match &facts.disk_writes {
        None => return None,
        Some(Ok(tried)) => tried,
        Some(Err(why)) => return Some(Check::unknown(LAYER, CAUSE, why.clone())),
    };
    let pairs = tried.iter().map(|one| (one.first_ns, one.again_ns));
    let cost = FirstWriteCost::of(pairs, SLOW_FIRST_WRITE)?;
    let written = "64 times 4 KiB in free space, with one fdatasync,";
    let says = "the disk finds a place for each block at its first write: a sparse or fresh image \
                of a virtual machine, or a thin volume";
    let check = if cost.is_expensive() {
        let certainty = if cost.ratio() >= CLEAR_RATIO {
            Certainty::Likely
        } else {
            Certainty::Hint
        };
        Check::fault(LAYER, CAUSE, certainty, says)
            .with_remedy(
                "folio image convert -O qcow2 -o preallocation=full disk.qcow2 disk-full.qcow2  \
                 # on the host, for a qcow2 image, while the virtual machine is off; it then uses \
                 the copy",
            )
            .with_remedy(
                "cp --sparse=never --reflink=never disk.raw disk-full.raw  # on the host, for a \
                 raw image, in the same way",
            )
    } else if cost.is_cheap() {
        Check::fine(LAYER, CAUSE, "first writes take what later ones take")
    } else {
        Check::unknown(LAYER, CAUSE, format!("{says}; {VARIES}"))
    };
    Some(cost.add_to(check, written))
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{faults, healthy};
    use crate::probe::disk_writes::DiskWrites;
    use crate::{Certainty, Verdict};

    #[test]
    fn a_cold_read_as_fast_as_the_device_is_the_device() {
        let mut facts = healthy("ext4");
        assert_eq!(super::judge(&facts).unwrap().verdict, Verdict::Unknown);
        let reads = facts.reads.as_mut().unwrap();
        reads.direct = Ok(reads.first);
        assert_eq!(faults(&facts), [""; 0]);
        assert!(super::judge(&facts).unwrap().says.starts_with("the limit"));
        facts.pressure.io_some_percent = Some(12.5);
        let check = super::judge(&facts).unwrap();
        assert!(
            check
                .evidence
                .ends_with("waited for a device 12.5% of the last minute"),
            "{check:?}"
        );
        assert_eq!(check.numbers["io_some_percent"], 12.5);
        facts.reads.as_mut().unwrap().first.wall_ns *= 5;
        assert_eq!(super::judge(&facts).unwrap().verdict, Verdict::Note);
        assert!(
            super::judge(&facts)
                .unwrap()
                .says
                .starts_with("not the limit")
        );
    }

    #[test]
    fn disk_that_allocates_is_a_fault() {
        let mut facts = healthy("ext4");
        assert!(super::first_writes(&facts).is_none(), "not tried");
        let pair = |first_us: u64| DiskWrites {
            first_ns: first_us * 1000,
            again_ns: 100_000,
        };
        let mut verdict = |slow: usize| {
            let tried = (0..12).map(|at| pair(if at < slow { 900 } else { 110 }));
            facts.disk_writes = Some(Ok(tried.collect()));
            super::first_writes(&facts).unwrap()
        };
        let fault = verdict(10);
        assert_eq!(fault.verdict, Verdict::Fault);
        assert_eq!(fault.certainty, Some(Certainty::Likely));
        assert_eq!(
            (&fault.numbers["first_write_us"], fault.remedies.len()),
            (&900.0.into(), 2)
        );
        assert_eq!(verdict(6).verdict, Verdict::Unknown);
        let fine = verdict(2);
        assert_eq!((fine.verdict, fine.remedies.len()), (Verdict::Fine, 0));
        facts.disk_writes = Some(Err("the file system cannot reserve space".into()));
        let unknown = super::first_writes(&facts).unwrap();
        assert_eq!(unknown.verdict, Verdict::Unknown);
    }
}
