//! Two results of the same scenarios: which rows are beyond the spread of both.

use crate::report::{Machine, Results, Row, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The change of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Change {
    /// All new rounds are better than all old ones.
    Better,
    /// All new rounds are worse than all old ones.
    Worse,
    /// The spreads overlap.
    WithinSpread,
    /// One round has no spread, so there is no verdict.
    Unknown,
}

/// The names that identify a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RowId {
    /// The scenario.
    scenario: String,
    /// Title of the table.
    table: String,
    /// The job.
    job: String,
    /// Name of the contender.
    contender: String,
}

/// One row that both results have.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Compared {
    #[serde(flatten)]
    id: RowId,
    unit: Unit,
    /// Median before.
    old: f64,
    /// Median after.
    new: f64,
    /// New divided by old, by medians; null if the old is 0.
    ratio: Option<f64>,
    change: Change,
}

/// Two results side by side.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// Rows that both results have.
    rows: Vec<Compared>,
    /// Rows that only the old results have.
    only_old: Vec<String>,
    /// Rows that only the new results have.
    only_new: Vec<String>,
    /// Reasons why the results may not be comparable.
    warnings: Vec<String>,
}

type Rows<'a> = BTreeMap<RowId, (Unit, &'a Row)>;

/// Compares `new` with `old`.
pub fn compare(old: &Results, new: &Results) -> Comparison {
    let (old_rows, new_rows) = (rows(old), rows(new));
    let only = |here: &Rows<'_>, there: &Rows<'_>| {
        let missing = here.keys().filter(|id| !there.contains_key(*id));
        missing.map(RowId::words).collect()
    };
    let both = new_rows.iter().filter_map(|(id, (unit, new))| {
        let (_, old) = old_rows.get(id)?;
        Some(Compared {
            id: id.clone(),
            unit: *unit,
            old: old.median,
            new: new.median,
            ratio: (old.median > 0.0).then(|| new.median / old.median),
            change: judge(*unit, old, new),
        })
    });
    Comparison {
        rows: both.collect(),
        only_old: only(&old_rows, &new_rows),
        only_new: only(&new_rows, &old_rows),
        warnings: warnings(old, new),
    }
}

impl RowId {
    fn words(&self) -> String {
        format!(
            "{}, {}, {}, {}",
            self.scenario, self.table, self.job, self.contender
        )
    }
}

fn rows(results: &Results) -> Rows<'_> {
    let mut found = BTreeMap::new();
    for report in &results.scenarios {
        for table in &report.tables {
            for row in &table.rows {
                let id = RowId {
                    scenario: report.scenario.clone(),
                    table: table.title.clone(),
                    job: row.job.clone(),
                    contender: row.contender.clone(),
                };
                found.insert(id, (table.unit, row));
            }
        }
    }
    found
}

fn judge(unit: Unit, old: &Row, new: &Row) -> Change {
    if old.rounds.len() < 2 || new.rounds.len() < 2 {
        return Change::Unknown;
    }
    if new.least > old.most {
        return if unit.is_rate() {
            Change::Better
        } else {
            Change::Worse
        };
    }
    if new.most < old.least {
        return if unit.is_rate() {
            Change::Worse
        } else {
            Change::Better
        };
    }
    Change::WithinSpread
}

fn warnings(old: &Results, new: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    // The load is another one each time.
    let fixed = |machine: &Machine| Machine {
        load: String::new(),
        ..machine.clone()
    };
    if fixed(&old.machine) != fixed(&new.machine) {
        let words = |results: &Results| results.machine.words();
        warnings.push(format!("other machines: {}; {}", words(old), words(new)));
    }
    if (old.is_quick, old.is_optimized) != (new.is_quick, new.is_optimized) {
        warnings.push("one of them is quick, or not optimized, and the other is not".to_owned());
    }
    warnings.extend(new.warnings());
    warnings
}

