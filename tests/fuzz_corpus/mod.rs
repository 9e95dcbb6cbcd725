//! The fuzz targets on stable Rust, with their stored corpora and a few other inputs.

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is a crate of its own under fuzz/")]
pub(crate) mod targets;

mod replay;

use replay::run;

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

#[test]
fn fat_inputs_do_not_panic() {
    run("fat", targets::fat::fat);
}

#[cfg(feature = "squashfs")]
#[test]
fn squashfs_inputs_do_not_panic() {
    run("squashfs", targets::squashfs);
}

#[cfg(feature = "erofs")]
#[test]
fn erofs_inputs_do_not_panic() {
    run("erofs", targets::erofs);
}
