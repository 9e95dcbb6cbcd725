//! Tests on a CUDA driver in the host's memory, each in a process of its own.

use crate::skip;
use folio_cuda::{HEADER, KERNELS};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const DRIVER: &str = include_str!("driver.cpp");
/// Marks the process that has the stub.
const MARK: &str = "FOLIO_STUB_DRIVER";

/// Returns whether this process has the stub as its driver.
pub(crate) fn is_here() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs this program with `arguments` and `variables`, and with the stub as its driver, compiled
/// with `options`. `None` after a report of the skip. Returns the output, and the skips that its
/// tests reported.
pub(crate) fn run(
    arguments: &[&str],
    variables: &[(&str, &str)],
    options: &[&str],
) -> Option<(Output, String)> {
    let folder = tempfile::tempdir().unwrap();
    if let Err(reason) = compile(folder.path(), options) {
        skip::report("gpu", &reason);
        return None;
    }
    let mut path = folder.path().as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    let skipped = folder.path().join("skipped");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .envs(variables.iter().copied())
        .env(MARK, "1")
        .env("LD_LIBRARY_PATH", path)
        .env("FOLIO_SKIPPED", &skipped)
        .output()
        .unwrap();
    let skipped = std::fs::read_to_string(skipped).unwrap_or_default();
    Some((output, skipped))
}

/// Compiles the stub; returns why that is not possible.
fn compile(folder: &Path, options: &[&str]) -> Result<(), String> {
    let mut compiler = Command::new("c++")
        .args(["-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o"])
        .arg(folder.join("libcuda.so"))
        .args(options)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("c++: {error}"))?;
    let text = [HEADER, KERNELS, DRIVER].concat();
    let mut input = compiler.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    assert!(compiler.wait().unwrap().success(), "the stub compiles");
    Ok(())
}
