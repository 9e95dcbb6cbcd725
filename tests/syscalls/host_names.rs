//! Names that belong to the host: where a path leads that leaves the library's mounts.

use super::{CREATE, READ, fails, touch, world};
use folio::syscall::{AtFlags, OpenFlags};
use folio::vfs::{HostNames, MountOptions, RenameFlags};
use folio::{Detail, Error, Kernel, Process};
use std::sync::Arc;

/// Returns where the path of a failed call leads.
#[track_caller]
fn host_path<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), folio::Errno::XDEV);
    match error.detail() {
        Some(Detail::Elsewhere { path }) => String::from_utf8(path.clone()).unwrap(),
        _ => panic!("{error:?}"),
    }
}

/// Returns a process that sees a mount at /mnt/x, and the host elsewhere.
fn mounted_at() -> (Arc<Kernel>, Process) {
    let (kernel, p) = world();
    p.mkdir("/mnt", 0o755).unwrap();
    p.mkdir("/mnt/x", 0o755).unwrap();
    kernel
        .mount_ramfs("/mnt/x", &MountOptions::default())
        .unwrap();
    kernel.set_host_names("/", HostNames::Rest).unwrap();
    p.mkdir("/mnt/x/d", 0o755).unwrap();
    touch(&p, "/mnt/x/d/f", 0o644);
    (kernel, p)
}

#[test]
fn paths_outside_of_the_mount_lead_to_the_host() {
    let (_kernel, p) = mounted_at();
    // The RCU walk has the names the second time.
    for _ in 0..2 {
        for (path, leads) in [
            ("/", "/"),
            ("/.", "/."),
            ("/etc/passwd", "/etc/passwd"),
            ("//mnt//", "/mnt//"),
            ("/mnt/y/../z", "/mnt/y/../z"),
            ("/mnt/x/..", "/mnt"),
            ("/mnt/x/d/../../..", "/mnt/.."),
            ("/mnt/x/d/../../y/", "/mnt/y/"),
            ("/mnt/x/../../usr/lib", "/usr/lib"),
        ] {
            assert_eq!(host_path(p.stat(path)), leads, "{path}");
            assert_eq!(host_path(p.lstat(path)), leads, "{path}");
            assert_eq!(host_path(p.open(path, READ, 0)), leads, "{path}");
        }
        assert_eq!(p.stat("/mnt/x/d/../d/f").unwrap().size_bytes, 0);
        assert_eq!(p.stat("/mnt/../mnt/x/d").unwrap().link_count, 2);
        fails! {
            p.stat("/mnt/x/none") => NOENT,
            p.stat("/mnt/x/d/f/g") => NOTDIR,
        }
    }
}

#[test]
fn relative_paths_and_links_lead_to_the_host() {
    let (_kernel, p) = mounted_at();
    p.chdir("/mnt/x/d").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/mnt/x/d");
    assert_eq!(host_path(p.chdir("../../y")), "/mnt/y");
    let folder = p.open(".", OpenFlags::PATH, 0).unwrap();
    assert_eq!(p.path_of(folder).unwrap(), b"/mnt/x/d");
    let stat = |path: &str| p.fstatat(folder, path, AtFlags::empty());
    assert_eq!(host_path(stat("../../../bin/sh")), "/bin/sh");
    p.symlink("/usr/bin/python", "python").unwrap();
    p.symlink("/mnt/x/d/f", "inside").unwrap();
    p.symlink("../../lib", "up").unwrap();
    assert_eq!(host_path(stat("python")), "/usr/bin/python");
    assert_eq!(host_path(stat("up/libc.so")), "/mnt/lib/libc.so");
    assert_eq!(stat("inside").unwrap().size_bytes, 0);
    assert!(p.lstat("/mnt/x/d/python").is_ok());
}

#[test]
fn names_of_the_host_are_not_created() {
    let (_kernel, p) = mounted_at();
    assert_eq!(host_path(p.mkdir("/etc", 0o755)), "/etc");
    assert_eq!(host_path(p.open("/mnt/new", CREATE, 0o644)), "/mnt/new");
    assert_eq!(
        host_path(p.open("/mnt", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o600)),
        "/mnt"
    );
    assert_eq!(host_path(p.unlink("/mnt/y")), "/mnt/y");
    assert_eq!(host_path(p.rmdir("/mnt")), "/mnt");
    assert_eq!(host_path(p.chmod("/mnt", 0o700)), "/mnt");
    assert_eq!(host_path(p.rename("/mnt/x/d/f", "/tmp/f")), "/tmp/f");
    let moved = p.renameat2(
        folio::syscall::AT_FDCWD,
        "/tmp/f",
        folio::syscall::AT_FDCWD,
        "/mnt/x/d/f",
        RenameFlags::empty(),
    );
    assert_eq!(host_path(moved), "/tmp/f");
    assert_eq!(host_path(p.link("/mnt/x/d/f", "/f")), "/f");
    fails! {
        p.mkdir("/mnt/x", 0o755) => EXIST,
        p.rmdir("/mnt/x") => BUSY,
    }
}

#[test]
fn listed_names_of_the_root_are_the_hosts() {
    let (kernel, p) = world();
    kernel.mount_ramfs("/", &MountOptions::default()).unwrap();
    let p = {
        drop(p);
        let p = kernel.process(folio::syscall::Credentials::root());
        p.mkdir("/dev", 0o755).unwrap();
        p.mkdir("/d", 0o755).unwrap();
        p.mkdir("/d/proc", 0o755).unwrap();
        p
    };
    let names = [b"proc".to_vec(), b"dev".to_vec()];
    kernel
        .set_host_names("/", HostNames::InRoot(names.to_vec()))
        .unwrap();
    p.symlink("/proc/self/fd/0", "/d/stdin").unwrap();
    for _ in 0..2 {
        assert_eq!(host_path(p.stat("/proc/self/exe")), "/proc/self/exe");
        assert_eq!(host_path(p.stat("/dev")), "/dev");
        assert_eq!(host_path(p.stat("/d/../dev/null")), "/dev/null");
        assert_eq!(host_path(p.stat("/d/stdin")), "/proc/self/fd/0");
        assert_eq!(host_path(p.mkdir("/proc", 0o755)), "/proc");
        assert!(p.stat("/").is_ok() && p.stat("/..").is_ok());
        assert!(p.stat("/d/proc").is_ok());
        fails! { p.stat("/process") => NOENT }
    }
    fails! { kernel.set_host_names("/", HostNames::Rest) => BUSY }
}
