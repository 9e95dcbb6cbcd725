//! Whether the disk is the limit of what has to come from it.

use crate::finding::Check;
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

#[cfg(test)]
mod tests {
    use crate::Verdict;
    use crate::judge::scene::{faults, healthy};

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
}
