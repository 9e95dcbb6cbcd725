//! Whether memory is too small for the file.

use crate::finding::{Certainty, Check, Verdict};
use crate::probe::Facts;
use crate::probe::memory_group::MemoryGroup;
use crate::text::{bytes, percent, quote, round};

const LAYER: &str = "memory";
const CAUSE: &str = "evicted";
/// Less is not worth a word.
const EVICTED_MIN: u64 = 1 << 20;

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let pressure = &facts.pressure;
    let mut checks = vec![evicted(facts)];
    if pressure.total_bytes > 0 && facts.size_bytes > pressure.total_bytes {
        let evidence = format!(
            "the file has {}, memory {}",
            bytes(facts.size_bytes),
            bytes(pressure.total_bytes)
        );
        checks.push(
            Check::note(
                LAYER,
                "larger-than-memory",
                "too small to hold the whole file",
            )
            .with_evidence(evidence)
            .with("size_bytes", facts.size_bytes)
            .with("memory_bytes", pressure.total_bytes)
            .with_remedy(format!("folio warm --budget 80% {}", quote(&facts.path))),
        );
    }
    checks
}

fn evicted(facts: &Facts) -> Check {
    let (found, evicted) = match &facts.residency {
        // Pages are counted whole, the last one too.
        Ok(found) => match found.evicted_bytes {
            Some(evicted) => (found, evicted.min(found.size_bytes)),
            None => {
                let why = "the kernel does not report evictions of this file (no cachestat)";
                return refaulted(facts).unwrap_or_else(|| Check::unknown(LAYER, CAUSE, why));
            }
        },
        Err(why) => {
            return refaulted(facts).unwrap_or_else(|| Check::unknown(LAYER, CAUSE, why.clone()));
        }
    };
    if evicted < EVICTED_MIN || evicted < found.size_bytes / 10 {
        let says = "large enough: no large part of the file was evicted";
        let evidence = format!("{} of {} evicted", bytes(evicted), bytes(found.size_bytes));
        let check = Check::fine(LAYER, CAUSE, says).with_evidence(evidence);
        return counted(check.with("evicted_bytes", evicted), facts);
    }
    let share = percent(evicted, found.size_bytes);
    // What went because something else needed the memory, and only just now, would be there with a
    // little more.
    let recently = found.recently_evicted_bytes.unwrap_or(0);
    let certainty = if recently >= evicted / 2 {
        Certainty::Certain
    } else {
        Certainty::Likely
    };
    let evidence = format!(
        "{} of {} evicted ({share}%){}",
        bytes(evicted),
        bytes(found.size_bytes),
        evidence_text(facts)
    );
    let came_back = facts
        .reads
        .as_ref()
        .ok()
        .is_some_and(|reads| reads.first.device_bytes.is_some_and(|came| came > 0));
    let check = if is_short(facts, evicted) && came_back {
        let says = "too small: the kernel has evicted parts of the file";
        Check::fault(LAYER, CAUSE, certainty, says)
    } else {
        let says = "parts of the file were evicted earlier; there is enough memory for them now";
        Check::note(LAYER, CAUSE, says)
    };
    let check = check
        .with_evidence(evidence)
        .with("evicted_bytes", evicted)
        .with("evicted_percent", share)
        .with("recently_evicted_bytes", recently);
    with_remedies(counted(check, facts), facts)
}

/// Infers evictions where the kernel does not report them for this file: refaults on the machine
/// show that pages were evicted, and reads from the device meanwhile suggest that they are this
/// file's.
fn refaulted(facts: &Facts) -> Option<Check> {
    let pages = facts.pressure.during?.refaulted_pages?;
    let reads = facts.reads.as_ref().ok()?;
    let page = rustix::param::page_size() as u64;
    let back = pages.saturating_mul(page).min(reads.first.device_bytes?);
    let is_little = back < EVICTED_MIN || back < reads.sampled_bytes / 10;
    if is_little || !is_short(facts, facts.size_bytes) {
        return None;
    }
    let says = "too small, it seems: what was evicted had to come back";
    let evidence = format!(
        "{} of {} read{}",
        bytes(back),
        bytes(reads.sampled_bytes),
        evidence_text(facts)
    );
    let check = Check::fault(LAYER, CAUSE, Certainty::Hint, says).with_evidence(evidence);
    Some(with_remedies(counted(check, facts), facts))
}

