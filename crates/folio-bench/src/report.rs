//! What a run tells: figures with their spread and the evidence for them, aims, the stories' own
//! figures, the machine.

use crate::measure::Cost;
use crate::stories::Story;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::Path;

/// Version of the shape of [`Results`] in JSON.
pub const FORMAT: u32 = 1;

/// Everything that a run tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// Folio's version.
    pub folio: String,
    /// When it ended, in UTC.
    pub taken_at: String,
    /// Whether Folio was compiled to be measured.
    pub is_optimised: bool,
    /// Whether everything was small, to see that it runs.
    pub is_quick: bool,
    /// What was measured on.
    pub machine: Machine,
    /// One report for each scenario.
    pub scenarios: Vec<Report>,
}

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    /// Whether root measured: some rows need it.
    pub(crate) is_root: bool,
    /// Load of the last minute before the first round, by others.
    pub(crate) load: String,
}

/// Where files of a scenario lay.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) dir: String,
    pub(crate) file_system: String,
    /// The disk below, as far as /sys tells of it.
    pub(crate) disk: String,
    pub(crate) free_mib: u64,
}

/// What one scenario tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub(crate) scenario: String,
    /// What is done, in a sentence.
    pub(crate) what: String,
    pub(crate) place: Place,
    /// Rounds that were made.
    pub(crate) repeats: u32,
    /// How long it took.
    pub(crate) seconds: f64,
    pub(crate) story: Option<Story>,
    pub(crate) tables: Vec<Table>,
    pub(crate) verdicts: Vec<Verdict>,
    /// What could not be measured here, and why.
    pub(crate) not_measured: Vec<NotMeasured>,
    pub(crate) notes: Vec<String>,
    /// What the numbers do not mean.
    pub(crate) limits: Vec<String>,
}

/// Rows that have their unit in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) unit: Unit,
    /// The contender whose figure is 1 in ratios.
    pub(crate) base: Option<String>,
    pub(crate) rows: Vec<Row>,
}

/// What figures count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    #[serde(rename = "/s")]
    PerSecond,
    /// Of all, from 0 to 1.
    #[serde(rename = "share")]
    Share,
    /// A multiple of another figure.
    #[serde(rename = "times")]
    Times,
}

/// One contender at one job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) job: String,
    pub(crate) contender: String,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) rounds: Vec<f64>,
    /// The median as a multiple of the base's.
    #[serde(default)]
    pub(crate) ratio: Option<f64>,
    /// What the figure is, where it is not what its job says: the speed of memory, say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    #[serde(default)]
    pub(crate) evidence: Evidence,
}

/// What was seen beside the clock; medians of the rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Evidence {
    /// Share of the files' bytes in the kernel's page cache before the clock ran, and after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_before: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_after: Option<f64>,
    /// Bytes from devices and to them, as the kernel counts them for the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_read_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_written_bytes: Option<f64>,
    /// User and system seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_seconds: Option<f64>,
    /// Largest resident set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_kib: Option<f64>,
    /// Voluntary context switches for each operation: waiting for somebody else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches: Option<f64>,
    /// Moves of a modelled disk's head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seeks: Option<f64>,
}

/// An aim, and what came out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) aim: String,
    pub(crate) is_met: bool,
    pub(crate) figures: String,
}

/// Something that was left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NotMeasured {
    pub(crate) what: String,
    pub(crate) reason: String,
}

/// One measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    pub(crate) evidence: Evidence,
    pub(crate) label: Option<&'static str>,
}

