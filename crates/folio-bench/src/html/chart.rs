//! Bars with their spread, as SVG.

use crate::published::PublishedFigure;
use crate::report::{Row, Unit};
use folio_html::Text;
use std::fmt::Write;

/// One bar.
pub(super) struct Bar<'a> {
    name: &'a str,
    kind: Kind,
    median: f64,
    least: f64,
    most: f64,
}

/// The owner of a figure, shown by color and by the name beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Theirs,
    Published,
    Cure,
}

/// Units of a chart, as wide as a phone shows them: a name and its figure are above the bar.
const WIDTH: f64 = 360.0;
const LINE: f64 = 36.0;
const TEXT: f64 = 14.0;
const BAR: f64 = 12.0;
const FOOT: f64 = 24.0;
/// Letters of a name that fit beside the figure.
const LETTERS: usize = 40;

impl<'a> Bar<'a> {
    pub(super) fn of_row(row: &'a Row) -> Self {
        Self {
            name: &row.contender,
            kind: kind(&row.contender),
            median: row.median,
            least: row.least,
            most: row.most,
        }
    }

    /// The published figure, and today's.
    pub(super) fn of_published(figure: &'a PublishedFigure) -> Vec<Self> {
        let published = figure.published;
        let name = "published";
        let first = Self {
            name,
            kind: Kind::Published,
            median: published,
            least: published,
            most: published,
        };
        let today = figure.today.iter().map(|today| Self {
            name: &today.contender,
            kind: if today.is_cure {
                Kind::Cure
            } else {
                kind(&today.contender)
            },
            median: today.median,
            least: today.least,
            most: today.most,
        });
        std::iter::once(first).chain(today).collect()
    }
}

fn kind(contender: &str) -> Kind {
    let is_ours = contender.split([',', ':', ' ']).any(|word| word == "folio");
    if is_ours { Kind::Ours } else { Kind::Theirs }
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Published => "published",
            Self::Cure => "cure",
        }
    }
}

/// Draws bars on one scale. `id` is unique in the page.
pub(super) fn draw(page: &mut String, id: &str, title: &str, unit: Unit, bars: &[Bar<'_>]) {
    let finite = |value: f64| {
        if value.is_finite() {
            value.max(0.0)
        } else {
            0.0
        }
    };
    let most = bars
        .iter()
        .map(|bar| finite(bar.most).max(finite(bar.median)))
        .fold(0.0, f64::max);
    let scale = Scale::new(most);
    let height = LINE * bars.len() as f64 + FOOT;
    let (safe_title, words) = (Text(title), Text(unit.words()));
    let _ = write!(
        page,
        "<figure><figcaption>{safe_title}</figcaption><svg role=\"img\" aria-labelledby=\"{id}-t {id}-d\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\
         <title id=\"{id}-t\">{safe_title}</title><desc id=\"{id}-d\">{words}.",
    );
    for bar in bars {
        let [median, least, most] =
            [bar.median, bar.least, bar.most].map(|value| unit.figure(value));
        let _ = write!(
            page,
            " {}: {median}, from {least} to {most}.",
            Text(bar.name)
        );
    }
    page.push_str("</desc>");
    let bottom = height - FOOT;
    for tick in scale.ticks() {
        let x = scale.x(tick);
        let class = match x {
            x if x <= 0.0 => "tick first",
            x if x >= WIDTH - 30.0 => "tick last",
            _ => "tick",
        };
        let _ = write!(
            page,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 15.0,
            Text(unit.figure(tick))
        );
    }
    for (at, bar) in bars.iter().enumerate() {
        let y = LINE * at as f64;
        bar.draw(page, y, &scale, unit, finite);
    }
    page.push_str("</svg></figure>\n");
}

impl Bar<'_> {
    fn draw(&self, page: &mut String, y: f64, scale: &Scale, unit: Unit, finite: fn(f64) -> f64) {
        let top = y + TEXT + 4.0;
        let middle = top + BAR / 2.0;
        let (base, end) = (y + TEXT, scale.x(finite(self.median)));
        let (least, most) = (scale.x(finite(self.least)), scale.x(finite(self.most)));
        let short: String = match self.name.chars().count() {
            count if count > LETTERS => self
                .name
                .chars()
                .take(LETTERS - 1)
                .chain(['\u{2026}'])
                .collect(),
            _ => self.name.to_owned(),
        };
        let (name, short, class) = (Text(self.name), Text(short), self.kind.class());
        let _ = write!(
            page,
            "<g><title>{name}</title><text class=\"name\" x=\"0\" y=\"{base:.1}\">{short}</text>\
             <rect class=\"{class}\" x=\"0\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>",
            end.max(1.0),
        );
        if most > least {
            let (top, bottom) = (middle - 4.0, middle + 4.0);
            let _ = write!(
                page,
                "<path class=\"spread\" d=\"M{least:.1} {top:.1}V{bottom:.1}M{least:.1} {middle:.1}H{most:.1}\
                 M{most:.1} {top:.1}V{bottom:.1}\"/>"
            );
        }
        let figure = Text(unit.figure(self.median));
        let _ = write!(
            page,
            "<text class=\"figure\" x=\"{WIDTH}\" y=\"{base:.1}\">{figure}</text></g>"
        );
    }
}

/// From 0 to the largest figure, left to right.
struct Scale {
    most: f64,
    step: f64,
}

impl Scale {
    fn new(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / 4.0;
        let power = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
        Self {
            most,
            step: step
                .into_iter()
                .find(|step| *step >= rough)
                .unwrap_or(rough),
        }
    }

    fn x(&self, value: f64) -> f64 {
        (value / self.most).clamp(0.0, 1.0) * (WIDTH - 2.0)
    }

    /// At most five, 0 among them.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (step, most) = (self.step, self.most);
        (0..5)
            .map(move |at| f64::from(at) * step)
            .filter(move |tick| *tick <= most * 1.001)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(bars: &[Bar<'_>]) -> String {
        let mut page = String::new();
        draw(&mut page, "c1", "title", Unit::Seconds, bars);
        page
    }

    fn bar(name: &str, median: f64, least: f64, most: f64) -> Bar<'_> {
        Bar {
            name,
            kind: kind(name),
            median,
            least,
            most,
        }
    }

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let scale = Scale::new(8.0);
        assert_eq!((scale.x(0.0), scale.x(8.0)), (0.0, WIDTH - 2.0));
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let page = drawn(&[bar("folio", 8.0, 7.0, 9.0), bar("kernel", 0.0, 0.0, 0.0)]);
        assert!(page.contains("class=\"ours\"") && page.contains("class=\"theirs\""));
        // The second has no spread.
        assert_eq!(page.matches("class=\"spread\"").count(), 1);
    }

    #[test]
    fn no_figure_breaks_a_chart() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
            let page = drawn(&[bar("a", value, value, value), bar("b", 1.0, 0.5, 2.0)]);
            assert!(
                !page.contains("NaN\"") && !page.contains("inf\""),
                "{value}: {page}"
            );
        }
        drawn(&[]);
    }

    #[test]
    fn contender_name_selects_the_color() {
        assert_eq!(kind("fresh qcow2, folio"), Kind::Ours);
        assert_eq!(kind("folio mount, cache=none"), Kind::Ours);
        assert_eq!(kind("portfolio"), Kind::Theirs);
    }
}
