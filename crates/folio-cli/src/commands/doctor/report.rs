//! The report: as JSON, and as text, where what makes the file slow comes first.

use super::workload::WorkloadReport;
use crate::exit::Outcome;
use crate::manual::notes;
use crate::output::color::{self, FAILURE, FINE, WARNING, paint};
use crate::output::{NamePrinter, counted};
use folio_doctor::{Certainty, Check, Kind, Layer, Step, Verdict};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

/// Column of the sentences.
const SENTENCE_COLUMN: usize = 17;
/// Column of evidence and commands.
const DETAIL_COLUMN: usize = 6;

/// The result for one path.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PathReport {
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) size_bytes: u64,
    /// The directory that this file represents.
    #[serde(rename = "stands_for", skip_serializing_if = "Option::is_none")]
    pub(super) sample_of: Option<String>,
    pub(super) chain: Vec<Step>,
    pub(super) checks: Vec<Check>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DoctorReport {
    pub(super) faults: usize,
    pub(super) write_probe: bool,
    pub(super) read_limit_bytes: u64,
    pub(super) paths: Vec<PathReport>,
    pub(super) not_probed: Vec<NotProbed>,
    /// The time of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workload: Option<WorkloadReport>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct NotProbed {
    pub(super) path: String,
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub(super) reason: String,
}

/// Checks that are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Faults, then notes; a line counts the rest.
    FaultsAndNotes,
    /// Those, then what could not be found out.
    AllButFine,
    /// All, layer by layer.
    All,
}

/// Prints the report on standard output.
pub(super) fn print(report: &DoctorReport, shown: Shown) -> Outcome {
    let names = NamePrinter::on_stdout();
    let mut out = std::io::stdout().lock();
    let width = crate::output::stdout_width().unwrap_or(usize::MAX);
    for path in &report.paths {
        let folder = report
            .paths
            .iter()
            .find(|other| Some(&other.path) == path.sample_of.as_ref());
        let is_known = folder.is_some_and(|folder| folder.chain == path.chain);
        let text = format_path(path, is_known, shown, width);
        out.write_all(colored(&names.text(&text)).as_bytes())?;
    }
    // Without an examined path there is nothing to count.
    if !report.paths.is_empty() {
        writeln!(out, "{}", counted(report.faults as u64, "fault"))?;
    }
    Ok(out.flush()?)
}

/// Adds colors to the marks, if colors are shown.
fn colored(text: &str) -> String {
    if !color::on_stdout() {
        return text.to_owned();
    }
    let mut shown = String::new();
    for line in text.lines() {
        let mark = line.strip_prefix("  ").and_then(|rest| rest.chars().next());
        let style = match mark {
            Some('\u{2717}') => Some(FAILURE),
            Some('\u{2713}') => Some(FINE),
            Some('?') => Some(WARNING),
            _ => None,
        };
        match (style, mark) {
            (Some(style), Some(mark)) => {
                let rest = &line[2 + mark.len_utf8()..];
                let _ = writeln!(shown, "  {}{rest}", paint(true, style, mark));
            }
            _ => {
                let _ = writeln!(shown, "{line}");
            }
        }
    }
    shown
}

/// Formats the result for one path. `is_chain_known` omits the layers, if those of the directory
/// are the same.
fn format_path(report: &PathReport, is_chain_known: bool, shown: Shown, width: usize) -> String {
    let mut text = report.path.clone();
    if report.kind == Kind::File {
        let _ = write!(text, "  {}", crate::output::human(report.size_bytes));
    }
    text.push('\n');
    for step in report.chain.iter().filter(|_| !is_chain_known) {
        let _ = writeln!(
            text,
            "  {:indent$}{}",
            "",
            layer(&step.layer),
            indent = 2 * step.depth
        );
    }
    let mut checks: Vec<&Check> = Vec::new();
    for check in &report.checks {
        // One reason makes many facts unknown: print it once for each layer.
        let is_same = |other: &&Check| {
            (other.verdict, other.layer, &other.says)
                == (Verdict::Unknown, check.layer, &check.says)
        };
        if check.verdict != Verdict::Unknown || !checks.iter().any(is_same) {
            checks.push(check);
        }
    }
    let printed: &[Verdict] = match shown {
        Shown::All => &[],
        Shown::AllButFine => &[Verdict::Fault, Verdict::Note, Verdict::Unknown],
        Shown::FaultsAndNotes => &[Verdict::Fault, Verdict::Note],
    };
    if shown == Shown::All {
        checks.iter().for_each(|check| add(&mut text, check, width));
    }
    for verdict in printed {
        let found = checks.iter().filter(|check| check.verdict == *verdict);
        found.for_each(|check| add(&mut text, check, width));
    }
    if shown != Shown::All {
        let left: Vec<_> = checks
            .into_iter()
            .filter(|check| !printed.contains(&check.verdict))
            .collect();
        add_count(&mut text, &left, width);
    }
    text.push('\n');
    text
}

