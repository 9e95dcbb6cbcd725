//! Two builds from two checkouts give the same bytes: other times, another order of files and
//! inodes, other modes, another time zone.

use super::TestDir;
use crate::support::tools::succeed;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const EPOCH: &str = "1700000000";
const UUID: &str = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
const SPEC: &str = "\
[[partition]]\ntype = 'esp'\nformat = 'fat32'\nsource = 'tree/boot'\n\n\
[[partition]]\ntype = 'linux'\nformat = 'ext4'\nsource = 'oci:layout:app'\nsize = 'auto+1M'\n\n\
[[partition]]\ntype = 'linux'\nformat = 'ext4'\nsource = 'root.tar.zst'\n";

/// A checkout with everything that is built from it.
struct Checkout {
    folder: PathBuf,
    time_zone: &'static str,
}

impl Checkout {
    /// Writes the same files, in one order or the other.
    fn new(folder: PathBuf, is_reversed: bool) -> Self {
        let mut files: Vec<(String, usize)> = (0..120)
            .map(|number| (format!("src/{}/file-{number}", number % 7), number * 397))
            .collect();
        files.push(("boot/EFI/BOOT/BOOTX64.EFI".to_owned(), 70_000));
        files.push(("large".to_owned(), 3 << 20));
        if is_reversed {
            files.reverse();
        }
        let tree = folder.join("tree");
        for (name, len) in &files {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content: Vec<u8> = (0..*len).map(|at| (at * 7 / 3 + at / 251) as u8).collect();
            fs::write(&path, content).unwrap();
            let mode = if is_reversed { 0o600 } else { 0o664 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        symlink("../large", tree.join("src/link")).unwrap();
        fs::hard_link(tree.join("large"), tree.join("src/0/also large")).unwrap();
        let sparse = fs::File::create(tree.join("src/sparse")).unwrap();
        sparse.write_all_at(b"end", 5 << 20).unwrap();
        fs::write(folder.join("spec.toml"), SPEC).unwrap();
        let time_zone = if is_reversed { "Asia/Tokyo" } else { "UTC" };
        Self { folder, time_zone }
    }

    #[track_caller]
    fn folio(&self, dir: &TestDir, words: &[&str]) {
        let mut folio = dir.command(words);
        folio
            .current_dir(&self.folder)
            .env("SOURCE_DATE_EPOCH", EPOCH)
            .env("TZ", self.time_zone);
        succeed(&mut folio);
    }

    fn build(&self, dir: &TestDir) {
        let owners = ["--chown", "0:0", "--chmod", "u=rwX,go=rX", "--uuid", UUID];
        for (image, size) in [("auto.img", "auto"), ("sized.qcow2", "64M")] {
            let place = format!("{image}:/");
            let copy = ["cp", "-a", "tree/.", &place, "--create", size];
            self.folio(dir, &[&copy[..], &owners].concat());
        }
        self.folio(dir, &["tar", "-cf", "root.tar.zst", "auto.img"]);
        self.folio(dir, &["cp", "-a", "auto.img:/", "oci:layout:app"]);
        for disk in ["disk.img", "disk.qcow2"] {
            self.folio(dir, &["disk", "create", disk, "spec.toml"]);
        }
    }
}

/// Asserts that two files, or all files below two folders, are the same.
#[track_caller]
fn assert_same(one: &Path, two: &Path) {
    if !one.is_dir() {
        let is_same = fs::read(one).unwrap() == fs::read(two).unwrap();
        assert!(is_same, "{} differs from {}", one.display(), two.display());
        return;
    }
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(two));
    for name in names(one) {
        assert_same(&one.join(&name), &two.join(&name));
    }
}

#[test]
fn two_checkouts_give_the_same_images() {
    let dir = TestDir::new();
    let checkouts = [("one", false), ("two", true)].map(|(name, is_reversed)| {
        let checkout = Checkout::new(dir.path(name), is_reversed);
        checkout.build(&dir);
        checkout
    });
    let [one, two] = checkouts;
    for name in [
        "auto.img",
        "sized.qcow2",
        "root.tar.zst",
        "layout",
        "disk.img",
        "disk.qcow2",
    ] {
        assert_same(&one.folder.join(name), &two.folder.join(name));
    }
    dir.ok(&["image", "compare", "one/disk.img", "two/disk.qcow2"]);
}
