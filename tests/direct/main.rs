//! `folio run --direct`: unmodified programs whose system calls the library answers.
//!
//! ```text
//!   programs.rs   a table of programs, each on the host and in an image: same output, same tree
//!   suites.rs     pjdfstest, fsx
//!   walls.rs      the host's files stay as they are; what is refused
//!   choice.rs     without FUSE or namespaces
//!   threads.rs    processes that start while threads open and close files
//!   review.rs     paths through descriptors, messages and sockets, scripts
//!   patched.rs    calls without a trap: registers, signals, children, threads
//!   kills.rs      SIGKILL of programs and of the server at any moment
//! ```
//!
//! There is a loader for x86-64 alone.

#![cfg(target_arch = "x86_64")]

mod choice;
mod kills;
mod patched;
mod programs;
mod review;
mod suites;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod walls;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::tools::{command, fsck, mke2fs, text};
use tempfile::TempDir;

/// How long a program may take, under the load of all tests.
const LIMIT: Duration = Duration::from_secs(300);

/// An image, and the empty folder at which programs see it.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new(size: &str) -> Self {
        let this = Self {
            folder: TempDir::new().unwrap(),
        };
        std::fs::create_dir(this.place()).unwrap();
        mke2fs(&this.image(), size, &[]);
        this
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// The folder of the host at which programs see the image.
    fn place(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// The command that runs a program on the image.
    fn command(&self, program: &[&str]) -> Command {
        let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
        folio.args(["--quiet", "run", "--direct", "--at"]);
        folio.arg(self.place()).arg(self.image()).arg("--");
        folio.args(program).stdin(Stdio::null());
        folio.env("LC_ALL", "C").env("TZ", "UTC");
        folio
    }

    /// Runs a script of bash in the image's root.
    fn bash(&self, script: &str) -> Output {
        let script = format!("cd '{}' && {{ {script}\n}}", self.place().display());
        finish(&mut self.command(&["bash", "-c", &script]))
    }

    /// Checks the image, and that the host's folder is empty.
    fn check(&self) {
        assert!(
            is_empty(&self.place()),
            "the folder below the image is used"
        );
        fsck(&self.image());
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Returns the command with a limit of time.
fn timed(command: &Command) -> Command {
    let mut timed = Command::new("timeout");
    timed.args(["-k", "5", &LIMIT.as_secs().to_string()]);
    timed.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        timed.current_dir(folder);
    }
    timed.stdin(Stdio::null());
    timed
}

/// Runs a command that must end in time.
fn finish(command: &mut Command) -> Output {
    timed(command).output().unwrap()
}

#[test]
fn output_and_exit_code_are_the_programs() {
    let fixture = Fixture::new("16M");
    let output = fixture.bash("echo text >f; cat f; cat none; exit 7");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert_eq!(output.stdout, b"text\n");
    assert!(
        text(&output).contains("none: No such file"),
        "{}",
        text(&output)
    );
    fixture.check();
    let kept = command("debugfs")
        .arg("-R")
        .arg("cat f")
        .arg(fixture.image())
        .output();
    assert_eq!(kept.unwrap().stdout, b"text\n");
}

#[test]
fn missing_program_is_named() {
    let fixture = Fixture::new("16M");
    let output = finish(&mut fixture.command(&["/no/such/program"]));
    assert_eq!(output.status.code(), Some(127), "{}", text(&output));
    assert!(
        text(&output).contains("/no/such/program"),
        "{}",
        text(&output)
    );
}
