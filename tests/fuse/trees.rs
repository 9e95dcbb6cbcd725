//! Whole trees through the mount, and the ways to unmount.

use crate::support::tools::{command, fsck, succeed};
use crate::support::{Manifest, Mounted, Scope, requires};
use crate::{Fixture, FuseMount, MountSource, for_each_source};
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::Path;
use tempfile::TempDir;

#[path = "../kernel/trees.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests against the kernel's own mount"
)]
mod kinds;

const EXACT: Scope = Scope {
    holes: true,
    below_root: false,
};

fn copy(from: &Path, to: &Path) {
    // As in the tests against the kernel: holes stay holes.
    succeed(
        command("cp")
            .args(["-a", "--sparse=auto"])
            .arg(from)
            .arg(to),
    );
}

#[test]
fn cp_archive_keeps_attributes_in_kernel_mount() {
    requires!(
        root,
        fuse,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck")
    );
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    kinds::attributes(&tree, kinds::LARGE_BLOCKS);
    let want = Manifest::of(&tree, EXACT);
    let fixture = Fixture::new("dev");
    copy(&tree, &fixture.at("tree"));
    want.assert_same(&Manifest::of(&fixture.at("tree"), EXACT), "through FUSE");
    let Fixture {
        mount,
        behind: image,
        folder: _folder,
        ..
    } = fixture;
    mount.unmount();
    fsck(&image);
    let kernel = Mounted::new(&image, "ro");
    want.assert_same(
        &Manifest::of(&kernel.path().join("tree"), EXACT),
        "in the kernel's own mount",
    );
    kernel.unmount();
    // The kernel's cache is empty now.
    let mount = FuseMount::new(&image, "ro,dev");
    want.assert_same(
        &Manifest::of(&mount.at("tree"), EXACT),
        "through FUSE, from the image",
    );
    mount.unmount();
}

for_each_source! {
    concurrent_programs_keep_their_trees: "rw", "tar";
}

fn concurrent_programs_keep_their_trees(fixture: Fixture) {
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..300 {
        fs::write(
            tree.join(format!("{number}")),
            vec![number as u8; number * 37],
        )
        .unwrap();
    }
    let want = Manifest::of(&tree, Scope::default());
    // On a directory each call causes further calls of the host.
    let rounds = if fixture.source == MountSource::Image {
        3
    } else {
        1
    };
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (fixture, tree, want) = (&fixture, &tree, &want);
            scope.spawn(move || {
                let mine = fixture.at(&format!("worker {worker}"));
                for _ in 0..rounds {
                    copy(tree, &mine);
                    let archive = mine.with_extension("tar");
                    let mut pack = command("tar");
                    succeed(
                        pack.arg("--format=posix")
                            .arg("-cf")
                            .arg(&archive)
                            .arg("-C")
                            .arg(&mine)
                            .arg("."),
                    );
                    want.assert_same(
                        &Manifest::of(&mine, Scope::default()),
                        "a copy among others",
                    );
                    fs::remove_dir_all(&mine).unwrap();
                    fs::create_dir(&mine).unwrap();
                    succeed(command("tar").arg("-xf").arg(&archive).arg("-C").arg(&mine));
                    want.assert_same(
                        &Manifest::of(&mine, Scope::default()),
                        "an archive unpacked",
                    );
                    fs::remove_dir_all(&mine).unwrap();
                }
            });
        }
    });
    fixture.finish();
}

#[test]
fn signal_unmounts() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    for signal in [Signal::INT, Signal::TERM] {
        let mut fixture = Fixture::new("rw");
        fs::write(fixture.at("f"), "kept").unwrap();
        rustix::process::kill_process(fixture.mount.process(), signal).unwrap();
        let (status, stderr) = fixture.mount.ended();
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
        assert!(!fixture.at("f").exists());
        fsck(&fixture.behind);
        let mount = FuseMount::new(&fixture.behind, "ro");
        assert_eq!(fs::read(mount.at("f")).unwrap(), b"kept");
        mount.unmount();
    }
}

#[test]
fn busy_mount_after_signal_is_served_until_closed() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let mut fixture = Fixture::new("rw");
    let path = fixture.at("f");
    let mut file = File::create(&path).unwrap();
    rustix::process::kill_process(fixture.mount.process(), Signal::TERM).unwrap();
    while path.exists() {
        std::thread::yield_now();
    }
    std::io::Write::write_all(&mut file, b"still served").unwrap();
    drop(file);
    let (status, stderr) = fixture.mount.ended();
    assert!(
        status.success() && stderr.contains("in use: detached"),
        "{status}: {stderr}"
    );
    fsck(&fixture.behind);
    let mount = FuseMount::new(&fixture.behind, "ro");
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"still served");
    assert_eq!(
        fs::write(mount.at("f"), "").unwrap_err().raw_os_error(),
        Some(30)
    );
    mount.unmount();
}
