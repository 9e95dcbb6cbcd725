//! A mount as the upper directory of overlayfs, and fstrim(8).

use crate::support::requires;
use crate::support::tools::{command, fsck, succeed};
use crate::{Fixture, FuseMount, empty};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A mount of overlayfs, unmounted at drop.
struct Overlay(PathBuf);

impl Overlay {
    fn new(lower: &Path, upper: &Path, work: &Path, at: PathBuf) -> Self {
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mut mount = command("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]);
        succeed(mount.arg(&at));
        Self(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = command("umount").arg(&self.0).status();
    }
}

/// Renames and removals in an overlay leave whiteouts in its upper directory.
#[test]
fn overlay_with_upper_on_image_renames() {
    requires!(
        root,
        fuse,
        file_system("overlay"),
        tool("mke2fs"),
        tool("e2fsck")
    );
    let fixture = Fixture::new("rw");
    let scratch = TempDir::new().unwrap();
    let (lower, at) = (scratch.path().join("lower"), scratch.path().join("merged"));
    for directory in [&lower, &at, &fixture.at("upper"), &fixture.at("work")] {
        fs::create_dir(directory).unwrap();
    }
    for name in ["a", "b", "c", "d"] {
        fs::write(lower.join(name), name).unwrap();
    }
    fs::create_dir_all(lower.join("dir/sub")).unwrap();
    fs::write(lower.join("dir/sub/f"), "f").unwrap();
    {
        let merged = Overlay::new(&lower, &fixture.at("upper"), &fixture.at("work"), at);
        let in_merged = |name: &str| merged.0.join(name);
        fs::rename(in_merged("a"), in_merged("renamed")).unwrap();
        fs::remove_file(in_merged("b")).unwrap();
        fs::rename(in_merged("c"), in_merged("d")).unwrap();
        fs::write(in_merged("new"), "new").unwrap();
        fs::rename(in_merged("new"), in_merged("newer")).unwrap();
        fs::remove_dir_all(in_merged("dir")).unwrap();
        fs::create_dir(in_merged("dir")).unwrap();
        let mut names: Vec<_> = fs::read_dir(&merged.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["d", "dir", "newer", "renamed"]);
        assert_eq!(fs::read(in_merged("d")).unwrap(), b"c");
        assert_eq!(fs::read(in_merged("renamed")).unwrap(), b"a");
        assert_eq!(fs::read_dir(in_merged("dir")).unwrap().count(), 0);
    }
    for name in ["a", "b", "c"] {
        let whiteout = fs::symlink_metadata(fixture.at("upper").join(name)).unwrap();
        assert!(
            whiteout.file_type().is_char_device() && whiteout.rdev() == 0,
            "{name}"
        );
    }
    fixture.finish();
}

#[test]
fn fstrim_returns_space_to_the_host() {
    requires!(
        root,
        fuse,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("fstrim"),
        tool("setpriv")
    );
    let scratch = TempDir::new().unwrap();
    let image = empty(scratch.path());
    let mount = FuseMount::new(&image, "rw,allow_other");
    let stored = || fs::metadata(&image).unwrap().blocks() * 512;
    fs::write(mount.at("kept"), vec![7; 4 << 20]).unwrap();
    fs::write(mount.at("removed"), vec![7; 32 << 20]).unwrap();
    succeed(command("sync").arg("-f").arg(mount.path()));
    succeed(command("sync").arg(mount.at("removed")));
    let before = stored();
    fs::remove_file(mount.at("removed")).unwrap();
    let mut by_user = command("setpriv");
    by_user.args(["--reuid=54321", "--regid=54321", "--clear-groups", "fstrim"]);
    let refused = by_user.arg(mount.path()).output().unwrap();
    assert!(!refused.status.success());
    succeed(command("fstrim").arg(mount.path()));
    assert!(
        before - stored() >= 32 << 20,
        "{before} bytes, then {}",
        stored()
    );
    assert_eq!(fs::read(mount.at("kept")).unwrap(), vec![7; 4 << 20]);
    mount.unmount();
    fsck(&image);
}
