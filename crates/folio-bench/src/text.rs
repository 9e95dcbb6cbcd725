//! Results as text: tables with ratios, published figures, aims, and what the numbers do not
//! mean.

use crate::report::{Machine, Report, Results, Row, Table, Verdict};
use std::io::{self, Write};

impl Results {
    /// Writes all of it as text.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "folio {}, {}", self.folio, self.taken_at)?;
        writeln!(out, "{}", self.machine.words())?;
        for warning in self.warnings() {
            writeln!(out, "{warning}")?;
        }
        let cases = self
            .scenarios
            .iter()
            .filter_map(|report| report.story.as_ref());
        list(
            out,
            "then, now, what to do",
            cases.map(|case| format!("{}. {}", case.subject, case.summary())),
        )?;
        self.scenarios
            .iter()
            .try_for_each(|report| report.write_text(out))
    }

    /// Why the figures mean less than they could.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let slow = "NOT AN OPTIMIZED BUILD: run it with cargo run --release";
        let quick = "QUICK: sizes are so small that the figures say only that it runs";
        let fixed = [
            (!self.is_optimized).then_some(slow),
            self.is_quick.then_some(quick),
        ];
        let Machine { load, cores, .. } = &self.machine;
        let is_busy = load.parse().is_ok_and(|load: f64| load > *cores as f64);
        let busy = is_busy.then(|| {
            format!(
                "BUSY: a load of {load} on {cores} processors before the start: repeat it when the \
                 machine is idle"
            )
        });
        let fixed = fixed.into_iter().flatten().map(str::to_owned);
        fixed.chain(busy).collect()
    }
}

/// The number of aims that a report met and missed, in words; none without aims.
pub(crate) fn aims_words(verdicts: &[Verdict]) -> Option<String> {
    let met = verdicts.iter().filter(|verdict| verdict.is_met).count();
    let missed = verdicts.len() - met;
    (!verdicts.is_empty()).then(|| format!("aims of the project: {met} met, {missed} not met"))
}

fn list(out: &mut dyn Write, title: &str, lines: impl Iterator<Item = String>) -> io::Result<()> {
    let mut is_first = true;
    for line in lines {
        if is_first {
            writeln!(out, "\n{title}:")?;
        }
        is_first = false;
        writeln!(out, "- {line}")?;
    }
    Ok(())
}

impl Report {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n== {}: {}", self.heading(), self.what)?;
        let (rounds, place, seconds) = (self.repeats, self.place.words(), self.seconds);
        writeln!(
            out,
            "{rounds} rounds, interleaved; in {place}; took {seconds:.0} s"
        )?;
        self.tables
            .iter()
            .try_for_each(|table| table.write_text(out))?;
        if let Some(story) = &self.story {
            writeln!(out, "\nthe published case: {}", story.title)?;
            for figure in &story.figures {
                writeln!(
                    out,
                    "  {}: {}",
                    figure.what,
                    figure.unit.figure(figure.published)
                )?;
                for today in &figure.today {
                    let [middle, least, most] = [today.median, today.least, today.most]
                        .map(|value| figure.unit.figure(value));
                    writeln!(
                        out,
                        "    today {:<44} {middle:>11}  {least}..{most}",
                        today.contender
                    )?;
                }
            }
        }
        if let Some(words) = aims_words(&self.verdicts) {
            writeln!(out, "\n{words} (--json has them)")?;
        }
        let missing = self.not_measured.iter();
        list(
            out,
            "not measured",
            missing.map(|missing| format!("{}: {}", missing.what, missing.reason)),
        )?;
        list(out, "notes", self.notes.iter().cloned())?;
        list(
            out,
            "what the numbers do not mean",
            self.limits.iter().cloned(),
        )
    }
}

impl Table {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let base = self
            .base
            .as_ref()
            .map_or_else(String::new, |base| format!("; 1 = {base}"));
        writeln!(out, "\n{}: {}{base}", self.title, self.unit.words())?;
        let name = |row: &Row| row.contender.chars().count() + 4;
        let width = self.rows.iter().map(name).max().unwrap_or(0).clamp(24, 60);
        writeln!(
            out,
            "{:<width$} {:>11} {:>24} {:>7}",
            "", "median", "least..most", "ratio"
        )?;
        let mut job = "";
        for row in &self.rows {
            if row.job != job && row.job != self.title {
                writeln!(out, "  {}", row.job)?;
            }
            job = &row.job;
            let [middle, least, most] =
                [row.median, row.least, row.most].map(|value| self.unit.figure(value));
            let spread = format!("{least}..{most}");
            let ratio = row.ratio.map_or_else(|| "-".to_owned(), crate::rows::ratio);
            let contender = format!("    {}", row.contender);
            let line = format!(
                "{contender:<width$} {middle:>11} {spread:>24} {ratio:>7}  {}",
                row.seen()
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
