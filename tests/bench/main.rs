//! `folio-bench`: every scenario runs and reports its rows; durations are never checked.

#[path = "../support/mod.rs"]
mod support;

mod browser;
mod compared;
mod page;
mod scenarios;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::PageCache;
use support::tools::{succeed, text};

/// The program under test.
const BENCH: &str = env!("CARGO_BIN_EXE_folio-bench");

/// The command that it measures, which every build of the workspace makes beside it.
fn folio() -> PathBuf {
    let folio = Path::new(BENCH).with_file_name("folio");
    assert!(folio.exists(), "first: cargo build --package folio-cli");
    folio
}

/// `folio bench` with `words`, in `folder`, everything small.
fn bench(folder: &Path, words: &[&str]) -> Output {
    let _cache = page_cache(words);
    let mut command = Command::new(BENCH);
    command
        .args(["--quiet", "--quick"])
        .args(words)
        .current_dir(folder)
        .env("TMPDIR", folder);
    let output = succeed(&mut command);
    // Messages of the contenders belong in the report.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
    output
}

/// Returns what a scenario needs of the page cache of this machine. In a guest it empties the
/// guest's own.
fn page_cache(words: &[&str]) -> Option<PageCache> {
    if words.contains(&"warm") {
        return Some(PageCache::used());
    }
    let empties = ["all", "cache", "first-write", "shared-folder"];
    (empties.iter().any(|name| words.contains(name)) && !words.contains(&"--guest"))
        .then(PageCache::emptied)
}

/// Runs the same with `--json`, and returns the output.
fn results(folder: &Path, words: &[&str]) -> Value {
    let output = bench(folder, &[&["--json"], words].concat());
    let results = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
    let wrong: Vec<_> = schema()
        .iter_errors(&results)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{words:?}: {wrong:?}");
    results
}

/// Returns the schema of all results.
fn schema() -> jsonschema::Validator {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/bench.json");
    let schema = serde_json::from_slice(&std::fs::read(file).expect("the schema")).expect("JSON");
    jsonschema::draft202012::new(&schema).expect("a schema")
}
