//! The tests of all test binaries in one pool, each in a process of its own and with a time limit.
//!
//! ```text
//!   binaries   cargo's messages            list   BINARY --list
//!       v                                    v
//!   run        workers take tests from one queue: BINARY NAME --exact --nocapture
//!       v
//!   Report     passed, failed, skipped, with its output and seconds; what it waited for at its limit
//! ```
//!
//! A process of its own: a test that hangs or aborts ends alone, and is named.

use crate::packages;
use crate::processes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long one test may take. The slowest takes a tenth on a quiet machine.
const LIMIT: Duration = Duration::from_secs(600);

/// A test binary, and the folder in which its tests run: that of its package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    /// The package and the target: `folio-cli command`.
    pub(crate) name: String,
}

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Passed,
    /// It skipped itself, or is marked `#[ignore]`, for this reason.
    Skipped(String),
    /// The end of its output.
    Failed(String),
}

/// One test that ran.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) binary: String,
    pub(crate) test: String,
    pub(crate) ending: Ending,
    pub(crate) seconds: f64,
}

/// Reads the test binaries from the messages of `cargo test --no-run --message-format json`.
pub(crate) fn binaries(messages: &str) -> Vec<Binary> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let program = PathBuf::from(message["executable"].as_str()?);
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
            let package = folder.file_name()?.to_string_lossy().into_owned();
            let target = message["target"]["name"].as_str()?;
            Some(Binary {
                program,
                folder: folder.to_owned(),
                name: format!("{package} {target}"),
            })
        })
        .collect()
}

/// Lists the names of a binary's tests.
pub(crate) fn list(binary: &Binary) -> Result<Vec<String>, String> {
    let output = Command::new(&binary.program)
        .args(["--list", "--format", "terse"])
        .current_dir(&binary.folder)
        .output()
        .map_err(|error| format!("{}: {error}", binary.name))?;
    if !output.status.success() {
        return Err(format!("{}: --list: {}", binary.name, output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs the tests of all binaries; `print` gets each report as it comes.
pub(crate) fn run(
    tests: &[(&Binary, String)],
    workers: usize,
    variables: &[(&str, OsString)],
    print: impl Fn(&Report) + Sync,
) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::with_capacity(tests.len()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((binary, name)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run_one(binary, name, variables, LIMIT);
                    print(&report);
                    if let Ok(mut reports) = reports.lock() {
                        reports.push(report);
                    }
                }
            });
        }
    });
    reports.into_inner().unwrap_or_default()
}

/// Prints one line about a test.
pub(crate) fn print(report: &Report) {
    let Report {
        binary,
        test,
        ending,
        seconds,
    } = report;
    let ending = match ending {
        Ending::Passed => "ok",
        Ending::Skipped(_) => "skipped",
        Ending::Failed(_) => "FAILED",
    };
    println!("{ending} {seconds:6.2} s {binary}: {test}");
}

/// Runs one test to its end, or to its limit.
fn run_one(binary: &Binary, name: &str, variables: &[(&str, OsString)], limit: Duration) -> Report {
    let start = Instant::now();
    let ending = start_and_wait(binary, name, variables, limit)
        .unwrap_or_else(|error| Ending::Failed(format!("it did not start: {error}")));
    Report {
        binary: binary.name.clone(),
        test: name.to_owned(),
        ending,
        seconds: start.elapsed().as_secs_f64(),
    }
}

fn start_and_wait(
    binary: &Binary,
    name: &str,
    variables: &[(&str, OsString)],
    limit: Duration,
) -> std::io::Result<Ending> {
    // A file, not a pipe: a process that a test leaves behind must not hold the pool up.
    let path = scratch_path(&binary.program);
    let mut output = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    let skipped = path.with_extension("skipped");
    let mut child = Command::new(&binary.program)
        .args([name, "--exact", "--nocapture"])
        .current_dir(&binary.folder)
        .env("PATH", packages::search_path())
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .env("FOLIO_SKIPPED", &skipped)
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()?;
    let is_late = !ends_within(&child, limit)?;
    let waited_for = is_late.then(|| processes::describe_and_kill(child.id()));
    let status = child.wait()?;
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let reasons = std::fs::read_to_string(&skipped).unwrap_or_default();
    let _ = std::fs::remove_file(&skipped);
    Ok(match waited_for {
        Some(processes) => Ending::Failed(format!(
            "{}\nit did not end within {} s; its processes and what they waited for:\n{processes}",
            last_lines(&text),
            limit.as_secs(),
        )),
        None => ending(name, &text, &reasons, status),
    })
}

/// Returns a new name beside the test binaries.
fn scratch_path(program: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    program.with_file_name(format!(".output-{}-{count}", std::process::id()))
}

