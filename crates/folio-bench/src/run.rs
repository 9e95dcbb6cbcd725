//! How a run goes: how often, how large, until when, and who hears of it.

use crate::report::{Row, Sample, told};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

/// What all scenarios are told.
pub struct Run<'a> {
    /// The command to start where one is measured.
    pub folio: PathBuf,
    /// Small sizes and few rounds, to see that everything runs.
    pub is_quick: bool,
    /// Rounds; without it, as many as suit the scenario.
    pub repeats: Option<u32>,
    /// Hears what comes next, or nothing when it is only asked whether to go on; an error ends the
    /// run.
    pub step: &'a dyn Fn(&str) -> Result<(), String>,
    pub(crate) until: Option<Instant>,
    pub(crate) is_part: bool,
}

/// Rounds of a quick run: two, so that there is a spread.
const QUICK_ROUNDS: u32 = 2;

impl<'a> Run<'a> {
    /// A run of the command `folio`.
    pub fn new(folio: PathBuf, step: &'a dyn Fn(&str) -> Result<(), String>) -> Self {
        Self {
            folio,
            is_quick: false,
            repeats: None,
            step,
            until: None,
            is_part: false,
        }
    }

    /// How often everything is measured, if nothing ends it.
    pub(crate) fn repeats(&self, usual: u32) -> u32 {
        let usual = if self.is_quick {
            usual.min(QUICK_ROUNDS)
        } else {
            usual
        };
        self.repeats.unwrap_or(usual).max(1)
    }

    /// Whether one more round is to be made after `done`: there is at least one, and none begins
    /// when the time is up.
    pub(crate) fn goes_on(&self, scenario: &str, done: u32, usual: u32) -> Result<bool, String> {
        let repeats = self.repeats(usual);
        let is_late = done > 0 && self.until.is_some_and(|until| Instant::now() >= until);
        if done >= repeats || is_late {
            return Ok(false);
        }
        (self.step)(&format!("{scenario}: round {} of {repeats}", done + 1))?;
        Ok(true)
    }

    /// Ends the run here if it is to end.
    pub(crate) fn check(&self) -> Result<(), String> {
        (self.step)("")
    }

    /// A size, or a small one.
    pub(crate) fn sized<T>(&self, usual: T, quick: T) -> T {
        if self.is_quick { quick } else { usual }
    }
}

/// One way to do a job, measured once a round.
pub(crate) struct Way<'a> {
    job: String,
    contender: String,
    measure: Box<dyn FnMut() -> Result<Sample, String> + 'a>,
}

impl<'a> Way<'a> {
    /// A way whose measurement makes its own beginning: cold or warm.
    pub(crate) fn new(
        job: &str,
        contender: &str,
        measure: impl FnMut() -> Result<Sample, String> + 'a,
    ) -> Self {
        Self {
            job: job.to_owned(),
            contender: contender.to_owned(),
            measure: Box::new(measure),
        }
    }
}

/// Rows of all ways, and how many rounds were made. All in turn and each round from another one on,
/// so that a slow minute hits all alike.
pub(crate) fn interleave(
    run: &Run<'_>,
    scenario: &str,
    ways: &mut [Way<'_>],
    usual: u32,
) -> Result<(Vec<Row>, u32), String> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); ways.len()];
    let mut round = 0;
    while run.goes_on(scenario, round, usual)? {
        for turn in 0..ways.len() {
            run.check()?;
            let at = (turn + round as usize) % ways.len();
            let way = &mut ways[at];
            let sample = (way.measure)();
            samples[at]
                .push(sample.map_err(|error| format!("{}, {}: {error}", way.job, way.contender))?);
        }
        round += 1;
    }
    let rows = ways.iter().zip(&samples);
    Ok((
        rows.map(|(way, samples)| Row::of_samples(&way.job, &way.contender, samples))
            .collect(),
        round,
    ))
}

/// A folder of the bench's own in `dir`, which goes with the value.
pub(crate) fn scratch_in(dir: &Path) -> Result<TempDir, String> {
    tempfile::Builder::new()
        .prefix("folio-bench-")
        .tempdir_in(dir)
        .map_err(told(dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn rounds_turn_and_end_when_they_are_told_to() {
        let order = RefCell::new(String::new());
        let way = |name: &'static str| {
            let order = &order;
            Way::new("job", name, move || {
                order.borrow_mut().push_str(name);
                Ok(Sample {
                    value: 1.0,
                    ..Sample::default()
                })
            })
        };
        let quiet = |_: &str| Ok(());
        let mut run = Run::new(PathBuf::new(), &quiet);
        let (rows, rounds) = interleave(&run, "s", &mut [way("a"), way("b"), way("c")], 3).unwrap();
        assert_eq!(
            (order.borrow().as_str(), rows.len(), rounds),
            ("abcbcacab", 3, 3)
        );
        run.until = Some(Instant::now());
        let (rows, rounds) = interleave(&run, "s", &mut [way("a")], 3).unwrap();
        assert_eq!((rows[0].rounds.len(), rounds), (1, 1));
        let ended = |_: &str| Err("ended".to_owned());
        let run = Run::new(PathBuf::new(), &ended);
        assert!(interleave(&run, "s", &mut [way("a")], 3).is_err());
    }
}
