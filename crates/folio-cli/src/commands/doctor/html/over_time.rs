//! The parts of the time as a bar, and over the run: for the critical path, and for threads.

use super::super::workload::{PartReport, WorkloadReport, shown};
use crate::output::counted;
use folio_doctor::{Lane, Part, Strip};
use folio_html::Text;
use std::fmt::Write;

/// Height of a strip, in units of its drawing.
const HEIGHT: f64 = 100.0;
/// Parts of less time are not in the text report, either.
const LEAST_S: f64 = 0.001;

/// Returns the class of a part, which gives it its color.
pub(super) fn class(part: Part) -> String {
    format!("p-{}", part.name().replace(' ', "-"))
}

/// Writes the bar, and below it the parts with their times.
pub(super) fn bar(page: &mut String, parts: &[PartReport]) {
    let parts: Vec<_> = parts
        .iter()
        .filter(|part| part.seconds >= LEAST_S)
        .collect();
    let whole: f64 = parts.iter().map(|part| part.seconds).sum();
    let words = |part: &PartReport| {
        let (name, seconds) = (part.part.name(), shown(part.seconds));
        format!("{name} {seconds} s, {:.1} %", part.percent)
    };
    let all: Vec<_> = parts.iter().map(|part| words(part)).collect();
    let _ = write!(
        page,
        "<svg class=\"bar\" viewBox=\"0 0 1000 1\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        Text(all.join("; "))
    );
    let mut from = 0.0;
    for part in &parts {
        let width = part.seconds / whole.max(LEAST_S) * 1000.0;
        let (class, words) = (class(part.part), words(part));
        let _ = write!(
            page,
            "<rect class=\"{class}\" x=\"{from:.1}\" width=\"{width:.1}\" height=\"1\"><title>{words}</title></rect>"
        );
        from += width;
    }
    page.push_str("</svg>\n<ul class=\"parts\">\n");
    for part in &parts {
        let (class, name, meaning) = (class(part.part), part.part.name(), part.part.meaning());
        let (seconds, percent) = (shown(part.seconds), part.percent);
        let _ = writeln!(
            page,
            "<li class=\"part {class}\"><strong>{name} {seconds}</strong> s, {percent:.1} % \
             <small>{meaning}</small></li>"
        );
    }
    page.push_str("</ul>\n");
}

/// Writes the run over time.
pub(super) fn chart(page: &mut String, found: &WorkloadReport) {
    let timeline = &found.timeline;
    page.push_str(
        "<p class=\"method\">From left to right the whole run. The critical path is the command, and \
         during each wait for a child or a pipe the process that it waits for. Below it are the \
         threads with most time on it or in file waits; the line marks where the path is.</p>\n\
         <div class=\"lanes\">\n",
    );
    lane(
        page,
        "critical path",
        "",
        &timeline.path,
        &[],
        Some(found.wall_s),
    );
    axis(page, found.wall_s);
    for thread in &timeline.lanes {
        let program = thread.program.as_deref();
        let name = program.and_then(|path| path.file_name());
        let name = name.map_or("?".into(), |name| name.to_string_lossy());
        lane(
            page,
            &name,
            &number(thread),
            &thread.strip,
            &thread.on_path,
            None,
        );
    }
    if !timeline.lanes.is_empty() {
        axis(page, found.wall_s);
    }
    page.push_str("</div>\n");
    if timeline.omitted > 0 {
        let _ = writeln!(
            page,
            "<p class=\"method\">and {}, each with less time on the path or in file waits</p>",
            counted(timeline.omitted as u64, "more thread")
        );
    }
}

fn number(lane: &Lane) -> String {
    if lane.pid == lane.tid {
        format!("process {}", lane.pid)
    } else {
        format!("process {}, thread {}", lane.pid, lane.tid)
    }
}

fn axis(page: &mut String, wall_s: f64) {
    page.push_str("<div class=\"axis\" aria-hidden=\"true\">");
    for quarter in 0..=4 {
        let at = shown(wall_s * f64::from(quarter) / 4.0);
        let _ = write!(page, "<span>{at} s</span>");
    }
    page.push_str("</div>\n");
}

/// Draws a strip: a shape for each part. With the wall time in seconds, each bucket shows its
/// parts under the pointer.
fn lane(
    page: &mut String,
    name: &str,
    number: &str,
    strip: &Strip,
    on_path: &[u64],
    buckets_of_s: Option<f64>,
) {
    let label = format!("{name} {number}");
    let label = Text(format!("{}: {}", label.trim_end(), totals(strip)));
    let (name, number) = (Text(name), Text(number));
    let kind = if on_path.is_empty() { "path" } else { "thread" };
    let count = strip.buckets().len();
    let _ = write!(
        page,
        "<div class=\"lane {kind}\"><div>{name} <small>{number}</small></div>\
         <svg viewBox=\"0 0 {count} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{label}\"><title>{label}</title>"
    );
    for (class, shape) in shapes(strip) {
        let _ = write!(page, "<path class=\"{class}\" d=\"{shape}\"/>");
    }
    let mut marks = String::new();
    for (bucket, _) in on_path.iter().enumerate().filter(|(_, ns)| **ns > 0) {
        let _ = write!(marks, "M{bucket} 88h1v12h-1z");
    }
    if !marks.is_empty() {
        let _ = write!(page, "<path class=\"mark\" d=\"{marks}\"/>");
    }
    if let Some(wall_s) = buckets_of_s {
        for (bucket, parts) in strip.buckets().iter().enumerate() {
            let moment = |bucket: usize| wall_s * bucket as f64 / count as f64;
            let (from, to) = (moment(bucket), moment(bucket + 1));
            let words = shares(parts);
            let _ = write!(
                page,
                "<rect class=\"bucket\" x=\"{bucket}\" width=\"1\" height=\"{HEIGHT}\">\
                 <title>{from:.3} to {to:.3} s: {words}</title></rect>"
            );
        }
    }
    page.push_str("</svg></div>\n");
}

