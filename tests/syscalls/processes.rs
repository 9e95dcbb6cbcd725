//! Copies of processes, descriptors under chosen numbers, and flags of open files.

use super::{CREATE, READ, fails, read_fd, touch, user, world, write};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, Fd, OpenFlags, Whence};

#[test]
fn child_shares_positions_and_keeps_its_own_table() {
    let (_kernel, p) = world();
    write(&p, "/f", b"0123456789");
    p.mkdir("/d", 0o755).unwrap();
    p.chdir("/d").unwrap();
    p.umask(0o27);
    let fd = p.open("/f", READ, 0).unwrap();
    let child = p.fork().unwrap();
    assert_eq!(child.getcwd().unwrap(), b"/d");
    assert_eq!(child.umask(0), 0o27);
    p.lseek(fd, 4, Whence::Set).unwrap();
    assert_eq!(read_fd(&child, fd), b"456789");
    assert_eq!(read_fd(&p, fd), b"");
    p.close(fd).unwrap();
    child.lseek(fd, 8, Whence::Set).unwrap();
    assert_eq!(read_fd(&child, fd), b"89");
    child.chdir("/").unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/d");
    assert_eq!(p.umask(0), 0o27);
    drop(p);
    assert_eq!(child.fstat(fd).unwrap().size_bytes, 10);
}

#[test]
fn unlinked_file_lives_until_every_process_closes_it() {
    let (_kernel, p) = world();
    write(&p, "/f", b"bytes");
    let fd = p.open("/f", READ, 0).unwrap();
    let child = p.fork().unwrap();
    child.unlink("/f").unwrap();
    p.close(fd).unwrap();
    assert_eq!(read_fd(&child, fd), b"bytes");
}

#[test]
fn dup2_closes_the_file_in_its_place() {
    let (_kernel, p) = world();
    write(&p, "/f", b"f");
    write(&p, "/g", b"g");
    let (f, g) = (
        p.open("/f", READ, 0).unwrap(),
        p.open("/g", READ, 0).unwrap(),
    );
    assert_eq!(p.dup2(f, g).unwrap(), g);
    assert_eq!(read_fd(&p, g), b"f");
    assert_eq!(p.dup2(f, f).unwrap(), f);
    let high = Fd::from_raw(1000);
    p.dup2(f, high).unwrap();
    assert_eq!(p.fstat(high).unwrap().size_bytes, 1);
    // The lowest free number is still taken first.
    assert_eq!(p.open("/g", READ, 0).unwrap().as_raw(), 2);
    fails! {
        p.dup2(Fd::from_raw(77), f) => BADF,
        p.dup2(f, Fd::from_raw(1 << 20)) => BADF,
    }
}

#[test]
fn file_is_opened_under_a_chosen_descriptor() {
    let (_kernel, p) = world();
    let fd = Fd::from_raw(300);
    p.openat_as(AT_FDCWD, "/f", CREATE, 0o640, fd).unwrap();
    p.write(fd, b"one").unwrap();
    let again = Fd::from_raw(5);
    p.reopen_as(fd, OpenFlags::WRONLY | OpenFlags::APPEND, again)
        .unwrap();
    p.write(again, b"two").unwrap();
    assert_eq!(p.append(fd, b"three").unwrap(), 5);
    assert_eq!(p.lseek(fd, 0, Whence::Current).unwrap(), 3);
    assert_eq!(read_fd(&p, fd), b"twothree");
    fails! {
        p.openat_as(AT_FDCWD, "/none", READ, 0, fd) => NOENT,
        p.openat_as(AT_FDCWD, "/f", READ, 0, Fd::from_raw(1 << 20)) => BADF,
        p.reopen_as(Fd::from_raw(77), READ, fd) => BADF,
    }
    assert_eq!(p.fstat(fd).unwrap().size_bytes, 11);
}

#[test]
fn flags_change_for_all_descriptors_of_an_open_file() {
    let (kernel, p) = world();
    write(&p, "/f", b"0123");
    let create = CREATE | OpenFlags::TRUNC;
    let fd = p.open("/f", create | OpenFlags::SYNC, 0).unwrap();
    let child = p.fork().unwrap();
    p.write(fd, b"01").unwrap();
    assert_eq!(
        p.fcntl_getfl(fd).unwrap(),
        OpenFlags::RDWR | OpenFlags::SYNC
    );
    child
        .fcntl_setfl(fd, OpenFlags::APPEND | OpenFlags::NONBLOCK)
        .unwrap();
    let expected = OpenFlags::RDWR | OpenFlags::SYNC | OpenFlags::APPEND | OpenFlags::NONBLOCK;
    assert_eq!(p.fcntl_getfl(fd).unwrap(), expected);
    p.lseek(fd, 0, Whence::Set).unwrap();
    p.write(fd, b"23").unwrap();
    p.fcntl_setfl(fd, OpenFlags::empty()).unwrap();
    p.pwrite(fd, b"x", 0).unwrap();
    p.lseek(fd, 0, Whence::Set).unwrap();
    assert_eq!(read_fd(&p, fd), b"x123");
    touch(&p, "/open", 0o666);
    let user = user(&kernel, 7, 7, &[]);
    let of_root = user.open("/open", READ, 0).unwrap();
    let path = user.open("/open", OpenFlags::PATH, 0).unwrap();
    fails! {
        user.fcntl_setfl(of_root, OpenFlags::NOATIME) => PERM,
        user.fcntl_setfl(path, OpenFlags::empty()) => BADF,
    }
    assert_eq!(user.fcntl_getfl(path).unwrap(), OpenFlags::PATH);
}

#[test]
fn fchdir_needs_a_directory_that_may_be_searched() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o700).unwrap();
    p.mkdir("/d/e", 0o755).unwrap();
    touch(&p, "/f", 0o644);
    let folder = p.open("/d/e", OpenFlags::PATH, 0).unwrap();
    p.fchdir(folder).unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/d/e");
    let file = p.open("/f", READ, 0).unwrap();
    fails! {
        p.fchdir(file) => NOTDIR,
        p.fchdir(Fd::from_raw(77)) => BADF,
    }
    let closed = p.open("/d", READ, 0).unwrap();
    let mut user = p.fork().unwrap();
    user.set_credentials(Credentials::user(7, 7, Vec::new()));
    fails! {
        user.fchdir(closed) => ACCESS,
        user.open("/d/e", READ, 0) => ACCESS,
    }
    drop(kernel);
}

#[test]
fn access_and_modes_relative_to_a_directory() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    touch(&p, "/d/f", 0o640);
    p.symlink("none", "/d/l").unwrap();
    let folder = p.open("/d", READ, 0).unwrap();
    let user = user(&kernel, 7, 7, &[]);
    let of_user = user.open("/d", OpenFlags::PATH, 0).unwrap();
    p.faccessat2(folder, "f", 6, AtFlags::EACCESS).unwrap();
    p.faccessat2(folder, "l", 4, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    fails! {
        user.faccessat2(of_user, "f", 4, AtFlags::empty()) => ACCESS,
        p.faccessat2(folder, "l", 0, AtFlags::empty()) => NOENT,
        p.faccessat2(folder, "f", 8, AtFlags::empty()) => INVAL,
        p.fchmodat2(folder, "l", 0o600, AtFlags::SYMLINK_NOFOLLOW) => OPNOTSUPP,
    }
    let file = p.open("/d/f", OpenFlags::PATH, 0).unwrap();
    p.fchmodat2(file, "", 0o604, AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(p.stat("/d/f").unwrap().mode, 0o604);
    user.faccessat2(of_user, "f", 4, AtFlags::empty()).unwrap();
}
