//! The report of a run: tables of figures, aims, the published figures, and the machine.

use crate::outcome::Outcome;
use crate::published::PublishedCase;
pub(crate) use crate::rows::{Evidence, Row, Sample, Unit, ratio};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the shape of [`Results`] in JSON.
pub const FORMAT: u32 = 1;

/// All results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Results {
    /// Version of this format.
    #[cfg_attr(test, schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// Folio's version.
    pub folio: String,
    /// End of the run, in UTC.
    pub taken_at: String,
    /// Whether Folio was compiled with optimization.
    #[serde(rename = "is_optimised")]
    pub is_optimized: bool,
    /// Whether --quick was given: all sizes are small, and figures have no meaning.
    pub is_quick: bool,
    /// The machine of the run.
    pub machine: Machine,
    /// One report for each scenario.
    pub scenarios: Vec<Report>,
}

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    /// Linux and its release.
    pub(crate) kernel: String,
    /// Model.
    pub(crate) processor: String,
    /// Number of usable processors.
    pub(crate) cores: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// Whether the run had root's rights: some rows need them.
    pub(crate) is_root: bool,
    /// Load average of the last minute before the first round, from other processes.
    pub(crate) load: String,
}

/// The folder and the disk of a scenario's files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Place {
    /// Directory.
    pub(crate) dir: String,
    /// Its type.
    pub(crate) file_system: String,
    /// The disk below, as far as /sys describes it; empty if unknown.
    pub(crate) disk: String,
    /// Free space in MiB.
    pub(crate) free_mib: u64,
}

/// The results of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// Name on the command line.
    pub(crate) scenario: String,
    /// The work, in one sentence.
    pub(crate) what: String,
    pub(crate) place: Place,
    /// Rounds that were made.
    pub(crate) repeats: u32,
    /// Duration of the scenario.
    pub(crate) seconds: f64,
    /// The published case, if there is one.
    pub(crate) story: Option<PublishedCase>,
    /// Figures.
    pub(crate) tables: Vec<Table>,
    /// Targets.
    pub(crate) verdicts: Vec<Verdict>,
    /// Rows that could not be measured here, each with the reason.
    pub(crate) not_measured: Vec<NotMeasured>,
    /// Notes.
    pub(crate) notes: Vec<String>,
    /// Limits of the figures.
    pub(crate) limits: Vec<String>,
}

/// Rows that have their unit in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Table {
    /// Common conditions of the rows.
    pub(crate) title: String,
    pub(crate) unit: Unit,
    /// The contender whose figure is 1 in ratios.
    pub(crate) base: Option<String>,
    /// Contenders by jobs.
    pub(crate) rows: Vec<Row>,
}

/// An aim, and what came out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Verdict {
    /// The target.
    pub(crate) aim: String,
    /// Whether it was reached.
    pub(crate) is_met: bool,
    /// The figures for it.
    pub(crate) figures: String,
}

/// Something that was left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NotMeasured {
    /// The left-out measurement.
    pub(crate) what: String,
    /// The reason.
    pub(crate) reason: String,
}

