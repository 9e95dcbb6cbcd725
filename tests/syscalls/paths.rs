//! Path walk: dots, slashes, symbolic links, limits, mounts, the working directory.

use crate::{CREATE, READ, fails, list, read, touch, user, world, write};
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags};
use folio::vfs::{MountOptions, RenameFlags};

#[test]
fn dots_and_slashes() {
    let (_kernel, p) = world();
    p.mkdir("/a", 0o755).unwrap();
    p.mkdir("/a/b", 0o755).unwrap();
    touch(&p, "/a/f", 0o644);
    let number = |path: &str| p.stat(path).unwrap().number;
    for (path, same) in [
        ("//a///b//", "/a/b"),
        ("/a/b/..", "/a"),
        ("/a/b/../..", "/"),
        ("/../../a", "/a"),
        ("/a/./b/.", "/a/b"),
        ("a/b", "/a/b"),
        ("/..", "/"),
    ] {
        assert_eq!(number(path), number(same), "{path}");
    }
    fails! {
        p.stat("") => NOENT,
        p.stat("/a/f/") => NOTDIR,
        p.stat("/a/f/.") => NOTDIR,
        p.stat("/a/f/..") => NOTDIR,
        p.stat("/a/nothing") => NOENT,
        p.stat("/a/nothing/x") => NOENT,
        p.stat("/a/f/x") => NOTDIR,
    }
}

#[test]
fn name_and_path_length_limits() {
    let (_kernel, p) = world();
    let name = "n".repeat(255);
    touch(&p, &name, 0o644);
    p.stat(&name).unwrap();
    p.stat("./".repeat(2047) + ".").unwrap();
    let long = "n".repeat(256);
    fails! {
        p.stat(&long) => NAMETOOLONG,
        p.mkdir(&long, 0o755) => NAMETOOLONG,
        p.open(&long, CREATE, 0o644) => NAMETOOLONG,
        p.rename(&name, &long) => NAMETOOLONG,
        p.stat("./".repeat(2048)) => NAMETOOLONG,
        p.symlink("x".repeat(4096), "/l") => NAMETOOLONG,
        p.stat("a\0b") => INVAL,
    }
}

#[test]
fn symbolic_links() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    write(&p, "/d/f", b"text");
    p.symlink("d", "/ld").unwrap();
    p.symlink("/d/f", "/lf").unwrap();
    p.symlink("../lf", "/d/up").unwrap();
    p.symlink("nothing", "/dangling").unwrap();
    p.symlink("loop", "/loop").unwrap();
    assert_eq!(read(&p, "/ld/up"), b"text");
    assert_eq!(p.readlink("/d/up").unwrap(), b"../lf");
    assert_eq!(p.lstat("/lf").unwrap().size_bytes, 4);
    assert_eq!(
        p.lstat("/ld/").unwrap().number,
        p.stat("/d").unwrap().number
    );
    for (link, target) in (0..41).map(|i| {
        (
            format!("/l{i}"),
            if i == 0 {
                "/lf".into()
            } else {
                format!("l{}", i - 1)
            },
        )
    }) {
        p.symlink(target, link).unwrap();
    }
    // The link /lf counts, too.
    p.stat("/l38").unwrap();
    fails! {
        p.stat("/l39") => LOOP,
        p.stat("/loop") => LOOP,
        p.stat("/loop/x") => LOOP,
        p.stat("/dangling") => NOENT,
        p.open("/lf", OpenFlags::NOFOLLOW, 0) => LOOP,
        p.open("/lf", OpenFlags::NOFOLLOW | OpenFlags::DIRECTORY, 0) => NOTDIR,
        p.open("/lf", OpenFlags::NOFOLLOW | CREATE, 0) => LOOP,
        p.open("/dangling", CREATE | OpenFlags::EXCL, 0o644) => EXIST,
        p.mkdir("/dangling", 0o755) => EXIST,
        p.mkdir("/dangling/", 0o755) => EXIST,
        p.symlink("", "/empty") => NOENT,
        p.readlink("/d") => INVAL,
        p.readlink("") => NOENT,
        p.rmdir("/ld") => NOTDIR,
        p.rmdir("/ld/") => NOTDIR,
        p.unlink("/ld/") => NOTDIR,
    }
    touch_through(&p);
}

/// O_CREAT creates the target of a dangling link.
fn touch_through(p: &folio::Process) {
    let fd = p.open("/dangling", CREATE, 0o600).unwrap();
    p.close(fd).unwrap();
    assert_eq!(p.lstat("/nothing").unwrap().mode, 0o600);
}

#[test]
fn dir_descriptors_start_paths() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    write(&p, "/d/f", b"1");
    let d = p
        .open("/d", OpenFlags::PATH | OpenFlags::DIRECTORY, 0)
        .unwrap();
    let f = p.openat(d, "f", READ, 0).unwrap();
    assert_eq!(p.fstatat(f, "", AtFlags::EMPTY_PATH).unwrap().size_bytes, 1);
    p.fstatat(f, "/d", AtFlags::empty()).unwrap();
    fails! {
        p.fstatat(f, "x", AtFlags::empty()) => NOTDIR,
        p.fstatat(f, "", AtFlags::empty()) => NOENT,
        p.fstatat(folio::syscall::Fd::from_raw(77), "x", AtFlags::empty()) => BADF,
        p.fstatat(d, "f", AtFlags::REMOVEDIR) => INVAL,
        p.openat(d, "f", OpenFlags::DIRECTORY, 0) => NOTDIR,
    }
    p.renameat2(d, "f", AT_FDCWD, "/g", RenameFlags::empty())
        .unwrap();
    assert_eq!(list(&p, "/"), ["d", "g"]);
}

