//! The rounds of a measurement: all contenders take turns, and each round starts with another one,
//! so that a slow minute affects all alike.

use crate::outcome::{Context, Outcome};
use crate::report::{Report, Row, Sample, Table, Unit};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// The parameters that all scenarios share.
#[derive(Clone)]
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

    /// Returns a command of folio.
    pub(crate) fn folio(&self) -> Command {
        let mut command = Command::new(&self.folio);
        command.arg("--quiet");
        command
    }

    /// Returns the number of rounds, if nothing ends the run before.
    pub(crate) fn repeats(&self, usual: u32) -> u32 {
        let usual = self.sized(usual, usual.min(QUICK_ROUNDS));
        self.repeats.unwrap_or(usual).max(1)
    }

    /// Returns whether to make one more round after `done`: there is at least one, and none begins
    /// when the time is up.
    fn goes_on(&self, name: &str, done: u32, usual: u32) -> Outcome<bool> {
        let repeats = self.repeats(usual);
        let is_late = done > 0 && self.until.is_some_and(|until| Instant::now() >= until);
        if done >= repeats || is_late {
            return Ok(false);
        }
        (self.step)(&format!("{name}: round {} of {repeats}", done + 1))?;
        Ok(true)
    }

    /// Ends the run here if it is to end.
    pub(crate) fn check(&self) -> Outcome {
        Ok((self.step)("")?)
    }

    /// Returns the usual size, or the small one of a quick run.
    pub(crate) fn sized<T>(&self, usual: T, quick: T) -> T {
        if self.is_quick { quick } else { usual }
    }
}

/// The figures that a contender adds in one round.
#[derive(Default)]
pub(crate) struct Turn {
    /// Number of the round, from 0.
    pub(crate) round: u32,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// A figure of a job, for the table with this number.
struct Figure {
    table: usize,
    job: String,
    sample: Sample,
}

impl Turn {
    /// Adds a figure to the first table.
    pub(crate) fn add(&mut self, job: &str, sample: Sample) {
        self.add_to(0, job, sample);
    }

    /// Adds a figure to the table with this number.
    pub(crate) fn add_to(&mut self, table: usize, job: &str, sample: Sample) {
        let job = job.to_owned();
        self.figures.push(Figure { table, job, sample });
    }

    /// Adds a note to the report.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }
}

struct Contender<'a> {
    name: String,
    measure: Box<dyn FnMut(&mut Turn) -> Outcome + 'a>,
    figures: Vec<Figure>,
    is_left_out: bool,
}

/// Contenders that take turns, and the tables for their figures.
pub(crate) struct Race<'a> {
    tables: Vec<Table>,
    contenders: Vec<Contender<'a>>,
    rounds: u32,
    is_shuffled: bool,
    leaves_out_failures: bool,
}

impl<'a> Race<'a> {
    /// Returns a race of five rounds for one table, with ratios to the figures of `base`.
    pub(crate) fn new(title: &str, unit: Unit, base: Option<&str>) -> Self {
        Self {
            tables: vec![Table::new(title, unit, base, Vec::new())],
            contenders: Vec::new(),
            rounds: 5,
            is_shuffled: false,
            leaves_out_failures: false,
        }
    }

    /// Adds a table.
    pub(crate) fn table(mut self, title: &str, unit: Unit, base: Option<&str>) -> Self {
        self.tables.push(Table::new(title, unit, base, Vec::new()));
        self
    }

    /// Sets the usual number of rounds.
    pub(crate) fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// Changes the order from round to round, so that no contender always follows the same one. For
    /// 2, 4 or 8 contenders: an odd stride meets all of them.
    pub(crate) fn shuffled(mut self) -> Self {
        self.is_shuffled = true;
        self
    }

    /// Leaves out a contender that fails, with the reason; else it ends the run.
    pub(crate) fn leave_out_failures(mut self) -> Self {
        self.leaves_out_failures = true;
        self
    }

    /// Adds a contender at one job; the measurement prepares its own state, cold or warm.
    pub(crate) fn case(
        &mut self,
        job: &'a str,
        contender: &str,
        mut measure: impl FnMut() -> Outcome<Sample> + 'a,
    ) {
        self.contender(contender, move |turn| {
            turn.add(job, measure().at(job)?);
            Ok(())
        });
    }

    /// Adds a contender that adds the figures of all its jobs in each turn.
    pub(crate) fn contender(&mut self, name: &str, measure: impl FnMut(&mut Turn) -> Outcome + 'a) {
        self.contenders.push(Contender {
            name: name.to_owned(),
            measure: Box::new(measure),
            figures: Vec::new(),
            is_left_out: false,
        });
    }