impl Machine {
    /// Facts of this machine.
    pub fn here() -> Self {
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        Self {
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib >> 10,
            is_root: rustix::process::geteuid().is_root(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    /// The facts in one line.
    pub(crate) fn words(&self) -> String {
        let (kernel, cores, processor) = (&self.kernel, self.cores, &self.processor);
        let who = if self.is_root {
            "as root"
        } else {
            "not as root"
        };
        let (memory, load) = (self.memory_mib, &self.load);
        format!(
            "{kernel}, {cores} cores ({processor}), {memory} MiB memory, load {load} before, {who}"
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
            disk: disk(dir),
            free_mib: free >> 20,
        }
    }

    /// The facts in a few words.
    pub(crate) fn words(&self) -> String {
        let disk = if self.disk.is_empty() {
            String::new()
        } else {
            format!(", {}", self.disk)
        };
        format!("{} ({}{disk})", self.dir, self.file_system)
    }
}

/// Type of the mount that `dir` lies on.
fn file_system(mounts: &str, dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').skip(1).take(2).collect::<Vec<_>>());
    let over = fields.filter(|fields| fields.len() == 2 && dir.starts_with(fields[0]));
    over.max_by_key(|fields| fields[0].len())
        .map_or_else(String::new, |fields| fields[1].to_owned())
}

/// Name of the disk below `dir` and what matters of it; empty where there is none.
fn disk(dir: &Path) -> String {
    let Ok(stat) = rustix::fs::stat(dir) else {
        return String::new();
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let Ok(device) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return String::new();
    };
    // A partition has its queue in the disk's folder.
    let whole = [device.as_path(), device.parent().unwrap_or(&device)];
    let Some(folder) = whole
        .into_iter()
        .find(|folder| folder.join("queue").is_dir())
    else {
        return String::new();
    };
    let said = |name: &str| {
        read(&folder.join(name).display().to_string())
            .trim()
            .to_owned()
    };
    let name = device
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let turns = if said("queue/rotational") == "1" {
        "rotating"
    } else {
        "not rotating"
    };
    let model = said("device/model");
    let model = if model.is_empty() {
        model
    } else {
        format!(" {model}")
    };
    format!(
        "{name}{model}, {turns}, {} KiB read ahead",
        said("queue/read_ahead_kb")
    )
}

/// The median; 0 of nothing.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// An error told with what it was about.
pub(crate) fn told<E: Display>(what: impl Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

impl Unit {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Self::MibPerSecond | Self::PerSecond | Self::Share)
    }

    /// What its figures are, and which are good.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Seconds => "time, less is better",
            Self::MibPerSecond => "MiB/s, more is better",
            Self::PerSecond => "a second, more is better",
            Self::Share => "share of all, more is better",
            Self::Times => "times, less is better",
        }
    }

    /// A figure with its unit, in about three digits.
    pub(crate) fn figure(self, value: f64) -> String {
        let digits = |value: f64| match value.abs() {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        if value == 0.0 {
            return "0".to_owned();
        }
        let (value, unit) = match self {
            Self::Seconds => match value.abs() {
                size if size >= 1.0 => (value, " s"),
                size if size >= 1e-3 => (value * 1e3, " ms"),
                size if size >= 1e-6 => (value * 1e6, " us"),
                _ => (value * 1e9, " ns"),
            },
            Self::MibPerSecond => (value, " MiB/s"),
            Self::PerSecond => (value, "/s"),
            Self::Share => return format!("{value:.3}"),
            Self::Times => (value, " times"),
        };
        format!("{value:.digits$}{unit}", digits = digits(value))
    }
}

impl Row {
    /// The median and spread of rounds.
    pub(crate) fn new(
        job: impl Into<String>,
        contender: impl Into<String>,
        rounds: Vec<f64>,
    ) -> Self {
        let bound = |most: fn(f64, f64) -> f64| rounds.iter().copied().reduce(most).unwrap_or(0.0);
        let (least, most) = (bound(f64::min), bound(f64::max));
        Self {
            job: job.into(),
            contender: contender.into(),
            median: middle(rounds.clone()),
            least,
            most,
            rounds,
            ratio: None,
            label: None,
            evidence: Evidence::default(),
        }
    }

    /// Of commands.
    pub(crate) fn of_costs(job: &str, contender: &str, costs: &[Cost]) -> Self {
        let mut row = Self::new(
            job,
            contender,
            costs.iter().map(|cost| cost.seconds).collect(),
        );
        row.evidence.cpu_seconds =
            Some(middle(costs.iter().map(|cost| cost.cpu_seconds).collect()));
        row.evidence.resident_kib = costs
            .iter()
            .map(|cost| cost.resident_kib as f64)
            .reduce(f64::max);
        row
    }

