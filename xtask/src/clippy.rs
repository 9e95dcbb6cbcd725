//! The compiler of the tests: clippy's, where it is installed.

use std::ffi::OsString;
use std::process::{Command, Stdio};

/// Returns whether cargo has this subcommand, a component of the toolchain.
pub(crate) fn has_component(name: &str) -> bool {
    Command::new("cargo")
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The variables by which cargo compiles this workspace with clippy's compiler and its lints as
/// errors: `cargo clippy -- -D warnings` sets the same, and checks where these build. Without
/// clippy none.
pub(crate) fn clippy() -> Vec<(&'static str, OsString)> {
    if !has_component("clippy") {
        return Vec::new();
    }
    vec![
        ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver".into()),
        // The arguments, each with this mark behind it.
        (
            "CLIPPY_ARGS",
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__".into(),
        ),
    ]
}
