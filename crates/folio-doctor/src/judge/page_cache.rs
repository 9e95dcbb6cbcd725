//! The page cache: bypassed, cold, or copied from slowly.

use super::remedy;
use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::probe::layers::FileSystem;
use crate::probe::reads::Reads;
use crate::text::{bytes, percent, quote, round};

const LAYER: &str = "page-cache";
/// Waits for each call from which on a server is asked each time.
const ASKED: f64 = 0.9;
/// Less is not worth a word.
const COLD_MIN: u64 = 1 << 20;
/// A copy that takes so many times what memcpy takes is slow.
const SLOW_COPY: f64 = 4.0;
/// Below that a rate means nothing.
const RATE_MIN: u64 = 8 << 20;

/// The cause of [`bypassed`].
const BYPASSED: &str = "page-cache-bypassed";

/// Judges whether the second read is answered from memory.
pub(super) fn bypassed(facts: &Facts) -> Check {
    let reads = match &facts.reads {
        Ok(reads) => reads,
        Err(why) => return Check::unknown(LAYER, BYPASSED, why.clone()),
    };
    let again = &reads.again;
    let is_asked = again.switches_per_call() >= ASKED;
    let per_mib = round(again.switches_per_mib(), 1);
    let waits = match again.bytes {
        ..0x10_0000 => format!("{} waits in the second read", again.switches),
        _ => format!("{per_mib:.1} waits for each MiB of the second read"),
    };
    let mapped = match reads.is_mappable {
        Ok(false) => ", and it cannot be mapped into memory",
        _ => "",
    };
    let resident = &reads.resident_after_bytes;
    let is_empty = match resident {
        Ok(resident) => *resident < reads.sampled_bytes / 2,
        // Without a mapping there are no pages to report.
        Err(_) => reads.is_mappable == Ok(false),
    };
    // An answer may arrive before the program waits for it.
    let is_never_elsewhere = facts.file_system().is_some_and(FileSystem::has_own_pages);
    if is_empty && (is_asked || is_never_elsewhere) || is_asked && resident.is_err() {
        return bypass_fault(facts, reads, is_empty, &format!("{waits}{mapped}"));
    }
    let (says, evidence) = match resident {
        Ok(resident) if *resident >= reads.sampled_bytes / 2 => (
            "used: the second read was answered from memory",
            format!(
                "{} of {} in memory, {waits}",
                bytes(*resident),
                bytes(reads.sampled_bytes)
            ),
        ),
        Ok(_) if !is_asked && facts.file_system().is_some_and(FileSystem::is_in_memory) => (
            "the kernel makes the contents at each read: there are no pages to keep",
            waits,
        ),
        Ok(_) if !is_asked => (
            "the second read did not wait, although this file has no pages: the pages of another \
              file answer (passthrough), or memory without a cache (DAX)",
            waits,
        ),
        Ok(_) => ("used", waits),
        Err(_) if !is_asked => ("the second read did not wait", waits),
        Err(why) => return Check::unknown(LAYER, BYPASSED, why.clone()),
    };
    Check::fine(LAYER, BYPASSED, says)
        .with_evidence(evidence)
        .with("switches_per_mib", per_mib)
}

/// Returns the fault of reads that the page cache does not answer; `is_empty` is whether the file
/// is known to have no pages, `waits` the evidence of the second read.
fn bypass_fault(facts: &Facts, reads: &Reads, is_empty: bool, waits: &str) -> Check {
    let resident = &reads.resident_after_bytes;
    let certainty = if is_empty {
        Certainty::Certain
    } else {
        Certainty::Likely
    };
    let pages = match resident {
        Ok(resident) => format!(
            "{} of {} in memory after the first read",
            bytes(*resident),
            bytes(reads.sampled_bytes)
        ),
        Err(why) => format!("pages in memory are unknown ({why})"),
    };
    let says = "bypassed: bytes that were read before are requested again";
    let mut check = Check::fault(LAYER, BYPASSED, certainty, says)
        .with_evidence(format!("{pages}, {waits}{}", remark(facts)))
        .with("switches_per_mib", round(reads.again.switches_per_mib(), 1))
        .with("sampled_bytes", reads.sampled_bytes);
    if let Ok(resident) = resident {
        check = check.with("resident_bytes", *resident);
    }
    remedy::page_cache(facts)
        .into_iter()
        .fold(check, Check::with_remedy)
}

