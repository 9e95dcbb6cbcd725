//! Creating, linking, moving and removing names.

use super::{CREATE, READ, fails, list, mode, read, touch, user, world, write};
use folio::Process;
use folio::syscall::{AT_FDCWD, AtFlags, Credentials};
use folio::vfs::{DeviceNumber, FileType, RenameFlags};

fn rename2(p: &Process, from: &str, to: &str, flags: RenameFlags) -> folio::Result<()> {
    p.renameat2(AT_FDCWD, from, AT_FDCWD, to, flags)
}

#[test]
fn create_calls_match_linux() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o7777).unwrap();
    assert_eq!(mode(&p, "/d"), 0o1777);
    p.mkdir("/d/sub/", 0o755).unwrap();
    touch(&p, "/f", 0o6777);
    assert_eq!(mode(&p, "/f"), 0o6777);
    assert_eq!(
        (
            p.stat("/d").unwrap().link_count,
            p.stat("/f").unwrap().link_count
        ),
        (3, 1)
    );
    assert_eq!(p.umask(0o027), 0);
    touch(&p, "/masked", 0o666);
    assert_eq!((mode(&p, "/masked"), p.umask(0)), (0o640, 0o027));
    let other = user(&kernel, 5, 6, &[]);
    other
        .mknodat(
            AT_FDCWD,
            "/d/fifo",
            FileType::Fifo,
            0o600,
            DeviceNumber::new(1, 2),
        )
        .unwrap();
    let fifo = p.stat("/d/fifo").unwrap();
    assert_eq!(
        (fifo.file_type, fifo.uid, fifo.gid, fifo.device),
        (FileType::Fifo, 5, 6, DeviceNumber::default())
    );
    p.mknodat(
        AT_FDCWD,
        "/null",
        FileType::CharacterDevice,
        0o666,
        DeviceNumber::new(1, 3),
    )
    .unwrap();
    assert_eq!(p.stat("/null").unwrap().device, DeviceNumber::new(1, 3));
    let device = FileType::BlockDevice;
    fails! {
        p.mkdir("/d", 0o755) => EXIST,
        p.mkdir("/", 0o755) => EXIST,
        p.mkdir(".", 0o755) => EXIST,
        p.mkdir("/d/..", 0o755) => EXIST,
        p.mkdir("/none/x", 0o755) => NOENT,
        p.mkdir("/f/x", 0o755) => NOTDIR,
        p.mkdir("", 0o755) => NOENT,
        p.symlink("x", "/new/") => NOENT,
        p.symlink("x", "/f") => EXIST,
        p.mknodat(AT_FDCWD, "/x", FileType::Directory, 0o755, DeviceNumber::default()) => PERM,
        p.mknodat(AT_FDCWD, "/x", FileType::Symlink, 0o755, DeviceNumber::default()) => INVAL,
        other.mknodat(AT_FDCWD, "/d/x", device, 0o600, DeviceNumber::new(8, 0)) => PERM,
        other.mkdir("/x", 0o755) => ACCESS,
    }
}

#[test]
fn setgid_directories() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o777).unwrap();
    p.chown("/d", None, Some(5)).unwrap();
    p.chmod("/d", 0o2777).unwrap();
    let other = user(&kernel, 1000, 7, &[]);
    touch(&other, "/d/program", 0o2770);
    touch(&other, "/d/plain", 0o2760);
    other.mkdir("/d/sub", 0o755).unwrap();
    for (path, expected) in [
        ("/d/program", 0o770),
        ("/d/plain", 0o2760),
        ("/d/sub", 0o2755),
    ] {
        assert_eq!(
            (mode(&p, path), p.stat(path).unwrap().gid),
            (expected, 5),
            "{path}"
        );
    }
    let member = user(&kernel, 1000, 7, &[5]);
    touch(&member, "/d/kept", 0o2770);
    assert_eq!(mode(&p, "/d/kept"), 0o2770);
}

#[test]
fn unlink_and_rmdir_match_linux() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    p.mkdir("/d/sub", 0o755).unwrap();
    touch(&p, "/f", 0o644);
    fails! {
        p.unlink("/d") => ISDIR,
        p.unlink("/d/") => ISDIR,
        p.unlink("/f/") => NOTDIR,
        p.unlink("/none") => NOENT,
        p.unlink("/none/") => NOENT,
        p.unlink("/.") => ISDIR,
        p.unlink("/") => ISDIR,
        p.rmdir("/f") => NOTDIR,
        p.rmdir("/d") => NOTEMPTY,
        p.rmdir("/d/.") => INVAL,
        p.rmdir("/d/sub/..") => NOTEMPTY,
        p.rmdir("/") => BUSY,
        p.rmdir("/none") => NOENT,
        p.unlinkat(AT_FDCWD, "/f", AtFlags::EMPTY_PATH) => INVAL,
    }
    p.rmdir("/d/sub/").unwrap();
    assert_eq!(p.stat("/d").unwrap().link_count, 2);
    p.unlinkat(AT_FDCWD, "/d", AtFlags::REMOVEDIR).unwrap();
    p.unlink("/f").unwrap();
    assert!(list(&p, "/").is_empty());
    fails! { p.stat("/f") => NOENT, p.stat("/d") => NOENT }
}

