//! Permissions to read, write and execute; chmod, chown, utimes; setuid and setgid bits; times.

use super::{READ, fails, mode, read, tick, ticking_world, touch, user, world, write};
use folio::Process;
use folio::base::Timespec;
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags};
use folio::vfs::{MountOptions, SetTime};

#[test]
fn permission_bits_select_owner_group_other() {
    let (kernel, p) = world();
    touch(&p, "/f", 0o640);
    p.chown("/f", Some(1), Some(2)).unwrap();
    let owner = user(&kernel, 1, 9, &[]);
    let group = user(&kernel, 3, 2, &[]);
    let supplementary = user(&kernel, 3, 9, &[8, 2]);
    let others = user(&kernel, 3, 9, &[]);
    for (mode, allowed) in [
        (0o640, [6, 4, 4, 0]),
        (0o046, [0, 4, 4, 6]),
        (0o701, [7, 0, 0, 1]),
        (0o000, [0, 0, 0, 0]),
    ] {
        p.chmod("/f", mode).unwrap();
        for (process, allowed) in [&owner, &group, &supplementary, &others]
            .into_iter()
            .zip(allowed)
        {
            for want in 1..8 {
                let expected = if want & allowed == want {
                    Ok(())
                } else {
                    Err(folio::Errno::ACCESS)
                };
                let answer = process.access("/f", want).map_err(|error| error.errno());
                assert_eq!(
                    answer, expected,
                    "mode {mode:o}, want {want}, allowed {allowed}"
                );
            }
        }
    }
    // The superuser needs at least one execute bit to execute.
    p.access("/f", 6).unwrap();
    fails! { p.access("/f", 1) => ACCESS, p.access("/f", 8) => INVAL, p.access("/none", 0) => NOENT }
    p.chmod("/f", 0o001).unwrap();
    p.access("/f", 7).unwrap();
    others.access("/f", 0).unwrap();
}

#[test]
fn directory_search_needs_execute() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o744).unwrap();
    touch(&p, "/d/f", 0o644);
    p.symlink("d/f", "/l").unwrap();
    let other = user(&kernel, 5, 5, &[]);
    fails! {
        other.stat("/d/f") => ACCESS,
        other.stat("/d/none") => ACCESS,
        other.stat("/d/.") => ACCESS,
        other.stat("/l") => ACCESS,
        other.unlink("/d/f") => ACCESS,
        other.mkdir("/d/sub", 0o755) => ACCESS,
    }
    let fd = other.open("/d", READ, 0).unwrap();
    assert_eq!(other.getdents(fd, 10).unwrap().len(), 3);
    p.chmod("/d", 0o711).unwrap();
    other.stat("/d/f").unwrap();
    fails! { other.open("/d", READ, 0) => ACCESS }
}

