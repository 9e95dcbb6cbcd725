//! The rounds of the ext4 scenarios: seconds, bytes that reached the disk, and met aims.

use crate::report::{self, Evidence, Row, Sample, Unit, Verdict};

/// Contenders by jobs, with the samples of all rounds.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    title: String,
    jobs: Vec<&'static str>,
    contenders: Vec<String>,
    /// By contender, then by job.
    cells: Vec<Vec<Vec<Sample>>>,
}

impl Table {
    /// Returns a table without rounds.
    pub(crate) fn new(title: &str, jobs: &[&'static str], contenders: Vec<String>) -> Self {
        let cells = vec![vec![Vec::new(); jobs.len()]; contenders.len()];
        Self {
            title: title.to_owned(),
            jobs: jobs.to_vec(),
            contenders,
            cells,
        }
    }

    /// Adds a round of a contender at a job.
    pub(crate) fn add(
        &mut self,
        contender: usize,
        job: usize,
        seconds: f64,
        written_bytes: Option<u64>,
    ) {
        let device_written_bytes = written_bytes.map(|bytes| bytes as f64);
        let evidence = Evidence {
            device_written_bytes,
            ..Evidence::default()
        };
        self.cells[contender][job].push(Sample {
            value: seconds,
            evidence,
            label: None,
        });
    }

    /// Returns the rows, by job.
    pub(crate) fn to_report(&self, base: &str) -> report::Table {
        let mut rows = Vec::new();
        for (job, name) in self.jobs.iter().enumerate() {
            for (contender, cells) in self.contenders.iter().zip(&self.cells) {
                rows.push(Row::of_samples(name, contender, &cells[job]));
            }
        }
        report::Table::new(self.title.clone(), Unit::Seconds, Some(base), rows)
    }
}

/// Returns whether `ours` takes at most `factor` times the time of `theirs`; `None` if one was not
/// measured.
pub(crate) fn compare(
    table: &report::Table,
    job: &str,
    ours: &str,
    theirs: &str,
    factor: f64,
) -> Option<Verdict> {
    let seconds = |name| {
        table
            .row(job, name)
            .map(|row| row.median)
            .filter(|seconds| *seconds > 0.0)
    };
    let (our_seconds, their_seconds) = (seconds(ours)?, seconds(theirs)?);
    let ratio = their_seconds / our_seconds;
    let aim = match factor {
        1.0 => format!("{}, {job}: {ours} is no slower than {theirs}", table.title),
        _ => format!(
            "{}, {job}: {ours} is {factor} times as fast as {theirs}",
            table.title
        ),
    };
    let figures = format!(
        "{our_seconds:.3} s against {their_seconds:.3} s, {} times",
        crate::rows::ratio(ratio)
    );
    Some(Verdict {
        aim,
        is_met: ratio >= factor,
        figures,
    })
}