    /// Makes the rounds; the report gets the tables, notes and the number of rounds.
    pub(crate) fn run(self, run: &Run<'_>, report: &mut Report) -> Outcome {
        let tables = self.measure(run, report)?;
        report.tables.extend(tables);
        Ok(())
    }

    /// Makes the rounds and returns the tables.
    pub(crate) fn measure(mut self, run: &Run<'_>, report: &mut Report) -> Outcome<Vec<Table>> {
        let name = format!("{}, {}", report.scenario, self.tables[0].title);
        let mut round = 0;
        while run.goes_on(&name, round, self.rounds)? {
            // An odd stride meets all of an even number.
            let stride = if self.is_shuffled {
                2 * (round as usize % 4) + 1
            } else {
                1
            };
            for turn in 0..self.contenders.len() {
                run.check()?;
                let at = (turn * stride + round as usize) % self.contenders.len();
                let contender = &mut self.contenders[at];
                if contender.is_left_out {
                    continue;
                }
                let mut turn = Turn {
                    round,
                    ..Turn::default()
                };
                if let Err(reason) = (contender.measure)(&mut turn) {
                    // An interrupt ends the run; it is not a failure of the contender.
                    run.check()?;
                    if !self.leaves_out_failures {
                        return Err(reason).at(&contender.name);
                    }
                    contender.is_left_out = true;
                    report.skip(&contender.name, reason.to_string());
                }
                contender.figures.extend(turn.figures);
                report.notes.extend(turn.notes);
            }
            round += 1;
        }
        report.repeats = report.repeats.max(round);
        Ok(self.into_tables())
    }

    /// Returns the tables with a row for each contender at each job, by job.
    fn into_tables(mut self) -> Vec<Table> {
        self.contenders.retain(|contender| !contender.is_left_out);
        let mut tables = self.tables;
        for (at, table) in tables.iter_mut().enumerate() {
            let of_table = |figure: &&Figure| figure.table == at;
            let figures = self
                .contenders
                .iter()
                .flat_map(|contender| &contender.figures);
            let mut jobs: Vec<&str> = Vec::new();
            for figure in figures.filter(of_table) {
                if !jobs.contains(&figure.job.as_str()) {
                    jobs.push(&figure.job);
                }
            }
            for job in jobs {
                for contender in &self.contenders {
                    let figures = contender.figures.iter().filter(of_table);
                    let figures = figures.filter(|figure| figure.job == job);
                    let samples: Vec<_> = figures.map(|figure| figure.sample.clone()).collect();
                    if !samples.is_empty() {
                        table
                            .rows
                            .push(Row::of_samples(job, &contender.name, &samples));
                    }
                }
            }
            table.set_ratios();
        }
        tables
    }
}

/// Makes a scratch folder in `dir`, which is removed when the value drops.
pub(crate) fn scratch_in(dir: &Path) -> Outcome<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("folio-bench-").tempdir_in(dir).at(dir)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Returns a run of one round with small sizes.
    pub(crate) fn quick() -> Run<'static> {
        Run {
            is_quick: true,
            repeats: Some(1),
            ..Run::new(PathBuf::new(), &|_| Ok(()))
        }
    }

    #[test]
    fn rounds_rotate_and_stop_at_the_limit() {
        let order = RefCell::new(String::new());
        let measure = |names: &[&'static str], run: &Run<'_>| {
            let mut race = Race::new("t", Unit::Seconds, None).rounds(3);
            for name in names {
                let order = &order;
                race.case("job", name, move || {
                    order.borrow_mut().push_str(name);
                    Ok(Sample::of(1.0))
                });
            }
            let mut report = Report::new("s", "", Path::new("/"));
            race.run(run, &mut report).map(|()| report)
        };
        let mut run = Run::new(PathBuf::new(), &|_| Ok(()));
        let report = measure(&["a", "b", "c"], &run).unwrap();
        assert_eq!(order.borrow().as_str(), "abcbcacab");
        assert_eq!((report.tables[0].rows.len(), report.repeats), (3, 3));
        run.until = Some(Instant::now());
        let report = measure(&["a"], &run).unwrap();
        assert_eq!(
            (report.tables[0].rows[0].rounds.len(), report.repeats),
            (1, 1)
        );
        let run = Run::new(PathBuf::new(), &|_| Err("ended".to_owned()));
        assert!(measure(&["a"], &run).is_err());
    }

    #[test]
    fn failed_contender_is_left_out_with_the_reason() {
        let mut race = Race::new("t", Unit::Seconds, None).leave_out_failures();
        race.case("job", "a", || Ok(Sample::of(1.0)));
        race.case("job", "b", || Err("broken".into()));
        let mut report = Report::new("s", "", Path::new("/"));
        race.run(&quick(), &mut report).unwrap();
        assert_eq!(report.tables[0].rows.len(), 1);
        assert_eq!(report.not_measured[0].reason, "job: broken");
    }
}
