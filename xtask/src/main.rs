//! Repository chores: `cargo xtask tidy` and `cargo xtask test`.

mod packages;
mod run;
mod source;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Repository chores")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the house rules: layers, sizes, opening lines, stray words.
    Tidy {
        /// Write xtask/ratchet.txt anew: entries shrink or go, none is added.
        #[arg(long)]
        lower: bool,
    },
    /// Install what the tests need (as root), then run every check.
    Test {
        /// Install nothing, even as root.
        #[arg(long)]
        no_install: bool,
    },
}

fn main() -> ExitCode {
    let root = repository();
    match Arguments::parse().task {
        Task::Tidy { lower } => tidy::main(&root, lower),
        Task::Test { no_install } => test::main(&root, no_install),
    }
}

/// The repository's root: the folder above this crate.
fn repository() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
