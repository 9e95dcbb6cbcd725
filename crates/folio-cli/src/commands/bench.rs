//! `folio bench`: Folio, the kernel and their rivals measured side by side.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::{Args, Subcommand};
use folio_bench::{Helper, Run, Scenario};
use std::io::Write;

const HELP: &str = "\
Rivals take part where they are installed, and are named where they are not; what needs root is left out and named
without it. Every figure is the median of rounds in which all contenders take turns, with the least and the most
beside it. --quick is for seeing that all of it runs: its figures mean nothing.

Examples:
  folio bench auto-da-alloc
  folio bench first-write --disk-dir /srv --json >first-write.json";

/// Measure Folio beside the kernel and its rivals
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
    /// Print JSON: docs/schema/bench.json
    #[arg(long, global = true)]
    json: bool,
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
    #[command(flatten)]
    Helper(Helper),
}

/// Runs the command.
pub(crate) fn run(bench: &Bench, session: &Session) -> Outcome {
    match &bench.what {
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
        if !session.quiet {
            session.remark(words);
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
    if bench.json {
        return session.print_json(&results);
    }
    let mut out = std::io::stdout().lock();
    results.write_text(&mut out)?;
    Ok(out.flush()?)
}
