//! Builds the preloaded library with the compiler of this build. It needs no C library.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Targets whose system calls and thread pointer the library knows.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-check-cfg=cfg(folio_preload)");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let architecture = variable("CARGO_CFG_TARGET_ARCH");
    let is_linux = variable("CARGO_CFG_TARGET_OS") == "linux";
    if !is_linux || !ARCHITECTURES.contains(&architecture.as_str()) {
        return;
    }
    let object = PathBuf::from(variable("OUT_DIR")).join("preload.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "--crate-name",
            "folio_preload",
        ])
        .args([
            "--target",
            &variable("TARGET"),
            "-C",
            "opt-level=3",
            "-C",
            "panic=abort",
        ])
        .args(["--cap-lints", "allow"])
        // A thread that is cancelled in a call unwinds through its wrapper.
        .args(["-C", "force-unwind-tables=yes", "-C", "strip=symbols"])
        .args([
            "-C",
            "relocation-model=pic",
            "-C",
            "target-feature=-crt-static",
        ])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"])
        .arg("-o")
        .arg(&object)
        .arg("src/preload/main.rs");
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.status().expect("the compiler starts");
    assert!(status.success(), "the preloaded library does not build");
    println!("cargo::rustc-cfg=folio_preload");
}
