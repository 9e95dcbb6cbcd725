//! Containment: no path leaves the share, and only files and directories are opened.

use super::{Over, World, errno, pause, write_host};
use folio::Errno;
use folio::syscall::{AT_FDCWD, OpenFlags};
use folio::vfs::{DeviceNumber, FileType, XattrFlags};
use rustix::fs::RenameFlags;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

/// Creates a share beside a secret with a mode of its own.
fn world(words: &str) -> World {
    let world = World::new(words);
    write_host(&world.outside("secret"), b"secret");
    std::fs::create_dir(world.outside("vault")).unwrap();
    write_host(&world.outside("vault/secret"), b"secret");
    for name in ["secret", "vault/secret"] {
        std::fs::set_permissions(world.outside(name), PermissionsExt::from_mode(0o640)).unwrap();
    }
    world
}

/// Checks that the files outside have not changed.
#[track_caller]
fn check_untouched(world: &World) {
    for name in ["secret", "vault/secret"] {
        let path = world.outside(name);
        assert_eq!(std::fs::read(&path).unwrap(), b"secret", "{name}");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o640,
            "{name}"
        );
    }
    assert_eq!(
        std::fs::read_dir(world.outside("vault")).unwrap().count(),
        1
    );
}

#[test]
fn links_are_followed_only_inside_the_share() {
    let world = world("ttl=0");
    let p = &world.p;
    symlink(world.outside("secret"), world.host("absolute")).unwrap();
    symlink("../secret", world.host("relative")).unwrap();
    symlink("../vault", world.host("folder")).unwrap();
    std::fs::create_dir(world.host("d")).unwrap();
    symlink("../../secret", world.host("d/up")).unwrap();
    for path in [
        "/h/absolute",
        "/h/relative",
        "/h/folder/secret",
        "/h/d/up",
        "/h/../secret",
        "/h/d/../../secret",
    ] {
        assert_eq!(errno(world.read(path)), Some(Errno::NOENT), "{path}");
        assert!(p.chmod(path, 0o777).is_err(), "{path}");
        assert!(p.truncate(path, 0).is_err(), "{path}");
        assert!(
            p.setxattr(path, b"user.a", b"1", XattrFlags::empty())
                .is_err(),
            "{path}"
        );
    }
    // Here `..` of the share is the directory it is mounted on, and its links refer to that, too.
    world.write("/secret", b"inside").unwrap();
    assert_eq!(world.read("/h/relative").unwrap(), b"inside");
    assert!(world.write("/h/folder/new", b"1").is_err());
    assert!(
        p.link("/h/absolute", "/h/linked").is_ok(),
        "the link itself"
    );
    assert_eq!(p.lstat("/h/linked").unwrap().file_type, FileType::Symlink);
    check_untouched(&world);
}

