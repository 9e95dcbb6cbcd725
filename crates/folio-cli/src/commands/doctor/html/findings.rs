//! Checks as lists: what was found, what it rests on, and what fixes it.

use super::super::report::{certainty, mark};
use super::super::workload::{Figures, shown, trial_lines};
use folio_doctor::{Check, Verdict};
use folio_html::Text;
use std::fmt::Write;

/// Writes the causes of a command's waits.
pub(super) fn costs(page: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        page.push_str("<p>None: no cause takes a tenth of the time and 50 ms.</p>\n");
        return;
    }
    page.push_str("<ol class=\"findings\">\n");
    for check in checks {
        let figures = Figures::of(check);
        let (cost, share) = (shown(figures.cost_s), figures.share_percent);
        let lead = format!("<strong>{cost} s ({share:.0} %)</strong>");
        let fix = match figures.saves_s {
            saves if saves > 0.0 => format!("saves about {} s:", shown(saves)),
            _ => "to change it:".to_owned(),
        };
        item(page, check, &lead, &fix);
    }
    page.push_str("</ol>\n");
}

/// Writes the checks of a path: faults and notes, and the rest closed.
pub(super) fn checks(page: &mut String, checks: &[Check]) {
    let is_shown = |check: &&Check| matches!(check.verdict, Verdict::Fault | Verdict::Note);
    let (mut found, rest): (Vec<_>, Vec<_>) = checks.iter().partition(is_shown);
    found.sort_by_key(|check| check.verdict != Verdict::Fault);
    list(page, &found);
    if !rest.is_empty() {
        let _ = writeln!(
            page,
            "<details>\n<summary>{} more: fine, or unknown</summary>",
            rest.len()
        );
        list(page, &rest);
        page.push_str("</details>\n");
    }
}

fn list(page: &mut String, checks: &[&Check]) {
    if checks.is_empty() {
        return;
    }
    page.push_str("<ul class=\"findings\">\n");
    for check in checks {
        let lead = format!("<strong>{} {}</strong>", mark(check.verdict), check.layer);
        let is_fault = check.verdict == Verdict::Fault;
        item(
            page,
            check,
            &lead,
            if is_fault { "fix:" } else { "to change it:" },
        );
    }
    page.push_str("</ul>\n");
}

/// `lead` is HTML.
fn item(page: &mut String, check: &Check, lead: &str, fix: &str) {
    let class = match check.verdict {
        Verdict::Fault => "fault",
        Verdict::Note => "note",
        Verdict::Fine => "fine",
        Verdict::Unknown => "unknown",
    };
    let kind = match check.verdict {
        Verdict::Note => " [note]",
        _ => certainty(check),
    };
    let (says, evidence) = (Text(&check.says), Text(&check.evidence));
    let _ = writeln!(page, "<li class=\"{class}\">\n<p>{lead} {says}{kind}</p>");
    if !check.evidence.is_empty() {
        let _ = writeln!(page, "<p class=\"method\">{evidence}</p>");
    }
    if !check.remedies.is_empty() {
        let _ = writeln!(page, "<p>{fix}</p>");
    }
    for remedy in &check.remedies {
        // What follows the command is its risk.
        let (command, risk) = match remedy.split_once("  # ") {
            Some((command, risk)) => (command, format!("# {risk}")),
            None => (remedy.as_str(), String::new()),
        };
        let (command, risk) = (Text(command), Text(risk));
        let _ = writeln!(
            page,
            "<pre><code>{command}</code>  <span class=\"method\">{risk}</span></pre>"
        );
    }
    for line in check.trial.iter().flat_map(trial_lines) {
        let _ = writeln!(page, "<p>{}</p>", Text(&line));
    }
    page.push_str("</li>\n");
}
