//! A damaged squashfs or erofs, which is mounted and read.

use super::exercise::CLOCK;
use folio::block::{Device, MemoryDevice};
use folio::syscall::OpenFlags;
use folio::vfs::{FileType, MountOptions};
use folio::{Fs, Kernel, KernelOptions};
use std::path::Path;
use std::sync::Arc;

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// The size of the device is a multiple of this: stored inputs lack the zeros at the end.
const BLOCK_BYTES: u64 = 4096;
/// Names that are visited, at most.
const NAMES_MAX: usize = 1000;
/// Most bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Mounts `data` as a squashfs, and reads it.
pub fn squashfs(data: &[u8]) {
    image(data, b"hsqs", 0);
}

/// Mounts `data` as an erofs, and reads it.
pub fn erofs(data: &[u8]) {
    image(data, &[0xE2, 0xE1, 0xF5, 0xE0], 1024);
}

fn image(data: &[u8], magic: &[u8], magic_offset: u64) {
    let data = &data[..data.len().min(INPUT_BYTES_MAX)];
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(
        (data.len() as u64).next_multiple_of(BLOCK_BYTES),
    ));
    // Damage of the magic number is not of interest.
    let written = device
        .write_at(data, 0)
        .and_then(|()| device.write_at(magic, magic_offset));
    if written.is_err() {
        return;
    }
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        clock: CLOCK,
        ..KernelOptions::default()
    });
    if kernel
        .mount_image(device, "/", &MountOptions::default())
        .is_err()
    {
        return;
    }
    let fs = Fs::new(kernel);
    let _ = fs.statistics("/");
    for entry in fs.walk("/").into_iter().flatten().take(NAMES_MAX) {
        let Ok(entry) = entry else {
            break;
        };
        read_file(&fs, entry.path());
    }
}

/// Reads one file: attributes, extended attributes, some data.
fn read_file(fs: &Fs, path: &Path) {
    let process = fs.process();
    for xattr in process.llistxattr(path).unwrap_or_default() {
        let _ = process.lgetxattr(path, &xattr);
    }
    let Ok(found) = process.lstat(path) else {
        return;
    };
    match found.file_type {
        FileType::Symlink => drop(process.readlink(path)),
        FileType::Regular => {
            let Ok(fd) = process.open(path, OpenFlags::empty(), 0) else {
                return;
            };
            let mut buf = vec![0; READ_BYTES];
            for offset in [0, 1 << 16, found.size_bytes.saturating_sub(10)] {
                let _ = process.pread(fd, &mut buf, offset);
            }
            let _ = process.close(fd);
        }
        _ => {}
    }
}