#[test]
fn devices_and_pipes_are_listed_but_not_opened() {
    requires!(root);
    let world = world("ttl=0");
    let p = &world.p;
    p.mknodat(
        AT_FDCWD,
        "/h/pipe",
        FileType::Fifo,
        0o600,
        DeviceNumber::default(),
    )
    .unwrap();
    p.mknodat(
        AT_FDCWD,
        "/h/socket",
        FileType::Socket,
        0o600,
        DeviceNumber::default(),
    )
    .unwrap();
    let made = p.mknodat(
        AT_FDCWD,
        "/h/null",
        FileType::CharacterDevice,
        0o600,
        DeviceNumber::new(1, 3),
    );
    let names = if made.is_ok() {
        vec!["pipe", "socket", "null"]
    } else {
        vec!["pipe", "socket"]
    };
    for name in names {
        let path = format!("/h/{name}");
        for flags in [OpenFlags::empty(), OpenFlags::WRONLY, OpenFlags::RDWR] {
            // Opening a pipe would wait for its other end.
            assert_eq!(errno(p.open(&path, flags, 0)), Some(Errno::NXIO), "{name}");
        }
        p.chmod(&path, 0o622).unwrap();
        assert_eq!(p.stat(&path).unwrap().mode, 0o622);
        p.unlink(&path).unwrap();
    }
    // A file at lookup that is a pipe at open.
    let world = super::World::new("ttl=inf,push=off");
    write_host(&world.host("f"), b"1");
    world.p.stat("/h/f").unwrap();
    std::fs::remove_file(world.host("f")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.host("f"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for flags in [OpenFlags::empty(), OpenFlags::WRONLY] {
        assert!(matches!(
            errno(world.p.open("/h/f", flags, 0)),
            Some(Errno::NXIO | Errno::STALE)
        ));
    }
}

#[test]
fn directory_moved_out_of_the_share_is_unreachable() {
    for words in ["ttl=0", "push=off", "ttl=inf,push=off", "push=inotify"] {
        let world = world(words);
        let p = &world.p;
        std::fs::create_dir_all(world.host("d/e")).unwrap();
        p.chdir("/h/d/e").unwrap();
        // The descriptor of the directory stays open.
        assert_eq!(world.list("."), [""; 0], "{words}");
        std::fs::rename(world.host("d"), world.outside("vault/d")).unwrap();
        // The position is valid for a second at most, even with an infinite TTL.
        pause(Duration::from_millis(1200));
        assert!(world.write("new", b"1").is_err(), "{words}");
        assert!(p.mkdir("sub", 0o755).is_err(), "{words}");
        assert!(world.write("/h/d/e/new", b"1").is_err(), "{words}");
        assert_eq!(
            std::fs::read_dir(world.outside("vault/d/e"))
                .unwrap()
                .count(),
            0,
            "{words}"
        );
        // A directory of the same path, but in the share.
        std::fs::create_dir_all(world.host("vault/d/e")).unwrap();
        assert!(world.write("new", b"1").is_err(), "{words}");
        std::fs::rename(world.outside("vault/d/e"), world.host("back")).unwrap();
        world.write("new", b"1").unwrap();
        assert_eq!(std::fs::read(world.host("back/new")).unwrap(), b"1");
        p.chdir("/").unwrap();
        std::fs::remove_dir_all(world.outside("vault/d")).unwrap();
        check_untouched(&world);
    }
}

#[test]
fn proc_magic_links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    symlink("/proc/self", folder.path().join("share")).unwrap();
    // Without the cache, as files in /proc have no size.
    let world = World::on(folder, "ttl=0,cache=none");
    let p = &world.p;
    for name in ["root", "cwd", "exe"] {
        let target = p.readlink(format!("/h/{name}")).unwrap();
        assert_eq!(
            target,
            rustix::fs::readlink(format!("/proc/self/{name}"), Vec::new())
                .unwrap()
                .into_bytes()
        );
        assert_eq!(
            p.lstat(format!("/h/{name}")).unwrap().file_type,
            FileType::Symlink
        );
        // The target is resolved from this mount's root.
        assert!(p.stat(format!("/h/{name}/etc/passwd")).is_err(), "{name}");
    }
    let fd = std::fs::File::open("/etc/passwd").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    assert!(world.read(&format!("/h/fd/{number}")).is_err());
    assert!(world.read("/h/status").unwrap().starts_with(b"Name:"));
    // A thread in the directory leaves before the unmount.
    p.chdir("/").unwrap();
}

/// One thread exchanges a directory and a link to the outside as fast as it can; other threads walk
/// and create.
#[test]
fn directory_and_link_race_never_escapes() {
    for words in ["ttl=0,push=off", "push=off", "push=inotify"] {
        let world = world(words);
        std::fs::create_dir(world.host("d")).unwrap();
        write_host(&world.host("d/secret"), b"public");
        symlink(world.outside("vault"), world.host("link")).unwrap();
        let is_over = Over::default();
        std::thread::scope(|scope| {
            let _ender = is_over.ender();
            scope.spawn(|| {
                while !is_over.is_over() {
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    let (a, b) = (world.host("d"), world.host("link"));
                    rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, exchange)
                        .unwrap();
                }
            });
            let p = &world.p;
            let start = Instant::now();
            for round in 0.. {
                if start.elapsed() > Duration::from_secs(1) {
                    break;
                }
                if let Ok(bytes) = world.read("/h/d/secret") {
                    assert_eq!(bytes, b"public", "{words}");
                }
                let _: folio::Result<()> = world.write(&format!("/h/d/new{}", round % 10), b"1");
                let _: folio::Result<()> = p.mkdir(format!("/h/d/sub{}", round % 10), 0o755);
                let _: folio::Result<()> = p.chmod("/h/d/secret", 0o600);
                let _: folio::Result<()> = p.truncate("/h/d/secret", 6);
                let _: folio::Result<()> = p.rename("/h/d/new1", "/h/d/new2");
                let _: folio::Result<()> = p.unlink(format!("/h/d/new{}", round % 7));
                let _: folio::Result<()> = p.rmdir(format!("/h/d/sub{}", round % 7));
                let _: folio::Result<()> = p.link("/h/d/secret", "/h/linked");
                let _: folio::Result<()> = p.unlink("/h/linked");
                let _: folio::Result<()> =
                    p.setxattr("/h/d/secret", b"user.a", b"1", XattrFlags::empty());
            }
        });
        check_untouched(&world);
    }
}

