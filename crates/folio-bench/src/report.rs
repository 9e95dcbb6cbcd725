//! What is printed: tables with ratios, the machine, and what the numbers do not mean.

use crate::measure::Cost;
use serde::Serialize;
use std::fmt::Display;
use std::path::Path;

/// The machine that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    kernel: String,
    processor: String,
    cores: usize,
    memory_mib: u64,
    dir: String,
    dir_file_system: String,
    pub(crate) dir_free_mib: u64,
}

/// One contender's figures.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    median_seconds: f64,
    least_seconds: f64,
    most_seconds: f64,
    median_cpu_seconds: f64,
    most_resident_kib: u64,
    /// Median time as a share of the rival's.
    ratio: Option<f64>,
    rounds: Vec<Cost>,
}

/// One job, all contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// Whose time is 1.
    pub(crate) rival: String,
    pub(crate) rows: Vec<Row>,
}

/// Everything that a run tells.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) tree: String,
    pub(crate) image_mib: u64,
    pub(crate) repeats: u32,
    pub(crate) machine: Machine,
    pub(crate) tables: Vec<Table>,
    pub(crate) notes: Vec<String>,
    /// What the numbers do not mean.
    pub(crate) limits: &'static [&'static str],
}

/// What the numbers of trees in images do not mean.
pub(crate) const TREE_LIMITS: [&str; 6] = [
    "images and trees lie in the folder named above; on a disk, the disk decides more, and nothing here calls fsync",
    "the source is in the host's memory before the first round; a cold one costs everybody the same reading",
    "folio's and the kernel's times include making the file system, as mke2fs -d's does",
    "mke2fs -d drops sub-second times; debugfs rdump drops those, xattrs, hard links, holes and special files; neither \
     pays for what it drops",
    "resident memory is that of the largest process: folio's holds its page cache, the kernel's page cache is in no figure",
    "one machine, one tree: compare ratios, and run it on yours",
];

impl Machine {
    /// Facts of this machine and of the folder that images lie in.
    pub(crate) fn here(dir: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let free = rustix::fs::statvfs(dir).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        Self {
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib >> 10,
            dir: dir.display().to_string(),
            dir_file_system: file_system(&read("/proc/self/mounts"), dir),
            dir_free_mib: free >> 20,
        }
    }
}

impl Machine {
    /// The facts in one line, without the folder's.
    pub(crate) fn words(&self) -> String {
        format!("{}, {} cores ({}), {} MiB memory", self.kernel, self.cores, self.processor, self.memory_mib)
    }

    /// Type of the file system that the folder lies on.
    pub(crate) fn dir_file_system(&self) -> &str {
        &self.dir_file_system
    }
}

/// Type of the mount that `dir` lies on.
fn file_system(mounts: &str, dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let fields = mounts.lines().map(|line| line.split(' ').skip(1).take(2).collect::<Vec<_>>());
    let over = fields.filter(|fields| fields.len() == 2 && dir.starts_with(fields[0]));
    over.max_by_key(|fields| fields[0].len()).map_or_else(String::new, |fields| fields[1].to_owned())
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

/// Whether an aim is met.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) aim: String,
    pub(crate) is_met: bool,
    pub(crate) figures: String,
}

impl Verdict {
    /// Prints all of them, each on a line.
    pub(crate) fn print_all(verdicts: &[Self]) {
        println!("\naims:");
        for verdict in verdicts {
            let word = if verdict.is_met { "met" } else { "NOT MET" };
            println!("- {word}: {}: {}", verdict.aim, verdict.figures);
        }
    }
}

impl Row {
    /// Median wall-clock seconds.
    pub(crate) fn median(costs: &[Cost]) -> f64 {
        middle(costs.iter().map(|cost| cost.seconds).collect())
    }

    /// The figures of `costs`, with a ratio to `base` seconds.
    pub(crate) fn new(name: &str, costs: &[Cost], base: Option<f64>) -> Self {
        let seconds = || costs.iter().map(|cost| cost.seconds);
        let median_seconds = Self::median(costs);
        Self {
            name: name.to_owned(),
            median_seconds,
            least_seconds: seconds().fold(f64::INFINITY, f64::min),
            most_seconds: seconds().fold(0.0, f64::max),
            median_cpu_seconds: middle(costs.iter().map(|cost| cost.cpu_seconds).collect()),
            most_resident_kib: costs.iter().map(|cost| cost.resident_kib).max().unwrap_or(0),
            ratio: base.filter(|base| *base > 0.0).map(|base| median_seconds / base),
            rounds: costs.to_vec(),
        }
    }
}

impl Report {
    /// Prints the report to standard output.
    pub(crate) fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        let machine = &self.machine;
        println!("{}: {}", self.scenario, self.tree);
        println!(
            "{}; images of {} MiB in {} ({}); {} rounds, interleaved",
            machine.words(),
            self.image_mib,
            machine.dir,
            machine.dir_file_system,
            self.repeats
        );
        for table in &self.tables {
            table.print();
        }
        println!("\nnotes:");
        for note in &self.notes {
            println!("- {note}");
        }
        println!("\nwhat the numbers do not mean:");
        for limit in self.limits {
            println!("- {limit}");
        }
        Ok(())
    }
}

impl Table {
    fn print(&self) {
        println!("\n{} (1 = {})", self.title, self.rival);
        println!(
            "{:<24} {:>8} {:>17} {:>8} {:>9} {:>7}",
            "", "median s", "least..most s", "cpu s", "RSS MiB", "ratio"
        );
        for row in &self.rows {
            let spread = format!("{:.3}..{:.3}", row.least_seconds, row.most_seconds);
            let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            println!(
                "{:<24} {:>8.3} {:>17} {:>8.3} {:>9.1} {:>7}",
                row.name,
                row.median_seconds,
                spread,
                row.median_cpu_seconds,
                row.most_resident_kib as f64 / 1024.0,
                ratio
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let costs: Vec<_> = [3.0, 1.0, 2.0, 9.0]
            .map(|seconds| Cost { seconds, cpu_seconds: seconds / 2.0, resident_kib: seconds as u64 })
            .into();
        let row = Row::new("x", &costs, Some(5.0));
        assert_eq!((row.median_seconds, row.least_seconds, row.most_seconds), (2.5, 1.0, 9.0));
        assert_eq!((row.ratio, row.most_resident_kib), (Some(0.5), 9));
    }

    #[test]
    fn the_deepest_mount_counts() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\ntmpfs /dev tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/dev/shm")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/usr")), "ext4");
    }
}
