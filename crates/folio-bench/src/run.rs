//! The parameters of a run (rounds, sizes, time limit, progress), and its interleaved rounds.

use crate::report::{Row, Sample, with_context};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

/// The parameters that all scenarios share.
pub struct Run<'a> {
    /// The command to start where one is measured.
    pub folio: PathBuf,
    /// Small sizes and few rounds, to see that everything runs.
    pub is_quick: bool,
    /// Rounds; without it, as many as suit the scenario.
    pub repeats: Option<u32>,
    /// Called with the next step, or with an empty text to check whether to continue; an error ends
    /// the run.
    pub step: &'a dyn Fn(&str) -> Result<(), String>,
    pub(crate) until: Option<Instant>,
    pub(crate) is_part: bool,
}

/// Rounds of a quick run: two, so that there is a spread.
const QUICK_ROUNDS: u32 = 2;

impl<'a> Run<'a> {
    /// Returns a run of the command `folio`.
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

    /// Returns the number of rounds, if nothing ends the run before.
    pub(crate) fn repeats(&self, usual: u32) -> u32 {
        let usual = if self.is_quick {
            usual.min(QUICK_ROUNDS)
        } else {
            usual
        };
        self.repeats.unwrap_or(usual).max(1)
    }

    /// Returns whether to make one more round after `done`: there is at least one, and none begins
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

    /// Returns the usual size, or the small one of a quick run.
    pub(crate) fn sized<T>(&self, usual: T, quick: T) -> T {
        if self.is_quick { quick } else { usual }
    }
}

/// One contender at one job, measured once a round.
pub(crate) struct Case<'a> {
    job: String,
    contender: String,
    measure: Box<dyn FnMut() -> Result<Sample, String> + 'a>,
}

impl<'a> Case<'a> {
    /// Returns a case whose measurement prepares its own state: cold or warm.
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

    /// Converts each measured value.
    pub(crate) fn map_value(self, convert: impl Fn(f64) -> f64 + 'a) -> Self {
        let mut measure = self.measure;
        Self {
            measure: Box::new(move || {
                let sample = measure()?;
                Ok(Sample {
                    value: convert(sample.value),
                    ..sample
                })
            }),
            ..self
        }
    }
}

/// Measures all cases; returns their rows and the number of rounds. The cases run in turn, and each
/// round starts with another case, so that a slow minute affects all alike.
pub(crate) fn interleave(
    run: &Run<'_>,
    scenario: &str,
    cases: &mut [Case<'_>],
    usual: u32,
) -> Result<(Vec<Row>, u32), String> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cases.len()];
    let mut round = 0;
    while run.goes_on(scenario, round, usual)? {
        for turn in 0..cases.len() {
            run.check()?;
            let at = (turn + round as usize) % cases.len();
            let case = &mut cases[at];
            let sample = (case.measure)();
            samples[at].push(
                sample.map_err(|error| format!("{}, {}: {error}", case.job, case.contender))?,
            );
        }
        round += 1;
    }
    let rows = cases.iter().zip(&samples);
    Ok((
        rows.map(|(case, samples)| Row::of_samples(&case.job, &case.contender, samples))
            .collect(),
        round,
    ))
}

/// Makes a scratch folder in `dir`, which is removed when the value drops.
pub(crate) fn scratch_in(dir: &Path) -> Result<TempDir, String> {
    tempfile::Builder::new()
        .prefix("folio-bench-")
        .tempdir_in(dir)
        .map_err(with_context(dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn rounds_rotate_and_stop_at_the_limit() {
        let order = RefCell::new(String::new());
        let case = |name: &'static str| {
            let order = &order;
            Case::new("job", name, move || {
                order.borrow_mut().push_str(name);
                Ok(Sample {
                    value: 1.0,
                    ..Sample::default()
                })
            })
        };
        let quiet = |_: &str| Ok(());
        let mut run = Run::new(PathBuf::new(), &quiet);
        let (rows, rounds) =
            interleave(&run, "s", &mut [case("a"), case("b"), case("c")], 3).unwrap();
        assert_eq!(
            (order.borrow().as_str(), rows.len(), rounds),
            ("abcbcacab", 3, 3)
        );
        run.until = Some(Instant::now());
        let (rows, rounds) = interleave(&run, "s", &mut [case("a")], 3).unwrap();
        assert_eq!((rows[0].rounds.len(), rounds), (1, 1));
        let ended = |_: &str| Err("ended".to_owned());
        let run = Run::new(PathBuf::new(), &ended);
        assert!(interleave(&run, "s", &mut [case("a")], 3).is_err());
    }
}