impl Machine {
    /// Facts of this machine.
    pub fn here() -> Self {
        let (memory, load) = (
            field(&read("/proc/meminfo"), "MemTotal"),
            read("/proc/loadavg"),
        );
        let memory_kib = memory
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        Self {
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or(0_u64) >> 10,
            is_root: rustix::process::geteuid().is_root(),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    /// Returns the facts in one line.
    pub(crate) fn words(&self) -> String {
        let (kernel, cores, processor) = (&self.kernel, self.cores, &self.processor);
        let user = if self.is_root {
            "as root"
        } else {
            "not as root"
        };
        let (memory, load) = (self.memory_mib, &self.load);
        format!(
            "{kernel}, {cores} cores ({processor}), {memory} MiB memory, load {load} before, {user}"
        )
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':'))
        .map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

impl Place {
    /// Facts of a folder.
    pub(crate) fn of(dir: &Path) -> Self {
        let free =
            rustix::fs::statvfs(dir).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        Self {
            dir: dir.display().to_string(),
            file_system: file_system(&read("/proc/self/mounts"), dir),
            disk: disk(dir).unwrap_or_default(),
            free_mib: free >> 20,
        }
    }

    /// Returns the facts in a few words.
    pub(crate) fn words(&self) -> String {
        let facts = [self.file_system.as_str(), &self.disk];
        let facts = facts.into_iter().filter(|fact| !fact.is_empty());
        format!("{} ({})", self.dir, facts.collect::<Vec<_>>().join(", "))
    }
}

/// Returns an error if a folder has less free space than this.
pub(crate) fn require_space(dir: &Path, need_mib: u64, options: &str) -> Outcome {
    let free_mib = Place::of(dir).free_mib;
    if free_mib >= need_mib {
        return Ok(());
    }
    let dir = dir.display();
    Err(format!("{dir} has {free_mib} MiB free, {need_mib} are needed: see {options}").into())
}

/// Returns the type of the mount that `dir` is on.
fn file_system(mounts: &str, dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').skip(1).take(2).collect::<Vec<_>>());
    let over = fields.filter(|fields| fields.len() == 2 && dir.starts_with(fields[0]));
    over.max_by_key(|fields| fields[0].len())
        .map_or_else(String::new, |fields| fields[1].to_owned())
}

/// Returns the name of the disk below `dir` and what matters of it.
fn disk(dir: &Path) -> Option<String> {
    let device = rustix::fs::stat(dir).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has its queue in the disk's folder.
    let mut folders = device.ancestors().take(2);
    let folder = folders.find(|folder| folder.join("queue").is_dir())?;
    let parameter = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name));
        text.unwrap_or_default().trim().to_owned()
    };
    let name = device.file_name()?.to_string_lossy();
    // A virtual disk claims to rotate, whatever its host has.
    let is_virtual = name.starts_with("vd") || name.starts_with("xvd");
    let turns = match parameter("queue/rotational").as_str() {
        "1" if is_virtual => "unknown whether it seeks",
        "1" => "rotating",
        _ => "not rotating",
    };
    let model = format!("{name} {}", parameter("device/model"));
    let read_ahead = parameter("queue/read_ahead_kb");
    let model = model.trim_end();
    Some(format!("{model}, {turns}, {read_ahead} KiB read ahead"))
}

/// Limit of a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// Returns whether the figure keeps to the limit.
    pub(crate) fn allows(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
        }
    }
}

impl Table {
    /// Returns a table with ratios to the figures of `base`.
    pub(crate) fn new(
        title: impl Into<String>,
        unit: Unit,
        base: Option<&str>,
        rows: Vec<Row>,
    ) -> Self {
        let mut table = Self {
            title: title.into(),
            unit,
            base: base.map(str::to_owned),
            rows,
        };
        table.set_ratios();
        table
    }

    /// Sets the ratio of each row to that of the base.
    pub(crate) fn set_ratios(&mut self) {
        let base = self.base.as_deref().unwrap_or_default();
        let ratios = self
            .rows
            .iter()
            .map(|row| self.ratio(&row.job, &row.contender, base));
        let ratios: Vec<_> = ratios.collect();
        for (row, ratio) in self.rows.iter_mut().zip(ratios) {
            row.ratio = ratio;
        }
    }

    /// Returns one contender's median at a job as a multiple of another's.
    pub(crate) fn ratio(&self, job: &str, of: &str, over: &str) -> Option<f64> {
        let [of, over] = [self.row(job, of)?.median, self.row(job, over)?.median];
        (over > 0.0).then(|| of / over)
    }

    /// Returns the row of a contender at a job.
    pub(crate) fn row(&self, job: &str, contender: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.job == job && row.contender == contender)
    }
}