/// Returns the shape of each part: a column for each bucket, on those of the parts before it.
fn shapes(strip: &Strip) -> Vec<(String, String)> {
    let length = strip.bucket_ns().max(1) as f64;
    let full = strip.buckets().iter().map(|bucket| {
        let sum = bucket.iter().sum::<u64>() as f64;
        // Readings of counters are some microseconds apart from the calls.
        if sum >= 0.9 * length { sum } else { length }
    });
    let full: Vec<_> = full.collect();
    let mut below = vec![0; strip.buckets().len()];
    let mut shapes = Vec::new();
    for (index, part) in Part::ALL.into_iter().enumerate() {
        let mut shape = String::new();
        for (bucket, parts) in strip.buckets().iter().enumerate() {
            let y = |ns: u64| HEIGHT - HEIGHT * ns as f64 / full[bucket];
            let (bottom, top) = (y(below[bucket]), y(below[bucket] + parts[index]));
            below[bucket] += parts[index];
            if bottom - top >= 0.05 {
                let _ = write!(shape, "M{bucket} {top:.1}h1V{bottom:.1}h-1z");
            }
        }
        if !shape.is_empty() {
            shapes.push((class(part), shape));
        }
    }
    shapes
}

/// Returns the time of each part of a strip, in words.
fn totals(strip: &Strip) -> String {
    let mut words = Vec::new();
    for (index, part) in Part::ALL.into_iter().enumerate() {
        let ns: u64 = strip.buckets().iter().map(|bucket| bucket[index]).sum();
        let seconds = ns as f64 / 1e9;
        if seconds >= LEAST_S {
            words.push(format!("{} {} s", part.name(), shown(seconds)));
        }
    }
    words.join(", ")
}

/// Returns the share of each part of a bucket, in words.
fn shares(parts: &[u64]) -> String {
    let whole: u64 = parts.iter().sum();
    let mut words = Vec::new();
    for (part, ns) in Part::ALL.into_iter().zip(parts) {
        let percent = *ns as f64 * 100.0 / whole.max(1) as f64;
        if percent >= 1.0 {
            words.push(format!("{} {percent:.0} %", part.name()));
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::workload::tests::report_of;
    use folio_doctor::Timeline;

    /// The chart of these threads, of which the path is in bucket 3 of the first one.
    fn chart_of(threads: &[(u32, u32, Option<&str>)], omitted: usize) -> String {
        let lane = |(index, (pid, tid, program)): (usize, &(u32, u32, Option<&str>))| {
            let strip = Strip::default();
            let mut on_path = vec![0; strip.buckets().len()];
            on_path[3] = u64::from(index == 0);
            Lane {
                pid: *pid,
                tid: *tid,
                program: program.map(Into::into),
                strip,
                on_path,
            }
        };
        let mut report = report_of("name");
        report.timeline = Timeline {
            path: Strip::default(),
            lanes: threads.iter().enumerate().map(lane).collect(),
            omitted,
        };
        let mut page = String::new();
        chart(&mut page, &report);
        page
    }

    #[test]
    fn lane_names_thread_and_marks_path() {
        let threads = [(7, 7, Some("/usr/bin/a<b")), (7, 8, None)];
        let page = chart_of(&threads, 0);
        let (path, lanes) = page.split_once("<div class=\"lane thread\">").unwrap();
        assert!(path.contains("class=\"lane path\"") && !path.contains("class=\"mark\""));
        let (first, second) = lanes.split_once("<div class=\"lane thread\">").unwrap();
        assert!(first.contains("<div>a&lt;b <small>process 7</small></div>"));
        assert!(first.contains("<path class=\"mark\" d=\"M3 88h1v12h-1z\"/>"));
        assert!(second.contains("<div>? <small>process 7, thread 8</small></div>"));
        assert!(!second.contains("class=\"mark\""), "{page}");
        assert_eq!(page.matches("class=\"axis\"").count(), 2);
    }

    #[test]
    fn threads_without_lane_are_counted() {
        assert!(chart_of(&[(7, 7, None)], 3).contains("and 3 more threads, each with less time"));
        let page = chart_of(&[], 0);
        assert!(!page.contains("lane thread") && !page.contains("more thread"));
        assert_eq!(page.matches("class=\"axis\"").count(), 1);
    }
}
