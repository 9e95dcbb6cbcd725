//! Builds the loader with the compiler of this build. It needs no C library.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/loader");
    println!("cargo::rerun-if-changed=src/shared");
    println!("cargo::rustc-check-cfg=cfg(folio_loader)");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let is_known = variable("CARGO_CFG_TARGET_ARCH") == "x86_64";
    if variable("CARGO_CFG_TARGET_OS") != "linux" || !is_known {
        return;
    }
    let object = PathBuf::from(variable("OUT_DIR")).join("loader");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-type", "bin"])
        .args(["--crate-name", "folio_loader", "--cap-lints", "allow"])
        .args(["--target", &variable("TARGET")])
        .args([
            "-C",
            "opt-level=3",
            "-C",
            "panic=abort",
            "-C",
            "strip=symbols",
        ])
        .args(["-C", "debug-assertions=no", "-C", "force-unwind-tables=no"])
        .args(["-C", "no-redzone=yes", "-C", "target-feature=+crt-static"])
        // Code that runs at any address, linked to one that the filter of system calls knows.
        .args(["-C", "relocation-model=pic"])
        .args(
            ["-nostdlib", "-nostartfiles", "-static", "-no-pie"]
                .map(link)
                .concat(),
        )
        .args(link("-Tsrc/loader/loader.ld"))
        .args(link("-Wl,--build-id=none,-z,norelro,--no-eh-frame-hdr"))
        .arg("-o")
        .arg(&object)
        .arg("src/loader/main.rs");
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.status().expect("the compiler starts");
    assert!(status.success(), "the loader does not build");
    println!("cargo::rustc-cfg=folio_loader");
}

/// The options of the compiler that pass one to the linker.
fn link(option: &str) -> Vec<String> {
    vec!["-C".to_owned(), format!("link-arg={option}")]
}
