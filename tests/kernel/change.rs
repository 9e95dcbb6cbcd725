//! Images with files: adding, deleting, copying to other images, and dirty journals of the kernel.

use crate::kernel::images::{self, EXACT, Format, Maker, UPSTREAM, at, folio, folio_copy};
use crate::kernel::trees::{self, LARGE_BLOCKS};
use crate::support::tools::{command, fsck, run, succeed};
use crate::support::{Manifest, Mounted, requires};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Block size of an image of 1 GiB.
const BLOCK: usize = 4096;

/// Creates a scratch folder with the attribute tree, and its manifest.
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

/// Returns the superblock's counts of free blocks and free inodes.
fn free(image: &Path) -> Vec<String> {
    let text = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]);
    text.lines()
        .filter(|line| line.starts_with("Free "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn added_files_are_deleted_without_a_trace() {
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
    images::check_in_kernel(&image, |mounted| {
        want.assert_same(&Manifest::of(&mounted.join("first"), EXACT), "the old tree");
        want.assert_same(
            &Manifest::of(&mounted.join("second"), EXACT),
            "the added tree",
        );
    });
    assert_ne!(before, free(&image), "the second tree takes no space");
    succeed(&mut folio([
        OsStr::new("rm"),
        OsStr::new("-r"),
        &at(&image, "/second"),
    ]));
    images::check_in_kernel(&image, |mounted| {
        want.assert_same(
            &Manifest::of(&mounted.join("first"), EXACT),
            "the remaining tree",
        );
        assert_eq!(names(mounted), ["first"]);
    });
    assert_eq!(before, free(&image), "deletion did not free all space");
    succeed(&mut folio([
        OsStr::new("rm"),
        OsStr::new("-r"),
        &at(&image, "/first"),
    ]));
    images::check_in_kernel(&image, |mounted| assert_eq!(names(mounted), [""; 0]));
}

#[test]
fn kernel_writes_to_an_image_of_folio_are_read() {
    requires!(root, loop_devices, linux(5, 15), tool("e2fsck"));
    let (scratch, tree, want) = prepared();
    let image = images::empty(scratch.path(), Format::Raw, Maker::Folio, "1G");
    folio_copy(&tree, at(&image, "/first"), Some("1G"));
    let mounted = Mounted::new(&image, "rw");
    images::kernel_copy(&tree, &mounted.path().join("second"));
    std::fs::remove_dir_all(mounted.path().join("first/many")).unwrap();
    mounted.unmount();
    fsck(&image);
    images::assert_holds(
        &image,
        "/second",
        &want,
        EXACT,
        "the tree added by the kernel",
    );
}

#[test]
fn tree_copied_between_images_is_equal() {
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

/// Returns a copy of an image taken while the kernel had it mounted, and the kernel's tree at
/// `/renamed`. The last changes are only in the journal, and one inode was unlinked while open.
fn left_dirty(scratch: &TempDir, tree: &Path) -> (PathBuf, Manifest) {
    // Short of memory, Linux may empty its journal at any moment.
    (0..8)
        .find_map(|_| try_left_dirty(scratch, tree))
        .expect("a copy that needs its journal")
}

/// Returns the copy unless it does not need its journal.
fn try_left_dirty(scratch: &TempDir, tree: &Path) -> Option<(PathBuf, Manifest)> {
    let image = images::empty(scratch.path(), Format::Raw, UPSTREAM, "1G");
    let (before, dirty) = (
        scratch.path().join("before.img"),
        scratch.path().join("dirty.img"),
    );
    let mounted = Mounted::new(&image, "rw");
    let (srv, renamed) = (mounted.path().join("srv"), mounted.path().join("renamed"));
    images::kernel_copy(tree, &srv);
    // syncfs checkpoints all changes; fsync only commits to the journal.
    run("sync", [OsStr::new("-f"), mounted.path().as_os_str()]);
    copy_sparsely(&image, &before);
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
    copy_sparsely(&image, &dirty);
    let want = Manifest::of(&renamed, EXACT);
    drop(open);
    mounted.unmount();
    lose_checkpoints(&before, &dirty);
    let text = run("dumpe2fs", [OsStr::new("-h"), dirty.as_os_str()]);
    assert!(
        text.contains("needs_recovery"),
        "the copy is not dirty:\n{text}"
    );
    let names = debugfs(&dirty, "ls -p /renamed");
    (!names.contains("added 199")).then_some((dirty, want))
}

fn copy_sparsely(from: &Path, to: &Path) {
    succeed(
        command("cp")
            .arg("--sparse=always")
            .args([from.as_os_str(), to.as_os_str()]),
    );
}

fn debugfs(image: &Path, request: &str) -> String {
    run(
        "debugfs",
        ["-R", request]
            .map(OsStr::new)
            .into_iter()
            .chain([image.as_os_str()]),
    )
}

/// Gives each block in the journal of `dirty` its content of `before`, which a power cut may leave.
/// A sync(2) by any program of the machine writes these blocks to their places.
fn lose_checkpoints(before: &Path, dirty: &Path) {
    let text = debugfs(dirty, "logdump -a");
    let numbers = |start: &str| -> BTreeSet<u64> {
        let lines = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(start));
        let word = |line: &str| line.split([' ', ',']).next().unwrap().parse().unwrap();
        lines.map(word).collect()
    };
    // A revoked block may have become one of a file.
    let revoked = numbers("Revoke FS block ");
    let logged = numbers("FS block ");
    let (from, to) = (
        File::open(before).unwrap(),
        File::options().write(true).open(dirty).unwrap(),
    );
    let mut block = vec![0; BLOCK];
    for number in logged.difference(&revoked) {
        let offset = number * BLOCK as u64;
        from.read_exact_at(&mut block, offset).unwrap();
        to.write_all_at(&block, offset).unwrap();
    }
}

#[test]
fn dirty_kernel_image_is_read_with_its_journal() {
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
    want.assert_same(&Manifest::of(&out, EXACT), "read with a replay in memory");
    assert_eq!(
        before,
        std::fs::metadata(&dirty).unwrap().modified().unwrap(),
        "reading changed the image"
    );
}

#[test]
fn dirty_kernel_image_is_replayed_before_writes() {
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
    images::check_in_kernel(&dirty, |mounted| {
        want.assert_same(
            &Manifest::of(&mounted.join("renamed"), EXACT),
            "the tree in the journal",
        );
        added.assert_same(
            &Manifest::of(&mounted.join("second"), EXACT),
            "the added tree",
        );
        assert_eq!(names(mounted), ["renamed", "second"]);
    });
}
