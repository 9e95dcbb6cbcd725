//! The tests of bindings/python: a virtual environment, the wheel, pytest.

use crate::clippy::clippy;
use crate::packages;
use crate::repository;
use crate::run::run;
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
/// The file of an environment that is complete, with its description.
const READY: &str = "ready";
/// Exits with 0 where the stable ABI of the wheel is.
const HAS_VERSION: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// A free-threaded Python, in the format of pyo3: none needs to be installed to compile for it.
const FREE_THREADED: &str = "\
implementation=CPython
version=3.14
shared=true
target_abi=CPython-free_threaded-3.14
pointer_width=64
build_flags=Py_GIL_DISABLED
suppress_build_script_link_lines=true
";

/// What pytest printed last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Tests that were skipped: where they are, and the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

/// The wheel, to be tested.
pub(crate) struct Wheel {
    environment: PathBuf,
    /// The folder that holds it.
    folder: PathBuf,
    is_built: bool,
    /// Whether the module compiles for a free-threaded Python, too.
    is_free_threaded: bool,
}

/// Builds the wheel with `features`.
///
/// The test command passes none: with "object-store", most crates of the module would compile once
/// more, because other packages use them with other features.
///
/// # Errors
///
/// The reason why nothing can be tested here.
pub(crate) fn build(root: &Path, features: &str) -> Result<Wheel, String> {
    let target = std::path::absolute(repository::target_folder());
    let target = target.map_err(|error| error.to_string())?;
    let environment = provide()?;
    let is_free_threaded = compiles_free_threaded(root, &target);
    let folder = target.join("python-wheels");
    let _ = std::fs::remove_dir_all(&folder);
    let mut build = Command::new(root.join("bindings/python/build-wheel"));
    build.args(["--profile", "dev", "--features", features, "--out"]);
    build.arg(&folder);
    // Of the other tests, whose features differ from those of a build of its own.
    let command = target.join("debug/folio");
    if features.is_empty() && command.exists() {
        build.arg("--command").arg(command);
    }
    // The tests compiled the crates so.
    let built = build
        .envs(clippy())
        .env("PATH", path_with(&environment))
        .env("VIRTUAL_ENV", &environment)
        .status();
    Ok(Wheel {
        is_built: built.is_ok_and(|status| status.success()),
        environment,
        folder,
        is_free_threaded,
    })
}

/// Runs the tests of the wheel.
///
/// # Errors
///
/// The reason why nothing can be tested here.
pub(crate) fn test(root: &Path, wheel: &Wheel) -> Result<Results, String> {
    let environment = &wheel.environment;
    if !wheel.is_built || !installed(environment, &wheel.folder) {
        return Ok(Results {
            failed: 1,
            ..Results::default()
        });
    }
    let output = Command::new(environment.join("bin/pytest"))
        .args(["-rs", "--tb=short", "--color=no"])
        .current_dir(root.join("bindings/python"))
        .env("PATH", path_with(environment))
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
    if !wheel.is_free_threaded {
        println!("foliofs does not compile for a free-threaded Python");
        results.failed += 1;
    }
    Ok(results)
}

/// Returns whether the module compiles for a free-threaded Python. The tests run in another one.
fn compiles_free_threaded(root: &Path, target: &Path) -> bool {
    let config = target.join("free-threaded-python.txt");
    let check = ["check", "--quiet", "--package", "foliofs-python"];
    let mut variables = clippy();
    variables.push(("PYO3_CONFIG_FILE", config.clone().into_os_string()));
    std::fs::write(&config, FREE_THREADED).is_ok()
        && run(root, "cargo", &check, &variables).succeeded
}

/// Makes the virtual environment, unless it is ready, and returns its path.
///
/// # Errors
///
/// The reason why it cannot be made.
pub(crate) fn provide() -> Result<PathBuf, String> {
    let environment = std::path::absolute(repository::target_folder().join("python"))
        .map_err(|error| error.to_string())?;
    make(&environment).map(|()| environment)
}

fn make(environment: &Path) -> Result<(), String> {
    let has_python = Command::new("python3").args(["-c", HAS_VERSION]).status();
    match has_python {
        Err(_) => return Err("python3 is not installed".to_owned()),
        Ok(status) if !status.success() => return Err("needs Python 3.11".to_owned()),
        Ok(_) => {}
    }
    if is_ready(environment) {
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
    std::fs::write(environment.join(READY), description(environment))
        .map_err(|error| error.to_string())
}

/// Returns whether the environment has the packages, and is where it was made: its programs contain
/// its path.
fn is_ready(environment: &Path) -> bool {
    std::fs::read_to_string(environment.join(READY))
        .is_ok_and(|text| text == description(environment))
}

fn description(environment: &Path) -> String {
    let path = environment.to_string_lossy();
    let packages = PACKAGES.iter().chain(&LIBRARIES).copied();
    let lines: Vec<&str> = std::iter::once(&*path).chain(packages).collect();
    lines.join("\n")
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
pub(crate) fn path_with(environment: &Path) -> std::ffi::OsString {
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
    fn moved_environment_is_not_ready() {
        let folder = std::env::temp_dir().join(format!("folio-python-{}", std::process::id()));
        let (made, moved) = (folder.join("made"), folder.join("moved"));
        std::fs::create_dir_all(&made).unwrap();
        assert!(!is_ready(&made));
        std::fs::write(made.join(READY), description(&made)).unwrap();
        assert!(is_ready(&made));
        std::fs::rename(&made, &moved).unwrap();
        assert!(!is_ready(&moved));
        std::fs::remove_dir_all(&folder).unwrap();
    }

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
