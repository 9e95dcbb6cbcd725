//! Mount options: access times, durability, reserved blocks, xattr namespaces.

use crate::{CREATE, fails, read, tick, ticking_world, user, write};
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::{MountOptions, XattrFlags};
use folio::{Errno, Kernel, KernelOptions, Process};
use std::sync::Arc;

fn options(text: &str) -> MountOptions {
    MountOptions::parse(text).unwrap()
}

/// Returns an ext4 mounted with `text`, and a root process with umask 0.
fn disk(len_bytes: u64, text: &str) -> (Arc<MemoryDevice>, Arc<Kernel>, Process) {
    let device = Arc::new(MemoryDevice::new(len_bytes));
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let (kernel, p) = mount(device.clone(), text);
    (device, kernel, p)
}

fn mount(device: Arc<MemoryDevice>, text: &str) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let p = kernel.process(Credentials::root());
    p.umask(0);
    p.mkdir("/disk", 0o755).unwrap();
    kernel.mount_ext4(device, "/disk", &options(text)).unwrap();
    (kernel, p)
}

/// Returns the disk as it would be after a power cut now.
fn after_power_cut(device: &MemoryDevice) -> (Arc<Kernel>, Process) {
    let mut bytes = vec![0; device.len_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    let copy = Arc::new(MemoryDevice::new(device.len_bytes()));
    copy.write_at(&bytes, 0).unwrap();
    mount(copy, "")
}

#[test]
fn access_times_follow_mount_options() {
    for (text, first, again, directory) in [
        ("", true, false, true),
        ("noatime", false, false, false),
        ("strictatime", true, true, true),
        ("nodiratime", true, false, false),
        ("strictatime,nodiratime", true, true, false),
        ("ro,strictatime,rw,noatime,relatime", true, false, true),
    ] {
        let (kernel, p) = ticking_world();
        p.mkdir("/m", 0o755).unwrap();
        kernel.mount_ramfs("/m", &options(text)).unwrap();
        p.mkdir("/m/d", 0o755).unwrap();
        write(&p, "/m/d/f", b"text");
        let accessed = |path: &str| p.stat(path).unwrap().accessed;
        let mut before = accessed("/m/d/f");
        for is_noted in [first, again] {
            tick(&p);
            read(&p, "/m/d/f");
            let now = accessed("/m/d/f");
            assert_eq!(now > before, is_noted, "{text}");
            before = now;
        }
        let before = accessed("/m/d");
        tick(&p);
        let fd = p.open("/m/d", OpenFlags::DIRECTORY, 0).unwrap();
        p.getdents(fd, 10).unwrap();
        p.close(fd).unwrap();
        assert_eq!(accessed("/m/d") > before, directory, "{text}");
    }
}

#[test]
fn sync_mount_makes_changes_durable() {
    for (text, has_name, has_data) in [
        ("", false, false),
        ("dirsync", true, false),
        ("sync", true, true),
    ] {
        let (device, _kernel, p) = disk(16 << 20, text);
        p.mkdir("/disk/d", 0o755).unwrap();
        let fd = p.open("/disk/d/f", CREATE, 0o644).unwrap();
        let (_k, cut) = after_power_cut(&device);
        assert_eq!(cut.stat("/disk/d/f").is_ok(), has_name, "{text}: create");
        p.write(fd, b"text").unwrap();
        let (_k, cut) = after_power_cut(&device);
        let is_there = cut
            .stat("/disk/d/f")
            .is_ok_and(|found| found.size_bytes == 4);
        assert_eq!(
            is_there && read(&cut, "/disk/d/f") == b"text",
            has_data,
            "{text}: write"
        );
        p.ftruncate(fd, 2).unwrap();
        p.setxattr("/disk/d/f", b"user.a", b"b", XattrFlags::empty())
            .unwrap();
        p.chmod("/disk/d/f", 0o600).unwrap();
        let (_k, cut) = after_power_cut(&device);
        let found = cut.stat("/disk/d/f");
        let is_changed = found.is_ok_and(|found| (found.size_bytes, found.mode) == (2, 0o600));
        assert_eq!(is_changed, has_data, "{text}: truncate and chmod");
        assert_eq!(
            cut.getxattr("/disk/d/f", b"user.a").is_ok(),
            has_data,
            "{text}: setxattr"
        );
        p.link("/disk/d/f", "/disk/g").unwrap();
        p.mkdir("/disk/e", 0o755).unwrap();
        p.rename("/disk/d/f", "/disk/e/f").unwrap();
        p.symlink("f", "/disk/s").unwrap();
        let (_k, cut) = after_power_cut(&device);
        for (path, is_there) in [
            ("/disk/g", has_name),
            ("/disk/e/f", has_name),
            ("/disk/d/f", false),
        ] {
            assert_eq!(cut.stat(path).is_ok(), is_there, "{text}: {path}");
        }
        assert_eq!(cut.readlink("/disk/s").is_ok(), has_name, "{text}: symlink");
        p.unlink("/disk/g").unwrap();
        p.rmdir("/disk/d").unwrap();
        let (_k, cut) = after_power_cut(&device);
        assert!(
            cut.stat("/disk/g").is_err() && cut.stat("/disk/d").is_err(),
            "{text}: removal"
        );
    }
}

/// Writes until there is no space, then into reserved space; returns the number of written blocks.
fn fill(p: &Process, path: &str) -> u64 {
    let mut count = 0;
    loop {
        let more = fill_once(p, path);
        p.sync().unwrap();
        count += more;
        if more == 0 {
            return count;
        }
    }
}

fn fill_once(p: &Process, path: &str) -> u64 {
    let fd = p.open(path, CREATE | OpenFlags::APPEND, 0o666).unwrap();
    let block = vec![7; 1024];
    let mut count = 0;
    loop {
        match p.write(fd, &block) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                break;
            }
        }
    }
    p.close(fd).unwrap();
    count
}

