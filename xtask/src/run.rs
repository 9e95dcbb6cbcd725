//! Run a command, pass its output on, and read the counts of test harnesses from it.

use crate::packages;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Results that test harnesses print.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Tests marked `#[ignore]`, with the reason given there.
    pub(crate) ignored: Vec<(String, String)>,
    /// Tests that failed, by name.
    pub(crate) failures: Vec<String>,
    /// What they printed, up to the backtrace.
    pub(crate) messages: Vec<String>,
    /// Lines of the message being read that are still wanted.
    pub(crate) message_lines_left: usize,
    /// Harnesses that started, and those that printed their result: an aborted one did not.
    pub(crate) harnesses: usize,
    pub(crate) results: usize,
}

/// Most lines of one test's message: a failed comparison may print megabytes.
const MESSAGE_LINES_MAX: usize = 20;

impl Counts {
    /// Reads one line of a harness's output.
    pub(crate) fn read_line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.message_lines_left = MESSAGE_LINES_MAX;
        } else if line == "stack backtrace:" || line == "failures:" {
            self.message_lines_left = 0;
        }
        if self.message_lines_left > 0 {
            self.message_lines_left -= 1;
            self.messages.push(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("running ")
            && (rest.ends_with(" tests") || rest.ends_with(" test"))
        {
            self.harnesses += 1;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.results += 1;
            for part in rest.split([';', '.']) {
                let mut words = part.split_whitespace();
                let (Some(number), Some(word)) = (words.next(), words.next()) else {
                    continue;
                };
                let number: usize = number.parse().unwrap_or(0);
                match word {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    _ => {}
                }
            }
        } else if let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
            && let Some(reason) = rest.strip_prefix("ignored")
        {
            self.ignored
                .push((name.to_owned(), reason.trim_start_matches(", ").to_owned()));
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }
}

/// The result of a command.
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    pub(crate) counts: Counts,
}

/// Runs `program` in `folder` with the system folders on its PATH; passes standard output on and
/// reads it.
pub(crate) fn run(
    folder: &Path,
    program: &str,
    arguments: &[&str],
    variables: &[(&str, OsString)],
) -> Outcome {
    let mut counts = Counts::default();
    let spawned = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("PATH", packages::search_path())
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("{program}: {error}");
            return Outcome {
                succeeded: false,
                counts,
            };
        }
    };
    if let Some(output) = child.stdout.take() {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let _ = std::io::stdout().write_all(&line);
            counts.read_line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    }
    let succeeded = child.wait().is_ok_and(|status| status.success());
    Outcome { succeeded, counts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_harness() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test slow ... ignored, takes an hour",
            "test wrong ... FAILED",
            "failures:",
            "---- wrong stdout ----",
            "thread 'wrong' panicked",
            "stack backtrace:",
            "   0: main",
            "failures:",
            "    wrong",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "running 5 tests",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            counts.read_line(line);
        }
        let ignored = vec![("slow".into(), "takes an hour".into())];
        assert_eq!(
            counts,
            Counts {
                passed: 15,
                failed: 2,
                ignored,
                failures: vec!["wrong".into()],
                messages: vec![
                    "---- wrong stdout ----".into(),
                    "thread 'wrong' panicked".into()
                ],
                message_lines_left: 0,
                harnesses: 2,
                results: 2,
            }
        );
    }
}
