//! The five published cases that Folio comes from: the figures of each article, and today's figures
//! beside them.

use crate::rows::{Row, Unit};
use serde::{Deserialize, Serialize};

/// The figures of one article.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PublishedCase {
    /// The article's subject.
    #[serde(default)]
    pub(crate) subject: String,
    /// Result of the article.
    pub(crate) title: String,
    /// What to do about it.
    #[serde(default)]
    pub(crate) remedy: String,
    /// Published figures.
    pub(crate) figures: Vec<PublishedFigure>,
}

/// One published figure, and today's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PublishedFigure {
    /// The quantity.
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// The published figure.
    pub(crate) published: f64,
    /// Figures of this run for comparison.
    pub(crate) today: Vec<Today>,
}

/// A figure that this run measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Today {
    /// Name of the contender.
    pub(crate) contender: String,
    /// Median.
    pub(crate) median: f64,
    /// Minimum.
    pub(crate) least: f64,
    /// Maximum.
    pub(crate) most: f64,
    /// Whether it shows what cures the published case; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_cure: bool,
}

impl PublishedCase {
    /// Returns a case without figures.
    pub(crate) fn new(subject: &str, title: &str, remedy: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            title: title.to_owned(),
            remedy: remedy.to_owned(),
            figures: Vec::new(),
        }
    }

    /// Returns one sentence, in one unit: then, today without the cure, with it, what to do. The
    /// figure is the first one that has both, else the first one that was measured; without the
    /// cure is the slowest contender, with it the fastest.
    pub(crate) fn summary(&self) -> String {
        let has_both = |figure: &&PublishedFigure| {
            let cures = figure.today.iter().filter(|today| today.is_cure).count();
            cures > 0 && cures < figure.today.len()
        };
        let is_measured = |figure: &&PublishedFigure| !figure.today.is_empty();
        let figure = self.figures.iter().find(has_both);
        let Some(figure) = figure.or_else(|| self.figures.iter().find(is_measured)) else {
            return format!(
                "Then: {}. Today: not measured here. To do: {}.",
                self.title, self.remedy
            );
        };
        let by_median = |one: &&Today, other: &&Today| one.median.total_cmp(&other.median);
        let words = |lead: &str, today: &Today| {
            let figure = figure.unit.figure(today.median);
            format!("{lead} {figure} ({})", today.contender)
        };
        let of = |is_cure| {
            figure
                .today
                .iter()
                .filter(move |today| today.is_cure == is_cure)
        };
        let slow = of(false).max_by(by_median);
        let cured = of(true).min_by(by_median);
        let slow = slow.map(|today| words("today without the cure", today));
        let cured = cured.map(|today| words("with it", today));
        let now: Vec<String> = slow.into_iter().chain(cured).collect();
        format!(
            "{}. {}: then {}, {}. To do: {}.",
            self.title,
            figure.what,
            figure.unit.figure(figure.published),
            now.join(", "),
            self.remedy
        )
    }

    /// Adds a published figure with the figures that this run measured.
    pub(crate) fn with<const N: usize>(
        mut self,
        what: &str,
        unit: Unit,
        published: f64,
        today: [Option<Today>; N],
    ) -> Self {
        let today = today.into_iter().flatten().collect();
        self.figures.push(PublishedFigure {
            what: what.to_owned(),
            unit,
            published,
            today,
        });
        self
    }
}

impl Today {
    /// Returns a row's figure.
    pub(crate) fn of(contender: &str, row: Option<&Row>) -> Option<Self> {
        let row = row?;
        Some(Self {
            contender: contender.to_owned(),
            median: row.median,
            least: row.least,
            most: row.most,
            is_cure: false,
        })
    }

    /// Marks the figure of what cures the published case.
    pub(crate) fn cure(self) -> Self {
        Self {
            is_cure: true,
            ..self
        }
    }

    /// One row's time as a multiple of another's; the bounds are those of the two spreads at their
    /// worst.
    pub(crate) fn times(contender: &str, of: Option<&Row>, over: Option<&Row>) -> Option<Self> {
        let (of, over) = (of?, over?);
        let is_measured = over.least > 0.0 && of.least > 0.0;
        is_measured.then(|| Self {
            contender: contender.to_owned(),
            median: of.median / over.median,
            least: of.least / over.most,
            most: of.most / over.least,
            is_cure: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_figures_are_left_out() {
        let row = |rounds: &[f64]| Row::new("job", "x", rounds.to_vec());
        let (slow, quick, none) = (row(&[8.0, 10.0, 12.0]), row(&[1.0, 2.0]), row(&[]));
        let times = Today::times("x", Some(&slow), Some(&quick)).expect("measured");
        assert_eq!((times.least, times.most), (4.0, 12.0));
        assert!(Today::times("x", Some(&slow), Some(&none)).is_none());
        assert!(Today::times("x", None, Some(&quick)).is_none());
        let story = PublishedCase::new("s", "t", "r").with(
            "w",
            Unit::Times,
            10.0,
            [None, Today::of("y", Some(&quick))],
        );
        assert_eq!(story.figures[0].today.len(), 1);
    }

    #[test]
    fn summary_names_then_now_and_what_to_do() {
        let row = |value: f64| Row::new("job", "x", vec![value]);
        let case = PublishedCase::new("Subject", "it was slow", "do this");
        assert!(case.summary().contains("Today: not measured here."));
        let today = [
            Today::of("slow", Some(&row(9.0))),
            Today::of("slower", Some(&row(11.0))),
            Today::of("ours", Some(&row(1.0))).map(Today::cure),
        ];
        let case = case.with("w", Unit::Times, 10.0, today);
        assert_eq!(
            case.summary(),
            "it was slow. w: then 10.0 times, today without the cure 11.0 times (slower), with it \
             1.00 times (ours). To do: do this."
        );
    }
}
