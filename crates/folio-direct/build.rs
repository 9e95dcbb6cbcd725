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
        .args(["-C", "opt-level=3", "-C", "panic=abort"])
        .args(["-C", "debug-assertions=no", "-C", "overflow-checks=no"])
        .args(["-C", "strip=symbols", "-C", "target-feature=+crt-static"])
        // Not at an address that the kernel chooses: the filter of system calls knows it.
        .args(["-C", "relocation-model=static"])
        // A signal handler that Go's runtime expects to be small, and no guard pages.
        .args(["-C", "no-redzone=yes", "-C", "force-unwind-tables=no"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"])
        .args(["-C", "link-arg=-static", "-C", "link-arg=-no-pie"])
        .args(["-C", "link-arg=-Wl,-Ttext-segment=0x5f0000000000"])
        .args(["-C", "link-arg=-Wl,--build-id=none,-z,noexecstack,-z,norelro"])
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
