//! Two results compared, and files that do not hold results.

use super::results;
use crate::support::tools::text;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn compare(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(super::BENCH);
    command
        .arg("compare")
        .args(words)
        .current_dir(folder)
        .output()
        .expect("folio runs")
}

/// Two files of results; in the second, `change` has been at the first row.
fn two(folder: &Path, change: impl FnOnce(&mut Value)) {
    let mut results = results(folder, &["memcpy"]);
    std::fs::write(folder.join("old.json"), results.to_string()).expect("written");
    change(&mut results["scenarios"][0]["tables"][0]["rows"][0]);
    std::fs::write(folder.join("new.json"), results.to_string()).expect("written");
}

fn rounds(row: &mut Value, rounds: [f64; 3]) {
    let [least, median, most] = rounds;
    for (key, value) in [("least", least), ("median", median), ("most", most)] {
        row[key] = json!(value);
    }
    row["rounds"] = json!(rounds);
}

#[test]
fn same_results_are_within_the_spread() {
    let folder = TempDir::new().unwrap();
    two(folder.path(), |_| ());
    let output = compare(folder.path(), &["old.json", "new.json", "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert!(
        rows.len() == 24 && rows.iter().all(|row| row["change"] == "within-spread"),
        "{results}"
    );
    assert_eq!(
        (&results["only_old"], &results["only_new"]),
        (&json!([]), &json!([]))
    );
}

#[test]
fn row_slower_than_the_spread_exits_1() {
    let folder = TempDir::new().unwrap();
    two(folder.path(), |row| rounds(row, [100.0, 101.0, 102.0]));
    let output = compare(folder.path(), &["old.json", "new.json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let results = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        results.contains("WORSE") && results.contains("24 rows: 0 better, 1 worse"),
        "{results}"
    );
    let output = compare(folder.path(), &["new.json", "old.json"]);
    assert!(
        output.status.success() && text(&output).contains("1 better, 0 worse"),
        "{}",
        text(&output)
    );
}

#[test]
fn one_round_gives_no_verdict() {
    let folder = TempDir::new().unwrap();
    two(folder.path(), |row| {
        rounds(row, [100.0, 100.0, 100.0]);
        row["rounds"] = json!([100.0]);
    });
    let output = compare(folder.path(), &["old.json", "new.json"]);
    assert!(
        output.status.success() && text(&output).contains("one round has no spread"),
        "{}",
        text(&output)
    );
}

#[test]
fn compare_of_another_file_names_it() {
    let folder = TempDir::new().unwrap();
    let deep = "[".repeat(100_000);
    let old = r#"{"format":2,"folio":"","taken_at":"","is_optimised":true,"is_quick":false,"machine":{"kernel":"",
        "processor":"","cores":1,"memory_mib":1,"is_root":true,"load":""},"scenarios":[]}"#;
    for (text, why) in [
        ("", "invalid results of folio bench --json"),
        ("{}", "invalid results of folio bench --json"),
        (deep.as_str(), "invalid results of folio bench --json"),
        (old, "unsupported results format 2"),
    ] {
        std::fs::write(folder.path().join("x.json"), text).unwrap();
        let output = compare(folder.path(), &["x.json", "x.json"]);
        let results = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{results}");
        assert!(
            results.contains("x.json") && results.contains(why),
            "{results}"
        );
    }
    let output = compare(folder.path(), &["none.json", "none.json"]);
    let results = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && results.contains("none.json"),
        "{results}"
    );
}