/// Returns whether the child ended within the limit.
fn ends_within(child: &Child, limit: Duration) -> std::io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let wait = Timespec::try_from(left).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Reads the ending of a test from what its harness printed, and from the `NAME: REASON` lines of a
/// test that skipped itself.
fn ending(name: &str, text: &str, reasons: &str, status: ExitStatus) -> Ending {
    let ignored = format!("test {name} ... ignored");
    if let Some(rest) = text.lines().find_map(|line| line.strip_prefix(&ignored)) {
        let reason = rest.trim_start_matches([',', ' ']);
        return Ending::Skipped(if reason.is_empty() {
            "marked #[ignore]".to_owned()
        } else {
            reason.to_owned()
        });
    }
    let succeeded = status.success() && text.lines().any(|line| line == "running 1 test");
    let mut reasons = reasons
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(_, reason)| reason);
    match (succeeded, reasons.next()) {
        (true, Some(reason)) => return Ending::Skipped(reason.to_owned()),
        (true, None) => return Ending::Passed,
        (false, _) => {}
    }
    Ending::Failed(format!("{}\n{status}", last_lines(text)))
}

/// Most lines of one test's output that are printed: a failed comparison may print megabytes.
const LINES_MAX: usize = 40;
/// Most characters of one line.
const LINE_MAX: usize = 2000;

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES_MAX)..];
    let cut = last.iter().map(|line| line.chars().take(LINE_MAX));
    cut.map(|line| line.collect::<String>() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn binaries_come_from_messages() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/r/crates/folio/Cargo.toml","target":{"name":"library"},"profile":{"test":true},"executable":"/t/library-1"}
{"reason":"compiler-artifact","manifest_path":"/r/crates/x/Cargo.toml","target":{"name":"x"},"profile":{"test":false},"executable":"/t/x"}
{"reason":"build-finished","success":true}
"#;
        let found = binaries(messages);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].program, Path::new("/t/library-1"));
        assert_eq!(found[0].folder, Path::new("/r/crates/folio"));
        assert_eq!(found[0].name, "folio library");
    }

    #[test]
    fn endings_come_from_the_harness() {
        let status = |succeeded: bool| ExitStatus::from_raw(i32::from(!succeeded) * (101 << 8));
        let of = |text, succeeded| ending("a::b", text, "", status(succeeded));
        assert_eq!(
            of("\nrunning 1 test\ntest a::b ... ok\n", true),
            Ending::Passed
        );
        let ignored = of("running 1 test\ntest a::b ... ignored, an hour\n", true);
        assert_eq!(ignored, Ending::Skipped("an hour".to_owned()));
        let ignored = of("running 1 test\ntest a::b ... ignored\n", true);
        assert_eq!(ignored, Ending::Skipped("marked #[ignore]".to_owned()));
        let ran = "running 1 test\ntest a::b ... ok\n";
        let skipped = ending("a::b", ran, "x::a::b: needs: root\n", status(true));
        assert_eq!(skipped, Ending::Skipped("needs: root".to_owned()));
        // A name that matches nothing proves nothing.
        assert!(matches!(of("running 0 tests\n", true), Ending::Failed(_)));
        let failed = of("running 1 test\ntest a::b ... panicked: x\n", false);
        let Ending::Failed(output) = failed else {
            panic!("{failed:?}")
        };
        assert!(output.contains("panicked: x") && output.ends_with("exit status: 101"));
    }

    /// A shell script as a test binary.
    fn script(name: &str, text: &str) -> Binary {
        let folder = std::env::temp_dir().join(format!("folio-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        Binary {
            program,
            folder,
            name: name.to_owned(),
        }
    }

    #[test]
    fn late_test_is_killed_and_says_what_it_waited_for() {
        let binary = script("late", "echo started; sleep 1000 & wait");
        let report = run_one(&binary, "a", &[], Duration::from_secs(1));
        let Ending::Failed(output) = report.ending else {
            panic!("{:?}", report.ending)
        };
        for wanted in ["started", "did not end within 1 s", "sleep 1000"] {
            assert!(output.contains(wanted), "{wanted}: {output}");
        }
        std::fs::remove_dir_all(&binary.folder).unwrap();
    }

    #[test]
    fn all_tests_run_once() {
        let binary = script(
            "all",
            "echo running 1 test; echo \"$1\" >>ran; [ \"$1\" != b ]",
        );
        let tests: Vec<_> = ["a", "b", "c"]
            .map(|name| (&binary, name.to_owned()))
            .into();
        let reports = run(&tests, 2, &[], |_| {});
        let mut failed = reports
            .iter()
            .filter(|report| report.ending != Ending::Passed);
        assert_eq!(failed.next().map(|report| &*report.test), Some("b"));
        assert!(failed.next().is_none());
        let mut ran: Vec<_> = std::fs::read_to_string(binary.folder.join("ran"))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        ran.sort();
        assert_eq!(ran, ["a", "b", "c"]);
        std::fs::remove_dir_all(&binary.folder).unwrap();
    }
}
