//! The results of all checks, and where their time went.

use crate::pool::{Ending, Report};
use crate::run::Outcome;
use std::time::Instant;

/// A check that did not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Skipped {
    name: String,
    reason: String,
}

/// Most tests that the table of times names.
const SLOWEST: usize = 15;

/// The results so far.
#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    passed: usize,
    failed: Vec<String>,
    /// What failed tests printed.
    messages: Vec<String>,
    skipped: Vec<Skipped>,
    /// The steps begun, and the seconds from the start to each.
    steps: Vec<(String, f64)>,
    /// Tests and their seconds.
    times: Vec<(String, f64)>,
}

impl Tally {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            passed: 0,
            failed: Vec::new(),
            messages: Vec::new(),
            skipped: Vec::new(),
            steps: Vec::new(),
            times: Vec::new(),
        }
    }

    /// Begins a step: prints its name and the time.
    pub(crate) fn begin(&mut self, name: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        println!("\n== {name} (after {seconds:.0} s)");
        self.steps.push((name.to_owned(), seconds));
    }

    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Adds the result of one check.
    pub(crate) fn check(&mut self, name: &str, succeeded: bool) {
        if succeeded {
            self.passed += 1;
        } else {
            println!("{name}: FAILED");
            self.failed.push(name.to_owned());
        }
    }

    /// Adds checks that were counted elsewhere.
    pub(crate) fn add(&mut self, passed: usize, failed: usize, name: &str) {
        self.passed += passed;
        self.failed.extend((0..failed).map(|_| name.to_owned()));
    }

    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        println!("{name}: skipped: {reason}");
        self.skipped.push(Skipped {
            name: name.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// Adds the tests of a pool.
    pub(crate) fn tests(&mut self, reports: Vec<Report>) {
        for report in reports {
            let name = format!("{}: {}", report.binary, report.test);
            match report.ending {
                Ending::Passed => self.passed += 1,
                Ending::Skipped(reason) => self.skipped.push(Skipped {
                    name: name.clone(),
                    reason,
                }),
                Ending::Failed(output) => {
                    self.messages.push(format!("---- {name}\n{output}"));
                    self.failed.push(name.clone());
                }
            }
            self.times.push((name, report.seconds));
        }
    }

    /// Adds a run of `cargo test --doc`.
    pub(crate) fn doc_tests(&mut self, outcome: &Outcome) {
        let counts = &outcome.counts;
        self.add(counts.passed, counts.failed, "an example in the documents");
        self.skipped
            .extend(counts.ignored.iter().map(|name| Skipped {
                name: name.clone(),
                reason: "marked as ignored".to_owned(),
            }));
        if !outcome.succeeded && counts.failed == 0 {
            self.failed.push("cargo test --doc".to_owned());
        }
    }

    /// Describes everything, failures last: a reader of a long log finds them at its end.
    pub(crate) fn closing(&mut self) -> String {
        let total = self.start.elapsed().as_secs_f64();
        self.skipped.sort();
        let skipped = self
            .skipped
            .iter()
            .map(|entry| format!("skipped: {}: {}\n", entry.name, entry.reason));
        let messages = self.messages.iter().map(|text| format!("{text}\n"));
        let failures = self.failed.iter().map(|name| format!("failed: {name}\n"));
        let (passed, failed, skips) = (self.passed, self.failed.len(), self.skipped.len());
        format!(
            "\n{}{}{}{}{passed} passed, {failed} failed, {skips} skipped",
            skipped.collect::<String>(),
            times(&self.steps, &mut self.times, total),
            messages.collect::<String>(),
            failures.collect::<String>()
        )
    }
}

/// The tables of steps and of the slowest tests.
fn times(steps: &[(String, f64)], tests: &mut [(String, f64)], total: f64) -> String {
    let ends = steps.iter().skip(1).map(|(_, begin)| *begin).chain([total]);
    let steps = steps
        .iter()
        .zip(ends)
        .map(|((name, begin), end)| format!("{:7.1} s  {name}\n", end - begin));
    tests.sort_by(|a, b| b.1.total_cmp(&a.1));
    let slowest = tests.iter().take(SLOWEST);
    let slowest = slowest.map(|(name, seconds)| format!("{seconds:7.1} s  {name}\n"));
    format!(
        "\nwhere {total:.0} s went:\n{}\nthe slowest tests:\n{}\n",
        steps.collect::<String>(),
        slowest.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Counts;

    fn last_line(tally: &mut Tally) -> String {
        let text = tally.closing();
        text.lines().last().unwrap().to_owned()
    }

    fn report(test: &str, ending: Ending) -> Report {
        Report {
            binary: "folio library".to_owned(),
            test: test.to_owned(),
            ending,
            seconds: 2.0,
        }
    }

    #[test]
    fn test_that_skipped_itself_is_not_passed() {
        let mut tally = Tally::new();
        tally.check("fmt", true);
        tally.tests(vec![
            report("kernel::raw", Ending::Skipped("needs root".to_owned())),
            report("a", Ending::Passed),
            report("b", Ending::Failed("output of b".to_owned())),
        ]);
        let text = tally.closing();
        for wanted in [
            "skipped: folio library: kernel::raw: needs root\n",
            "---- folio library: b\noutput of b\n",
            "failed: folio library: b\n",
        ] {
            assert!(text.contains(wanted), "{text}");
        }
        assert_eq!(last_line(&mut tally), "2 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn doc_tests_that_do_not_build_are_a_failure() {
        let mut tally = Tally::new();
        tally.doc_tests(&Outcome {
            succeeded: false,
            counts: Counts::default(),
        });
        assert_eq!(last_line(&mut tally), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn times_are_those_of_steps_and_slowest_tests() {
        let steps = [("fmt".to_owned(), 0.0), ("build".to_owned(), 1.5)];
        let mut tests = [("quick".to_owned(), 0.1), ("slow".to_owned(), 9.0)];
        let text = times(&steps, &mut tests, 11.0);
        assert!(
            text.contains("    1.5 s  fmt\n    9.5 s  build\n"),
            "{text}"
        );
        assert!(
            text.contains("    9.0 s  slow\n    0.1 s  quick\n"),
            "{text}"
        );
    }
}