#[test]
fn sticky_directories() {
    let (kernel, p) = world();
    p.mkdir("/tmp", 0o1777).unwrap();
    let (one, two) = (user(&kernel, 1, 1, &[]), user(&kernel, 2, 2, &[]));
    touch(&one, "/tmp/one", 0o666);
    touch(&two, "/tmp/two", 0o666);
    p.mkdir("/closed", 0o755).unwrap();
    touch(&p, "/closed/f", 0o666);
    fails! {
        two.unlink("/tmp/one") => PERM,
        two.rename("/tmp/one", "/tmp/x") => PERM,
        two.rename("/tmp/two", "/tmp/one") => PERM,
        rename2(&two, "/tmp/two", "/tmp/one", RenameFlags::EXCHANGE) => PERM,
        two.unlink("/closed/f") => ACCESS,
        two.unlink("/closed/none") => NOENT,
        two.rename("/tmp/two", "/closed/two") => ACCESS,
    }
    one.unlink("/tmp/one").unwrap();
    two.rename("/tmp/two", "/tmp/one").unwrap();
    p.unlink("/tmp/one").unwrap();
}

#[test]
fn hard_links() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    write(&p, "/f", b"text");
    p.symlink("f", "/l").unwrap();
    p.link("/f", "/d/g").unwrap();
    p.link("/l", "/l2").unwrap();
    p.linkat(AT_FDCWD, "/l", AT_FDCWD, "/f2", AtFlags::SYMLINK_FOLLOW)
        .unwrap();
    assert_eq!(p.readlink("/l2").unwrap(), b"f");
    assert_eq!(
        (
            read(&p, "/d/g").as_slice(),
            p.stat("/f").unwrap().link_count
        ),
        (b"text".as_slice(), 3)
    );
    let other = user(&kernel, 5, 5, &[]);
    fails! {
        p.link("/d", "/e") => PERM,
        p.link("/f", "/l") => EXIST,
        p.link("/f", "/new/") => NOENT,
        p.link("/f/", "/x") => NOTDIR,
        p.link("/none", "/x") => NOENT,
        other.link("/f", "/x") => ACCESS,
        p.linkat(AT_FDCWD, "/f", AT_FDCWD, "/x", AtFlags::SYMLINK_NOFOLLOW) => INVAL,
    }
    p.unlink("/f").unwrap();
    assert_eq!(
        (
            read(&p, "/f2").as_slice(),
            p.stat("/f2").unwrap().link_count
        ),
        (b"text".as_slice(), 2)
    );
}