impl Comparison {
    /// Returns whether a row has become worse, beyond the spread.
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.change == Change::Worse)
    }

    /// Writes it as text.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for warning in &self.warnings {
            writeln!(out, "{warning}")?;
        }
        let mut table = None;
        for row in &self.rows {
            let RowId {
                scenario,
                table: title,
                job,
                contender,
            } = &row.id;
            if table != Some((scenario, title)) {
                writeln!(out, "\n{scenario}, {title}: {}", row.unit.words())?;
                writeln!(
                    out,
                    "{:<60} {:>11} {:>11} {:>8}  verdict",
                    "", "old", "new", "new/old"
                )?;
                table = Some((scenario, title));
            }
            let name = format!("  {job}: {contender}");
            let [old, new] = [row.old, row.new].map(|value| row.unit.figure(value));
            let ratio = row.ratio.map_or_else(|| "-".to_owned(), crate::rows::ratio);
            writeln!(
                out,
                "{name:<60} {old:>11} {new:>11} {ratio:>8}  {}",
                row.change.words()
            )?;
        }
        for (words, rows) in [
            ("only in the old", &self.only_old),
            ("only in the new", &self.only_new),
        ] {
            if !rows.is_empty() {
                writeln!(out, "\n{words}:")?;
                rows.iter().try_for_each(|row| writeln!(out, "- {row}"))?;
            }
        }
        let count = |change| self.rows.iter().filter(|row| row.change == change).count();
        let (better, worse) = (count(Change::Better), count(Change::Worse));
        writeln!(
            out,
            "\n{} rows: {better} better, {worse} worse, the rest within the spread",
            self.rows.len()
        )
    }
}

impl Change {
    fn words(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::WithinSpread => "within the spread",
            Self::Unknown => "unknown: one round has no spread",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{FORMAT, Report, Table};
    use crate::schema::assert_schema_of;
    use std::path::Path;

    fn results(rows: &[(&str, &[f64])], unit: Unit) -> Results {
        let rows = rows
            .iter()
            .map(|(name, rounds)| Row::new("job", *name, rounds.to_vec()))
            .collect();
        let mut report = Report::new("s", "w", Path::new("/"));
        report.tables.push(Table::new("t", unit, None, rows));
        Results {
            format: FORMAT,
            folio: "0".to_owned(),
            taken_at: String::new(),
            is_optimized: true,
            is_quick: false,
            machine: Machine::here(),
            scenarios: vec![report],
        }
    }

    #[test]
    fn only_what_is_beyond_both_spreads_is_a_change() {
        let (low, high) = (&[1.0, 1.2][..], &[1.3, 1.5][..]);
        for (unit, old, new, change) in [
            (Unit::Seconds, low, high, Change::Worse),
            (Unit::Seconds, high, low, Change::Better),
            (Unit::MibPerSecond, low, high, Change::Better),
            (Unit::MibPerSecond, high, low, Change::Worse),
            (Unit::Seconds, &[1.0, 1.4], high, Change::WithinSpread),
            (Unit::Seconds, &[1.0], &[9.0, 9.5], Change::Unknown),
        ] {
            let [old, new] = [old, new].map(|rounds| results(&[("a", rounds)], unit));
            assert_eq!(compare(&old, &new).rows[0].change, change);
        }
    }

    #[test]
    fn rows_of_one_side_and_zeros_are_reported() {
        let old = results(&[("a", &[0.0, 0.0]), ("gone", &[1.0, 2.0])], Unit::Seconds);
        let new = results(&[("a", &[1.0, 1.0]), ("come", &[1.0, 2.0])], Unit::Seconds);
        let comparison = compare(&old, &new);
        assert_eq!(comparison.only_old, ["s, t, job, gone"]);
        assert_eq!(comparison.only_new, ["s, t, job, come"]);
        assert!(comparison.rows[0].ratio.is_none() && comparison.is_worse());
        let mut text = Vec::new();
        comparison.write_text(&mut text).expect("written");
        assert!(String::from_utf8(text).expect("text").contains("1 worse"));
    }

    #[test]
    fn schemas_are_derived() {
        assert_schema_of::<Results>("bench");
        assert_schema_of::<Comparison>("bench compare");
    }

    #[test]
    fn different_machines_give_a_warning() {
        let old = results(&[], Unit::Seconds);
        let mut new = old.clone();
        new.machine.load = "0.5".to_owned();
        assert!(compare(&old, &new).warnings.is_empty());
        new.machine.cores += 1;
        assert_eq!(compare(&old, &new).warnings.len(), 1);
    }
}
