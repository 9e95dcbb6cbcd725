//! Mount options mean the same here and in the kernel: access times, and the blocks kept for root.

use crate::support::tools::{fsck, mke2fs};
use crate::support::{Mounted, requires};
use folio::block::RawDevice;
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

fn mount(image: &Path, options: &str) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    let device = RawDevice::open(image, false).unwrap();
    kernel
        .mount_ext4(
            Arc::new(device),
            "/disk",
            &MountOptions::parse(options).unwrap(),
        )
        .unwrap();
    (kernel, process)
}

/// Two reads of a file whose access time is old, a listing of its directory: which of them change
/// the access time.
const STEPS: [&str; 3] = ["first read", "second read", "listing"];

fn noted_by_the_kernel(image: &Path, options: &str) -> Vec<bool> {
    let mounted = Mounted::new(image, &format!("rw,{options}"));
    let (folder, file) = (mounted.path().join("d"), mounted.path().join("d/f"));
    let noted = STEPS.map(|step| {
        let path = if step == "listing" { &folder } else { &file };
        let before = fs::metadata(path).unwrap();
        // The second read comes after a time that is newer than the change.
        pause();
        match step {
            "listing" => assert_eq!(fs::read_dir(path).unwrap().count(), 1),
            _ => assert_eq!(File::open(path).unwrap().read(&mut [0; 10]).unwrap(), 4),
        }
        let after = fs::metadata(path).unwrap();
        (after.atime(), after.atime_nsec()) != (before.atime(), before.atime_nsec())
    });
    mounted.unmount();
    noted.to_vec()
}

fn noted_by_folio(image: &Path, options: &str) -> Vec<bool> {
    let (kernel, process) = mount(image, options);
    let noted = STEPS.map(|step| {
        let path = if step == "listing" {
            "/disk/d"
        } else {
            "/disk/d/f"
        };
        let before = process.stat(path).unwrap().accessed;
        pause();
        let fd = process.open(path, OpenFlags::empty(), 0).unwrap();
        match step {
            "listing" => assert_eq!(process.getdents(fd, 10).unwrap().len(), 3),
            _ => assert_eq!(process.read(fd, &mut [0; 10]).unwrap(), 4),
        }
        process.close(fd).unwrap();
        process.stat(path).unwrap().accessed != before
    });
    drop(process);
    kernel.unmount("/disk").unwrap();
    noted.to_vec()
}

/// Until the clock that stamps inodes has moved on.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's coarse clock moves by itself"
)]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn access_times_are_noted_as_by_the_kernel() {
    requires!(root, loop_devices, linux(5, 15), tool("mke2fs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    for options in [
        "relatime",
        "strictatime",
        "noatime",
        "nodiratime",
        "strictatime,nodiratime",
        "noatime,relatime",
    ] {
        let fresh = || {
            mke2fs(&image, "16M", &[]);
            let mounted = Mounted::new(&image, "rw");
            fs::create_dir(mounted.path().join("d")).unwrap();
            File::create(mounted.path().join("d/f"))
                .unwrap()
                .write_all(b"text")
                .unwrap();
            mounted.unmount();
        };
        fresh();
        let kernel = noted_by_the_kernel(&image, options);
        fresh();
        let ours = noted_by_folio(&image, options);
        // Of two words the kernel takes noatime whatever comes later, mount(8) and Folio the later
        // one.
        if options != "noatime,relatime" {
            assert_eq!(ours, kernel, "{options}: {STEPS:?}");
        }
        fs::remove_file(&image).unwrap();
    }
}

/// Blocks that are left when user 5 has written all that fits.
fn left_by_the_kernel(image: &Path, options: &str) -> u64 {
    let mounted = Mounted::new(image, &format!("rw,{options}"));
    let root = mounted.path();
    chown(&root, Some(5), Some(5)).unwrap();
    // The mount's folder is root's alone otherwise.
    let file = root.join("f");
    let script = format!(
        "dd if=/dev/zero of={} bs=1k 2>/dev/null; sync",
        file.display()
    );
    let setpriv = [
        "--reuid=5",
        "--regid=5",
        "--clear-groups",
        "--inh-caps=-all",
        "sh",
        "-c",
        &script,
    ];
    fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let parent = root.parent().unwrap().to_path_buf();
    assert!(parent.is_dir());
    Command::new("setpriv").args(setpriv).status().unwrap();
    let left = rustix::fs::statvfs(&root).unwrap().f_bfree;
    mounted.unmount();
    left
}

fn left_by_folio(image: &Path, options: &str) -> u64 {
    let (kernel, root) = mount(image, options);
    root.chown("/disk", Some(5), Some(5)).unwrap();
    let user = kernel.process(Credentials::user(5, 5, Vec::new()));
    let fd = user
        .open("/disk/f", OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)
        .unwrap();
    loop {
        while user.write(fd, &[0; 1024]).is_ok() {}
        // What was promised for the worst placement of delayed blocks is free again.
        root.sync().unwrap();
        if user.write(fd, &[0; 1024]).is_err() {
            break;
        }
    }
    user.close(fd).unwrap();
    root.sync().unwrap();
    let left = root.statfs("/disk").unwrap().blocks_free;
    drop((root, user));
    kernel.unmount("/disk").unwrap();
    left
}

#[test]
fn the_last_blocks_are_kept_as_by_the_kernel() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("mke2fs"),
        tool("e2fsck"),
        tool("setpriv")
    );
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    for (options, may) in [
        ("resuid=0", false),
        ("resuid=5", true),
        ("resgid=5", true),
        ("resgid=6", false),
    ] {
        let left = [left_by_the_kernel, left_by_folio].map(|fill| {
            mke2fs(&image, "32M", &["-b", "1024", "-m", "10"]);
            let left = fill(&image, options);
            fsck(&image);
            fs::remove_file(&image).unwrap();
            left
        });
        for left in left {
            // A tenth of 32768 blocks is kept; the kernel keeps some more for its own bookkeeping.
            assert_eq!(
                left < 1500,
                may,
                "{options}: kernel, folio: {left:?} blocks are left"
            );
            assert!(may || (3276..6000).contains(&left), "{options}: {left:?}");
        }
    }
}
