//! The curve as an SVG image: memory to the right, misses per second upward.

use super::report::{FitReport, Need};
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Room for the words at the left, at the bottom and at the other sides.
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 60.0;
const EDGE: f64 = 40.0;
/// Misses above this multiple of the limit are cut off, so that the knee is visible.
const CUT: f64 = 5.0;
const MIB: f64 = (1 << 20) as f64;

/// Draws a report as a complete SVG document. `limit_per_s` is the permitted refaults per second.
pub fn fit_svg(report: &FitReport, limit_per_s: f64) -> String {
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let memory = most(&mut report.points.iter().map(|point| point.cache_bytes as f64));
    let misses = most(&mut report.points.iter().map(|point| point.misses_per_s));
    let axes = Axes {
        memory: memory.max(MIB),
        misses: misses.min(CUT * limit_per_s).max(1.2 * limit_per_s),
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\
         <title>Page cache and misses per second</title>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>",
        headline(report)
    );
    axes.draw(&mut out);
    let (left, right, y) = (LEFT, WIDTH - EDGE, axes.y(limit_per_s));
    let _ = write!(
        out,
        "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#b00\" stroke-dasharray=\"4\"/>\
         <text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#b00\">limit {limit_per_s} per s</text>",
        y - 5.0
    );
    if let Some(bytes) = report.need.bytes() {
        let (x, bottom) = (axes.x(bytes as f64), HEIGHT - BOTTOM);
        let _ = write!(
            out,
            "<path d=\"M{x:.1} {EDGE}V{bottom}\" stroke=\"#080\" stroke-dasharray=\"4\"/>"
        );
    }
    let places: Vec<(f64, f64)> = report
        .points
        .iter()
        .map(|point| (axes.x(point.cache_bytes as f64), axes.y(point.misses_per_s)))
        .collect();
    out.push_str("<polyline fill=\"none\" stroke=\"#06c\" stroke-width=\"2\" points=\"");
    for (x, y) in &places {
        let _ = write!(out, "{x:.1},{y:.1} ");
    }
    out.push_str("\"/>");
    for (x, y) in &places {
        let _ = write!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#06c\"/>"
        );
    }
    out.push_str("</svg>\n");
    out
}

fn headline(report: &FitReport) -> String {
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB);
    let need = match report.need {
        Need::About(bytes) => format!("needs {}", mib(bytes)),
        Need::AtMost(bytes) => format!("needs at most {}", mib(bytes)),
        Need::MoreThan(bytes) => format!("needs more than {}", mib(bytes)),
        Need::Unknown => "unknown".to_owned(),
    };
    match report.estimate_reason {
        Some(_) => format!("Page cache: {need} (estimate)"),
        None => format!("Page cache: {need}"),
    }
}

/// The largest values, in bytes and per second.
struct Axes {
    memory: f64,
    misses: f64,
}

impl Axes {
    fn x(&self, bytes: f64) -> f64 {
        LEFT + (WIDTH - EDGE - LEFT) * bytes / self.memory
    }

    fn y(&self, misses: f64) -> f64 {
        let share = (misses / self.misses).min(1.0);
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - EDGE) * share
    }

    fn draw(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - EDGE, HEIGHT - BOTTOM);
        for part in 0..=4 {
            let part = f64::from(part) / 4.0;
            let (memory, misses) = (self.memory * part, self.misses * part);
            let (x, y) = (self.x(memory), self.y(misses));
            let _ = write!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{misses:.0}</text>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
                LEFT - 8.0,
                y + 4.0,
                bottom + 20.0,
                memory / MIB
            );
        }
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">page cache in MiB</text>\
             <text x=\"20\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {:.1})\">misses per s</text>",
            (LEFT + right) / 2.0,
            bottom + 44.0,
            (EDGE + bottom) / 2.0,
            (EDGE + bottom) / 2.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::report::{Method, Point};

    #[test]
    fn chart_shows_need_limit_and_all_points() {
        let point = |mib: u64, misses_per_s| Point {
            cache_bytes: mib << 20,
            misses_per_s,
            stalled_percent: 0.0,
            seconds: 1.0,
        };
        let mut report = FitReport {
            method: Method::Residency,
            estimate_reason: Some("requested".into()),
            group: None,
            need: Need::About(150 << 20),
            other_bytes: 0,
            outside_bytes: 0,
            has_ended_early: false,
            seconds: 3.0,
            points: vec![point(100, 1e9), point(200, 5.0)],
        };
        let text = fit_svg(&report, 50.0);
        assert!(text.contains("needs 150 MiB (estimate)"), "{text}");
        assert!(text.contains("limit 50 per s"), "{text}");
        assert_eq!(text.matches("<circle").count(), 2);
        // The first point is cut off at the top, the second is at the right edge.
        assert!(text.contains("cx=\"380.0\" cy=\"40.0\""), "{text}");
        assert!(text.contains("cx=\"680.0\""), "{text}");
        report.estimate_reason = None;
        report.need = Need::MoreThan(1 << 20);
        let text = fit_svg(&report, 50.0);
        assert!(text.contains("needs more than 1 MiB<"), "{text}");
    }
}
