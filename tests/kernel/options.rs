//! Mount options: access times and reserved blocks equal those of the kernel.

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

/// Steps that may update the access time: two reads of a file with an old access time, and a
/// listing of its directory.
const STEPS: [&str; 3] = ["first read", "second read", "listing"];

fn atime_updates_by_kernel(image: &Path, options: &str) -> Vec<bool> {
    let mounted = Mounted::new(image, &format!("rw,{options}"));
    let (folder, file) = (mounted.path().join("d"), mounted.path().join("d/f"));
    let updates = STEPS.map(|step| {
        let path = if step == "listing" { &folder } else { &file };
        let before = fs::metadata(path).unwrap();
        // The second read sees an access time newer than the modification.
        pause();
        match step {
            "listing" => assert_eq!(fs::read_dir(path).unwrap().count(), 1),
            _ => assert_eq!(File::open(path).unwrap().read(&mut [0; 10]).unwrap(), 4),
        }
        let after = fs::metadata(path).unwrap();
        (after.atime(), after.atime_nsec()) != (before.atime(), before.atime_nsec())
    });
    mounted.unmount();
    updates.to_vec()
}

fn atime_updates_by_folio(image: &Path, options: &str) -> Vec<bool> {
    let (kernel, process) = mount(image, options);
    let updates = STEPS.map(|step| {
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
    updates.to_vec()
}

/// Waits until the clock of inode timestamps has advanced.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for the kernel's coarse clock"
)]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn access_time_updates_equal_the_kernel() {
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
        let kernel = atime_updates_by_kernel(&image, options);
        fresh();
        let ours = atime_updates_by_folio(&image, options);
        // The kernel always prefers noatime; mount(8) and Folio use the later word.
        if options != "noatime,relatime" {
            assert_eq!(ours, kernel, "{options}: {STEPS:?}");
        }
        fs::remove_file(&image).unwrap();
    }
}

/// Returns the number of free blocks after user 5 filled the file system.
fn blocks_left_by_kernel(image: &Path, options: &str) -> u64 {
    let mounted = Mounted::new(image, &format!("rw,{options}"));
    let root = mounted.path();
    chown(&root, Some(5), Some(5)).unwrap();
    // Otherwise only root can enter the mount's folder.
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

fn blocks_left_by_folio(image: &Path, options: &str) -> u64 {
    let (kernel, root) = mount(image, options);
    root.chown("/disk", Some(5), Some(5)).unwrap();
    let user = kernel.process(Credentials::user(5, 5, Vec::new()));
    let fd = user
        .open("/disk/f", OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)
        .unwrap();
    loop {
        while user.write(fd, &[0; 1024]).is_ok() {}
        // Frees the reservation for the worst-case metadata of delayed blocks.
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
fn reserved_blocks_equal_the_kernel() {
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
        let left = [blocks_left_by_kernel, blocks_left_by_folio].map(|fill| {
            mke2fs(&image, "32M", &["-b", "1024", "-m", "10"]);
            let left = fill(&image, options);
            fsck(&image);
            fs::remove_file(&image).unwrap();
            left
        });
        for left in left {
            // A tenth of 32768 blocks is reserved; the kernel reserves some more internally.
            assert_eq!(
                left < 1500,
                may,
                "{options}: kernel, folio: {left:?} blocks are left"
            );
            assert!(may || (3276..6000).contains(&left), "{options}: {left:?}");
        }
    }
}
