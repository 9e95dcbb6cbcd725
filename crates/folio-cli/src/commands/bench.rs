//! `folio bench`: starts the program folio-bench, which is built and installed by itself: it is as
//! large as a third of the command, and most users never measure.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "folio-bench";

/// Measure Folio, the kernel and peer programs in one run; by the program folio-bench
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// Scenario and options: folio bench --help
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    words: Vec<OsString>,
}

/// Runs the command: only returns if it cannot be started.
pub(crate) fn run(bench: &Bench, session: &Session) -> Outcome {
    session.refuse_options()?;
    let folio = std::env::current_exe()?;
    let beside = folio.with_file_name(PROGRAM);
    let program = if beside.is_file() {
        beside
    } else {
        PathBuf::from(PROGRAM)
    };
    let mut command = Command::new(&program);
    command.arg("--folio").arg(&folio);
    command.args(session.quiet.then_some("--quiet"));
    let error = command.args(&bench.words).exec();
    Err(Failure::new(
        if error.kind() == std::io::ErrorKind::NotFound {
            format!(
                "{PROGRAM} is not installed: it is neither beside {} nor in PATH; \
                 in a checkout: cargo install --path crates/folio-bench",
                folio.display()
            )
        } else {
            format!("{}: {error}", program.display())
        },
    ))
}
