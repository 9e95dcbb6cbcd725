//! The five published cases that Folio comes from: the figures of each article, and today's figures
//! beside them.

use crate::rows::{Row, Unit};
use serde::{Deserialize, Serialize};

/// The figures of one article.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PublishedCase {
    pub(crate) title: String,
    pub(crate) figures: Vec<PublishedFigure>,
}

/// One published figure, and today's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PublishedFigure {
    /// The quantity.
    pub(crate) what: String,
    pub(crate) unit: Unit,
    pub(crate) published: f64,
    pub(crate) today: Vec<Today>,
}

/// A figure that this run measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Today {
    pub(crate) contender: String,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl PublishedCase {
    /// Returns a case without figures.
    pub(crate) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            figures: Vec::new(),
        }
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
    fn unmeasured_figures_are_left_out() {
        let row = |rounds: &[f64]| Row::new("job", "x", rounds.to_vec());
        let (slow, quick, none) = (row(&[8.0, 10.0, 12.0]), row(&[1.0, 2.0]), row(&[]));
        let times = Today::times("x", Some(&slow), Some(&quick)).expect("measured");
        assert_eq!((times.least, times.most), (4.0, 12.0));
        assert!(Today::times("x", Some(&slow), Some(&none)).is_none());
        assert!(Today::times("x", None, Some(&quick)).is_none());
        let story = PublishedCase::new("t").with(
            "w",
            Unit::Times,
            10.0,
            [None, Today::of("y", Some(&quick))],
        );
        assert_eq!(story.figures[0].today.len(), 1);
    }
}
