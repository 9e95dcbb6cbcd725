//! Results as one page of HTML: charts in SVG, figures in tables; no script, no request, light and
//! dark.

mod chart;

use crate::published::PublishedCase;
use crate::report::{Report, Results, Row, Table, Verdict};
use crate::text::aims_words;
use chart::Bar;
use folio_html::Text;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn html(results: &Results) -> String {
    let names: Vec<&str> = results.scenarios.iter().map(Report::heading).collect();
    let title = format!("folio bench: {}", names.join(", "));
    let mut body = String::new();
    for warning in results.warnings() {
        let _ = writeln!(
            body,
            "<p class=\"warning\" role=\"note\">{}</p>",
            Text(warning)
        );
    }
    summaries(&mut body, results);
    head(&mut body, results);
    for (at, report) in results.scenarios.iter().enumerate() {
        section(&mut body, at, report);
    }
    folio_html::page(&title, STYLE, &body)
}

/// One sentence for each published case, before everything else.
fn summaries(page: &mut String, results: &Results) {
    let mut cases = results
        .scenarios
        .iter()
        .filter_map(|report| report.story.as_ref())
        .peekable();
    if cases.peek().is_none() {
        return;
    }
    page.push_str("<ul class=\"summary\">\n");
    for case in cases {
        let (subject, summary) = (Text(&case.subject), Text(case.summary()));
        let _ = writeln!(page, "<li><strong>{subject}.</strong> {summary}</li>");
    }
    page.push_str("</ul>\n");
}

fn head(page: &mut String, results: &Results) {
    let machine = &results.machine;
    let cores = format!("{}, {}", machine.cores, machine.processor);
    let memory = format!("{} MiB", machine.memory_mib);
    let user = if machine.is_root {
        "root"
    } else {
        "not root: some rows need it, and are named below"
    };
    page.push_str("<dl class=\"facts\">\n");
    for (name, value) in [
        ("folio", results.folio.as_str()),
        ("measured", &results.taken_at),
        ("kernel", &machine.kernel),
        ("processors", &cores),
        ("memory", &memory),
        ("load before", &machine.load),
        ("as", user),
    ] {
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", Text(value));
    }
    page.push_str(
        "</dl>\n<p class=\"method\">Bars are medians of rounds in which all contenders take turns, each round from \
         another one on; the thin line goes from the least to the most. Figures and evidence are in the tables below \
         the charts.</p>\n<p class=\"legend\"><span class=\"ours\">Folio</span> <span class=\"theirs\">other programs</span> \
         <span class=\"cure\">what cures it</span> <span class=\"published\">published by the article</span></p>\n",
    );
    if results.scenarios.len() > 1 {
        page.push_str("<nav aria-label=\"Scenarios\"><ul>\n");
        for (at, report) in results.scenarios.iter().enumerate() {
            let _ = writeln!(
                page,
                "<li><a href=\"#s{at}\">{}</a></li>",
                Text(report.heading())
            );
        }
        page.push_str("</ul></nav>\n");
    }
}

fn section(page: &mut String, at: usize, report: &Report) {
    let (name, what) = (Text(report.heading()), Text(&report.what));
    let _ = writeln!(
        page,
        "<section id=\"s{at}\" aria-labelledby=\"s{at}-h\">\n<h2 id=\"s{at}-h\">{name}</h2>"
    );
    let facts = format!(
        "{} rounds; in {}; took {:.0} s",
        report.repeats,
        report.place.words(),
        report.seconds
    );
    let _ = writeln!(
        page,
        "<p>{what}</p>\n<p class=\"method\">{}</p>",
        Text(facts)
    );
    if let Some(story) = &report.story {
        write_published_case(page, at, story);
    }
    for (number, table) in report.tables.iter().enumerate() {
        charts(page, &format!("s{at}-{number}"), table);
    }
    aims(page, &report.verdicts);
    let missing = report.not_measured.iter();
    list(
        page,
        "Not measured",
        missing.map(|missing| format!("{}: {}", missing.what, missing.reason)),
    );
    list(page, "Notes", report.notes.iter().cloned());
    list(
        page,
        "What the numbers do not mean",
        report.limits.iter().cloned(),
    );
    page.push_str("</section>\n");
}

/// Writes the aims of Folio's developers: closed at first.
fn aims(page: &mut String, verdicts: &[Verdict]) {
    let Some(words) = aims_words(verdicts) else {
        return;
    };
    let _ = writeln!(page, "<details>\n<summary>{}</summary>\n<ul>", Text(words));
    for aim in verdicts {
        let (class, word) = if aim.is_met {
            ("", "met")
        } else {
            (" class=\"missed\"", "NOT MET")
        };
        let line = format!("{word}: {}: {}", aim.aim, aim.figures);
        let _ = writeln!(page, "<li{class}>{}</li>", Text(line));
    }
    page.push_str("</ul>\n</details>\n");
}

fn list(page: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        let _ = writeln!(page, "<h3>{title}</h3>\n<ul>");
        lines.for_each(|line| {
            let _ = writeln!(page, "<li>{}</li>", Text(line));
        });
        page.push_str("</ul>\n");
    }
}

