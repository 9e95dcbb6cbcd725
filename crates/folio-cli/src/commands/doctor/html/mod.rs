//! The report as one page of HTML: no script, no request, light and dark.
//!
//! ```text
//!   mod.rs        the page: a command or process, and paths
//!   findings.rs   faults, notes, and the rest, with evidence and remedies
//!   over_time.rs  the bar of parts, and the run over time, in SVG
//! ```

mod findings;
mod over_time;

use super::report::{self, DoctorReport, PathReport};
use super::workload::{WorkloadReport, shown};
use crate::output::{counted, human};
use folio_doctor::Kind;
use folio_html::Text;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
/// Characters of a title.
const TITLE_MAX: usize = 120;

/// Returns the page.
pub(super) fn html(report: &DoctorReport) -> String {
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<p class=\"verdict {}\">{}</p>",
        if report.faults == 0 { "fine" } else { "fault" },
        counted(report.faults as u64, "fault")
    );
    let subject = match &report.workload {
        Some(found) => {
            workload(&mut body, found);
            found.line()
        }
        None => {
            let paths = report.paths.iter().filter(|path| path.sample_of.is_none());
            let paths: Vec<_> = paths.map(|path| path.path.as_str()).collect();
            paths.join(" ")
        }
    };
    for path in &report.paths {
        section(&mut body, path);
    }
    let failed = report.not_probed.iter();
    warnings(
        &mut body,
        failed.map(|failed| format!("{}: {}", failed.path, failed.reason)),
    );
    let title = shortened(&format!("folio doctor: {subject}"));
    folio_html::page(&title, STYLE, &body)
}

fn shortened(title: &str) -> String {
    if title.chars().count() <= TITLE_MAX {
        return title.to_owned();
    }
    let start = title.chars().take(TITLE_MAX - 1);
    start.chain(['\u{2026}']).collect()
}

fn warnings(page: &mut String, lines: impl Iterator<Item = String>) {
    for line in lines {
        let line = Text(line);
        let _ = writeln!(page, "<p class=\"warning\" role=\"note\">{line}</p>");
    }
}

fn workload(page: &mut String, found: &WorkloadReport) {
    let command = Text(found.line());
    let _ = writeln!(page, "<pre class=\"command\"><code>{command}</code></pre>");
    page.push_str("<dl class=\"facts\">\n");
    let facts = [
        ("wall time", format!("{} s", shown(found.wall_s))),
        ("end", found.ending()),
        ("processes", found.processes.to_string()),
        (
            "reported",
            format!("{}, folio {}", now(), env!("CARGO_PKG_VERSION")),
        ),
    ];
    for (name, value) in facts {
        let value = Text(value);
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    page.push_str("</dl>\n");
    page.push_str("<h2>Where the time went</h2>\n");
    over_time::bar(page, &found.parts);
    warnings(page, found.unknown_lines());
    page.push_str("<h2>Findings</h2>\n");
    findings::costs(page, &found.checks);
    if !found.files.is_empty() {
        files(page, found);
    }
    page.push_str("<h2>Over time</h2>\n");
    over_time::chart(page, found);
}

fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string()
}

/// Writes the table of the files that took most time.
fn files(page: &mut String, found: &WorkloadReport) {
    page.push_str(
        "<h2>Files</h2>\n<p class=\"method\">With the most time on the critical path: waits of \
         their calls, and the whole time of small calls. Page faults of mapped files are of no \
         file.</p>\n<div class=\"wide\"><table class=\"files\">\n<thead><tr>\
         <th scope=\"col\">file</th><th scope=\"col\">time</th><th scope=\"col\">waits</th>\
         <th scope=\"col\">cause</th><th scope=\"col\">calls</th><th scope=\"col\">bytes</th>\
         <th scope=\"col\">mount</th></tr></thead>\n<tbody>\n",
    );
    for file in &found.files {
        let (time, waits) = (shown(file.cost_s), shown(file.wait_s));
        let (cause, class) = (file.part.name(), over_time::class(file.part));
        let bytes = match file.bytes {
            0 => "-".to_owned(),
            bytes => human(bytes),
        };
        let calls = file.calls;
        let (path, point, fs) = (
            Text(&file.path),
            Text(&file.mount_point),
            Text(&file.fs_type),
        );
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{path}</th><td>{time} s</td><td>{waits} s</td>\
             <td class=\"part {class}\">{cause}</td><td>{calls}</td><td>{bytes}</td>\
             <td>{point} ({fs})</td></tr>"
        );
    }
    page.push_str("</tbody></table></div>\n");
}

/// Writes the layers and checks of a path.
fn section(page: &mut String, path: &PathReport) {
    let size = match path.kind {
        Kind::File => format!("  {}", human(path.size_bytes)),
        _ => String::new(),
    };
    let (name, size) = (Text(&path.path), Text(size));
    let _ = writeln!(
        page,
        "<h2>{name}<small>{size}</small></h2>\n<ul class=\"chain\">"
    );
    for step in &path.chain {
        let layer = Text(report::layer(&step.layer));
        let depth = step.depth.min(8);
        let _ = writeln!(page, "<li class=\"depth-{depth}\">{layer}</li>");
    }
    page.push_str("</ul>\n");
    findings::checks(page, &path.checks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::workload::tests::report_of;

    const HOSTILE: &str =
        "</title></svg><script src=\"https://example.org/x\">alert('1')</script>&\u{0}\u{202e}";

    fn page(words: &str) -> String {
        html(&DoctorReport {
            faults: 1,
            write_probe: false,
            read_limit_bytes: 0,
            paths: vec![PathReport {
                path: words.to_owned(),
                kind: Kind::File,
                size_bytes: 1,
                sample_of: None,
                chain: Vec::new(),
                checks: Vec::new(),
            }],
            not_probed: Vec::new(),
            workload: Some(report_of(words)),
        })
    }

    #[test]
    fn hostile_names_stay_text() {
        let page = page(HOSTILE);
        for wrong in ["<script", "\u{0}", "\u{202e}", "</title></svg>"] {
            assert!(!page.contains(wrong), "{page}");
        }
        assert!(page.contains("&lt;script src=&quot;https://example.org/x&quot;&gt;"));
        assert_eq!(
            page.matches("<svg ").count(),
            page.matches("</svg>").count()
        );
    }

    #[test]
    fn page_asks_for_nothing() {
        let page = page("name");
        for wrong in ["http:", "https:", "url(", "@import", "src=", "href="] {
            assert!(!page.contains(wrong), "{wrong}: {page}");
        }
    }

    #[test]
    fn long_titles_are_shortened() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"\u{e9}".repeat(500)).chars().count(), TITLE_MAX);
    }
}
