//! `folio bench object-store` in its smallest form; durations are never checked.

use crate::support::tools::{command, succeed};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// Asserts that docs/schema describes an output.
#[track_caller]
pub(crate) fn assert_schema(name: &str, printed: &Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let schema = std::fs::read(file.join(name)).expect("a schema");
    let schema = serde_json::from_slice(&schema).expect("a schema in JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a valid schema");
    let wrong: Vec<_> = validator
        .iter_errors(printed)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{printed}");
}

#[test]
fn bench_measures_images_and_volumes() {
    let folder = TempDir::new().unwrap();
    let words = ["--quiet", "bench", "--quick", "--repeats", "1", "--json"];
    let mut bench = command(env!("CARGO_BIN_EXE_folio"));
    bench
        .args(words)
        .args(["object-store", "--dir"])
        .arg(folder.path());
    let output = succeed(&mut bench);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_schema("bench.json", &results);
    let report = &results["scenarios"][0];
    let rows = report["tables"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .flat_map(|table| table["rows"].as_array().unwrap())
        .collect();
    for (job, contender) in [
        ("list and read", "folio ls, folio cat"),
        ("a file in its ext4", "ranged GETs"),
        ("4 KiB", "folio"),
        ("256 KiB", "folio volume"),
        ("files", "folio volume"),
    ] {
        let found = rows
            .iter()
            .find(|row| row["job"] == job && row["contender"] == contender);
        let median = found.map(|row| row["median"].as_f64().unwrap());
        assert!(median.is_some_and(|figure| figure > 0.0), "{job}: {rows:?}");
    }
    // What is counted, and not timed.
    for verdict in report["verdicts"].as_array().unwrap() {
        let aim = verdict["aim"].as_str().unwrap();
        let is_counted = ["GETs", "MiB received", "in sequence", "idle"]
            .iter()
            .any(|counted| aim.contains(counted) && !aim.contains("times"));
        assert!(!is_counted || verdict["is_met"] == true, "{verdict}");
    }
    let left: Vec<_> = folder.path().read_dir().unwrap().flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
