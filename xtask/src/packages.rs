//! Programs that tests run, and the Debian packages or crates that hold them.

use crate::repository;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Program, Debian package.
const PROGRAMS: [(&str, &str); 58] = [
    ("e2fsck", "e2fsprogs"),
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("dumpe2fs", "e2fsprogs"),
    ("filefrag", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_fsr", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("sfdisk", "fdisk"),
    ("sgdisk", "gdisk"),
    ("fsck.vfat", "dosfstools"),
    ("mcopy", "mtools"),
    ("blkid", "util-linux"),
    ("skopeo", "skopeo"),
    ("umoci", "umoci"),
    ("bsdtar", "libarchive-tools"),
    ("zstd", "zstd"),
    ("mksquashfs", "squashfs-tools"),
    ("mkfs.erofs", "erofs-utils"),
    ("mmdebstrap", "mmdebstrap"),
    ("fuse2fs", "fuse2fs"),
    ("setfattr", "attr"),
    ("getfattr", "attr"),
    ("setfacl", "acl"),
    ("setcap", "libcap2-bin"),
    ("fakeroot", "fakeroot"),
    ("losetup", "mount"),
    ("fincore", "util-linux-extra"),
    ("fstrim", "util-linux"),
    ("mount", "mount"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("chromium", "chromium"),
    ("vmtouch", "vmtouch"),
    ("groff", "groff"),
    ("mandoc", "mandoc"),
    ("c++", "g++"),
    ("valgrind", "valgrind"),
    ("gdb", "gdb"),
    ("abidiff", "abigail-tools"),
    ("pkg-config", "pkg-config"),
    ("go", "golang-go"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("newuidmap", "uidmap"),
    ("veritysetup", "cryptsetup-bin"),
    ("systemd-dissect", "systemd-container"),
    ("systemd-repart", "systemd"),
    ("openssl", "openssl"),
    ("jq", "jq"),
];

/// Test suites that are crates, and their versions.
const CRATES: [(&str, &str); 2] = [("fsx", "0.3.2"), ("pjdfstest", "0.2.2")];

/// Folders that hold system programs but are often missing from a user's PATH.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The folder in which `cargo install` puts [`CRATES`].
fn crates_root() -> PathBuf {
    repository::target_folder().join("programs")
}

/// Returns PATH with the installed crates and the system folders at its end.
pub(crate) fn search_path() -> std::ffi::OsString {
    let mut folders: Vec<PathBuf> = env::var_os("PATH")
        .iter()
        .flat_map(env::split_paths)
        .collect();
    folders.push(crates_root().join("bin"));
    folders.extend(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    env::join_paths(folders).unwrap_or_default()
}

/// Returns whether a program is on the search path.
pub(crate) fn has(program: &str) -> bool {
    env::split_paths(&search_path()).any(|folder| folder.join(program).is_file())
}

/// Returns the packages of missing programs, each once.
fn missing() -> Vec<&'static str> {
    let mut packages: Vec<_> = PROGRAMS
        .iter()
        .filter(|(program, _)| !has(program))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

/// Installs missing crates if that is wanted; otherwise prints their names. A check without its
/// program reports a skip.
pub(crate) fn provide_crates(may_install: bool) {
    let crates: Vec<_> = CRATES
        .iter()
        .filter(|(name, _)| !has(name))
        .map(|(name, version)| format!("{name}@{version}"))
        .collect();
    if crates.is_empty() {
        return;
    }
    let list = crates.join(" ");
    if !may_install {
        println!("some checks will be skipped; to run them all, use --install: {list}");
        return;
    }
    println!("installing {list}");
    let installed = Command::new("cargo")
        .args(["install", "--quiet", "--locked", "--debug", "--root"])
        .arg(crates_root())
        .args(&crates)
        .stdin(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!("cargo could not install them: some checks will be skipped");
    }
}

/// Installs missing packages if that is wanted and possible; otherwise prints their names. A check
/// without its program reports a skip.
pub(crate) fn provide_packages(may_install: bool) {
    let packages = missing();
    if packages.is_empty() {
        println!("all packages that the tests need are installed");
        return;
    }
    let list = packages.join(" ");
    if !may_install || !rustix::process::geteuid().is_root() || !has("apt-get") {
        let by = if has("apt-get") {
            "use --install as root, or apt-get install"
        } else {
            "install with your package manager (Debian's names):"
        };
        println!("some checks will be skipped; to run them all, {by} {list}");
        return;
    }
    println!("installing {list}");
    if !apt_get(&["install"], &packages) {
        apt_get(&["update"], &[]);
        if !apt_get(&["install"], &packages) {
            println!("apt-get could not install them: some checks will be skipped");
        }
    }
}

fn apt_get(verb: &[&str], packages: &[&str]) -> bool {
    Command::new("apt-get")
        .args(["-qq", "-y", "-o", "DPkg::Lock::Timeout=120"])
        .args(verb)
        .args(if packages.is_empty() {
            [].as_slice()
        } else {
            ["--no-install-recommends"].as_slice()
        })
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