#[test]
fn working_directory_follows_renames() {
    let (kernel, p) = world();
    p.mkdir("/a", 0o755).unwrap();
    p.mkdir("/a/b", 0o700).unwrap();
    p.chdir("a/b").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/a/b");
    p.rename("/a", "/c").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/c/b");
    p.mkdir("/x", 0o755).unwrap();
    p.rename("/c/b", "/x/y").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/x/y");
    assert_eq!(p.stat("..").unwrap().number, p.stat("/x").unwrap().number);
    p.rmdir("/x/y").unwrap();
    touch(&p, "/f", 0o644);
    let other = user(&kernel, 5, 5, &[]);
    p.mkdir("/closed", 0o700).unwrap();
    fails! {
        p.getcwd() => NOENT,
        p.open("new", CREATE, 0o644) => NOENT,
        p.mkdir("new", 0o755) => NOENT,
        p.stat("new") => NOENT,
        p.chdir("/f") => NOTDIR,
        other.chdir("/closed") => ACCESS,
    }
    assert_eq!(p.stat(".").unwrap().link_count, 0);
}

#[test]
fn mounts() {
    let (kernel, p) = world();
    p.mkdir("/m", 0o755).unwrap();
    write(&p, "/m/below", b"covered");
    p.mkdir("/d", 0o755).unwrap();
    touch(&p, "/f", 0o644);
    kernel.mount_ramfs("/m", &MountOptions::default()).unwrap();
    assert!(list(&p, "/m").is_empty());
    p.mkdir("/m/sub", 0o755).unwrap();
    kernel
        .mount_ramfs("/m/sub", &MountOptions::default())
        .unwrap();
    p.mkdir("/m/sub/deep", 0o755).unwrap();
    p.chdir("/m/sub/deep").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/m/sub/deep");
    assert_eq!(
        p.stat("../../..").unwrap().number,
        p.stat("/").unwrap().number
    );
    p.stat("../../../m/sub/deep").unwrap();
    fails! {
        p.rmdir("/m") => BUSY,
        p.rename("/m", "/other") => BUSY,
        p.rename("/d", "/m") => BUSY,
        p.rename("/f", "/m/f") => XDEV,
        p.link("/f", "/m/f") => XDEV,
        kernel.unmount("/m/sub") => BUSY,
        kernel.unmount("/m") => BUSY,
        kernel.unmount("/d") => INVAL,
        kernel.unmount("/") => BUSY,
        kernel.mount_ramfs("/f", &MountOptions::default()) => NOTDIR,
    }
    p.chdir("/").unwrap();
    let fd = p.open("/m/sub/deep", READ, 0).unwrap();
    fails! { kernel.unmount("/m/sub") => BUSY }
    p.close(fd).unwrap();
    kernel.unmount("/m/sub").unwrap();
    assert!(list(&p, "/m/sub").is_empty());
    kernel.unmount("/m").unwrap();
    assert_eq!(read(&p, "/m/below"), b"covered");
}

#[test]
fn mounts_over_mounts() {
    let (kernel, p) = world();
    p.mkdir("/m", 0o755).unwrap();
    for name in ["/m/one", "/m/two"] {
        kernel.mount_ramfs("/m", &MountOptions::default()).unwrap();
        touch(&p, name, 0o644);
    }
    assert_eq!(list(&p, "/m"), ["two"]);
    assert_eq!(p.stat("/m/..").unwrap().number, p.stat("/").unwrap().number);
    kernel.unmount("/m").unwrap();
    assert_eq!(list(&p, "/m"), ["one"]);
    kernel.unmount("/m").unwrap();
    assert!(list(&p, "/m").is_empty());
}

#[test]
fn parent_of_a_mount_over_the_root_is_itself() {
    let (kernel, p) = world();
    touch(&p, "/below", 0o644);
    kernel.mount_ramfs("/", &MountOptions::default()).unwrap();
    p.mkdir("/d", 0o755).unwrap();
    let root = p.stat("/").unwrap().number;
    for path in ["/..", "/../..", "/d/..", "/d/../.."] {
        assert_eq!(p.stat(path).unwrap().number, root, "{path}");
        assert_eq!(list(&p, path), ["d"], "{path}");
    }
    fails! { p.stat("/../below") => NOENT }
    p.stat("/../d").unwrap();
    kernel.unmount("/").unwrap();
    assert_eq!(list(&p, "/.."), ["below"]);
}

#[test]
fn read_only_mounts() {
    let (kernel, p) = world();
    p.mkdir("/m", 0o755).unwrap();
    touch(&p, "/f", 0o644);
    kernel
        .mount_ramfs(
            "/m",
            &MountOptions {
                read_only: true,
                ..MountOptions::default()
            },
        )
        .unwrap();
    fails! {
        p.mkdir("/m/x", 0o755) => ROFS,
        p.unlink("/m/x") => ROFS,
        p.rmdir("/m/x") => ROFS,
        p.open("/m/x", CREATE, 0o644) => ROFS,
        p.open("/m/x", READ, 0) => NOENT,
        p.open("/m", OpenFlags::WRONLY, 0) => ISDIR,
        p.open("/m", OpenFlags::TMPFILE | OpenFlags::RDWR, 0) => ROFS,
        p.chmod("/m", 0o700) => ROFS,
        p.chown("/m", Some(1), None) => ROFS,
        p.utimensat(AT_FDCWD, "/m", Some(folio::vfs::SetTime::Now), None, AtFlags::empty()) => ROFS,
        p.access("/m", 2) => ROFS,
        p.rename("/m/x", "/m/y") => ROFS,
        p.link("/f", "/m/f") => ROFS,
        p.link("/none", "/m/f") => NOENT,
        p.symlink("x", "/m/f") => ROFS,
    }
    p.access("/m", 5).unwrap();
}
