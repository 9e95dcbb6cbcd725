//! Trees written by the kernel and read by Folio.

use crate::kernel::images::{
    self, DEFAULT, EXACT, EXT2, EXT3, Format, LOOSE, Maker, OLD, SMALL_BLOCKS, UPSTREAM, at,
    folio_copy,
};
use crate::kernel::trees::{self, LARGE_BLOCKS};
use crate::support::tools::to_qcow2;
use crate::support::{Manifest, Mounted, Scope, requires};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Creates a raw image with `tree` at `/srv`, written by the kernel.
fn written_by_the_kernel(folder: &Path, tree: &Path, maker: Maker) -> PathBuf {
    let image = images::empty(folder, Format::Raw, maker, "2G");
    let mounted = Mounted::new(&image, "rw");
    images::kernel_copy(tree, &mounted.path().join("srv"));
    mounted.unmount();
    image
}

fn copy_back(tree: &Path, scope: Scope, maker: Maker) {
    let scratch = TempDir::new().unwrap();
    let want = Manifest::of(tree, scope);
    let raw = written_by_the_kernel(scratch.path(), tree, maker);
    let qcow2 = scratch.path().join("disk.qcow2");
    to_qcow2(&raw, &qcow2);
    for image in [&raw, &qcow2] {
        let out = scratch.path().join("out");
        let before = std::fs::metadata(image).unwrap().modified().unwrap();
        folio_copy(at(image, "/srv"), &out, None);
        want.assert_same(
            &Manifest::of(&out, scope),
            &format!("{maker:?}, {}", image.display()),
        );
        let after = std::fs::metadata(image).unwrap().modified().unwrap();
        assert_eq!(before, after, "reading changed the image");
        std::fs::remove_dir_all(out).unwrap();
    }
}

fn attributes_back(limits: trees::BlockLimits, makers: &[Maker]) {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    trees::attributes(&tree, limits);
    for maker in makers {
        copy_back(&tree, EXACT, *maker);
    }
}

#[test]
fn real_tree_from_the_kernel_is_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("qemu-img")
    );
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    if trees::real(&tree) {
        copy_back(&tree, LOOSE, UPSTREAM);
    }
}

#[test]
fn attributes_from_the_kernel_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("qemu-img")
    );
    attributes_back(LARGE_BLOCKS, &[UPSTREAM, DEFAULT, OLD]);
}

#[test]
fn attributes_from_the_kernel_in_1k_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("qemu-img")
    );
    attributes_back(trees::SMALL_BLOCKS, &[SMALL_BLOCKS]);
}

#[test]
fn attributes_from_the_kernel_on_ext3_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("qemu-img")
    );
    attributes_back(LARGE_BLOCKS, &[EXT2]);
    attributes_back(trees::SMALL_BLOCKS, &[EXT3]);
}