/// A directory in use is moved, and a link to the outside exchanged with its parent, while its path
/// is looked up.
#[test]
fn moved_directory_and_link_race_never_escapes() {
    let world = world("ttl=0,push=off");
    for name in ["a/d", "b"] {
        std::fs::create_dir_all(world.host(name)).unwrap();
    }
    symlink(world.outside("vault"), world.host("link")).unwrap();
    let p = &world.p;
    p.chdir("/h/a/d").unwrap();
    world.list(".");
    let is_over = Over::default();
    std::thread::scope(|scope| {
        let _ender = is_over.ender();
        scope.spawn(|| {
            let rename = |from: &str, to: &str, flags| {
                let (from, to) = (world.host(from), world.host(to));
                rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, flags)
                    .unwrap();
            };
            let (none, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
            while !is_over.is_over() {
                rename("a/d", "b/d", none);
                rename("b", "link", exchange);
                rename("b", "link", exchange);
                rename("b/d", "a/d", none);
            }
        });
        let start = Instant::now();
        let mut made = 0;
        while start.elapsed() < Duration::from_secs(1) {
            made += usize::from(world.write("new", b"1").is_ok());
            let _: folio::Result<()> = p.unlink("new");
        }
        assert!(made > 0);
    });
    p.chdir("/").unwrap();
    check_untouched(&world);
}

/// A file and a link to the outside are exchanged while attributes are set.
#[test]
fn file_and_link_race_never_escapes() {
    let world = world("ttl=0,push=off");
    write_host(&world.host("f"), b"public");
    symlink(world.outside("secret"), world.host("link")).unwrap();
    let is_over = Over::default();
    std::thread::scope(|scope| {
        let _ender = is_over.ender();
        scope.spawn(|| {
            while !is_over.is_over() {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let (a, b) = (world.host("f"), world.host("link"));
                rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, exchange)
                    .unwrap();
            }
        });
        let p = &world.p;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            if let Ok(bytes) = world.read("/h/f") {
                assert_eq!(bytes, b"public");
            }
            let _: folio::Result<()> = p.chmod("/h/f", 0o666);
            let _: folio::Result<()> = p.chown("/h/f", Some(1), Some(1));
            let _: folio::Result<()> = p.truncate("/h/f", 6);
            let _: folio::Result<()> = p.setxattr("/h/f", b"user.a", b"1", XattrFlags::empty());
            let _: folio::Result<()> = p.link("/h/f", "/h/other");
            let _: folio::Result<()> = p.unlink("/h/other");
        }
    });
    check_untouched(&world);
}
