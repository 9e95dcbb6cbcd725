//! The fuzz targets on stable Rust, with their stored corpora and a few random inputs.

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is a crate of its own under fuzz/")]
mod targets;

use std::fs;
use std::path::Path;

/// Random inputs per target; `FOLIO_FUZZ_CASES` overrides it.
const CASES: u64 = 40;

fn cases() -> u64 {
    std::env::var("FOLIO_FUZZ_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(CASES)
}

/// Runs `target` on all stored inputs and on some random ones.
fn run(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name);
    let mut stored = 0;
    for entry in
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let outcome = std::panic::catch_unwind(|| target(&bytes));
        assert!(outcome.is_ok(), "{name}: {} panics", path.display());
        stored += 1;
    }
    assert!(stored > 0, "{}: the corpus is empty", folder.display());
    for seed in 0..cases() {
        let mut state = seed;
        let bytes: Vec<u8> = (0..200)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            })
            .collect();
        let outcome = std::panic::catch_unwind(|| target(&bytes));
        assert!(outcome.is_ok(), "{name}: seed {seed} panics");
    }
}

#[test]
fn superblock_inputs_do_not_panic() {
    run("superblock", targets::superblock);
}

#[test]
fn directory_inputs_do_not_panic() {
    run("directory", targets::directory);
}

#[test]
fn extent_inputs_do_not_panic() {
    run("extent", targets::extent);
}

#[test]
fn xattr_inputs_do_not_panic() {
    run("xattr", targets::xattr);
}

#[test]
fn journal_inputs_do_not_panic() {
    run("journal", targets::journal);
}

#[test]
fn operations_inputs_do_not_panic() {
    run("operations", targets::operations);
}

#[test]
fn qcow2_header_inputs_do_not_panic() {
    run("qcow2_header", targets::qcow2_header);
}

#[test]
fn qcow2_tables_inputs_do_not_panic() {
    run("qcow2_tables", targets::qcow2_tables);
}

#[test]
fn qcow2_refcounts_inputs_do_not_panic() {
    run("qcow2_refcounts", targets::qcow2_refcounts);
}

#[test]
fn qcow2_snapshots_inputs_do_not_panic() {
    run("qcow2_snapshots", targets::qcow2_snapshots);
}

#[test]
fn qcow2_compressed_inputs_do_not_panic() {
    run("qcow2_compressed", targets::qcow2_compressed);
}

#[test]
fn qcow2_operations_inputs_do_not_panic() {
    run("qcow2_operations", targets::qcow2_operations);
}
