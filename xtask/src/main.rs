//! Repository chores: `cargo xtask tidy`, `cargo xtask circles` and `cargo xtask test`.

mod circles;
mod counts;
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
    /// Print circles of files and every link within them.
    Circles {
        /// A crate by its folder, e.g. "folio"; all crates if left out.
        #[arg(value_name = "CRATE")]
        name: Option<String>,
        /// Print the links of fs/ext4 that point upward instead.
        #[arg(long)]
        layers: bool,
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
        Task::Circles { name, layers } => match tidy::sources(&root) {
            Ok(files) => circles::main(&files, name.as_deref(), layers),
            Err(error) => {
                println!("circles: {error}");
                ExitCode::FAILURE
            }
        },
        Task::Test { no_install } => test::main(&root, no_install),
    }
}

/// The repository's root: the folder above this crate.
fn repository() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
