//! Whether memory is too small for the file.

use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::text::{bytes, percent, quote};

const LAYER: &str = "memory";
/// Less is not worth a word.
const EVICTED_MIN: u64 = 1 << 20;

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    const CAUSE: &str = "evicted";
    let pressure = &facts.pressure;
    let mut checks = Vec::new();
    let residency = facts.residency.as_ref().map(|found| {
        // Pages are counted whole, the last one too.
        (found, found.evicted_bytes.map(|evicted| evicted.min(found.size_bytes)))
    });
    checks.push(match residency {
        Ok((found, Some(evicted))) if evicted >= EVICTED_MIN && evicted >= found.size_bytes / 10 => {
            let share = percent(evicted, found.size_bytes);
            // What went because something else needed the memory, and only just now, would be there with a little more.
            let recently = found.recently_evicted_bytes.unwrap_or(0);
            let certainty = if recently >= evicted / 2 { Certainty::Certain } else { Certainty::Likely };
            let mut check =
                Check::fault(LAYER, CAUSE, certainty, "too small: the kernel has evicted parts of the file")
                    .with_evidence(format!(
                        "{} of {} evicted ({share}%){}",
                        bytes(evicted),
                        bytes(found.size_bytes),
                        told(facts)
                    ))
                    .with("evicted_bytes", evicted)
                    .with("evicted_percent", share)
                    .with("recently_evicted_bytes", recently);
            if let Some(hits) = pressure.limit_hits {
                check = check.with("limit_hits", hits);
            }
            check
                .with_remedy("systemctl set-property --runtime UNIT MemoryMax=infinity")
                .with_remedy(format!("folio warm --lock {}", quote(&facts.path)))
        }
        Ok((found, Some(evicted))) => {
            Check::fine(LAYER, CAUSE, "large enough: no large part of the file was evicted")
                .with_evidence(format!("{} of {} evicted", bytes(evicted), bytes(found.size_bytes)))
                .with("evicted_bytes", evicted)
        }
        Ok((_, None)) => Check::unknown(
            LAYER,
            CAUSE,
            "the kernel does not tell what it evicted of this file (no cachestat)",
        ),
        Err(why) => Check::unknown(LAYER, CAUSE, why.clone()),
    });
    if pressure.total_bytes > 0 && facts.size_bytes > pressure.total_bytes {
        let evidence =
            format!("the file has {}, memory {}", bytes(facts.size_bytes), bytes(pressure.total_bytes));
        checks.push(
            Check::fault(LAYER, "larger-than-memory", Certainty::Hint, "too small to hold the whole file")
                .with_evidence(evidence)
                .with("size_bytes", facts.size_bytes)
                .with("memory_bytes", pressure.total_bytes)
                .with_remedy(format!("folio warm --budget 80% {}", quote(&facts.path))),
        );
    }
    checks
}

/// What else is known of memory, in words.
fn told(facts: &Facts) -> String {
    let pressure = &facts.pressure;
    let mut text = format!(", {} available", bytes(pressure.available_bytes));
    if let Some(percent) = pressure.memory_some_percent {
        text.push_str(&format!(", somebody waited for memory {percent}% of the last minute"));
    }
    if let Some(hits) = pressure.limit_hits.filter(|hits| *hits > 0) {
        text.push_str(&format!(", this control group met its limit {hits} times"));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{SIZE, faults, healthy};
    use crate::{Certainty, Verdict};

    #[test]
    fn evicted_pages_are_told() {
        let mut facts = healthy("ext4");
        facts.residency.as_mut().unwrap().evicted_bytes = Some(SIZE / 2);
        assert_eq!(faults(&facts), ["evicted"]);
        assert_eq!(super::judge(&facts)[0].certainty, Some(Certainty::Likely));
        facts.residency.as_mut().unwrap().recently_evicted_bytes = Some(SIZE / 2);
        assert_eq!(super::judge(&facts)[0].certainty, Some(Certainty::Certain));
    }

    #[test]
    fn a_few_evicted_pages_are_no_fault_and_none_told_are_unknown() {
        let mut facts = healthy("ext4");
        facts.residency.as_mut().unwrap().evicted_bytes = Some(SIZE / 20);
        assert_eq!(faults(&facts), [""; 0]);
        facts.residency.as_mut().unwrap().evicted_bytes = None;
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn a_file_larger_than_memory_is_a_hint() {
        let mut facts = healthy("ext4");
        facts.pressure.total_bytes = SIZE / 2;
        assert_eq!(faults(&facts), ["larger-than-memory"]);
    }
}