#[test]
fn reserved_blocks_are_for_root_and_owners() {
    for (text, ids, may) in [
        ("", (5, 5), false),
        ("resuid=5", (5, 5), true),
        ("resuid=6", (5, 5), false),
        ("resgid=5", (6, 5), true),
        ("resgid=5", (5, 6), false),
        ("", (0, 0), true),
    ] {
        let (_device, kernel, p) = disk(16 << 20, text);
        p.chmod("/disk", 0o777).unwrap();
        let before = p.statfs("/disk").unwrap();
        let kept = before.blocks_free - before.blocks_available;
        assert!(kept > 500, "{before:?}");
        fill(&user(&kernel, ids.0, ids.1, &[]), "/disk/f");
        let after = p.statfs("/disk").unwrap();
        assert_eq!(after.blocks_available, 0);
        let left = after.blocks_free;
        assert_eq!(
            left < kept / 2,
            may,
            "{text}: {left} of {kept} blocks are left"
        );
        assert!(
            may || left >= kept,
            "{text}: {left} of {kept} blocks are left"
        );
        // Allocated blocks can be overwritten.
        let owner = user(&kernel, ids.0, ids.1, &[]);
        let fd = owner.open("/disk/f", OpenFlags::WRONLY, 0).unwrap();
        owner.pwrite(fd, b"again", 0).unwrap();
        owner.close(fd).unwrap();
        if !may {
            fails! {
                owner.mkdir("/disk/d", 0o755) => NOSPC,
                owner.symlink("x".repeat(200), "/disk/s") => NOSPC,
            }
            assert!(fill(&p, "/disk/g") > kept / 2, "root goes on");
        }
    }
}

