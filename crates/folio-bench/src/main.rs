//! `folio-bench`: the command line of the measurements. `folio bench` starts it.

use clap::{Args, Parser, Subcommand};
use folio_bench::{FORMAT, Helper, Results, Run, Scenario};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
#[derive(Parser)]
#[command(name = "folio-bench", bin_name = "folio bench", version, after_help = HELP)]
#[command(max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
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
    /// Suppress progress; errors are still printed
    #[arg(short, long, global = true)]
    quiet: bool,
    /// The command to measure; by default the folio beside this program, else that of PATH
    #[arg(long, global = true, value_name = "PROGRAM")]
    folio: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
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

/// Why the program ends without success.
enum Failure {
    /// An operation failed, for this reason; it is empty if the output shows it.
    Failed(String),
    Interrupted,
    /// No reader of the output is left.
    PipeClosed,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self::PipeClosed
        } else {
            Self::Failed(error.to_string())
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = &arguments.options;
    let done = match &arguments.command {
        Command::Compare { old, new } => compare(old, new, options),
        Command::Helper(helper) => helper.run().map_err(Failure::from),
        Command::Scenario(scenario) => measure(scenario, options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(reason)) => {
            if !reason.is_empty() {
                eprintln!("folio bench: {reason}");
                if options.json {
                    // The message and the exit code say the same.
                    let _ = print_json(&serde_json::json!({"error": reason, "exit_code": 1}));
                }
            }
            ExitCode::FAILURE
        }
        Err(Failure::Interrupted) => ExitCode::from(130),
        Err(Failure::PipeClosed) => ExitCode::from(141),
    }
}

fn measure(scenario: &Scenario, options: &Options) -> Result<(), Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal arms this handler, so the second one ends the program.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let step = |message: &str| {
        if interrupted.load(Ordering::Relaxed) {
            return Err(String::new());
        }
        if !options.quiet && !message.is_empty() {
            eprintln!("folio bench: {message}");
        }
        Ok(())
    };
    let mut run = Run::new(folio(options)?, &step);
    run.is_quick = options.quick;
    run.repeats = options.repeats;
    let now = || format!("{:.0}", jiff::Timestamp::now());
    let measured = scenario.measure(&run, now);
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    let results = measured?;
    if let Some(path) = &options.html {
        replace(path, folio_bench::html(&results).as_bytes())
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if options.json {
        return print_json(&results);
    }
    let mut out = std::io::stdout().lock();
    results.write_text(&mut out)?;
    Ok(out.flush()?)
}

/// Finds the command to measure.
fn folio(options: &Options) -> std::io::Result<PathBuf> {
    if let Some(program) = &options.folio {
        // Commands start it in other folders.
        return program.canonicalize();
    }
    let beside = std::env::current_exe()?.with_file_name("folio");
    Ok(if beside.is_file() {
        beside
    } else {
        PathBuf::from("folio")
    })
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
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

fn load(path: &Path) -> Result<Results, String> {
    let failed = |reason: &str| format!("{}: {reason}", path.display());
    let io_failed = |error: std::io::Error| failed(&error.to_string());
    if std::fs::metadata(path).map_err(io_failed)?.len() > RESULTS_MAX {
        return Err(failed("too large for results of folio bench"));
    }
    let text = std::fs::read(path).map_err(io_failed)?;
    let results: Results = serde_json::from_slice(&text)
        .map_err(|error| failed(&format!("invalid results of folio bench --json: {error}")))?;
    match results.format {
        FORMAT => Ok(results),
        other => Err(failed(&format!(
            "unsupported results format {other}: this version of folio reads format {FORMAT}"
        ))),
    }
}

fn compare(old: &Path, new: &Path, options: &Options) -> Result<(), Failure> {
    let comparison = folio_bench::compare(&load(old)?, &load(new)?);
    if options.json {
        print_json(&comparison)?;
    } else {
        let mut out = std::io::stdout().lock();
        comparison.write_text(&mut out)?;
        out.flush()?;
    }
    // The rows above show the result.
    if comparison.is_worse() {
        Err(Failure::Failed(String::new()))
    } else {
        Ok(())
    }
}
