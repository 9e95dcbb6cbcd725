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
    /// Tests marked as ignored, by name.
    pub(crate) ignored: Vec<String>,
}

impl Counts {
    /// Reads one line of a harness's output.
    fn read_line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            for part in rest.split([';', '.']) {
                let mut words = part.split_whitespace();
                let (Some(Ok(number)), Some(word)) =
                    (words.next().map(str::parse::<usize>), words.next())
                else {
                    continue;
                };
                match word {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
        {
            self.ignored.push(name.0.to_owned());
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

/// Runs a command to its end; returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = words(command);
    let output = command
        .env("PATH", packages::search_path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{name}: {}: {}", output.status, errors.trim()))
    }
}

/// A command line, for messages.
pub(crate) fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_harness() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test src/a.rs - b (line 3) ... ok",
            "test src/a.rs - c (line 9) ... ignored",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            counts.read_line(line);
        }
        let ignored = vec!["src/a.rs - c (line 9)".to_owned()];
        assert_eq!(
            counts,
            Counts {
                passed: 15,
                failed: 2,
                ignored,
            }
        );
    }

    #[test]
    fn failed_command_is_named() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(
            error.starts_with("sh -c") && error.ends_with("exit status: 3: why"),
            "{error}"
        );
    }
}
