//! Figures of a contender, job by job.

use super::jobs::Job;
use crate::report::middle;

/// One contender's figures, in the order of the jobs; nothing where it cannot be measured or was
/// never seen.
pub(super) struct Figures {
    pub(super) name: &'static str,
    pub(super) middle: Vec<Option<f64>>,
    pub(super) rounds: Vec<Vec<Option<f64>>>,
}

/// All contenders.
pub(super) type Measured = Vec<Figures>;

impl Figures {
    /// Returns the figures of `name`, one list of `rounds` for each round.
    pub(super) fn new(name: &'static str, rounds: Vec<Vec<Option<f64>>>) -> Self {
        let column = |at: usize| rounds.iter().map(move |round| round[at]);
        let middle = Job::ALL.iter().enumerate().map(|(at, job)| {
            let values: Option<Vec<f64>> = column(at).collect();
            values.map(|values| match job {
                Job::ChangeSeenMost => values.into_iter().fold(0.0, f64::max),
                _ => middle(values),
            })
        });
        Self {
            name,
            middle: middle.collect(),
            rounds: rounds.clone(),
        }
    }
}
