//! Every check of the repository, one after the other; skipped checks are listed with the reason.

use crate::gpu;
use crate::packages;
use crate::python;
use crate::repository;
use crate::run::{Outcome, run};
use crate::tidy;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

/// Free space that a build from scratch needs, with the tests' images.
const BUILD_BYTES: u64 = 8 << 30;
/// Free space that the tests need once everything is built.
const REBUILD_BYTES: u64 = 2 << 30;

/// Tests that may fail and pass in a second run.
const UNSTABLE_MAX: usize = 3;

/// Features that the default build leaves out. Checks and tests have them, in one build of the
/// workspace: another selection of packages or features would compile most crates again.
const FEATURES: [&str; 2] = ["--features", "folio-cli/object-store,folio-cuda/cuda"];

/// A check that did not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Skipped {
    name: String,
    reason: String,
}

/// The results so far.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Tests that failed and passed in a second run.
    unstable: Vec<String>,
    /// What failed tests printed.
    messages: Vec<String>,
    skipped: Vec<Skipped>,
}

impl Tally {
    fn step(&mut self, name: &str, succeeded: bool) {
        if succeeded {
            self.passed += 1;
        } else {
            println!("{name}: FAILED");
            self.failed.push(name.to_owned());
        }
    }

    fn skip(&mut self, name: &str, reason: &str) {
        println!("{name}: skipped: {reason}");
        self.skipped.push(Skipped {
            name: name.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// Adds a run of test harnesses. `reports` is the file to which tests wrote that they skipped
    /// themselves: the harness counted those as passed.
    fn tests(&mut self, outcome: &Outcome, reports: &str) {
        let counts = &outcome.counts;
        let own = reports.lines().filter_map(|line| line.split_once(": "));
        let own: Vec<_> = own
            .map(|(name, reason)| (name.to_owned(), reason.to_owned()))
            .collect();
        self.passed += counts.passed.saturating_sub(own.len());
        self.failed.extend(counts.failures.iter().cloned());
        self.messages.extend(counts.messages.iter().cloned());
        let unnamed = counts.failed.saturating_sub(counts.failures.len());
        self.failed
            .extend((0..unnamed).map(|_| "a test".to_owned()));
        if !outcome.succeeded && counts.failed == 0 {
            self.failed.push("cargo test".to_owned());
        } else if counts.harnesses > counts.results {
            self.failed.push("a harness that did not end".to_owned());
        }
        let ignored = counts.ignored.iter().map(|(name, reason)| {
            let reason = if reason.is_empty() {
                "marked #[ignore]"
            } else {
                reason
            };
            (name.clone(), reason.to_owned())
        });
        self.skipped.extend(
            own.into_iter()
                .chain(ignored)
                .map(|(name, reason)| Skipped { name, reason }),
        );
    }

    fn closing(&mut self) -> String {
        self.skipped.sort();
        let table = self
            .skipped
            .iter()
            .map(|entry| format!("skipped: {}: {}\n", entry.name, entry.reason));
        let unstable = self.unstable.iter();
        let unstable = unstable.map(|name| format!("unstable: {name}: passed in a second run\n"));
        let failures = self.failed.iter().map(|name| format!("failed: {name}\n"));
        let messages = self.messages.iter().map(|line| format!("{line}\n"));
        // Failures last: a reader of a long log finds them at its end.
        let table = table.chain(messages).chain(unstable).chain(failures);
        let (passed, failed, skipped) = (self.passed, self.failed.len(), self.skipped.len());
        format!(
            "\n{}{passed} passed, {failed} failed, {skipped} skipped",
            table.collect::<String>()
        )
    }
}

/// Runs every check; fails if one of them failed.
pub(crate) fn main(root: &Path, no_install: bool) -> ExitCode {
    let start = Instant::now();
    let target = repository::target_folder();
    if let Err(message) = has_space(&target, free_bytes(&target)) {
        println!("{message}");
        return ExitCode::FAILURE;
    }
    let mut tally = Tally::default();
    component(&mut tally, root, start, "fmt", &["fmt", "--all", "--check"]);
    heading("tidy", start);
    tally.step("tidy", tidy::main(root, false) == ExitCode::SUCCESS);
    if !tally.failed.is_empty() {
        println!("{}", tally.closing());
        return ExitCode::FAILURE;
    }
    heading("packages", start);
    packages::provide(!no_install);
    // Downloads wait for the network while crates compile.
    let downloads = std::thread::spawn(download);
    let lint = [
        &["clippy", "--quiet", "--workspace", "--all-targets"],
        &FEATURES[..],
        &["--", "-D", "warnings"],
    ];
    component(&mut tally, root, start, "clippy", &lint.concat());
    heading("deny", start);
    deny(&mut tally, root);
    heading("test", start);
    workspace_tests(&mut tally, root, downloads);
    heading("examples", start);
    examples(&mut tally, root);
    heading("python", start);
    python_tests(&mut tally, root);
    heading("features", start);
    features(&mut tally, root);
    heading("model check", start);
    model_check(&mut tally, root);
    println!("{}", tally.closing());
    if tally.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn heading(name: &str, start: Instant) {
    println!("\n== {name} (after {} s)", start.elapsed().as_secs());
}

/// Runs a cargo subcommand that is a component of the toolchain, which a minimal installation
/// lacks.
fn component(tally: &mut Tally, root: &Path, start: Instant, name: &str, arguments: &[&str]) {
    heading(name, start);
    let here = Command::new("cargo")
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if here {
        tally.step(name, run(root, "cargo", arguments, &[]).succeeded);
    } else {
        let component = if name == "fmt" { "rustfmt" } else { name };
        tally.skip(
            name,
            &format!("not in this toolchain: rustup component add {component}"),
        );
    }
}

fn deny(tally: &mut Tally, root: &Path) {
    if packages::has("cargo-deny") {
        let arguments = [
            "deny",
            "--log-level",
            "error",
            "check",
            "bans",
            "licenses",
            "sources",
        ];
        tally.step("deny", run(root, "cargo", &arguments, &[]).succeeded);
    } else {
        tally.skip(
            "deny",
            "cargo-deny is not installed: cargo install cargo-deny",
        );
    }
}

/// What tests need beside packages and crates: stores of objects, and NVRTC, whose variable is
/// returned.
fn download() -> Result<(&'static str, OsString), String> {
    install_stores();
    let nvrtc = gpu::nvrtc();
    if let Err(reason) = python::provide() {
        println!("{reason}");
    }
    nvrtc
}

/// Builds all tests, waits for the downloads, and runs the tests. Those on a GPU run where there is
/// one.
fn workspace_tests(
    tally: &mut Tally,
    root: &Path,
    downloads: JoinHandle<Result<(&'static str, OsString), String>>,
) {
    let tests = [&["test", "--workspace", "--no-fail-fast"], &FEATURES[..]].concat();
    let build = [&tests[..], &["--no-run"]].concat();
    // A failure is that of the next command, too.
    run(root, "cargo", &build, &[]);
    let nvrtc = downloads
        .join()
        .unwrap_or_else(|_| Err("the installation panicked".to_owned()));
    if let Err(reason) = &nvrtc {
        tally.skip("nvrtc", reason);
    }
    let path = std::env::temp_dir().join(format!("folio-skipped-{}", std::process::id()));
    let skipped = ("FOLIO_SKIPPED", OsString::from(&path));
    let variables: Vec<_> = nvrtc.into_iter().chain([skipped]).collect();
    let mut outcome = run(root, "cargo", &tests, &variables);
    tally.unstable = second_run(&mut outcome, |names| {
        let names = [&["--", "--exact"], names].concat();
        run(root, "cargo", &[&tests[..], &names].concat(), &[])
    });
    let reports = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    tally.tests(&outcome, &reports);
}

/// Runs only the failed tests once more, and returns those that pass then: they are no longer
/// failures. They are defects, of the test or of what it tests, but not of the change at hand. If
/// many failed, or a harness aborted, nothing is repeated.
fn second_run(outcome: &mut Outcome, again: impl FnOnce(&[&str]) -> Outcome) -> Vec<String> {
    let counts = &mut outcome.counts;
    let is_complete = counts.harnesses == counts.results && counts.failed == counts.failures.len();
    if outcome.succeeded || !is_complete || !(1..=UNSTABLE_MAX).contains(&counts.failed) {
        return Vec::new();
    }
    println!("\nsecond run of: {}", counts.failures.join(", "));
    let names: Vec<_> = counts.failures.iter().map(String::as_str).collect();
    let repeated = again(&names);
    let has_run = repeated.counts.passed + repeated.counts.failed >= names.len();
    if !has_run || repeated.succeeded != repeated.counts.failures.is_empty() {
        return Vec::new();
    }
    let (failed, passed) = std::mem::take(&mut counts.failures)
        .into_iter()
        .partition(|name| repeated.counts.failures.contains(name));
    counts.failures = failed;
    counts.failed = counts.failures.len();
    counts.passed += Vec::len(&passed);
    outcome.succeeded = counts.failed == 0;
    passed
}

fn python_tests(tally: &mut Tally, root: &Path) {
    match python::test(root, "") {
        Err(reason) => tally.skip("python", &reason),
        Ok(results) => {
            tally.passed += results.passed;
            let failed = (0..results.failed).map(|_| "a test of bindings/python".to_owned());
            tally.failed.extend(failed);
            for (name, reason) in &results.skipped {
                tally.skip(name, reason);
            }
        }
    }
}

/// Installs stores for tests into the target folder, where Go is installed. A test without its
/// store reports a skip.
fn install_stores() {
    let folder = repository::target_folder().join("object-stores");
    if !packages::has("go") {
        return;
    }
    for (program, module) in [
        (
            "gofakes3",
            "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0",
        ),
        (
            "versitygw",
            "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
        ),
        // An early copy of gofakes3, which ignores conditions: volumes refuse it.
        (
            "without-conditions/gofakes3",
            "github.com/igungor/gofakes3/cmd/gofakes3@v0.0.16",
        ),
        // Answers some ranges with the whole object: refused, too.
        (
            "without-ranges/gofakes3",
            "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.0.0",
        ),
    ] {
        let program = folder.join(program);
        if program.exists() {
            continue;
        }
        let installed = Command::new("go")
            .args(["install", module])
            .env("GOBIN", program.parent().unwrap_or(&folder))
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("go install {module}: failed");
        }
    }
}

/// Runs each example of each crate, in an empty folder. The tests' build has made them.
fn examples(tally: &mut Tally, root: &Path) {
    let programs = repository::target_folder().join("debug/examples");
    let programs = std::path::absolute(&programs).unwrap_or(programs);
    for example in example_names(root) {
        let name = format!("example {example}");
        let Ok(folder) = scratch_folder(&example) else {
            tally.step(&name, false);
            continue;
        };
        let program = programs.join(&example);
        println!("{name}");
        tally.step(
            &name,
            run(&folder, &program.to_string_lossy(), &[], &[]).succeeded,
        );
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// Checks that the command compiles with its default features, and the library with every
/// combination of its own; the default, all of them, is compiled by the tests. The feature
/// `compress` includes `qcow2`.
fn features(tally: &mut Tally, root: &Path) {
    let check = ["check", "--quiet", "--package"];
    for package in ["folio-cli", "folio-cuda"] {
        let succeeded = run(root, "cargo", &[&check[..], &[package]].concat(), &[]).succeeded;
        tally.step(&format!("default features of {package}"), succeeded);
    }
    for format in ["", "qcow2", "compress"] {
        for partitions in ["", "partitions"] {
            for hostfs in ["", "hostfs"] {
                let features = [format, partitions, hostfs];
                let features = features.map(|feature| format!("{feature},")).concat();
                if features == "compress,partitions,hostfs," {
                    continue;
                }
                let arguments = [
                    "check",
                    "--quiet",
                    "--package",
                    "folio",
                    "--no-default-features",
                    "--features",
                    &features,
                ];
                let succeeded = run(root, "cargo", &arguments, &[]).succeeded;
                tally.step(&format!("features {features:?}"), succeeded);
            }
        }
    }
}

fn scratch_folder(name: &str) -> std::io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("folio-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).map(|()| path)
}

/// Names of the files `crates/*/examples/*.rs`, sorted.
fn example_names(root: &Path) -> Vec<String> {
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out = Vec::new();
    for package in entries(root.join("crates")) {
        for file in entries(package.path().join("examples")) {
            let path = file.path();
            if path.extension().is_some_and(|extension| extension == "rs")
                && let Some(stem) = path.file_stem()
            {
                out.push(stem.to_string_lossy().into_owned());
            }
        }
    }
    out.sort();
    out
}

/// Runs the races of the page cache under shuttle. The flag reaches the crate `folio` alone, so
/// that its dependencies are those of the other tests.
fn model_check(tally: &mut Tally, root: &Path) {
    let output = Command::new("cargo")
        .args(["rustc", "--package", "folio", "--lib", "--profile", "test"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--", "--cfg", "folio_model_check"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let messages = output.map(|output| output.stdout).unwrap_or_default();
    let Some(program) = executable(&String::from_utf8_lossy(&messages)) else {
        tally.step("model check", false);
        return;
    };
    let folder = root.join("crates/folio");
    let outcome = run(&folder, &program, &["model_check"], &[]);
    if outcome.succeeded && outcome.counts.passed == 0 {
        tally.step("model check", false);
    }
    tally.tests(&outcome, "");
}

/// The executable that cargo's messages name.
fn executable(messages: &str) -> Option<String> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
}

/// Free bytes of the file system that holds `folder` or will hold it; `None` if unknown.
fn free_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let statistics = rustix::fs::statvfs(existing).ok()?;
    Some(statistics.f_bavail * statistics.f_frsize)
}

/// Checks that a build fits.
fn has_space(target: &Path, free_bytes: Option<u64>) -> Result<(), String> {
    let needed = if target.join("debug/deps").exists() {
        REBUILD_BYTES
    } else {
        BUILD_BYTES
    };
    let gib = |bytes: u64| bytes as f64 / (1 << 30) as f64;
    match free_bytes {
        Some(free) if free < needed => Err(format!(
            "no space for a build: {} has {:.1} GiB free, {:.0} GiB are needed; \
             delete files there or set CARGO_TARGET_DIR",
            target.display(),
            gib(free),
            gib(needed)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Counts;

    #[test]
    fn a_test_that_skipped_itself_is_not_passed() {
        let mut tally = Tally::default();
        tally.step("fmt", true);
        let counts = Counts {
            passed: 5,
            ignored: vec![("slow".into(), String::new())],
            ..Counts::default()
        };
        tally.tests(
            &Outcome {
                succeeded: true,
                counts,
            },
            "kernel::raw: needs root\n",
        );
        let text = tally.closing();
        assert_eq!(
            text,
            "\nskipped: kernel::raw: needs root\nskipped: slow: marked #[ignore]\n5 passed, 0 failed, 2 skipped"
        );
    }

    #[test]
    fn build_without_space_is_refused() {
        let target = Path::new("/nowhere/target");
        let message = has_space(target, Some(3 << 29)).unwrap_err();
        assert!(message.contains("/nowhere/target has 1.5 GiB free, 8 GiB are needed"));
        assert_eq!(has_space(target, Some(BUILD_BYTES)), Ok(()));
        assert_eq!(has_space(target, None), Ok(()));
    }

    #[test]
    fn executable_is_read_from_messages() {
        let messages =
            "{\"reason\":\"a\"}\nnoise\n{\"executable\":null}\n{\"executable\":\"/x\"}\n";
        assert_eq!(executable(messages), Some("/x".to_owned()));
        assert_eq!(executable(""), None);
    }

    #[test]
    fn test_that_passes_alone_is_unstable() {
        let failed = |names: &[&str]| Counts {
            passed: 5,
            failed: names.len(),
            failures: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Counts::default()
        };
        let outcome = |counts: Counts| Outcome {
            succeeded: counts.failed == 0,
            counts,
        };
        let mut first = outcome(failed(&["a", "b"]));
        let unstable = second_run(&mut first, |names| {
            assert_eq!(names, ["a", "b"]);
            outcome(failed(&["b"]))
        });
        assert_eq!(unstable, ["a"]);
        let mut tally = Tally {
            unstable,
            ..Tally::default()
        };
        tally.tests(&first, "");
        assert_eq!(
            tally.closing(),
            "\nunstable: a: passed in a second run\nfailed: b\n6 passed, 1 failed, 0 skipped"
        );
        // Too many, or an aborted harness: no second run.
        second_run(&mut outcome(failed(&["a"; 4])), |_| panic!());
        let mut aborted = outcome(failed(&["a"]));
        aborted.counts.harnesses = 1;
        second_run(&mut aborted, |_| panic!());
        // A second run that runs nothing proves nothing.
        let mut first = outcome(failed(&["a"]));
        assert!(second_run(&mut first, |_| outcome(Counts::default())).is_empty());
        assert!(!first.succeeded && first.counts.failed == 1);
    }

    #[test]
    fn harness_without_a_result_is_a_failure() {
        let mut tally = Tally::default();
        let counts = Counts {
            passed: 3,
            failed: 1,
            failures: vec!["wrong".into()],
            harnesses: 2,
            results: 1,
            ..Counts::default()
        };
        let outcome = Outcome {
            succeeded: false,
            counts,
        };
        tally.tests(&outcome, "");
        assert!(tally.closing().ends_with("3 passed, 2 failed, 0 skipped"));
    }

    #[test]
    fn tests_that_do_not_build_are_a_failure() {
        let mut tally = Tally::default();
        tally.tests(
            &Outcome {
                succeeded: false,
                counts: Counts::default(),
            },
            "",
        );
        assert!(tally.closing().ends_with("0 passed, 1 failed, 0 skipped"));
    }
}
