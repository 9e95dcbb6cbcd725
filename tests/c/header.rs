//! The header: written by cbindgen, and checked in.

use crate::support::requires;
use crate::support::tools::{command, succeed};
use crate::toolchain::crate_folder;
use std::path::Path;

#[test]
fn header_is_what_cbindgen_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .unwrap()
        .write(&mut made);
    // The names of pointer types end in an asterisk.
    let made = String::from_utf8(made).unwrap().replace(" * ", " *");
    let path = folder.join("include/folio.h");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if made != found {
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("folio.h");
        std::fs::write(&new, &made).unwrap();
        panic!("{} is stale: copy {} to it", path.display(), new.display());
    }
}

/// Programs that are strict about the standard include it without a warning.
#[test]
fn header_is_pedantic_c_and_cxx() {
    requires!(tool("cc"), tool("c++"));
    let folder = tempfile::tempdir().unwrap();
    for (compiler, name, standard) in [
        ("cc", "main.c", "-std=c99"),
        ("cc", "main.c", "-std=c17"),
        ("c++", "main.cc", "-std=c++11"),
        ("c++", "main.cc", "-std=c++20"),
    ] {
        let source = folder.path().join(name);
        std::fs::write(
            &source,
            "#include <folio.h>\nint main(void) { return 0; }\n",
        )
        .unwrap();
        let mut compile = command(compiler);
        compile
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
                "-I",
            ])
            .arg(crate_folder().join("include"))
            .arg(&source);
        succeed(&mut compile);
    }
}