/// Returns the end of the evidence: what is known of the file system.
fn remark(facts: &Facts) -> String {
    remedy::page_cache_remark(facts).map_or_else(String::new, |remark| format!("; {remark}"))
}

/// Judges whether the pages are dropped when the next program opens the file.
pub(super) fn dropped(facts: &Facts) -> Option<Check> {
    let reads = facts.reads.as_ref().ok()?;
    if !is_dropped(reads) {
        return None;
    }
    let (after, again) = (
        reads.resident_after_bytes.as_ref().ok()?,
        reads.resident_reopened_bytes.as_ref().ok()?,
    );
    let says = "dropped at each open: every program that opens the file reads it anew";
    let evidence = format!(
        "{} of {} in memory after a read, {} once the file was opened again{}",
        bytes(*after),
        bytes(reads.sampled_bytes),
        bytes(*again),
        remark(facts)
    );
    let check = Check::fault(LAYER, "dropped-at-open", Certainty::Certain, says)
        .with_evidence(evidence)
        .with("resident_bytes", *after)
        .with("reopened_bytes", *again);
    Some(
        remedy::page_cache(facts)
            .into_iter()
            .fold(check, Check::with_remedy),
    )
}

fn is_dropped(reads: &Reads) -> bool {
    let (Ok(after), Ok(again)) = (&reads.resident_after_bytes, &reads.resident_reopened_bytes)
    else {
        return false;
    };
    *after >= reads.sampled_bytes / 2 && *again < *after / 10
}

/// Judges whether the file was in memory before this probe read it; `None` where bytes that are
/// read do not stay in memory.
pub(super) fn cold(facts: &Facts) -> Option<Check> {
    const CAUSE: &str = "cold";
    let residency = match &facts.residency {
        Ok(residency) => residency,
        Err(why) => return Some(Check::unknown(LAYER, CAUSE, why.clone())),
    };
    let resident = residency.resident_bytes;
    // A hole takes no reading.
    let holes = facts
        .blocks
        .as_ref()
        .map_or(0, |blocks| blocks.hole_bytes + blocks.unwritten_bytes);
    let missing = residency
        .size_bytes
        .saturating_sub(resident)
        .saturating_sub(holes);
    let share = percent(resident, residency.size_bytes);
    let evidence = format!(
        "{} of {} in memory ({share}%)",
        bytes(resident),
        bytes(residency.size_bytes)
    );
    let Ok(reads) = &facts.reads else {
        let note = Check::note(LAYER, CAUSE, "in memory before").with_evidence(evidence);
        return Some(note.with("resident_percent", share));
    };
    if is_unkept(reads) {
        return None;
    }
    let came = reads.first.device_bytes.unwrap_or(0);
    let is_served = facts.file_system().is_some_and(|found| found.is_served());
    let had_to_come = came > reads.again.device_bytes.unwrap_or(0)
        || is_served && reads.first.switches > reads.again.switches;
    if missing < COLD_MIN || missing < residency.size_bytes / 10 || !had_to_come {
        let fine =
            Check::fine(LAYER, CAUSE, "no large part had to be fetched").with_evidence(evidence);
        return Some(fine.with("resident_percent", share));
    }
    let rate = |pass: &crate::probe::reads::Pass| bytes(pass.rate() as u64);
    let from = match came {
        0 => format!(
            "{} waits in the first read, {} in the second",
            reads.first.switches, reads.again.switches
        ),
        _ => format!("{} from the device in the first read", bytes(came)),
    };
    let rates = format!("{}/s then {}/s", rate(&reads.first), rate(&reads.again));
    // Every file is cold once: that alone is not a fault.
    let check = Check::note(
        LAYER,
        CAUSE,
        "cold: the first read of each part waits for the layers below",
    )
    .with_evidence(format!("{evidence} before, {from}, {rates}"))
    .with("resident_percent", share)
    .with("missing_bytes", missing)
    .with("device_bytes", came)
    .with_remedy(format!("folio warm {}", quote(&facts.path)));
    Some(check)
}

