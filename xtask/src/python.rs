//! The tests of bindings/python: a virtual environment, the wheel, pytest.

use crate::packages;
use crate::repository;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Build the wheel, run its tests and check its type stubs.
const PACKAGES: [&str; 5] = [
    "maturin>=1.16,<2",
    "pytest",
    "mypy",
    "typing_extensions",
    "fsspec",
];
/// Libraries that tests use. A test without its library reports a skip.
const LIBRARIES: [&str; 7] = [
    "pandas",
    "pyarrow",
    "polars",
    "duckdb",
    "pathlib-abc",
    "zarr",
    "basedpyright",
];
/// Exits with 0 where the stable ABI of the wheel is.
const HAS_VERSION: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// What pytest printed last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Tests that were skipped: where they are, and the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

/// Builds the wheel and runs its tests.
///
/// # Errors
///
/// The reason why nothing can be tested here.
pub(crate) fn test(root: &Path) -> Result<Results, String> {
    let folder = root.join("bindings/python");
    let environment = repository::target_folder().join("python");
    provide(&environment)?;
    let wheels = repository::target_folder().join("python-wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    let mut build = Command::new(folder.join("build-wheel"));
    build.args(["--profile", "dev", "--out"]).arg(&wheels);
    // Of the other tests, whose features differ from those of a build of its own.
    let command = repository::target_folder().join("debug/folio");
    if command.exists() {
        build.arg("--command").arg(command);
    }
    let built = build
        .env("PATH", path_with(&environment))
        .env("VIRTUAL_ENV", &environment)
        .status();
    if !built.is_ok_and(|status| status.success()) || !installed(&environment, &wheels) {
        return Ok(Results {
            failed: 1,
            ..Results::default()
        });
    }
    let output = Command::new(environment.join("bin/pytest"))
        .args(["-rs", "--tb=short", "--color=no"])
        .current_dir(&folder)
        .env("PATH", path_with(&environment))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("pytest does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let mut results = parse(&text);
    if !output.status.success() {
        results.failed = results.failed.max(1);
    }
    Ok(results)
}

/// Makes the virtual environment, once.
fn provide(environment: &Path) -> Result<(), String> {
    let has_python = Command::new("python3").args(["-c", HAS_VERSION]).status();
    match has_python {
        Err(_) => return Err("python3 is not installed".to_owned()),
        Ok(status) if !status.success() => return Err("needs Python 3.11".to_owned()),
        Ok(_) => {}
    }
    let ready = environment.join("ready");
    let wanted = [&PACKAGES[..], &LIBRARIES[..]].concat().join("\n");
    if std::fs::read_to_string(&ready).is_ok_and(|list| list == wanted) {
        return Ok(());
    }
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(environment)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return Err("python3 -m venv failed: install python3-venv".to_owned());
    }
    if !install(environment, &PACKAGES) {
        return Err("pip cannot install maturin and pytest".to_owned());
    }
    for library in LIBRARIES {
        if !install(environment, &[library]) {
            println!("pip cannot install {library}");
        }
    }
    std::fs::write(&ready, wanted).map_err(|error| error.to_string())
}

fn install(environment: &Path, packages: &[&str]) -> bool {
    Command::new(environment.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(packages)
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs the wheel in `wheels`.
fn installed(environment: &Path, wheels: &Path) -> bool {
    let found = std::fs::read_dir(wheels).into_iter().flatten().flatten();
    let wheels: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    !wheels.is_empty()
        && Command::new(environment.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-index", "--force-reinstall"])
            .args(wheels)
            .status()
            .is_ok_and(|status| status.success())
}

/// Returns PATH with the programs of the environment in front.
fn path_with(environment: &Path) -> std::ffi::OsString {
    let mut path = environment.join("bin").into_os_string();
    path.push(":");
    path.push(packages::search_path());
    path
}

/// Reads the summary: `SKIPPED [1] tests/a.py:12: reason` and `== 54 passed, 1 failed in 6.75s ==`.
fn parse(output: &str) -> Results {
    let mut results = Results::default();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("SKIPPED [") {
            let rest = rest.split_once("] ").map_or("", |(_, rest)| rest);
            let (place, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            results
                .skipped
                .push((format!("python {place}"), reason.to_owned()));
        }
    }
    let last = output.lines().rev().find(|line| line.starts_with('='));
    for part in last
        .unwrap_or_default()
        .trim_matches(['=', ' '])
        .split(", ")
    {
        let mut words = part.split_whitespace();
        let (Some(Ok(number)), Some(word)) = (words.next().map(str::parse), words.next()) else {
            continue;
        };
        match word {
            "passed" => results.passed = number,
            "failed" | "error" | "errors" => results.failed += number,
            _ => {}
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_pytest_is_counted() {
        let output = "\
tests/test_file.py .s.F\n\
SKIPPED [2] tests/test_file.py:12: mount -o loop: needs root\n\
===== 1 failed, 54 passed, 2 skipped, 1 error in 6.75s =====\n";
        let results = parse(output);
        assert_eq!((results.passed, results.failed), (54, 2));
        let reason = "mount -o loop: needs root".to_owned();
        assert_eq!(
            results.skipped,
            [("python tests/test_file.py:12".to_owned(), reason)]
        );
        assert_eq!(parse("no tests"), Results::default());
    }
}