    /// Of measurements with evidence.
    pub(crate) fn of_samples(job: &str, contender: &str, samples: &[Sample]) -> Self {
        let mut row = Self::new(
            job,
            contender,
            samples.iter().map(|sample| sample.value).collect(),
        );
        row.evidence = Evidence::middle(samples);
        row.label = samples
            .iter()
            .find_map(|sample| sample.label)
            .map(str::to_owned);
        row
    }
}

impl Evidence {
    /// The medians of what was seen.
    fn middle(samples: &[Sample]) -> Self {
        let of = |field: fn(&Self) -> Option<f64>| {
            let seen: Vec<f64> = samples
                .iter()
                .filter_map(|sample| field(&sample.evidence))
                .collect();
            (!seen.is_empty()).then(|| middle(seen))
        };
        Self {
            cached_before: of(|seen| seen.cached_before),
            cached_after: of(|seen| seen.cached_after),
            device_read_bytes: of(|seen| seen.device_read_bytes),
            device_written_bytes: of(|seen| seen.device_written_bytes),
            cpu_seconds: of(|seen| seen.cpu_seconds),
            resident_kib: of(|seen| seen.resident_kib),
            switches: of(|seen| seen.switches),
            seeks: of(|seen| seen.seeks),
        }
    }

    /// All of it in words; empty if nothing was seen.
    pub(crate) fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
        let mut words = Vec::new();
        match (self.cached_before, self.cached_after) {
            (Some(before), Some(after)) => {
                words.push(format!(
                    "cached {} before, {} after",
                    percent(before),
                    percent(after)
                ));
            }
            (Some(share), None) | (None, Some(share)) => {
                words.push(format!("cached {}", percent(share)))
            }
            (None, None) => {}
        }
        words.extend(
            self.device_read_bytes
                .map(|bytes| format!("{} from the device", mib(bytes))),
        );
        words.extend(
            self.device_written_bytes
                .map(|bytes| format!("{} to the device", mib(bytes))),
        );
        words.extend(
            self.cpu_seconds
                .map(|seconds| format!("cpu {}", Unit::Seconds.figure(seconds))),
        );
        words.extend(
            self.resident_kib
                .map(|kib| format!("{:.0} MiB resident", kib / 1024.0)),
        );
        words.extend(self.seeks.map(|count| format!("{count:.0} seeks")));
        words.extend(
            self.switches
                .map(|count| format!("{count:.1} switches each")),
        );
        words.join(", ")
    }
}

impl Table {
    /// A table with ratios to the figures of `base`.
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
        let bases: Vec<Option<f64>> = table
            .rows
            .iter()
            .map(|row| {
                base.and_then(|base| table.row(&row.job, base))
                    .map(|row| row.median)
            })
            .collect();
        for (row, base) in table.rows.iter_mut().zip(bases) {
            row.ratio = base
                .filter(|base| *base > 0.0)
                .map(|base| row.median / base);
        }
        table
    }

    /// A contender at a job.
    pub(crate) fn row(&self, job: &str, contender: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.job == job && row.contender == contender)
    }
}

impl Report {
    /// A report that has nothing to tell yet.
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

    /// Tells that something is left out.
    pub(crate) fn skip(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.not_measured.push(NotMeasured {
            what: what.into(),
            reason: reason.into(),
        });
    }

    /// A contender at a job, in the table of this title.
    pub(crate) fn row(&self, table: &str, job: &str, contender: &str) -> Option<&Row> {
        self.tables
            .iter()
            .find(|found| found.title == table)?
            .row(job, contender)
    }
}

/// Texts that never change, to be owned.
pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
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
        let costs = [3.0, 1.0].map(|seconds| Cost {
            seconds,
            cpu_seconds: 1.0,
            resident_kib: seconds as u64,
        });
        assert_eq!(
            Row::of_costs("job", "x", &costs).evidence.resident_kib,
            Some(3.0)
        );
    }

    #[test]
    fn figures_have_units_that_suit_them() {
        let told = [2.5, 0.25, 345e-6, 20.8e-9, 0.0].map(|seconds| Unit::Seconds.figure(seconds));
        assert_eq!(told, ["2.50 s", "250 ms", "345 us", "20.8 ns", "0"]);
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
            label: None,
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