/// Returns whether reads leave nothing in memory: a fault of its own, which warming does not fix.
fn is_unkept(reads: &Reads) -> bool {
    let is_empty = reads
        .resident_after_bytes
        .as_ref()
        .is_ok_and(|resident| *resident < reads.sampled_bytes / 2);
    reads.is_mappable == Ok(false) || is_empty || is_dropped(reads)
}

/// Whether what is in memory comes as fast as memory is; by time on the processor, so that other
/// work does not count.
pub(super) fn slow_copy(facts: &Facts) -> Option<Check> {
    const LAYER: &str = "copy";
    const CAUSE: &str = "slow-copy";
    let reads = facts.reads.as_ref().ok()?;
    let memcpy = match &reads.memcpy_ns {
        Ok(memcpy) if reads.again.switches_per_call() < ASKED => *memcpy,
        Ok(_) => return Some(Check::unknown(LAYER, CAUSE, "not all was read from memory")),
        Err(why) => return Some(Check::unknown(LAYER, CAUSE, why.clone())),
    };
    if reads.again.bytes < RATE_MIN || reads.again.device_bytes.is_some_and(|came| came > 0) {
        return Some(Check::unknown(LAYER, CAUSE, "not all was read from memory"));
    }
    let times = round(reads.again.cpu_ns as f64 / memcpy.max(1) as f64, 1);
    let per_second = |ns: u64| bytes((reads.again.bytes as f64 * 1e9 / ns.max(1) as f64) as u64);
    let evidence = format!(
        "{} in memory copied in {times} times what memcpy takes ({}/s against {}/s, on one processor)",
        bytes(reads.again.bytes),
        per_second(reads.again.cpu_ns),
        per_second(memcpy)
    );
    let check = if times >= SLOW_COPY {
        let says = "the way from memory to the program is slow: small pieces, a slow copy or work for each page";
        Check::fault(LAYER, CAUSE, Certainty::Hint, says).with_remedy(format!(
            "perf record -g -- dd if={} of=/dev/null bs=1M",
            quote(&facts.path)
        ))
    } else {
        Check::fine(LAYER, CAUSE, "what is in memory comes at memory's speed")
    };
    Some(check.with_evidence(evidence).with("times_memcpy", times))
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{SIZE, faults, healthy};
    use crate::{Certainty, Facts, Verdict};

    fn direct_io() -> Facts {
        let mut facts = healthy("fuse");
        let reads = facts.reads.as_mut().unwrap();
        reads.resident_after_bytes = Ok(0);
        reads.resident_before_bytes = Ok(0);
        reads.is_mappable = Ok(false);
        (reads.first.switches, reads.again.switches) = (576, 576);
        facts.residency.as_mut().unwrap().resident_bytes = 0;
        facts
    }

    #[test]
    fn bypassed_cache_is_reported_and_not_cold() {
        let facts = direct_io();
        assert_eq!(faults(&facts), ["page-cache-bypassed"]);
        let check = super::bypassed(&facts);
        assert_eq!(check.certainty, Some(Certainty::Certain));
        assert!(
            check.evidence.contains("9.0 waits for each MiB"),
            "{check:?}"
        );
    }

    #[test]
    fn faults_of_vboxsf_are_evidence() {
        let mut facts = healthy("vboxsf");
        facts.reads = direct_io().reads;
        let evidence = super::bypassed(&facts).evidence;
        assert!(
            evidence.ends_with("that an older one replaces"),
            "{evidence}"
        );
    }

    #[test]
    fn pages_dropped_at_open_are_reported_and_not_cold() {
        let mut facts = healthy("fuse.bindfs");
        facts.residency.as_mut().unwrap().resident_bytes = 0;
        let reads = facts.reads.as_mut().unwrap();
        (reads.resident_before_bytes, reads.resident_reopened_bytes) = (Ok(0), Ok(0));
        reads.first.switches = 64;
        assert_eq!(faults(&facts), ["dropped-at-open"]);
        assert!(
            super::cold(&facts).is_none(),
            "all of it had to be fetched, and warming would not help"
        );
        assert!(super::dropped(&facts).unwrap().remedies[0].contains("-o kernel_cache "));
        facts.reads.as_mut().unwrap().resident_reopened_bytes = Err("unknown".into());
        assert_eq!(super::cold(&facts).unwrap().verdict, Verdict::Note);
    }

    #[test]
    fn unknown_residency_makes_bypass_likely() {
        let mut facts = direct_io();
        let reads = facts.reads.as_mut().unwrap();
        (reads.is_mappable, reads.resident_after_bytes) = (Ok(true), Err("unknown".into()));
        assert_eq!(super::bypassed(&facts).certainty, Some(Certainty::Likely));
        facts.reads.as_mut().unwrap().again.switches = 0;
        assert_eq!(super::bypassed(&facts).verdict, Verdict::Fine);
    }

    #[test]
    fn fast_answers_of_a_share_need_no_pages() {
        for (fs_type, verdict) in [("9p", Verdict::Fault), ("virtiofs", Verdict::Fine)] {
            let mut facts = healthy(fs_type);
            let mut reads = direct_io().reads.unwrap();
            reads.again.switches = 0;
            facts.reads = Ok(reads);
            assert_eq!(super::bypassed(&facts).verdict, verdict, "{fs_type}");
        }
    }

    #[test]
    fn passthrough_has_no_pages_and_no_fault() {
        let mut facts = direct_io();
        let reads = facts.reads.as_mut().unwrap();
        (
            reads.is_mappable,
            reads.first.switches,
            reads.again.switches,
        ) = (Ok(true), 0, 0);
        assert_eq!(faults(&facts), [""; 0]);
        assert!(super::bypassed(&facts).says.contains("passthrough"));
    }

    #[test]
    fn attribute_requests_at_reads_are_not_a_bypass() {
        let mut facts = healthy("fuse");
        facts.reads.as_mut().unwrap().again.switches = 64;
        assert_eq!(
            super::bypassed(&facts).verdict,
            Verdict::Fine,
            "the pages are there"
        );
    }

    fn cold_file() -> Facts {
        let mut facts = healthy("ext4");
        facts.residency.as_mut().unwrap().resident_bytes = SIZE / 4;
        let reads = facts.reads.as_mut().unwrap();
        reads.first.device_bytes = Some(SIZE / 4 * 3);
        reads.first.switches = 30;
        facts
    }

    #[test]
    fn cold_file_is_reported_and_can_be_warmed() {
        let facts = cold_file();
        assert_eq!(faults(&facts), [""; 0], "every file is cold once");
        let check = super::cold(&facts).unwrap();
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.remedies, ["folio warm /mnt/file"]);
    }

    #[test]
    fn holes_and_small_parts_are_not_cold() {
        let mut facts = cold_file();
        facts.blocks.as_mut().unwrap().hole_bytes = SIZE / 4 * 3;
        assert_eq!(super::cold(&facts).unwrap().verdict, Verdict::Fine);
        let mut facts = cold_file();
        facts.residency.as_mut().unwrap().resident_bytes = SIZE - (1 << 19);
        assert_eq!(super::cold(&facts).unwrap().verdict, Verdict::Fine);
        let mut facts = cold_file();
        facts.reads.as_mut().unwrap().first.device_bytes = Some(0);
        assert_eq!(
            super::cold(&facts).unwrap().verdict,
            Verdict::Fine,
            "nothing had to come from a device"
        );
    }

    #[test]
    fn a_copy_far_slower_than_memory_is_a_hint() {
        let mut facts = healthy("tmpfs");
        facts.reads.as_mut().unwrap().again.cpu_ns = 100_000_000;
        assert_eq!(faults(&facts), ["slow-copy"]);
        assert_eq!(
            super::slow_copy(&facts).unwrap().certainty,
            Some(Certainty::Hint)
        );
        facts.reads.as_mut().unwrap().again.device_bytes = Some(4096);
        assert_eq!(super::slow_copy(&facts).unwrap().verdict, Verdict::Unknown);
    }
}
