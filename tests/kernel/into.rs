//! Trees written by Folio and read by the kernel.

use crate::kernel::images::{
    self, DEFAULT, EXACT, EXT2, EXT3, Format, LOOSE, Maker, OLD, SMALL_BLOCKS, UPSTREAM, at,
    folio_copy,
};
use crate::kernel::trees::{self, LARGE_BLOCKS};
use crate::support::{Manifest, Scope, requires};
use std::path::Path;
use tempfile::TempDir;

/// Copies `tree` to `/srv` of an image and compares it there.
fn into(tree: &Path, want: &Manifest, scope: Scope, format: Format, maker: Maker) {
    let scratch = TempDir::new().unwrap();
    let image = images::empty(scratch.path(), format, maker, "2G");
    let create = (maker == Maker::Folio).then_some("2G");
    folio_copy(tree, at(&image, "/srv"), create);
    images::assert_holds(
        &image,
        "/srv",
        want,
        scope,
        &format!("{format:?}, {maker:?}"),
    );
}

fn attributes_into(format: Format, maker: Maker, limits: trees::BlockLimits) {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    trees::attributes(&tree, limits);
    into(&tree, &Manifest::of(&tree, EXACT), EXACT, format, maker);
}

fn real_tree_into(formats: &[Format], makers: &[Maker]) {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    if !trees::real(&tree) {
        return;
    }
    let want = Manifest::of(&tree, LOOSE);
    for format in formats {
        for maker in makers {
            into(&tree, &want, LOOSE, *format, *maker);
        }
    }
}

#[test]
fn real_tree_in_all_image_formats_is_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("qemu-img")
    );
    real_tree_into(&[Format::Raw, Format::Qcow2], &[Maker::Folio, UPSTREAM]);
}

#[test]
fn attributes_in_folio_format_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("e2fsck"),
        tool("qemu-img")
    );
    attributes_into(Format::Raw, Maker::Folio, LARGE_BLOCKS);
    attributes_into(Format::Qcow2, Maker::Folio, LARGE_BLOCKS);
}

#[test]
fn attributes_in_upstream_defaults_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("qemu-img")
    );
    attributes_into(Format::Raw, UPSTREAM, LARGE_BLOCKS);
    attributes_into(Format::Qcow2, UPSTREAM, LARGE_BLOCKS);
}

#[test]
fn attributes_in_distribution_defaults_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    attributes_into(Format::Raw, DEFAULT, LARGE_BLOCKS);
}

#[test]
fn attributes_in_small_blocks_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    attributes_into(Format::Raw, SMALL_BLOCKS, trees::SMALL_BLOCKS);
}

#[test]
fn attributes_without_checksums_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    attributes_into(Format::Raw, OLD, LARGE_BLOCKS);
}

#[test]
fn attributes_on_ext2_and_ext3_are_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    attributes_into(Format::Raw, EXT2, LARGE_BLOCKS);
    attributes_into(Format::Raw, EXT3, trees::SMALL_BLOCKS);
}

#[test]
fn real_tree_on_ext2_and_ext3_is_equal() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    real_tree_into(&[Format::Raw], &[EXT2, EXT3]);
}
