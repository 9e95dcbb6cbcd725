//! Names and attributes: changes through Folio reach the host.

use super::{World, errno, support, write_host};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags};
use folio::vfs::{MountOptions, RenameFlags, XattrFlags};
use folio::{Errno, Kernel, KernelOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn new_inodes_ignore_the_hosts_umask() {
    requires!(root);
    let world = World::new("ttl=0");
    let p = world.kernel.process(Credentials::user(7, 8, Vec::new()));
    std::fs::set_permissions(world.host(""), PermissionsExt::from_mode(0o777)).unwrap();
    p.umask(0o001);
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let fd = p
        .open("/h/f", OpenFlags::CREAT | OpenFlags::WRONLY, 0o666)
        .unwrap();
    p.close(fd).unwrap();
    p.mkdir("/h/d", 0o777).unwrap();
    p.symlink("target", "/h/l").unwrap();
    rustix::process::umask(before);
    for (name, mode) in [("f", 0o666), ("d", 0o776)] {
        let stat = std::fs::metadata(world.host(name)).unwrap();
        assert_eq!(
            (stat.mode() & 0o7777, stat.uid(), stat.gid()),
            (mode, 7, 8),
            "{name}"
        );
    }
    let stat = std::fs::symlink_metadata(world.host("l")).unwrap();
    assert_eq!((stat.uid(), stat.gid()), (7, 8));
    assert_eq!(
        std::fs::read_link(world.host("l")).unwrap().to_str(),
        Some("target")
    );
}

#[test]
fn read_only_file_is_writable_by_its_creator() {
    let world = World::new("");
    let p = &world.p;
    let fd = p
        .open("/h/object", OpenFlags::CREAT | OpenFlags::WRONLY, 0o444)
        .unwrap();
    p.pwrite(fd, b"git", 0).unwrap();
    p.close(fd).unwrap();
    assert_eq!(std::fs::read(world.host("object")).unwrap(), b"git");
}

#[test]
fn renames_match_the_host() {
    for words in ["ttl=0,push=off", "ttl=inf,push=off", "push=inotify"] {
        let world = World::new(words);
        let p = &world.p;
        world.write("/h/a", b"a").unwrap();
        world.write("/h/b", b"b").unwrap();
        p.mkdir("/h/d", 0o755).unwrap();
        let rename = |from: &str, to: &str, flags| p.renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
        assert_eq!(
            errno(rename("/h/a", "/h/b", RenameFlags::NOREPLACE)),
            Some(Errno::EXIST)
        );
        rename("/h/a", "/h/b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(
            (world.read("/h/a").unwrap(), world.read("/h/b").unwrap()),
            (b"b".to_vec(), b"a".to_vec())
        );
        rename("/h/a", "/h/d/c", RenameFlags::NOREPLACE).unwrap();
        rename("/h/b", "/h/d/c", RenameFlags::empty()).unwrap();
        assert_eq!(std::fs::read(world.host("d/c")).unwrap(), b"a");
        rename("/h/d", "/h/e", RenameFlags::empty()).unwrap();
        assert_eq!(world.read("/h/e/c").unwrap(), b"a");
        assert_eq!(world.list("/h"), ["e"]);
        assert_eq!(errno(p.stat("/h/d")), Some(Errno::NOENT));
        // An open file and a working directory stay usable.
        p.chdir("/h/e").unwrap();
        let fd = p.open("c", OpenFlags::RDWR, 0).unwrap();
        p.mkdir("/h/x", 0o755).unwrap();
        rename("/h/e", "/h/x/e", RenameFlags::empty()).unwrap();
        assert_eq!(world.read("c").unwrap(), b"a");
        p.unlink("c").unwrap();
        p.pwrite(fd, b"gone", 0).unwrap();
        assert_eq!(super::read_all(p, fd).unwrap(), b"gone");
        assert_eq!(p.fstat(fd).unwrap().link_count, 0, "{words}");
        p.close(fd).unwrap();
        p.chdir("/").unwrap();
        p.rmdir("/h/x/e").unwrap();
        p.rmdir("/h/x").unwrap();
        assert_eq!(world.list("/h"), [""; 0]);
    }
}

#[test]
fn unnamed_file_can_be_linked() {
    let world = World::new("ttl=0");
    let p = &world.p;
    let flags = OpenFlags::TMPFILE | OpenFlags::RDWR;
    let fd = p.open("/h", flags, 0o640).unwrap();
    p.pwrite(fd, b"made whole", 0).unwrap();
    assert_eq!(world.list("/h"), [""; 0]);
    p.linkat(fd, "", AT_FDCWD, "/h/named", AtFlags::EMPTY_PATH)
        .unwrap();
    p.close(fd).unwrap();
    assert_eq!(std::fs::read(world.host("named")).unwrap(), b"made whole");
    assert_eq!(p.stat("/h/named").unwrap().link_count, 1);
}

#[test]
fn long_listing_continues_at_its_cookie() {
    let world = World::new("push=off");
    let p = &world.p;
    for number in 0..3000 {
        write_host(
            &world.host(&format!("a file with a rather long name {number:05}")),
            b"",
        );
    }
    let fd = p.open("/h", OpenFlags::DIRECTORY, 0).unwrap();
    let mut names = Vec::new();
    loop {
        let entries = p.getdents(fd, 100).unwrap();
        if entries.is_empty() {
            break;
        }
        names.extend(entries.into_iter().map(|entry| entry.name));
        // An external writer changes the directory meanwhile.
        std::fs::remove_file(world.host("victim")).ok();
        write_host(&world.host("victim"), b"");
    }
    p.close(fd).unwrap();
    names.retain(|name| name.starts_with(b"a file"));
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!((count, names.len()), (3000, 3000));
    assert_eq!(world.list("/h").len(), 3001);
}

#[test]
fn tree_deeper_than_descriptor_limit_is_walked() {
    let world = World::new("ttl=0,push=off");
    let p = &world.p;
    let mut path = String::from("/h");
    for depth in 0..60 {
        path.push_str(&format!("/d{depth}"));
        p.mkdir(&path, 0o755).unwrap();
    }
    world.write(&format!("{path}/f"), b"deep").unwrap();
    assert_eq!(world.read(&format!("{path}/f")).unwrap(), b"deep");
    assert_eq!(p.stat(format!("{path}/..")).unwrap().link_count, 3);
}

#[test]
fn xattrs_and_acls_are_stored_on_the_host() {
    requires!(root);
    let world = World::new("ttl=0,map=u:0:0:1000,map=u:1000:5000:1000");
    let p = &world.p;
    world.write("/h/f", b"1").unwrap();
    p.setxattr("/h/f", b"user.colour", b"red", XattrFlags::CREATE)
        .unwrap();
    assert_eq!(p.getxattr("/h/f", b"user.colour").unwrap(), b"red");
    assert_eq!(p.listxattr("/h/f").unwrap(), [b"user.colour".to_vec()]);
    let mut value = [0; 16];
    let read = rustix::fs::getxattr(world.host("f"), c"user.colour", &mut value).unwrap();
    assert_eq!(&value[..read], b"red");
    p.removexattr("/h/f", b"user.colour").unwrap();
    assert_eq!(
        errno(p.getxattr("/h/f", b"user.colour")),
        Some(Errno::NODATA)
    );
    // User 1001 inside is 5001 on the host.
    let entry = |tag: u16, bits: u16, id: u32| {
        [
            tag.to_le_bytes().to_vec(),
            bits.to_le_bytes().to_vec(),
            id.to_le_bytes().to_vec(),
        ]
        .concat()
    };
    let acl = |uid| {
        let none = u32::MAX;
        [
            vec![2, 0, 0, 0],
            entry(1, 6, none),
            entry(2, 4, uid),
            entry(4, 0, none),
            entry(16, 4, none),
            entry(32, 0, none),
        ]
        .concat()
    };
    p.setxattr(
        "/h/f",
        b"system.posix_acl_access",
        &acl(1001),
        XattrFlags::empty(),
    )
    .unwrap();
    let mut value = [0; 64];
    let read =
        rustix::fs::getxattr(world.host("f"), c"system.posix_acl_access", &mut value).unwrap();
    assert_eq!(&value[..read], acl(5001));
    assert_eq!(
        p.getxattr("/h/f", b"system.posix_acl_access").unwrap(),
        acl(1001)
    );
    let may = |uid| {
        let user = world
            .kernel
            .process(Credentials::user(uid, uid, Vec::new()));
        user.access("/h/f", 4).is_ok()
    };
    assert!(may(1001) && !may(1002));
}

#[test]
fn owners_are_mapped() {
    requires!(root);
    let world = World::new("ttl=0,map=u:0:1000:10,map=g:0:2000:10");
    let p = &world.p;
    world.write("/h/f", b"1").unwrap();
    let stat = std::fs::metadata(world.host("f")).unwrap();
    assert_eq!((stat.uid(), stat.gid()), (1000, 2000));
    p.chown("/h/f", Some(3), Some(4)).unwrap();
    let stat = std::fs::metadata(world.host("f")).unwrap();
    assert_eq!((stat.uid(), stat.gid()), (1003, 2004));
    let seen = p.stat("/h/f").unwrap();
    assert_eq!((seen.uid, seen.gid), (3, 4));
    assert_eq!(errno(p.chown("/h/f", Some(10), None)), Some(Errno::INVAL));
    std::os::unix::fs::chown(world.host("f"), Some(0), Some(0)).unwrap();
    let seen = p.stat("/h/f").unwrap();
    assert_eq!((seen.uid, seen.gid), (65534, 65534));

    let world = World::new("ttl=0,squash=5:6");
    world.write("/h/f", b"1").unwrap();
    let seen = world.p.stat("/h/f").unwrap();
    assert_eq!((seen.uid, seen.gid), (5, 6));
    assert_eq!(std::fs::metadata(world.host("f")).unwrap().uid(), 0);
}

#[test]
fn read_only_share_is_not_changed() {
    let world = World::new("ro,ttl=0");
    write_host(&world.host("f"), b"1");
    let p = &world.p;
    assert_eq!(world.read("/h/f").unwrap(), b"1");
    assert_eq!(errno(p.open("/h/f", OpenFlags::RDWR, 0)), Some(Errno::ROFS));
    assert_eq!(errno(p.mkdir("/h/d", 0o755)), Some(Errno::ROFS));
    assert_eq!(errno(p.unlink("/h/f")), Some(Errno::ROFS));
    assert_eq!(errno(p.chmod("/h/f", 0o600)), Some(Errno::ROFS));
    assert_eq!(errno(p.truncate("/h/f", 0)), Some(Errno::ROFS));
    assert_eq!(std::fs::read(world.host("f")).unwrap(), b"1");
}

#[test]
fn inode_numbers_of_several_devices_differ() {
    requires!(root);
    let world = World::new("ttl=0");
    std::fs::create_dir(world.host("proc")).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(world.host("proc"))
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        support::report_skip("no tmpfs can be mounted here");
        return;
    }
    write_host(&world.host("proc/f"), b"1");
    let p = &world.p;
    let seen = [
        p.stat("/h").unwrap(),
        p.stat("/h/proc").unwrap(),
        p.stat("/h/proc/f").unwrap(),
    ];
    let listed = p.open("/h/proc", OpenFlags::DIRECTORY, 0).unwrap();
    let entries = p.getdents(listed, 100).unwrap();
    p.close(listed).unwrap();
    let found: Option<u64> = entries
        .iter()
        .find(|entry| entry.name == b"f")
        .map(|entry| entry.number);
    rustix::mount::unmount(world.host("proc"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(
        seen[1].number.0 >> 48 == 1 && seen[2].number.0 >> 48 == 1 && seen[0].number.0 >> 48 == 0,
        "{seen:?}"
    );
    assert_eq!(found, Some(seen[2].number.0));
}

#[test]
fn failed_mount_names_the_path() {
    let kernel = Kernel::new(KernelOptions::default());
    let folder = tempfile::tempdir().unwrap();
    let mount = |path: &std::path::Path, words: &str| {
        kernel.mount_hostfs(path, "/", &MountOptions::parse(words).unwrap())
    };
    let error = mount(folder.path(), "colour=red").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("unknown mount option \"colour=red\""),
        "{error}"
    );
    assert_eq!(
        errno(mount(&folder.path().join("nothing"), "")),
        Some(Errno::NOENT)
    );
    write_host(&folder.path().join("file"), b"");
    assert_eq!(
        errno(mount(&folder.path().join("file"), "")),
        Some(Errno::NOTDIR)
    );
    mount(folder.path(), "").unwrap();
    let p = kernel.process(Credentials::root());
    assert_eq!(p.stat("/file").unwrap().size_bytes, 0);
}
