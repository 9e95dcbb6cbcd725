//! The header: written by cbindgen, and checked in.

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
