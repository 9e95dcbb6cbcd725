//! Attributes: whether the kernel answers stat(2) from its cache or asks a server each time.

use super::remedy;
use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::text::round;

const LAYER: &str = "attributes";
/// Below that, a program that looks at its files again and again asks again and again.
const BRIEF_NS: u64 = 100_000_000;
/// Waits for each stat from which on a server is asked each time: some answers arrive before the
/// program waits.
const ASKED: f64 = 0.3;

pub(super) fn judge(facts: &Facts) -> Check {
    let found = match &facts.attributes {
        Ok(found) => found,
        Err(why) => return Check::unknown(LAYER, "attributes-not-trusted", why.clone()),
    };
    let each = round(found.switches as f64 / found.calls.max(1) as f64, 1);
    let micros = round(found.call_ns as f64 / 1000.0, 1);
    let ms = |ns: u64| round(ns as f64 / 1e6, 1);
    if found.calls > 0 && each >= ASKED {
        let says = "not trusted: every stat(2) waits for an answer";
        let evidence = format!(
            "{each:.1} waits for each stat ({} in {}), {micros} us each",
            found.switches, found.calls
        );
        let check = Check::fault(LAYER, "attributes-not-trusted", Certainty::Certain, says)
            .with_evidence(evidence)
            .with("switches_per_stat", each)
            .with("stat_us", micros);
        return remedy::attributes(facts)
            .into_iter()
            .fold(check, Check::with_remedy);
    }
    if let Some(asked) = found.asked_after_ns.filter(|asked| *asked < BRIEF_NS) {
        let says = "trusted for a moment only: a program that comes back later waits for an answer";
        let trusted = found
            .trusted_ns
            .map(|ns| format!("trusted for {} ms, ", ms(ns)))
            .unwrap_or_default();
        let check = Check::fault(LAYER, "attributes-trusted-briefly", Certainty::Likely, says)
            .with_evidence(format!("{trusted}asked for again after {} ms", ms(asked)))
            .with("asked_after_ms", ms(asked));
        return remedy::attributes(facts)
            .into_iter()
            .fold(check, Check::with_remedy);
    }
    let says = match (found.forced_switches, found.trusted_ns) {
        (0, _) => "answered from memory".to_owned(),
        (_, Some(trusted)) => format!("trusted without asking for {} ms at least", ms(trusted)),
        (_, None) => "trusted without asking".to_owned(),
    };
    Check::fine(LAYER, "attributes-not-trusted", says)
        .with_evidence(format!("{each:.1} waits for each stat"))
        .with("switches_per_stat", each)
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{faults, healthy};

    #[test]
    fn wait_at_each_stat_is_a_fault() {
        let mut facts = healthy("fuse.bindfs");
        let found = facts.attributes.as_mut().unwrap();
        (found.switches, found.forced_switches) = (96, 3);
        assert_eq!(faults(&facts), ["attributes-not-trusted"]);
        let check = super::judge(&facts);
        assert!(check.evidence.contains("3.0 waits"), "{check:?}");
    }

    #[test]
    fn occasional_wait_is_fine() {
        let mut facts = healthy("fuse.bindfs");
        let found = facts.attributes.as_mut().unwrap();
        (found.switches, found.forced_switches) = (3, 2);
        (found.trusted_ns, found.asked_after_ns) = (Some(200_000_000), None);
        assert_eq!(faults(&facts), [""; 0]);
    }

    #[test]
    fn short_time_to_live_is_reported_long_is_not() {
        let mut facts = healthy("fuse.bindfs");
        let found = facts.attributes.as_mut().unwrap();
        (
            found.forced_switches,
            found.trusted_ns,
            found.asked_after_ns,
        ) = (2, Some(1_000_000), Some(4_200_000));
        assert_eq!(faults(&facts), ["attributes-trusted-briefly"]);
        // On a busy machine a pause may have taken longer than a time to live of one second.
        facts.attributes.as_mut().unwrap().asked_after_ns = Some(1_100_000_000);
        assert_eq!(faults(&facts), [""; 0]);
    }
}
