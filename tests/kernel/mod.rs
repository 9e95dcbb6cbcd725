//! The kernel as judge: what Folio writes the kernel reads, what the kernel writes Folio reads,
//! e2fsck agrees.
//!
//! ```text
//!   tree on the host --folio cp -a--> image --kernel's mount--> the same tree?      into.rs
//!   tree on the host --kernel's cp--> image --folio cp -a-----> the same tree?      back.rs
//!   ACLs: who is let in, what is inherited                                           acls.rs
//!   images that hold files: add, delete, copy on, left dirty by the kernel          change.rs
//!   mount options: access times, reserved blocks                                    options.rs
//! ```

mod acls;
mod back;
mod change;
mod images;
mod into;
mod options;
use crate::support;
mod trees;

use support::tools::{fsck, mke2fs};
use support::{Manifest, Mounted, Scope, requires};
use tempfile::TempDir;

/// The control: what the other tests compare can be told apart and survives the kernel's own copy.
#[test]
fn the_kernel_agrees_with_itself() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    trees::attributes(&tree, trees::LARGE_BLOCKS);
    let want = Manifest::of(&tree, images::EXACT);
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "1G", &[]);
    let mounted = Mounted::new(&image, "rw");
    images::kernel_copy(&tree, &mounted.path().join("tree"));
    let got = Manifest::of(&mounted.path().join("tree"), images::EXACT);
    mounted.unmount();
    want.assert_same(&got, "cp -a in the kernel");
    fsck(&image);
    std::fs::write(tree.join("one byte"), "y").unwrap();
    assert_ne!(
        want,
        Manifest::of(&tree, images::EXACT),
        "a changed byte is seen"
    );
}

/// The machine's own files make a tree that is worth copying.
#[test]
fn the_machine_has_a_real_tree() {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    if !trees::real(&tree) {
        return;
    }
    let real = Manifest::of(&tree, Scope::default());
    let (symlinks, links) = (real.count("symlink"), real.count(" links "));
    println!(
        "{} files, {symlinks} symbolic links, {links} with hard links",
        real.files
    );
    assert!(real.files >= trees::REAL.files_min && symlinks > 0 && links > 0);
}