/// With what is counted of memory as a whole.
fn counted(check: Check, facts: &Facts) -> Check {
    let pressure = &facts.pressure;
    let during = pressure.during.unwrap_or_default();
    let numbers = [
        ("refaulted_pages", during.refaulted_pages),
        ("memory_wait_us", during.memory_wait_us),
        ("limit_hits", pressure.limit_hits),
    ];
    let check = numbers
        .into_iter()
        .fold(check, |check, (name, number)| match number {
            Some(number) => check.with(name, number),
            None => check,
        });
    match pressure.memory_some_percent {
        Some(percent) => check.with("memory_some_percent", percent),
        None => check,
    }
}

/// Returns whether memory is short for `bytes`: a program with the file open met the limit of its
/// control group, or the machine has less available.
fn is_short(facts: &Facts, bytes: u64) -> bool {
    !facts.pressure.groups.is_empty() || facts.pressure.available_bytes < bytes
}

fn with_remedies(check: Check, facts: &Facts) -> Check {
    let path = quote(&facts.path);
    if check.verdict != Verdict::Fault {
        return check.with_remedy(format!("folio warm {path}"));
    }
    let limits = facts.pressure.groups.iter().map(MemoryGroup::lift);
    limits
        .fold(check, Check::with_remedy)
        .with_remedy(format!("folio warm --lock {path}"))
}