/// Writes the published figures beside today's.
fn write_published_case(page: &mut String, at: usize, story: &PublishedCase) {
    let _ = writeln!(
        page,
        "<h3>Then and now</h3>\n<p class=\"story\">The published case: {}.</p>",
        Text(&story.title)
    );
    page.push_str("<div class=\"charts\">\n");
    let measured = story
        .figures
        .iter()
        .filter(|figure| !figure.today.is_empty());
    for (number, figure) in measured.enumerate() {
        let bars = Bar::of_published(figure);
        chart::draw(
            page,
            &format!("s{at}-then{number}"),
            &figure.what,
            figure.unit,
            &bars,
        );
    }
    page.push_str("</div>\n");
}

/// One chart for each job, for their figures may be orders apart; and a table of all.
fn charts(page: &mut String, id: &str, table: &Table) {
    let _ = writeln!(
        page,
        "<h3>{}: {}</h3>",
        Text(&table.title),
        table.unit.words()
    );
    let mut jobs: Vec<&str> = table.rows.iter().map(|row| row.job.as_str()).collect();
    jobs.dedup();
    page.push_str("<div class=\"charts\">\n");
    for (number, job) in jobs.into_iter().enumerate() {
        let bars: Vec<Bar<'_>> = table
            .rows
            .iter()
            .filter(|row| row.job == job)
            .map(Bar::of_row)
            .collect();
        chart::draw(page, &format!("{id}-{number}"), job, table.unit, &bars);
    }
    page.push_str("</div>\n");
    let base = table
        .base
        .as_ref()
        .map_or_else(String::new, |base| format!(" (1 = {base})"));
    let _ = write!(
        page,
        "<details>\n<summary>Figures</summary>\n<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead><tr>\
         <th scope=\"col\">job</th><th scope=\"col\">contender</th><th scope=\"col\">median</th>\
         <th scope=\"col\">least</th><th scope=\"col\">most</th><th scope=\"col\">ratio{}</th>\
         <th scope=\"col\">rounds</th><th scope=\"col\">seen beside the clock</th></tr></thead>\n<tbody>\n",
        Text(&table.title),
        Text(base)
    );
    table.rows.iter().for_each(|row| figures(page, table, row));
    page.push_str("</tbody></table></div>\n</details>\n");
}

fn figures(page: &mut String, table: &Table, row: &Row) {
    let [median, least, most] =
        [row.median, row.least, row.most].map(|value| table.unit.figure(value));
    let ratio = row.ratio.map_or_else(|| "-".to_owned(), crate::rows::ratio);
    let (job, contender, seen) = (Text(&row.job), Text(&row.contender), row.seen());
    let _ = writeln!(
        page,
        "<tr><td>{job}</td><th scope=\"row\">{contender}</th><td>{median}</td><td>{least}</td><td>{most}</td>\
         <td>{ratio}</td><td>{}</td><td>{}</td></tr>",
        row.rounds.len(),
        Text(seen)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Today;
    use crate::report::{FORMAT, Machine, NotMeasured, Unit, Verdict};
    use std::path::Path;

    const HOSTILE: &str =
        "</title></svg><script src=\"https://example.org/x\">alert('1')</script>&\u{0}";

    fn page(words: &str) -> String {
        let row = || Row::new(words, words, vec![1.0, 2.0, 3.0]);
        let mut report = Report::new(words, words, Path::new("/"));
        report
            .tables
            .push(Table::new(words, Unit::Seconds, Some(words), vec![row()]));
        report.story = Some(PublishedCase::new(words, words, words).with(
            words,
            Unit::Times,
            10.0,
            [Today::of(words, Some(&row()))],
        ));
        report.verdicts.push(Verdict {
            aim: words.to_owned(),
            is_met: false,
            figures: words.to_owned(),
        });
        report.not_measured.push(NotMeasured {
            what: words.to_owned(),
            reason: words.to_owned(),
        });
        report.notes.push(words.to_owned());
        report.limits.push(words.to_owned());
        html(&Results {
            format: FORMAT,
            folio: words.to_owned(),
            taken_at: words.to_owned(),
            is_optimized: true,
            is_quick: false,
            machine: Machine {
                kernel: words.to_owned(),
                load: words.to_owned(),
                ..Machine::here()
            },
            scenarios: vec![report.clone(), report],
        })
    }

    #[test]
    fn hostile_names_stay_names() {
        let page = page(HOSTILE);
        assert!(
            !page.contains("<script") && !page.contains('\u{0}'),
            "{page}"
        );
        assert!(page.contains("&lt;script src=&quot;https://example.org/x&quot;&gt;"));
        assert_eq!(
            page.matches("<svg ").count(),
            page.matches("</svg>").count()
        );
        // Of the page itself.
        assert_eq!(page.matches("</title></svg>").count(), 0);
    }

    #[test]
    fn a_page_holds_everything_and_asks_for_nothing() {
        let page = page("name");
        // Per scenario: the published figure, and the job.
        assert_eq!(page.matches("<svg ").count(), 4);
        for wanted in [
            "Then and now",
            "published",
            "NOT MET",
            "Not measured",
            "2.00 s",
            "10.0 times",
        ] {
            assert!(page.contains(wanted), "{wanted}");
        }
        // Links lead into the page.
        assert!(
            page.split("href=\"")
                .skip(1)
                .all(|rest| rest.starts_with('#'))
        );
        assert_eq!(
            page.matches("http").count(),
            page.matches("http-equiv").count()
        );
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("url("));
        let ids: Vec<&str> = page
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
    }
}