#[test]
fn disabled_xattr_namespaces_are_rejected() {
    let (device, kernel, p) = disk(16 << 20, "");
    write(&p, "/disk/f", b"text");
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0,
        255, 255, 255, 255,
    ];
    let acl_name = b"system.posix_acl_access";
    p.setxattr("/disk/f", b"user.a", b"b", XattrFlags::empty())
        .unwrap();
    p.setxattr("/disk/f", b"trusted.a", b"b", XattrFlags::empty())
        .unwrap();
    p.setxattr("/disk/f", acl_name, &acl, XattrFlags::empty())
        .unwrap();
    drop(p);
    kernel.unmount("/disk").unwrap();
    let (_kernel, p) = mount(device, "nouser_xattr,noacl");
    assert_eq!(p.listxattr("/disk/f").unwrap(), [b"trusted.a".to_vec()]);
    assert_eq!(p.getxattr("/disk/f", b"trusted.a").unwrap(), b"b");
    fails! {
        p.getxattr("/disk/f", b"user.a") => OPNOTSUPP,
        p.setxattr("/disk/f", b"user.a", b"c", XattrFlags::empty()) => OPNOTSUPP,
        p.removexattr("/disk/f", b"user.a") => OPNOTSUPP,
        p.getxattr("/disk/f", acl_name) => OPNOTSUPP,
        p.setxattr("/disk/f", acl_name, &acl, XattrFlags::empty()) => OPNOTSUPP,
    }
    p.chmod("/disk/f", 0o600).unwrap();
}

#[test]
fn unknown_option_is_rejected_by_name() {
    let (kernel, p) = ticking_world();
    p.mkdir("/m", 0o755).unwrap();
    let device = Arc::new(MemoryDevice::new(16 << 20));
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let words = options("noatime,foo");
    let errors = [
        kernel.mount_ext4(device, "/m", &words).unwrap_err(),
        kernel.mount_ramfs("/m", &words).unwrap_err(),
        kernel.mount_tmpfs("/m", &words).unwrap_err(),
    ];
    for (error, file_system) in errors.iter().zip(["ext4", "ramfs", "tmpfs"]) {
        assert_eq!(error.errno(), Errno::INVAL);
        assert!(
            error
                .to_string()
                .ends_with(&format!("{file_system}: unknown mount option \"foo\"")),
            "{error}"
        );
    }
}

/// With lazytime, a changed time waits for a sync of its file or of the file system, or for another
/// change of the inode.
#[test]
fn lazytime_defers_times() {
    let accessed = |p: &Process| p.stat("/disk/f").unwrap().accessed;
    for (text, is_lazy) in [("strictatime", false), ("strictatime,lazytime", true)] {
        let (device, _kernel, p) = disk(16 << 20, text);
        write(&p, "/disk/f", b"text");
        write(&p, "/disk/other", b"text");
        p.sync().unwrap();
        let before = accessed(&p);
        let later = |path: &str| {
            tick(&p);
            read(&p, path);
            assert!(accessed(&p) > before, "{text}: seen in memory");
            // A sync of another file commits the whole transaction.
            let fd = p.open("/disk/other", CREATE, 0).unwrap();
            p.pwrite(fd, &[1; 5000], 0).unwrap();
            p.fsync(fd).unwrap();
            p.close(fd).unwrap();
            let (_k, cut) = after_power_cut(&device);
            accessed(&cut)
        };
        assert_eq!(later("/disk/f") > before, !is_lazy, "{text}");
        let fd = p.open("/disk/f", CREATE, 0).unwrap();
        p.fdatasync(fd).unwrap();
        let (_k, cut) = after_power_cut(&device);
        assert_eq!(accessed(&cut) > before, !is_lazy, "{text}: fdatasync");
        p.fsync(fd).unwrap();
        let (_k, cut) = after_power_cut(&device);
        assert_eq!(accessed(&cut), accessed(&p), "{text}: fsync");
        later("/disk/f");
        p.fchmod(fd, 0o600).unwrap();
        p.fsync(p.open("/disk/other", CREATE, 0).unwrap()).unwrap();
        p.close(fd).unwrap();
        p.sync().unwrap();
        let (_k, cut) = after_power_cut(&device);
        assert_eq!(accessed(&cut), accessed(&p), "{text}: sync");
        read(&p, "/disk/f");
        // An inode deleted meanwhile is freed.
        p.unlink("/disk/f").unwrap();
        let free = p.statfs("/disk").unwrap().inodes_free;
        p.sync().unwrap();
        assert_eq!(p.statfs("/disk").unwrap().inodes_free, free);
    }
}