/// What else is known of memory, in words.
fn evidence_text(facts: &Facts) -> String {
    let pressure = &facts.pressure;
    let during = pressure.during.unwrap_or_default();
    let mut text = String::new();
    if let Some(pages) = during.refaulted_pages {
        text.push_str(&format!(
            ", {pages} pages refaulted on this machine while it was read"
        ));
    }
    text.push_str(&format!(", {} available", bytes(pressure.available_bytes)));
    if let Some(percent) = pressure.memory_some_percent {
        text.push_str(&format!(
            ", tasks waited for memory {percent}% of the last minute"
        ));
        if let Some(us) = during.memory_wait_us.filter(|us| *us > 0) {
            text.push_str(&format!(
                " and {} ms of the read",
                round(us as f64 / 1000.0, 1)
            ));
        }
    }
    for group in &pressure.groups {
        text.push_str(&format!(
            ", {} met the limit of {} of its control group {} times",
            group.program,
            bytes(group.limit_bytes),
            group.limit_hits
        ));
    }
    if let Some(hits) = pressure.limit_hits.filter(|hits| *hits > 0) {
        text.push_str(&format!(", this control group met its limit {hits} times"));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{SIZE, faults, healthy};
    use crate::{Certainty, During, Facts, Verdict};

    /// A file of which half was evicted and came back.
    fn evicted() -> Facts {
        let mut facts = healthy("ext4");
        facts.residency.as_mut().unwrap().evicted_bytes = Some(SIZE / 2);
        facts.reads.as_mut().unwrap().first.device_bytes = Some(SIZE / 2);
        facts
    }

    #[test]
    fn evicted_pages_are_a_note_if_memory_suffices() {
        let mut facts = evicted();
        facts.pressure.available_bytes = 22 << 30;
        assert_eq!(faults(&facts), [""; 0]);
        let check = &super::judge(&facts)[0];
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.remedies, ["folio warm /mnt/file"]);
        facts.pressure.available_bytes = SIZE / 4;
        assert_eq!(faults(&facts), ["evicted"]);
        assert_eq!(
            super::judge(&facts)[0].remedies,
            ["folio warm --lock /mnt/file"]
        );
        facts.reads.as_mut().unwrap().first.device_bytes = Some(0);
        assert_eq!(faults(&facts), [""; 0], "nothing had to come back");
    }

    #[test]
    fn evicted_pages_are_a_fault() {
        let mut facts = evicted();
        facts.pressure.available_bytes = SIZE / 4;
        assert_eq!(faults(&facts), ["evicted"]);
        assert_eq!(super::judge(&facts)[0].certainty, Some(Certainty::Likely));
        facts.residency.as_mut().unwrap().recently_evicted_bytes = Some(SIZE / 2);
        assert_eq!(super::judge(&facts)[0].certainty, Some(Certainty::Certain));
    }

    #[test]
    fn few_evictions_are_fine_and_no_report_is_unknown() {
        let mut facts = healthy("ext4");
        facts.residency.as_mut().unwrap().evicted_bytes = Some(SIZE / 20);
        assert_eq!(faults(&facts), [""; 0]);
        facts.residency.as_mut().unwrap().evicted_bytes = None;
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn refaults_and_pressure_are_evidence() {
        let mut facts = evicted();
        facts.pressure.during = Some(During {
            refaulted_pages: Some(8000),
            memory_wait_us: Some(2500),
        });
        facts.pressure.memory_some_percent = Some(1.5);
        let check = &super::judge(&facts)[0];
        let wanted = ", 8000 pages refaulted on this machine while it was read, 4 GiB available, \
                      tasks waited for memory 1.5% of the last minute and 2.5 ms of the read";
        assert!(check.evidence.ends_with(wanted), "{check:?}");
        assert_eq!(
            (
                &check.numbers["refaulted_pages"],
                &check.numbers["memory_wait_us"]
            ),
            (&8000.into(), &2500.into())
        );
        // A kernel without pressure information reports less, and no number in its place.
        facts.pressure.during = Some(During::default());
        facts.pressure.memory_some_percent = None;
        let check = &super::judge(&facts)[0];
        assert!(
            !check.evidence.contains("refaulted") && !check.numbers.contains_key("refaulted_pages"),
            "{check:?}"
        );
    }

    #[test]
    fn refaults_are_a_hint_without_evictions() {
        let mut facts = healthy("overlay");
        facts.pressure.available_bytes = SIZE / 4;
        facts.residency.as_mut().unwrap().evicted_bytes = None;
        let back = SIZE / 4 / rustix::param::page_size() as u64;
        facts.pressure.during = Some(During {
            refaulted_pages: Some(back),
            memory_wait_us: None,
        });
        assert_eq!(
            faults(&facts),
            [""; 0],
            "nothing came from a device: they are another file's"
        );
        facts.reads.as_mut().unwrap().first.device_bytes = Some(SIZE / 2);
        assert_eq!(faults(&facts), ["evicted"]);
        let check = &super::judge(&facts)[0];
        assert_eq!(check.certainty, Some(Certainty::Hint));
        assert!(
            check.evidence.starts_with("16 MiB of 64 MiB read, "),
            "{check:?}"
        );
        facts.pressure.available_bytes = 22 << 30;
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Unknown);
        facts.pressure.available_bytes = SIZE / 4;
        facts.residency = Err("unknown".into());
        assert_eq!(super::judge(&facts)[0].certainty, Some(Certainty::Hint));
        facts.pressure.during = Some(During {
            refaulted_pages: Some(100),
            memory_wait_us: None,
        });
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn a_file_larger_than_memory_is_a_note() {
        let mut facts = healthy("ext4");
        facts.pressure.total_bytes = SIZE / 2;
        assert_eq!(faults(&facts), [""; 0]);
        let check = &super::judge(&facts)[1];
        assert_eq!(
            (check.cause, check.verdict),
            ("larger-than-memory", Verdict::Note)
        );
    }
}
