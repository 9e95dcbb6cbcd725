//! The fuzz targets' entry: a damaged squashfs or erofs, which is mounted and read. Not public API.

use crate::{Kind, mount};
use folio::base::{Clock, Timespec};
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
/// A fixed time, the same in each run.
const CLOCK: Clock = Clock::Fixed(Timespec::new(1_700_000_000, 0));

/// Mounts `data` as a squashfs, and reads it.
pub fn squashfs(data: &[u8]) {
    image(data, Kind::Squashfs);
}

/// Mounts `data` as an erofs, and reads it.
pub fn erofs(data: &[u8]) {
    image(data, Kind::Erofs);
}

fn image(data: &[u8], kind: Kind) {
    let data = &data[..data.len().min(INPUT_BYTES_MAX)];
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(
        (data.len() as u64).next_multiple_of(BLOCK_BYTES),
    ));
    if device.write_at(data, 0).is_err() {
        return;
    }
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        clock: CLOCK,
        ..KernelOptions::default()
    });
    let Ok(mounted) = mount(device, kind, kernel.cache()) else {
        return;
    };
    if kernel
        .mount(mounted, "/", &MountOptions::default())
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

#[cfg(test)]
#[path = "../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashfs_inputs_do_not_panic() {
        replay::run("squashfs", squashfs);
    }

    #[test]
    fn erofs_inputs_do_not_panic() {
        replay::run("erofs", erofs);
    }
}
