//! The kernel as judge: what Folio writes the kernel reads, what the kernel writes Folio reads, e2fsck agrees.

#[path = "../support/mod.rs"]
mod support;
mod trees;

use std::ffi::OsStr;
use std::path::Path;
use support::tools::{command, fsck, mke2fs, succeed};
use support::{Manifest, Mounted, Scope, requires};
use tempfile::TempDir;

/// For trees made here: holes are looked at, the root's own attributes are not.
const EXACT: Scope = Scope { holes: true, below_root: true };

/// Copies with the kernel's own calls.
fn kernel_copy(from: &Path, to: &Path) {
    let source = from.join(".");
    succeed(command("cp").args([
        OsStr::new("-a"),
        OsStr::new("--sparse=auto"),
        source.as_os_str(),
        to.as_os_str(),
    ]));
}

/// The control: what the other tests compare can be told apart and survives the kernel's own copy.
#[test]
fn the_kernel_agrees_with_itself() {
    requires!(root, loop_devices, linux(5, 15), tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    trees::attributes(&tree, false);
    let want = Manifest::of(&tree, EXACT);
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "1G", &[]);
    let mounted = Mounted::new(&image, "rw");
    kernel_copy(&tree, &mounted.path());
    let got = Manifest::of(&mounted.path(), EXACT);
    mounted.unmount();
    want.assert_same(&got, "cp -a in the kernel");
    fsck(&image);
    std::fs::write(tree.join("one byte"), "y").unwrap();
    assert_ne!(want, Manifest::of(&tree, EXACT), "a changed byte is seen");
}

/// A tree of the machine's own is large enough to be worth copying.
#[test]
fn the_machine_has_a_real_tree() {
    let scratch = TempDir::new().unwrap();
    if let Err(reason) = support::real_tree::copy_to(scratch.path(), trees::REAL) {
        support::require::report_skip(&reason);
        return;
    }
    let real = Manifest::of(scratch.path(), Scope::default());
    let (symlinks, links) = (real.count("symlink"), real.count(" links "));
    println!("{} files, {symlinks} symbolic links, {links} with hard links", real.files);
    assert!(real.files >= trees::REAL.files_min && symlinks > 0 && links > 0);
}
