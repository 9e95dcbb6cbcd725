//! The five stories that Folio comes from: what each of them published, and what is measured beside
//! it today.

use crate::report::{Row, Unit};
use serde::{Deserialize, Serialize};

/// A story's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Story {
    pub(crate) title: String,
    pub(crate) figures: Vec<StoryFigure>,
}

/// One figure of a story, and today's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoryFigure {
    /// What was measured.
    pub(crate) what: String,
    pub(crate) unit: Unit,
    pub(crate) published: f64,
    pub(crate) today: Vec<Today>,
}

/// A figure of today's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Today {
    pub(crate) contender: String,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Story {
    /// A story without figures.
    pub(crate) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            figures: Vec::new(),
        }
    }

    /// Adds a published figure with those of today that were measured.
    pub(crate) fn with<const N: usize>(
        mut self,
        what: &str,
        unit: Unit,
        published: f64,
        today: [Option<Today>; N],
    ) -> Self {
        let today = today.into_iter().flatten().collect();
        self.figures.push(StoryFigure {
            what: what.to_owned(),
            unit,
            published,
            today,
        });
        self
    }
}

impl Today {
    /// A row's figure.
    pub(crate) fn of(contender: &str, row: Option<&Row>) -> Option<Self> {
        let row = row?;
        Some(Self {
            contender: contender.to_owned(),
            median: row.median,
            least: row.least,
            most: row.most,
        })
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_shown() {
        let row = |rounds: &[f64]| Row::new("job", "x", rounds.to_vec());
        let (slow, quick, none) = (row(&[8.0, 10.0, 12.0]), row(&[1.0, 2.0]), row(&[]));
        let times = Today::times("x", Some(&slow), Some(&quick)).expect("measured");
        assert_eq!((times.least, times.most), (4.0, 12.0));
        assert!(Today::times("x", Some(&slow), Some(&none)).is_none());
        assert!(Today::times("x", None, Some(&quick)).is_none());
        let story =
            Story::new("t").with("w", Unit::Times, 10.0, [None, Today::of("y", Some(&quick))]);
        assert_eq!(story.figures[0].today.len(), 1);
    }
}