/// Adds a line about checks that are not printed.
fn add_count(text: &mut String, left: &[&Check], width: usize) {
    let count = |verdict| left.iter().filter(|check| check.verdict == verdict).count();
    let mut parts = Vec::new();
    if count(Verdict::Fine) > 0 {
        parts.push(format!("{} fine", count(Verdict::Fine)));
    }
    let mut layers: Vec<_> = left
        .iter()
        .filter(|check| check.verdict == Verdict::Unknown)
        .map(|check| check.layer)
        .collect();
    layers.dedup();
    if !layers.is_empty() {
        parts.push(format!(
            "{} unknown ({})",
            count(Verdict::Unknown),
            layers.join(", ")
        ));
    }
    if !parts.is_empty() {
        text.push_str("  ");
        let line = format!("{}; --all prints them", parts.join(", "));
        notes::wrap(text, &line, 2, width);
    }
}

/// Formats a layer as one line.
pub(super) fn layer(layer: &Layer) -> String {
    match layer {
        Layer::FileSystem(found) => {
            let bind = if found.root == Path::new("/") {
                String::new()
            } else {
                format!(", subtree {}", found.root.display())
            };
            let by = found
                .server
                .as_ref()
                .map(|server| format!(", served by {server}"))
                .unwrap_or_default();
            format!(
                "{} {} on {}{bind}{by}",
                found.fs_type,
                found.source,
                found.mount_point.display()
            )
        }
        Layer::Disk(disk) => {
            let mut text = format!("{} {}", disk.device_type, disk.name);
            for word in [&disk.mapped_name, &disk.model].into_iter().flatten() {
                let _ = write!(text, " ({word})");
            }
            if let Some(size) = disk.size_bytes {
                let _ = write!(text, ", {}", crate::output::human(size));
            }
            match disk.rotational {
                Some(true) => text.push_str(", seeks"),
                Some(false) => text.push_str(", does not seek"),
                None => text.push_str(", ? unknown whether it seeks"),
            }
            text
        }
        Layer::Path {
            path,
            by_name: false,
            ..
        } => path.display().to_string(),
        Layer::Path {
            path,
            by_name: true,
            ..
        } => format!("{} (inferred from the name of its source)", path.display()),
        Layer::Memory => "memory".to_owned(),
        Layer::Unseen { why } => format!("? {why}"),
    }
}

pub(super) fn mark(verdict: Verdict) -> char {
    match verdict {
        Verdict::Fault => '\u{2717}',
        Verdict::Fine => '\u{2713}',
        Verdict::Note => '\u{00b7}',
        Verdict::Unknown => '?',
    }
}

/// Returns how certain a fault is, to be added to its sentence.
pub(super) fn certainty(check: &Check) -> &'static str {
    match check.certainty {
        Some(Certainty::Certain) => " [certain]",
        Some(Certainty::Likely) => " [likely]",
        Some(Certainty::Hint) => " [hint]",
        None => "",
    }
}

fn add(text: &mut String, check: &Check, width: usize) {
    let (mark, sure) = (mark(check.verdict), certainty(check));
    let is_fault = check.verdict == Verdict::Fault;
    let evidence = if check.evidence.is_empty() || is_fault {
        String::new()
    } else {
        format!(" ({})", check.evidence)
    };
    let _ = write!(text, "  {mark} {:<12} ", check.layer);
    let sentence = format!("{}{sure}{evidence}", check.says);
    notes::wrap(text, &sentence, SENTENCE_COLUMN, width);
    let detail = " ".repeat(DETAIL_COLUMN);
    if is_fault && !check.evidence.is_empty() {
        text.push_str(&detail);
        notes::wrap(text, &check.evidence, DETAIL_COLUMN, width);
    }
    let lead = if is_fault { "fix" } else { "to change it" };
    for remedy in &check.remedies {
        // Not wrapped: it is to be copied.
        let _ = writeln!(text, "{detail}{lead}: {remedy}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio_doctor::Disk;

    #[test]
    fn layer_is_formatted_as_line() {
        let disk = Disk {
            name: "sda".into(),
            device_type: "disk",
            model: Some("ST4000".into()),
            rotational: Some(true),
            size_bytes: Some(4 << 40),
            ..Default::default()
        };
        assert_eq!(layer(&Layer::Disk(disk)), "disk sda (ST4000), 4.0T, seeks");
        let why = Layer::Unseen {
            why: "a server".into(),
        };
        assert_eq!(layer(&why), "? a server");
    }
}
