//! Interoperation with the kernel: each reads what the other writes, and e2fsck finds nothing.
//!
//! ```text
//!   tree on the host --folio cp -a--> image --kernel's mount--> the same tree?      into.rs
//!   tree on the host --kernel's cp--> image --folio cp -a-----> the same tree?      back.rs
//!   ACLs: permissions and inheritance                                               acls.rs
//!   images with files: add, delete, copy, replay after the kernel                   change.rs
//!   mount options: access times, reserved blocks                                    options.rs
//!   tree, archive, container image --folio--> EROFS --kernel's mount--> the same?   erofs.rs
//! ```

mod acls;
mod back;
mod change;
mod erofs;
mod images;
mod into;
mod options;
use crate::support;
mod trees;

use support::tools::{fsck, mke2fs};
use support::{Manifest, Mounted, Scope, requires};
use tempfile::TempDir;

/// The control: the kernel's own copy is equal, and a changed byte is detected.
#[test]
fn kernel_copy_equals_its_source() {
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
        "a changed byte is not detected"
    );
}

/// The machine's own files give a tree with all kinds of links.
#[test]
fn real_tree_has_symlinks_and_hard_links() {
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
    assert!(real.files >= trees::real_limits().files_min && symlinks > 0 && links > 0);
}