impl Report {
    /// Returns a report without results.
    pub(crate) fn new(scenario: &str, what: impl Into<String>, dir: &Path) -> Self {
        Self {
            scenario: scenario.to_owned(),
            what: what.into(),
            place: Place::of(dir),
            repeats: 0,
            seconds: 0.0,
            story: None,
            tables: Vec::new(),
            verdicts: Vec::new(),
            not_measured: Vec::new(),
            notes: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// Returns the article's subject, or the name of a scenario without one.
    pub(crate) fn heading(&self) -> &str {
        match &self.story {
            Some(case) if !case.subject.is_empty() => &case.subject,
            _ => &self.scenario,
        }
    }

    /// Adds the limits of the figures.
    pub(crate) fn limit(&mut self, texts: &[&str]) {
        self.limits
            .extend(texts.iter().map(|text| (*text).to_owned()));
    }

    /// Adds a note.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Records that `what` is left out, and why.
    pub(crate) fn skip(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.not_measured.push(NotMeasured {
            what: what.into(),
            reason: reason.into(),
        });
    }

    /// Returns the table of this title.
    pub(crate) fn table(&self, title: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.title == title)
    }

    /// Returns the row of a contender at a job, in the table of this title.
    pub(crate) fn row(&self, table: &str, job: &str, contender: &str) -> Option<&Row> {
        self.table(table)?.row(job, contender)
    }

    /// Adds the verdict on a figure, unless it was not measured.
    pub(crate) fn judge(&mut self, aim: impl Into<String>, figure: Option<f64>, bound: Bound) {
        if let Some(figure) = figure {
            self.add_verdict(aim, bound.allows(figure), ratio(figure));
        }
    }

    /// Adds the verdict on the median of the first contender at a job, as a multiple of the second
    /// one's, unless one of them was not measured.
    pub(crate) fn judge_pair(
        &mut self,
        aim: impl Into<String>,
        table: &str,
        job: &str,
        [ours, theirs]: [&str; 2],
        bound: Bound,
    ) {
        let rows = [ours, theirs].map(|contender| self.row(table, job, contender));
        let (Some(table), [Some(ours), Some(theirs)]) = (self.table(table), rows) else {
            return;
        };
        let times = ours.median / theirs.median.max(f64::MIN_POSITIVE);
        let [ours, theirs] = [ours, theirs].map(|row| table.unit.figure(row.median));
        let figures = format!("{ours} against {theirs}, {} times", ratio(times));
        self.add_verdict(aim, bound.allows(times), figures);
    }

    /// Adds a verdict.
    pub(crate) fn add_verdict(&mut self, aim: impl Into<String>, is_met: bool, figures: String) {
        self.verdicts.push(Verdict {
            aim: aim.into(),
            is_met,
            figures,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_spread_and_ratios() {
        let row = |contender, rounds: &[f64]| Row::new("job", contender, rounds.to_vec());
        let table = Table::new(
            "t",
            Unit::Seconds,
            Some("b"),
            vec![
                row("a", &[3.0, 1.0, 2.0, 9.0]),
                row("b", &[5.0]),
                row("none", &[]),
            ],
        );
        let a = &table.rows[0];
        assert_eq!(
            (a.median, a.least, a.most, a.ratio),
            (2.5, 1.0, 9.0, Some(0.5))
        );
        assert_eq!(table.rows[2].median, 0.0);
        assert_eq!(table.ratio("job", "b", "a"), Some(2.0));
        assert_eq!(table.ratio("job", "a", "none"), None);
    }

    #[test]
    fn figures_have_units_that_suit_them() {
        let texts = [2.5, 0.25, 345e-6, 20.8e-9, 0.0].map(|seconds| Unit::Seconds.figure(seconds));
        assert_eq!(texts, ["2.50 s", "250 ms", "345 us", "20.8 ns", "0"]);
        assert_eq!(Unit::MibPerSecond.figure(2361.4), "2361 MiB/s");
    }

    #[test]
    fn evidence_is_the_median_of_what_was_seen() {
        let sample = |cached, switches| Sample {
            value: 1.0,
            evidence: Evidence {
                cached_before: Some(cached),
                switches,
                ..Evidence::default()
            },
            ..Sample::default()
        };
        let row = Row::of_samples(
            "job",
            "x",
            &[sample(0.0, None), sample(0.5, Some(2.0)), sample(1.0, None)],
        );
        assert_eq!(
            (row.evidence.cached_before, row.evidence.switches),
            (Some(0.5), Some(2.0))
        );
        assert_eq!(row.evidence.words(), "cached 50 %, 2.0 switches each");
    }

    #[test]
    fn the_deepest_mount_counts() {
        let mounts =
            "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\ntmpfs /dev tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/dev/shm")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/usr")), "ext4");
    }
}
