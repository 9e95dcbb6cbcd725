//! `folio bench`: Folio, the kernel and their rivals measured side by side.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::{Args, Subcommand};
use folio_bench::{FORMAT, Helper, Results, Run, Scenario};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const HELP: &str = "\
Rivals take part where they are installed, and are named where they are not; what needs root is left out and named
without it. Every figure is the median of rounds in which all contenders take turns, with the least and the most
beside it. --quick is for seeing that all of it runs: its figures mean nothing.

compare exits with 1 if a row is worse beyond the spread of both results.

Examples:
  folio bench all --html report.html
  folio bench read /srv/data
  folio bench first-write --disk-dir /srv --json >first-write.json
  folio bench compare before.json after.json";

/// Measure Folio beside the kernel and its rivals
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
    /// Print JSON: docs/schema/bench.json
    #[arg(long, global = true)]
    json: bool,
    /// Write a page with charts, too: one file, no script, nothing loaded
    #[arg(long, global = true, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Small sizes and two rounds, to see that it runs
    #[arg(long, global = true)]
    quick: bool,
    /// Rounds; without it, as many as suit the scenario
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: Option<u32>,
}

#[derive(Subcommand)]
enum What {
    #[command(flatten)]
    Scenario(Scenario),
    /// Two results of --json: which rows are better or worse, beyond the spread
    Compare {
        /// The results before
        old: PathBuf,
        /// The results after
        new: PathBuf,
    },
    #[command(flatten)]
    Helper(Helper),
}

/// Runs the command.
pub(crate) fn run(bench: &Bench, session: &Session) -> Outcome {
    match &bench.what {
        What::Compare { old, new } => compare(old, new, bench, session),
        What::Helper(helper) => helper.run().map_err(Failure::new),
        What::Scenario(scenario) => measure(scenario, bench, session),
    }
}

fn measure(scenario: &Scenario, bench: &Bench, session: &Session) -> Outcome {
    session.refuse_options()?;
    let step = |words: &str| {
        if session.is_interrupted() {
            return Err(String::new());
        }
        if !session.quiet && !words.is_empty() {
            session.note(words);
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

/// Writes a file whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // What the user's umask leaves of it, as of any other file.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_data()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Results are no larger than this.
const RESULTS_MAX: u64 = 64 << 20;

fn load(path: &Path) -> Result<Results, Failure> {
    let failed = |reason: String| Failure::new(format!("{}: {reason}", path.display()));
    let told = |error: std::io::Error| failed(error.to_string());
    if std::fs::metadata(path).map_err(told)?.len() > RESULTS_MAX {
        return Err(failed("too large for results of folio bench".to_owned()));
    }
    let text = std::fs::read(path).map_err(told)?;
    let results: Results = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("not what folio bench --json prints: {error}")))?;
    match results.format {
        FORMAT => Ok(results),
        other => Err(failed(format!(
            "results of format {other}; this folio knows {FORMAT}"
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
    // The rows have told it.
    if comparison.is_worse() {
        Err(Failure::new(""))
    } else {
        Ok(())
    }
}
