//! The use of an image: mounts it, reads all of it, makes changes of every kind. Errors are
//! allowed.

use folio::base::{Clock, Timespec};
use folio::block::{Device, OverlayDevice};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags, Process};
use folio::vfs::{FallocateMode, FileType, MountOptions, XattrFlags};
use folio::{Kernel, KernelOptions};
use std::sync::Arc;

/// The byte of all file data, so that only metadata is damaged.
pub const DATA: u8 = 0xDA;
/// Names visited in one walk, at most: a directory may contain itself.
pub const NAMES_MAX: usize = 4000;
/// A fixed time, the same in each run.
pub const CLOCK: Clock = Clock::Fixed(Timespec::new(1_700_000_000, 0));

/// Returns a kernel with a small cache, no threads and a mount point.
pub fn kernel() -> (Arc<Kernel>, Process) {
    let options = KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        clock: CLOCK,
        ..KernelOptions::default()
    };
    let kernel = Kernel::new(options);
    let process = kernel.process(Credentials::root());
    process
        .mkdir("/disk", 0o755)
        .expect("a ramfs takes a directory");
    (kernel, process)
}

/// Mounts `device` read-only and reads all of it, then mounts it for writing and changes it.
/// Returns the number of names found. An error of the mount must name the file system.
pub fn image(device: &Arc<dyn Device>) -> usize {
    let mut names = 0;
    for read_only in [true, false] {
        let (kernel, process) = kernel();
        let options = MountOptions {
            read_only,
            clock: CLOCK,
            ..MountOptions::default()
        };
        let layer: Arc<dyn Device> = Arc::new(OverlayDevice::new(device.clone()));
        match kernel.mount_ext4(layer, "/disk", &options) {
            Err(error) => assert!(
                error.to_string().contains("ext4"),
                "the error names no structure: {error}"
            ),
            Ok(()) => {
                names += read_all(&process);
                if !read_only {
                    change(&process);
                }
            }
        }
        drop(process);
        let _: folio::Result<()> = kernel.unmount("/disk");
    }
    names
}

/// Reads all files and attributes, ignoring errors. Returns the number of names found.
pub fn read_all(process: &Process) -> usize {
    let mut waiting = vec!["/disk".to_owned()];
    let mut names_left = NAMES_MAX;
    while let Some(path) = waiting.pop() {
        let Ok(dir) = process.open(&path, OpenFlags::DIRECTORY, 0) else {
            continue;
        };
        while let Ok(entries) = process.getdents(dir, 100) {
            if entries.is_empty() || names_left == 0 {
                break;
            }
            for entry in entries {
                names_left = names_left.saturating_sub(1);
                let Ok(name) = String::from_utf8(entry.name) else {
                    continue;
                };
                let at = format!("{path}/{name}");
                let is_directory = read_name(process, &at) == Some(FileType::Directory);
                if is_directory && name != "." && name != ".." && path.len() < 400 {
                    waiting.push(at);
                }
            }
        }
        let _ = process.close(dir);
    }
    NAMES_MAX - names_left
}

/// Reads one name: attributes, extended attributes, some data.
fn read_name(process: &Process, path: &str) -> Option<FileType> {
    let found = process
        .fstatat(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .ok()?;
    for xattr in process.llistxattr(path).unwrap_or_default() {
        let _ = process.lgetxattr(path, &xattr);
    }
    match found.file_type {
        FileType::Symlink => drop(process.readlink(path)),
        FileType::Regular => {
            if let Ok(fd) = process.open(path, OpenFlags::empty(), 0) {
                let mut buf = vec![0; 64 << 10];
                for offset in [0, 8192, 1 << 20, found.size_bytes.saturating_sub(10)] {
                    let _ = process.pread(fd, &mut buf, offset);
                }
                let _ = process.close(fd);
            }
        }
        _ => {}
    }
    Some(found.file_type)
}

/// Makes a few changes of every kind.
pub fn change(process: &Process) {
    let flags = OpenFlags::CREAT | OpenFlags::RDWR;
    for i in 0..20 {
        if let Ok(fd) = process.open(format!("/disk/many/new-{i}"), flags, 0o644) {
            let _ = process.write(fd, &[DATA; 5000]);
            let _ = process.close(fd);
        }
        let _ = process.unlink(format!("/disk/many/a-rather-long-name-{i}"));
    }
    if let Ok(fd) = process.open("/disk/fragments", OpenFlags::RDWR, 0) {
        let _ = process.fallocate(fd, FallocateMode::PunchHole, 16 << 10, 8 << 10);
        let _ = process.pwrite(fd, &[DATA; 3000], 40 << 10);
        let _ = process.close(fd);
    }
    let _ = process.truncate("/disk/fragments", 100_000);
    let _ = process.truncate("/disk/file", 0);
    let _ = process.rename("/disk/many", "/disk/deep/many");
    let _ = process.setxattr("/disk/file", b"user.more", &[1; 300], XattrFlags::empty());
    let _ = process.removexattr("/disk/file", b"user.large");
    let _ = process.unlink("/disk/hard");
    let _ = process.unlink("/disk/long");
    let _ = process.rmdir("/disk/deep/deep/deep/deep");
    let _ = process.mkdir("/disk/fresh", 0o755);
    let _ = process.sync();
}
