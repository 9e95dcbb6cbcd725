//! `folio bench`: measures Folio, the kernel and peer programs in one run.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::{Args, Subcommand};
use folio_bench::{FORMAT, Helper, Results, Run, Scenario};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const HELP: &str = "\
Peers that are not installed, and measurements that need root, are left out and listed. Each figure is the median of
several rounds, with minimum and maximum. In each round all contenders take turns. --quick only shows that the
benchmark works: its figures are meaningless.

compare exits with 1 if a row is worse beyond the spread of both results.

Examples:
  folio bench all --html report.html
  folio bench read /srv/data
  folio bench first-write --disk-dir /srv --json >first-write.json
  folio bench compare before.json after.json";

/// Measure Folio, the kernel and peer programs in one run
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    #[command(subcommand)]
    command: BenchCommand,
    /// Print JSON: docs/schema/bench.json
    #[arg(long, global = true)]
    json: bool,
    /// Write an HTML page with charts too: one file, without scripts or external resources
    #[arg(long, global = true, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Small sizes and two rounds, to check that the benchmark works
    #[arg(long, global = true)]
    quick: bool,
    /// Number of rounds; the default depends on the scenario
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: Option<u32>,
}

#[derive(Subcommand)]
enum BenchCommand {
    #[command(flatten)]
    Scenario(Scenario),
    /// Compare two results of --json: rows that are better or worse, beyond the spread
    Compare {
        /// Earlier results
        old: PathBuf,
        /// Later results
        new: PathBuf,
    },
    #[command(flatten)]
    Helper(Helper),
}

/// Runs the command.
pub(crate) fn run(bench: &Bench, session: &Session) -> Outcome {
    match &bench.command {
        BenchCommand::Compare { old, new } => compare(old, new, bench, session),
        BenchCommand::Helper(helper) => helper.run().map_err(Failure::new),
        BenchCommand::Scenario(scenario) => measure(scenario, bench, session),
    }
}

fn measure(scenario: &Scenario, bench: &Bench, session: &Session) -> Outcome {
    session.refuse_options()?;
    let step = |message: &str| {
        if session.is_interrupted() {
            return Err(String::new());
        }
        if !session.quiet && !message.is_empty() {
            session.note(message);
        }
        Ok(())
    };
    let mut run = Run::new(std::env::current_exe()?, &step);
    run.is_quick = bench.quick;
    run.repeats = bench.repeats;
    let now = || format!("{:.0}", jiff::Timestamp::now());
    let measured = scenario.measure(&run, now);
    session.check_interrupt()?;
    let results = measured.map_err(Failure::new)?;
    if let Some(path) = &bench.html {
        replace(path, folio_bench::html(&results).as_bytes())
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    if bench.json {
        return session.print_json(&results);
    }
    let mut out = std::io::stdout().lock();
    results.write_text(&mut out)?;
    Ok(out.flush()?)
}

/// Replaces a file atomically.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // The umask applies, as for any other file.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_data()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Maximum length of a results file, in bytes.
const RESULTS_MAX: u64 = 64 << 20;

fn load(path: &Path) -> Result<Results, Failure> {
    let failed = |reason: String| Failure::new(format!("{}: {reason}", path.display()));
    let io_failed = |error: std::io::Error| failed(error.to_string());
    if std::fs::metadata(path).map_err(io_failed)?.len() > RESULTS_MAX {
        return Err(failed("too large for results of folio bench".to_owned()));
    }
    let text = std::fs::read(path).map_err(io_failed)?;
    let results: Results = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("invalid results of folio bench --json: {error}")))?;
    match results.format {
        FORMAT => Ok(results),
        other => Err(failed(format!(
            "unsupported results format {other}: this version of folio reads format {FORMAT}"
        ))),
    }
}

fn compare(old: &Path, new: &Path, bench: &Bench, session: &Session) -> Outcome {
    let comparison = folio_bench::compare(&load(old)?, &load(new)?);
    if bench.json {
        session.print_json(&comparison)?;
    } else {
        let mut out = std::io::stdout().lock();
        comparison.write_text(&mut out)?;
        out.flush()?;
    }
    // The rows above show the result.
    if comparison.is_worse() {
        Err(Failure::new(""))
    } else {
        Ok(())
    }
}