#[test]
fn chmod() {
    let (kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.chown("/f", Some(1), Some(2)).unwrap();
    p.symlink("f", "/l").unwrap();
    let owner = user(&kernel, 1, 9, &[]);
    let member = user(&kernel, 1, 9, &[2]);
    let other = user(&kernel, 3, 2, &[]);
    fails! { other.chmod("/f", 0o600) => PERM, p.chmod("/none", 0) => NOENT }
    owner.chmod("/l", 0o6755).unwrap();
    assert_eq!((mode(&p, "/f"), mode(&p, "/l")), (0o4755, 0o777));
    member.chmod("/f", 0o6755).unwrap();
    assert_eq!(mode(&p, "/f"), 0o6755);
    let fd = owner.open("/f", READ, 0).unwrap();
    owner.fchmod(fd, 0o1600).unwrap();
    assert_eq!(mode(&p, "/f"), 0o1600);
}

#[test]
fn chown() {
    let (kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.symlink("f", "/l").unwrap();
    p.chown("/f", Some(1), Some(2)).unwrap();
    let owner = user(&kernel, 1, 9, &[8]);
    let other = user(&kernel, 3, 2, &[]);
    owner.chown("/f", Some(1), Some(8)).unwrap();
    owner.chown("/f", None, Some(9)).unwrap();
    owner.chown("/f", Some(1), Some(9)).unwrap();
    other.chown("/f", None, None).unwrap();
    fails! {
        owner.chown("/f", Some(3), None) => PERM,
        owner.chown("/f", None, Some(7)) => PERM,
        other.chown("/f", Some(3), None) => PERM,
        other.chown("/f", None, Some(2)) => PERM,
    }
    p.fchownat(AT_FDCWD, "/l", Some(4), Some(4), AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    let owners = |path: &str| (p.lstat(path).unwrap().uid, p.lstat(path).unwrap().gid);
    assert_eq!((owners("/l"), owners("/f")), ((4, 4), (1, 9)));
}

/// The effect on setuid and setgid, as on a tmpfs of Linux 6.18.
#[test]
fn set_id_bits_are_cleared() {
    let (kernel, p) = world();
    let member = user(&kernel, 1000, 1000, &[5]);
    let stranger = user(&kernel, 1000, 7, &[5]);
    for (before, chown, stranger_write, member_write) in [
        (0o6755, 0o755, 0o755, 0o755),
        (0o6745, 0o2745, 0o745, 0o2745),
        (0o6777, 0o777, 0o777, 0o777),
        (0o6767, 0o2767, 0o767, 0o2767),
    ] {
        let after = |act: &dyn Fn()| {
            write(&p, "/s", b"");
            p.chown("/s", Some(1000), Some(1000)).unwrap();
            p.chmod("/s", before).unwrap();
            act();
            mode(&p, "/s")
        };
        let open = |process: &folio::Process| process.open("/s", OpenFlags::WRONLY, 0).unwrap();
        let write =
            |process: &folio::Process| assert_eq!(process.write(open(process), b"x").unwrap(), 1);
        assert_eq!(after(&|| p.chown("/s", None, None).unwrap()), chown);
        assert_eq!(after(&|| p.truncate("/s", 5).unwrap()), before);
        assert_eq!(after(&|| write(&p)), before);
        assert_eq!(after(&|| write(&stranger)), stranger_write);
        assert_eq!(after(&|| write(&member)), member_write);
        assert_eq!(
            after(&|| stranger.truncate("/s", 5).unwrap()),
            stranger_write
        );
        assert_eq!(after(&|| stranger.chmod("/s", 0o6777).unwrap()), 0o4777);
    }
}

#[test]
fn chown_keeps_set_id_bits_of_directories() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    p.chmod("/d", 0o6755).unwrap();
    p.chown("/d", Some(3), Some(3)).unwrap();
    assert_eq!(mode(&p, "/d"), 0o6755);
}

#[test]
fn set_times_checks_permission() {
    let (kernel, p) = world();
    touch(&p, "/f", 0o646);
    touch(&p, "/closed", 0o644);
    p.symlink("f", "/l").unwrap();
    let now = Some(SetTime::Now);
    let then = Some(SetTime::To(Timespec::new(-5, 999_999_999)));
    let other = user(&kernel, 5, 5, &[]);
    let set = |process: &folio::Process, path: &str, accessed, modified| {
        process.utimensat(AT_FDCWD, path, accessed, modified, AtFlags::empty())
    };
    set(&other, "/f", now, now).unwrap();
    set(&other, "/closed", None, None).unwrap();
    fails! {
        set(&other, "/closed", now, now) => ACCESS,
        set(&other, "/f", then, now) => PERM,
        set(&other, "/f", now, None) => PERM,
        set(&p, "/none", None, None) => NOENT,
        set(&p, "/f", Some(SetTime::To(Timespec::new(0, 1_000_000_000))), None) => INVAL,
    }
    set(&p, "/f", then, None).unwrap();
    let f = p.stat("/f").unwrap();
    assert_eq!(
        (f.accessed, f.modified),
        (Timespec::new(-5, 999_999_999), Timespec::new(1000, 5))
    );
    p.utimensat(AT_FDCWD, "/l", None, then, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    assert_eq!(
        p.lstat("/l").unwrap().modified,
        Timespec::new(-5, 999_999_999)
    );
    assert_eq!(p.stat("/f").unwrap().modified, Timespec::new(1000, 5));
}

/// A call, and whether it moves the modification time and the change time.
type TimedCall<'a> = (&'a str, &'a dyn Fn(), (bool, bool));

const NEITHER: (bool, bool) = (false, false);
const CHANGED: (bool, bool) = (false, true);
const BOTH: (bool, bool) = (true, true);

/// Makes each call, and checks which times of `path` it moves.
fn check_times(p: &Process, path: &str, calls: &[TimedCall<'_>]) {
    for (name, call, expected) in calls {
        let before = p.stat(path).unwrap();
        tick(p);
        call();
        let after = p.stat(path).unwrap();
        let moved = (
            after.modified > before.modified,
            after.changed > before.changed,
        );
        assert_eq!(moved, *expected, "{name}");
    }
}

#[test]
fn each_call_changes_the_times_of_its_file() {
    let (_kernel, p) = ticking_world();
    p.mkdir("/d", 0o755).unwrap();
    let f = "/d/f";
    touch(&p, f, 0o644);
    let fd = p.open(f, OpenFlags::RDWR, 0).unwrap();
    let write = |bytes: &[u8]| assert_eq!(p.write(fd, bytes).unwrap(), bytes.len());
    let calls: &[TimedCall<'_>] = &[
        ("write", &|| write(b"x"), BOTH),
        ("write nothing", &|| write(b""), NEITHER),
        ("read", &|| drop(read(&p, f)), NEITHER),
        ("chmod", &|| p.chmod(f, 0o600).unwrap(), CHANGED),
        ("chown", &|| p.chown(f, Some(1), None).unwrap(), CHANGED),
        ("truncate to 1", &|| p.truncate(f, 1).unwrap(), NEITHER),
        ("truncate", &|| p.truncate(f, 0).unwrap(), BOTH),
        ("ftruncate to 0", &|| p.ftruncate(fd, 0).unwrap(), BOTH),
        ("link", &|| p.link(f, "/g").unwrap(), CHANGED),
        ("rename", &|| p.rename("/g", "/h").unwrap(), CHANGED),
        ("unlink", &|| p.unlink("/h").unwrap(), CHANGED),
    ];
    check_times(&p, f, calls);
}

#[test]
fn each_call_changes_the_times_of_its_directory() {
    let (_kernel, p) = ticking_world();
    p.mkdir("/d", 0o755).unwrap();
    let rename = || p.rename("/d/new", "/d/newer").unwrap();
    let stat = || assert_eq!(p.stat("/d").unwrap().link_count, 2);
    let calls: &[TimedCall<'_>] = &[
        ("create", &|| touch(&p, "/d/new", 0o644), BOTH),
        ("rename", &rename, BOTH),
        ("unlink", &|| p.unlink("/d/newer").unwrap(), BOTH),
        ("stat", &stat, NEITHER),
    ];
    check_times(&p, "/d", calls);
}

#[test]
fn statx_numbers_mounts() {
    let (kernel, p) = world();
    p.mkdir("/t", 0o755).unwrap();
    touch(&p, "/f", 0o600);
    kernel.mount_tmpfs("/t", &MountOptions::default()).unwrap();
    touch(&p, "/t/f", 0o640);
    let statx = |path: &str| p.statx(AT_FDCWD, path, AtFlags::empty()).unwrap();
    let (root, file, inner) = (statx("/"), statx("/f"), statx("/t/f"));
    assert_eq!(root.mount_number, file.mount_number);
    assert_ne!(file.mount_number, inner.mount_number);
    assert_eq!(inner.mount_number, statx("/t").mount_number);
    assert_eq!(inner.attributes, p.stat("/t/f").unwrap());
    let fd = p.open("/t/f", READ, 0).unwrap();
    assert_eq!(p.statx(fd, "", AtFlags::EMPTY_PATH).unwrap(), inner);
    assert_eq!(p.fstatfs(fd).unwrap(), p.statfs("/t").unwrap());
    fails! {
        p.statx(AT_FDCWD, "", AtFlags::empty()) => NOENT,
        p.statx(AT_FDCWD, "/f", AtFlags::REMOVEDIR) => INVAL,
        p.statx(fd, "f", AtFlags::empty()) => NOTDIR,
        p.fstatfs(AT_FDCWD) => BADF,
    }
}

#[test]
fn paths_are_relative_to_a_descriptor() {
    let (kernel, p) = world();
    p.mkdir("/t", 0o755).unwrap();
    kernel.mount_tmpfs("/t", &MountOptions::default()).unwrap();
    touch(&p, "/f", 0o600);
    touch(&p, "/t/f", 0o600);
    let (dir, file) = (
        p.open("/t", READ, 0).unwrap(),
        p.open("/t/f", READ, 0).unwrap(),
    );
    let (none, empty) = (AtFlags::empty(), AtFlags::EMPTY_PATH);
    p.truncateat(dir, "f", 5, none).unwrap();
    assert_eq!(p.stat("/t/f").unwrap().size_bytes, 5);
    p.truncateat(file, "", 6, empty).unwrap();
    assert_eq!(p.stat("/t/f").unwrap().size_bytes, 6);
    assert_eq!(p.stat("/f").unwrap().size_bytes, 0);
    assert_eq!(p.statfsat(dir, "f", none).unwrap(), p.statfs("/t").unwrap());
    p.chdirat(dir, "", empty).unwrap();
    assert_eq!(p.getcwd().unwrap(), b"/t");
    fails! {
        p.truncateat(dir, "", 0, empty) => ISDIR,
        p.truncateat(file, "", 0, none) => NOENT,
        p.statfsat(file, "f", none) => NOTDIR,
        p.chdirat(file, "", empty) => NOTDIR,
        p.chdirat(dir, "none", none) => NOENT,
    }
}
