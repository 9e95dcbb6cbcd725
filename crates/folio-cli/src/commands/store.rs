//! `folio store check`: whether a store keeps what volumes rely on.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use crate::volumes::place;
use clap::{Args, Subcommand};
use folio_volume::{StoreTest, StoreTests, StoreVerdict, check_store, refusal};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Check an object store
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Store {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    Check(Check),
}

/// Test whether a store keeps what volumes rely on
///
/// Writes objects into a new folder below URL, races several clients for them, and removes them.
/// The exit code is 1 for a store on which a volume would lose data, or could not be read.
#[derive(Args)]
#[command(after_help = "Examples:
  folio store check s3://bucket
  folio store check --endpoint-url http://localhost:7070 s3://bucket --json")]
struct Check {
    /// A folder of the store
    url: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(store: &Store, session: &Session) -> Outcome {
    session.refuse_options()?;
    let StoreCommand::Check(check) = &store.command;
    let tests = check_store(&place(&check.url)?, StoreTests::All);
    let tests = tests.map_err(Failure::image)?;
    let refused = refusal(&tests);
    if check.json {
        session.print_json(&json!({
            "url": check.url.to_string_lossy(),
            "is_usable": refused.is_none(),
            "tests": tests.iter().map(to_json).collect::<Vec<Value>>(),
        }))?;
    } else {
        print(&tests)?;
    }
    match refused {
        Some(reason) => Err(Failure::new(format!(
            "{}: the store is refused: {reason}: a volume on it would lose data, or could not be read",
            check.url.display()
        ))),
        None if check.json => Ok(()),
        None => Ok(writeln!(
            std::io::stdout(),
            "{}: usable for volumes",
            check.url.display()
        )?),
    }
}

fn words(verdict: &StoreVerdict) -> (&'static str, &str) {
    match verdict {
        StoreVerdict::Passed => ("passed", ""),
        StoreVerdict::Missing(reason) => ("missing", reason),
        StoreVerdict::Failed(reason) => ("failed", reason),
    }
}

fn to_json(test: &StoreTest) -> Value {
    let (verdict, reason) = words(&test.verdict);
    json!({
        "name": test.name,
        "verdict": verdict,
        "reason": reason,
        "seconds": test.took.as_secs_f64(),
    })
}

fn print(tests: &[StoreTest]) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<32} {:<8} {:>9}  REASON", "TEST", "RESULT", "TIME")?;
    for test in tests {
        let (verdict, reason) = words(&test.verdict);
        let time = format!("{:.3} s", test.took.as_secs_f64());
        let line = format!("{:<32} {verdict:<8} {time:>9}  {reason}", test.name);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
