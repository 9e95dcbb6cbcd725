//! Images that hold files already: adding, deleting, copying on, and images that the kernel left
//! dirty.

use crate::kernel::images::{self, EXACT, Format, Maker, UPSTREAM, at, folio, folio_copy};
use crate::kernel::trees::{self, LARGE_BLOCKS};
use crate::support::tools::{command, fsck, run, succeed};
use crate::support::{Manifest, Mounted, requires};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A scratch folder with the tree of attributes, and its manifest.
fn prepared() -> (TempDir, PathBuf, Manifest) {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    trees::attributes(&tree, LARGE_BLOCKS);
    let want = Manifest::of(&tree, EXACT);
    (scratch, tree, want)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

/// Free blocks and free inodes, as the superblock tells them.
fn free(image: &Path) -> Vec<String> {
    let said = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]);
    said.lines()
        .filter(|line| line.starts_with("Free "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn files_are_added_to_an_image_in_use_and_deleted_again() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("dumpe2fs")
    );
    let (scratch, tree, want) = prepared();
    let image = images::empty(scratch.path(), Format::Raw, UPSTREAM, "1G");
    let mounted = Mounted::new(&image, "rw");
    images::kernel_copy(&tree, &mounted.path().join("first"));
    mounted.unmount();
    let before = free(&image);
    folio_copy(&tree, at(&image, "/second"), None);
    images::judge(&image, |mounted| {
        want.assert_same(
            &Manifest::of(&mounted.join("first"), EXACT),
            "what was there",
        );
        want.assert_same(
            &Manifest::of(&mounted.join("second"), EXACT),
            "what was added",
        );
    });
    assert_ne!(before, free(&image), "the second tree takes space");
    succeed(&mut folio([
        OsStr::new("rm"),
        OsStr::new("-r"),
        &at(&image, "/second"),
    ]));
    images::judge(&image, |mounted| {
        want.assert_same(&Manifest::of(&mounted.join("first"), EXACT), "what is left");
        assert_eq!(names(mounted), ["first"]);
    });
    assert_eq!(
        before,
        free(&image),
        "a deleted tree gives all its space back"
    );
    succeed(&mut folio([
        OsStr::new("rm"),
        OsStr::new("-r"),
        &at(&image, "/first"),
    ]));
    images::judge(&image, |mounted| assert_eq!(names(mounted), [""; 0]));
}

#[test]
fn the_kernel_goes_on_where_folio_stopped() {
    requires!(root, loop_devices, linux(5, 15), tool("e2fsck"));
    let (scratch, tree, want) = prepared();
    let image = images::empty(scratch.path(), Format::Raw, Maker::Folio, "1G");
    folio_copy(&tree, at(&image, "/first"), Some("1G"));
    let mounted = Mounted::new(&image, "rw");
    images::kernel_copy(&tree, &mounted.path().join("second"));
    std::fs::remove_dir_all(mounted.path().join("first/many")).unwrap();
    mounted.unmount();
    fsck(&image);
    images::assert_holds(&image, "/second", &want, EXACT, "what the kernel added");
}

#[test]
fn a_tree_goes_from_image_to_image() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("qemu-img")
    );
    let (scratch, tree, want) = prepared();
    let image = images::empty(scratch.path(), Format::Raw, UPSTREAM, "1G");
    folio_copy(&tree, at(&image, "/srv"), None);
    let other = scratch.path().join("other.qcow2");
    folio_copy(at(&image, "/srv"), at(&other, "/copy"), Some("1G"));
    images::assert_holds(&other, "/copy", &want, EXACT, "from raw to qcow2");
}

/// A copy of an image taken while the kernel had it mounted, and the tree at `/renamed` as the
/// kernel saw it. The last changes stand in the journal alone, and one inode has lost its name
/// while it was open.
fn left_dirty(scratch: &TempDir, tree: &Path) -> (PathBuf, Manifest) {
    let image = images::empty(scratch.path(), Format::Raw, UPSTREAM, "1G");
    let dirty = scratch.path().join("dirty.img");
    let mounted = Mounted::new(&image, "rw");
    let (srv, renamed) = (mounted.path().join("srv"), mounted.path().join("renamed"));
    images::kernel_copy(tree, &srv);
    // syncfs puts everything in its place; fsync only commits to the journal.
    run("sync", [OsStr::new("-f"), mounted.path().as_os_str()]);
    std::fs::rename(&srv, &renamed).unwrap();
    std::fs::remove_dir_all(renamed.join("many")).unwrap();
    for index in 0..200 {
        std::fs::write(
            renamed.join(format!("added {index}")),
            vec![index as u8; index * 100],
        )
        .unwrap();
    }
    let open = File::open(renamed.join("odd size")).unwrap();
    std::fs::remove_file(renamed.join("odd size")).unwrap();
    for index in 0..200 {
        File::open(renamed.join(format!("added {index}")))
            .unwrap()
            .sync_all()
            .unwrap();
    }
    File::open(mounted.path()).unwrap().sync_all().unwrap();
    let sparse = ["--sparse=always"].map(OsStr::new);
    succeed(
        command("cp")
            .args(sparse)
            .args([image.as_os_str(), dirty.as_os_str()]),
    );
    let want = Manifest::of(&renamed, EXACT);
    drop(open);
    mounted.unmount();
    let said = run("dumpe2fs", [OsStr::new("-h"), dirty.as_os_str()]);
    assert!(
        said.contains("needs_recovery"),
        "the copy is dirty:\n{said}"
    );
    let said = run(
        "debugfs",
        [OsStr::new("-R"), OsStr::new("ls -p /"), dirty.as_os_str()],
    );
    assert!(
        !said.contains("renamed"),
        "the copy needs its journal:\n{said}"
    );
    (dirty, want)
}

#[test]
fn an_image_left_dirty_by_the_kernel_is_read_right() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("dumpe2fs"),
        tool("debugfs")
    );
    let (scratch, tree, _) = prepared();
    let (dirty, want) = left_dirty(&scratch, &tree);
    let before = std::fs::metadata(&dirty).unwrap().modified().unwrap();
    let out = scratch.path().join("out");
    folio_copy(at(&dirty, "/renamed"), &out, None);
    want.assert_same(
        &Manifest::of(&out, EXACT),
        "read with the journal replayed in memory",
    );
    assert_eq!(
        before,
        std::fs::metadata(&dirty).unwrap().modified().unwrap(),
        "reading writes nothing"
    );
}

#[test]
fn an_image_left_dirty_by_the_kernel_is_replayed_and_written() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("dumpe2fs"),
        tool("debugfs")
    );
    let (scratch, tree, added) = prepared();
    let (dirty, want) = left_dirty(&scratch, &tree);
    folio_copy(&tree, at(&dirty, "/second"), None);
    images::judge(&dirty, |mounted| {
        want.assert_same(
            &Manifest::of(&mounted.join("renamed"), EXACT),
            "what the journal held",
        );
        added.assert_same(
            &Manifest::of(&mounted.join("second"), EXACT),
            "what was added",
        );
        assert_eq!(names(mounted), ["renamed", "second"]);
    });
}