#[test]
fn rename_matches_linux() {
    let (_kernel, p) = world();
    for directory in ["/a", "/a/b", "/a/b/c", "/empty", "/full"] {
        p.mkdir(directory, 0o755).unwrap();
    }
    touch(&p, "/full/x", 0o644);
    write(&p, "/f", b"f");
    write(&p, "/g", b"g");
    fails! {
        p.rename("/f", "/empty") => ISDIR,
        p.rename("/empty", "/f") => NOTDIR,
        p.rename("/a", "/a/x") => INVAL,
        p.rename("/a", "/a/b/c/d") => INVAL,
        p.rename("/a/b", "/a") => NOTEMPTY,
        p.rename("/empty", "/full") => NOTEMPTY,
        p.rename("/f", "/new/") => NOTDIR,
        p.rename("/f/", "/new") => NOTDIR,
        p.rename("/.", "/x") => BUSY,
        p.rename("/a/b/..", "/x") => BUSY,
        p.rename("/f", "/a/.") => BUSY,
        p.rename("/none", "/x") => NOENT,
        p.rename("/f", "/none/x") => NOENT,
        rename2(&p, "/f", "/g", RenameFlags::NOREPLACE) => EXIST,
        rename2(&p, "/f", "/a/..", RenameFlags::NOREPLACE) => EXIST,
        rename2(&p, "/f", "/none", RenameFlags::EXCHANGE) => NOENT,
        rename2(&p, "/a", "/a/b", RenameFlags::EXCHANGE) => INVAL,
        rename2(&p, "/a/b", "/a", RenameFlags::EXCHANGE) => INVAL,
        rename2(&p, "/f", "/g", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE) => INVAL,
        rename2(&p, "/f", "/g", RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) => INVAL,
        rename2(&p, "/f", "/g", RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) => EXIST,
    }
    let open = p.open("/g", READ, 0).unwrap();
    p.rename("/f", "/g").unwrap();
    assert_eq!(
        (read(&p, "/g"), p.fstat(open).unwrap().link_count),
        (b"f".to_vec(), 0)
    );
    p.rename("/g", "/g").unwrap();
    p.rename("/full", "/empty/").unwrap();
    assert_eq!(list(&p, "/"), ["a", "empty", "g"]);
    assert_eq!(list(&p, "/empty"), ["x"]);
    p.rename("/a/b", "/empty/b").unwrap();
    let links = |path: &str| p.stat(path).unwrap().link_count;
    assert_eq!((links("/a"), links("/empty"), links("/")), (2, 3, 4));
    assert_eq!(
        p.stat("/empty/b/..").unwrap().number,
        p.stat("/empty").unwrap().number
    );
    rename2(&p, "/g", "/new", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(list(&p, "/"), ["a", "empty", "new"]);
}

#[test]
fn rename_of_two_links_of_one_inode_does_nothing() {
    let (_kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.link("/f", "/g").unwrap();
    p.rename("/f", "/g").unwrap();
    assert_eq!(list(&p, "/"), ["f", "g"]);
}

#[test]
fn rename_exchange_swaps_names() {
    let (_kernel, p) = world();
    for directory in ["/a", "/b", "/b/sub"] {
        p.mkdir(directory, 0o755).unwrap();
    }
    write(&p, "/a/f", b"f");
    rename2(&p, "/a/f", "/b/sub", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (read(&p, "/b/sub"), list(&p, "/a/f").len()),
        (b"f".to_vec(), 0)
    );
    let links = |path: &str| p.stat(path).unwrap().link_count;
    assert_eq!((links("/a"), links("/b")), (3, 2));
    assert_eq!(
        p.stat("/a/f/..").unwrap().number,
        p.stat("/a").unwrap().number
    );
    rename2(&p, "/a", "/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(list(&p, "/b"), ["f"]);
}

#[test]
fn rename_whiteout_leaves_a_device() {
    let (kernel, p) = world();
    p.mkdir("/a", 0o777).unwrap();
    p.mkdir("/b", 0o777).unwrap();
    let user = kernel.process(Credentials::user(5, 6, Vec::new()));
    write(&user, "/a/f", b"f");
    write(&user, "/b/g", b"g");
    rename2(&user, "/a/f", "/b/g", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(read(&p, "/b/g"), b"f");
    let left = p.lstat("/a/f").unwrap();
    assert_eq!(left.file_type, FileType::CharacterDevice);
    assert_eq!(
        (left.device, left.mode, left.uid, left.gid),
        (DeviceNumber::default(), 0, 5, 6)
    );
    assert_eq!(
        (list(&p, "/a"), list(&p, "/b")),
        (vec!["f".into()], vec!["g".into()])
    );
    p.mkdir("/a/d", 0o755).unwrap();
    rename2(&p, "/a/d", "/b/d", RenameFlags::WHITEOUT).unwrap();
    let links = |path: &str| p.stat(path).unwrap().link_count;
    assert_eq!((links("/a"), links("/b")), (2, 3));
    // A whiteout is a file: it can be renamed over, linked and removed.
    rename2(&user, "/b/g", "/a/f", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(read(&p, "/a/f"), b"f");
    user.unlink("/b/g").unwrap();
    let device = FileType::CharacterDevice;
    user.mknodat(AT_FDCWD, "/b/made", device, 0, DeviceNumber::default())
        .unwrap();
    let fd = p.open("/a/f", READ, 0).unwrap();
    fails! {
        user.mknodat(AT_FDCWD, "/b/null", device, 0o666, DeviceNumber::new(1, 3)) => PERM,
        user.mknodat(AT_FDCWD, "/b/disk", FileType::BlockDevice, 0o600, DeviceNumber::default()) => PERM,
        p.fitrim(fd, 0..u64::MAX, 0) => NOTTY,
    }
    p.close(fd).unwrap();
    let fd = user.open("/a/f", READ, 0).unwrap();
    fails! { user.fitrim(fd, 0..u64::MAX, 0) => PERM }
}

#[test]
fn moving_a_directory_needs_write_access() {
    let (kernel, p) = world();
    p.mkdir("/a", 0o777).unwrap();
    p.mkdir("/b", 0o777).unwrap();
    p.mkdir("/a/closed", 0o555).unwrap();
    p.chown("/a/closed", Some(5), None).unwrap();
    let other = user(&kernel, 5, 5, &[]);
    fails! { other.rename("/a/closed", "/b/closed") => ACCESS }
    other.rename("/a/closed", "/a/renamed").unwrap();
    fails! { other.open("/a/renamed/f", CREATE, 0o644) => ACCESS }
}
