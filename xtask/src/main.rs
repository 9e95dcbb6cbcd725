//! Repository chores: `cargo xtask tidy`, `circles`, `language`, `test`, `python`, `release`,
//! `site` and `gpu`.

mod arguments;
mod circles;
mod clippy;
mod counts;
mod gpu;
mod guest_files;
mod language;
mod packages;
mod pool;
mod processes;
mod python;
mod release;
mod repository;
mod run;
mod site;
mod source;
mod tally;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Repository chores")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the house rules: layers, sizes, opening lines, stray words, arguments.
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
    /// Measure the language of comments, messages, names and documents; list breaches of its rules.
    Language {
        /// List the breaches in parts that begin so: "folio-cli", "folio/vfs", "tests", "docs".
        #[arg(long = "crate", value_name = "NAME")]
        name: Option<String>,
    },
    /// Run every check, and print where the time went. Nothing is installed without --install.
    Test {
        #[command(flatten)]
        options: test::Options,
    },
    /// Build the wheel of bindings/python and run its tests, as Test does.
    Python {
        /// Features of the wheel: "object-store".
        #[arg(long, default_value = "")]
        features: String,
    },
    /// Make the artifacts of a release in target/release-artifacts, and try each in a clean root.
    Release,
    /// Make the documents a site with search in target/site, by mdBook.
    Site,
    /// Build the programs that test and measure on a GPU into target/gpu, and run them.
    Gpu {
        /// Only build: the folder can be copied to a machine with a GPU.
        #[arg(long)]
        build: bool,
    },
}

fn main() -> ExitCode {
    processes::restore_signals();
    let root = repository::root();
    match Arguments::parse().task {
        Task::Tidy { lower } => tidy::main(&root, lower),
        Task::Circles { name, layers } => tidy::sources(&root).map_or_else(
            |error| failure(&error),
            |files| circles::main(&files, name.as_deref(), layers),
        ),
        Task::Language { name } => tidy::documents(&root).map_or_else(
            |error| failure(&error),
            |files| language::main(&root, &files, name.as_deref()),
        ),
        Task::Test { options } => test::main(&root, options),
        Task::Python { features } => {
            match python::build(&root, &features).and_then(|wheel| python::test(&root, &wheel)) {
                Ok(results) if results.failed == 0 => ExitCode::SUCCESS,
                Ok(results) => failure(&format!("{} tests failed", results.failed)),
                Err(reason) => failure(&format!("not tested: {reason}")),
            }
        }
        Task::Release => match release::main(&root) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => failure(&reason),
        },
        Task::Site => match site::make(&root) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => failure(&reason),
        },
        Task::Gpu { build } => match gpu::measure(&root, build) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => failure(&reason),
        },
    }
}

fn failure(error: &str) -> ExitCode {
    println!("{error}");
    ExitCode::FAILURE
}
