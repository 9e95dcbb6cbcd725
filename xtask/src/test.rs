//! Every check of the repository, one after the other, with what was skipped and why.

use crate::packages;
use crate::run::{Outcome, run};
use crate::tidy;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// A check that did not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Skipped {
    name: String,
    reason: String,
}

/// What the checks came to.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
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
        let unnamed = counts.failed.saturating_sub(counts.failures.len());
        self.failed
            .extend((0..unnamed).map(|_| "a test".to_owned()));
        if !outcome.succeeded && counts.failed == 0 {
            self.failed.push("cargo test".to_owned());
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
        let failures = self.failed.iter().map(|name| format!("failed: {name}\n"));
        let table = failures.chain(table);
        let (passed, failed, skipped) = (self.passed, self.failed.len(), self.skipped.len());
        format!(
            "\n{}{passed} passed, {failed} failed, {skipped} skipped",
            table.collect::<String>()
        )
    }
}

/// Runs everything; fails if anything failed.
pub(crate) fn main(root: &Path, no_install: bool) -> ExitCode {
    let start = Instant::now();
    let mut tally = Tally::default();
    heading("packages", start);
    packages::provide(!no_install);
    component(&mut tally, root, start, "fmt", &["fmt", "--all", "--check"]);
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    component(&mut tally, root, start, "clippy", &clippy);
    heading("tidy", start);
    tally.step("tidy", tidy::main(root, false) == ExitCode::SUCCESS);
    heading("deny", start);
    deny(&mut tally, root);
    heading("test", start);
    workspace_tests(&mut tally, root);
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

fn workspace_tests(tally: &mut Tally, root: &Path) {
    let path = std::env::temp_dir().join(format!("folio-skipped-{}", std::process::id()));
    let variables = [("FOLIO_SKIPPED", OsString::from(&path))];
    let outcome = run(
        root,
        "cargo",
        &["test", "--workspace", "--no-fail-fast"],
        &variables,
    );
    let reports = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    tally.tests(&outcome, &reports);
}

/// The races of the page cache under shuttle, in a target folder of their own: with the flag
/// everything is compiled anew.
fn model_check(tally: &mut Tally, root: &Path) {
    if std::env::var_os("RUSTFLAGS").is_some() {
        tally.skip(
            "model check",
            "RUSTFLAGS is set, and this step needs flags of its own",
        );
        return;
    }
    let flags = [("RUSTFLAGS", OsString::from("--cfg folio_model_check"))];
    let arguments = [
        "test",
        "--package",
        "folio",
        "--lib",
        "--target-dir",
        "target/model-check",
        "model_check",
    ];
    let outcome = run(root, "cargo", &arguments, &flags);
    if outcome.succeeded && outcome.counts.passed == 0 {
        tally.step("model check", false);
    }
    tally.tests(&outcome, "");
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
            failed: 0,
            ignored: vec![("slow".into(), String::new())],
            failures: vec![],
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
