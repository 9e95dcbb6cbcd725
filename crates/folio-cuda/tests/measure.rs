//! The script that measures on a GPU, with substitutes of the programs that it runs.

mod skip;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/measure-on-gpu");

/// Runs the script with tests that execute `tests`. `None` after a report of the skip.
fn run_script(folder: &Path, tests: &str) -> Option<Output> {
    for (name, text) in [("folio-bench", ""), ("weights", ""), ("gpu-tests", tests)] {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::fs::copy(SCRIPT, folder.join("measure-on-gpu")).unwrap();
    let output = Command::new("bash")
        .arg(folder.join("measure-on-gpu"))
        .env("OUT", folder.join("results"))
        .env_remove("FOLIO_SKIPPED")
        .output();
    output
        .inspect_err(|error| skip::report("measure", &format!("bash: {error}")))
        .ok()
}

#[test]
fn measurement_without_skips_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run_script(folder.path(), "exit 0") else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn measurement_with_skipped_tests_fails() {
    let folder = tempfile::tempdir().unwrap();
    let report = r#"echo "gpu::test: no CUDA driver" >> "$FOLIO_SKIPPED""#;
    let Some(output) = run_script(folder.path(), report) else {
        return;
    };
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no CUDA driver"), "{text}");
}

#[test]
fn measurement_with_failed_tests_fails() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run_script(folder.path(), "exit 1") else {
        return;
    };
    assert!(!output.status.success());
}
