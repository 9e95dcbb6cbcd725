//! Files in a GPU's memory: NVRTC for the tests of kernels, and a folder that measures on a GPU.

use crate::repository;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python package with NVIDIA's compiler library; needs neither GPU nor driver.
const PACKAGE: &str = "nvidia-cuda-nvrtc>=13,<14";
/// The script that tests and measures; travels with the programs.
const SCRIPT: &str = "crates/folio-cuda/measure-on-gpu";

/// Returns the variable with the folder of NVRTC, which is installed into the target folder once.
///
/// # Errors
/// The reason why it cannot be installed.
pub(crate) fn nvrtc() -> Result<(&'static str, OsString), String> {
    let environment = repository::target_folder().join("nvrtc");
    if library_folder(&environment).is_none() {
        let made = Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&environment)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return Err("python3 -m venv failed: install python3-venv".to_owned());
        }
        let installed = Command::new(environment.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check", PACKAGE])
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            return Err(format!("pip cannot install {PACKAGE}"));
        }
    }
    let folder =
        library_folder(&environment).ok_or_else(|| format!("{PACKAGE} has no libnvrtc.so.13"))?;
    let mut path = folder.into_os_string();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    Ok(("LD_LIBRARY_PATH", path))
}

/// Returns the folder of libnvrtc.so.13 in a virtual environment.
fn library_folder(environment: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(environment.join("lib")).ok()?.flatten();
    let packages = versions.map(|version| version.path().join("site-packages/nvidia/cu13/lib"));
    packages
        .into_iter()
        .find(|folder| folder.join("libnvrtc.so.13").exists())
}

/// Builds `folio-bench`, the tests and the example into a folder, with the script that runs them;
/// runs it unless `is_built_only`.
///
/// # Errors
/// What failed.
pub(crate) fn measure(root: &Path, is_built_only: bool) -> Result<(), String> {
    let folder = repository::target_folder().join("gpu");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let features = ["--features", "cuda"];
    let command = [
        "build",
        "--release",
        "--package",
        "folio-bench",
        "--bin",
        "folio-bench",
    ];
    let tests = [
        "test",
        "--no-run",
        "--package",
        "folio-cuda",
        "--test",
        "gpu",
    ];
    let example = [
        "build",
        "--release",
        "--package",
        "folio-cuda",
        "--example",
        "weights",
    ];
    for (arguments, name) in [
        (&command[..], "folio-bench"),
        (&tests, "gpu-tests"),
        (&example, "weights"),
    ] {
        let program = build(root, &[arguments, &features].concat())?;
        // Without symbols: the folder is to be copied to machines without a compiler.
        let stripped = Command::new("strip")
            .arg("-o")
            .arg(folder.join(name))
            .arg(&program)
            .status();
        if !stripped.is_ok_and(|status| status.success()) {
            std::fs::copy(&program, folder.join(name)).map_err(|error| error.to_string())?;
        }
    }
    let script = folder.join("measure-on-gpu");
    std::fs::copy(root.join(SCRIPT), &script).map_err(|error| error.to_string())?;
    println!("{}: run it on a machine with a GPU", script.display());
    if is_built_only {
        return Ok(());
    }
    let mut run = Command::new(&script);
    match nvrtc() {
        Ok((name, value)) => drop(run.env(name, value)),
        Err(reason) => println!("NVRTC: {reason}"),
    }
    match run.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", script.display())),
        Err(error) => Err(format!("{}: {error}", script.display())),
    }
}

/// Runs a build; returns the program that it made.
fn build(root: &Path, arguments: &[&str]) -> Result<PathBuf, String> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut programs = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs
        .next_back()
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("cargo {} failed", arguments.join(" ")))
}
