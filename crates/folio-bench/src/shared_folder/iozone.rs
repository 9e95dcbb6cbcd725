//! The article's table: the columns of IOzone, and its two programs, which read and stat one file
//! again and again.
//!
//! `iozone` itself measures the columns where it is installed; else this program makes the same
//! reads and writes, by pread(2) and pwrite(2) instead of lseek(2), read(2) and write(2).

use super::jobs::{self, Column, Figure, Job, Sizes};
use crate::command::{find, run as run_command};
use crate::outcome::Outcome;
use crate::random::Random;
use crate::report::Report;
use crate::view::{Access, View};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Title of the table of columns.
pub(super) const TITLE: &str = "IOzone, 64 KiB records";

/// What the figures of a run do not mean.
pub(super) const LIMITS: [&str; 2] = [
    "writes end in a page cache, as in the article: no column waits for a disk",
    "medians of all rounds; each round has a new file",
];

const RECORD_BYTES: usize = 64 << 10;
/// The file that both kinds of measurement write, and remove.
const FILE: &str = "iozone.tmp";

/// Returns the installed `iozone`.
pub(super) fn program() -> Option<PathBuf> {
    find("iozone")
}

/// Adds to the report which program measures the columns.
pub(super) fn describe(report: &mut Report) {
    match program() {
        Some(program) => report.note(format!("columns measured by {}", program.display())),
        None => report.skip(
            "iozone itself",
            "not installed (Debian: iozone3 in non-free); folio bench measured the same columns",
        ),
    }
}

/// Returns the figures of a folder: the columns, then the article's two programs.
pub(super) fn run(view: &View, sizes: Sizes) -> Outcome<Vec<Figure>> {
    let rates = match (program(), view) {
        (Some(program), View::Host(root)) => by_iozone(&program, root, sizes.iozone_mib)?,
        _ => by_bench(view, sizes.iozone_mib)?,
    };
    let columns = Column::ALL.into_iter().zip(rates);
    let figure = |(column, value)| Figure {
        job: Job::Iozone(column),
        value,
    };
    let mut figures: Vec<Figure> = columns.map(figure).collect();
    figures.extend(jobs::article_programs(view, sizes)?);
    Ok(figures)
}

/// Returns the columns in MiB a second, as `iozone` measures them.
fn by_iozone(program: &Path, root: &Path, mib: usize) -> Outcome<[f64; 6]> {
    let mut command = Command::new(program);
    let record = format!("{}k", RECORD_BYTES >> 10);
    command.args(["-s", &format!("{mib}m"), "-r", &record]);
    // Write and rewrite, read and reread, random read and write.
    command.args(["-i", "0", "-i", "1", "-i", "2", "-f"]);
    let output = run_command(command.arg(root.join(FILE)))?;
    columns(&output).ok_or_else(|| "iozone: no line of figures in its output".into())
}

/// Reads IOzone's line of figures: KiB of the file and of a record, then KiB a second of each
/// column.
fn columns(output: &str) -> Option<[f64; 6]> {
    output.lines().find_map(|line| {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let rates: [f64; 6] = numbers.ok()?.get(2..)?.try_into().ok()?;
        Some(rates.map(|rate| rate / 1024.0))
    })
}

/// Returns the columns in MiB a second, by reads and writes of this program.
fn by_bench(view: &View, mib: usize) -> Outcome<[f64; 6]> {
    let measured = Column::ALL.map(|column| by_calls(view, column, mib));
    view.remove(FILE)?;
    let mut rates = [0.0; 6];
    for (rate, measured) in rates.iter_mut().zip(measured) {
        *rate = measured?;
    }
    Ok(rates)
}

/// Measures a column. As in IOzone, a sync before and after it, and the read of one record before
/// reads in order, are not in its time.
fn by_calls(view: &View, column: Column, mib: usize) -> Outcome<f64> {
    let access = if column.writes() {
        Access::Write
    } else {
        Access::Read
    };
    let mut order: Vec<usize> = (0..(mib << 20) / RECORD_BYTES).collect();
    if column.is_random() {
        Random::new(1).shuffle(&mut order);
    }
    let mut record = vec![1; RECORD_BYTES];
    let file = view.open(FILE, access)?;
    view.fsync(&file)?;
    if !column.writes() && !column.is_random() {
        view.read_at(&file, &mut record, 0)?;
    }
    let start = Instant::now();
    for index in order {
        let offset = (index * RECORD_BYTES) as u64;
        if column.writes() {
            view.write_at(&file, &record, offset)?;
        } else if view.read_at(&file, &mut record, offset)? != RECORD_BYTES {
            return Err(format!("{FILE}: the record at {offset} is not whole").into());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    view.fsync(&file)?;
    view.close(file)?;
    Ok(mib as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_figures_is_read() {
        let output = "\tRecord Size 64 kB\n\
             \t  random    random     bkwd\n\
             \t  kB  reclen    write  rewrite    read    reread    read     write\n\
             \t  65536      64    97772  1576868  5771980  2784622  5235290  1678737     \n\n\
             iozone test complete.\n";
        let rates = columns(output).expect("figures");
        assert_eq!(rates[0], 97772.0 / 1024.0);
        assert_eq!(rates[5], 1_678_737.0 / 1024.0);
        assert_eq!(columns("65536 64 1 2 3\nnan\n"), None);
    }

    /// The next column is not slower by the writeback of this one.
    #[test]
    fn column_ends_with_a_sync() {
        let folder = tempfile::tempdir().unwrap();
        let view = View::in_process(folder.path(), "cache=writeback").unwrap();
        by_calls(&view, Column::Write, 1).unwrap();
        let bytes = std::fs::read(folder.path().join(FILE)).unwrap();
        assert!(bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn own_columns_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let rates = by_bench(&View::Host(folder.path().to_owned()), 1).unwrap();
        assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
