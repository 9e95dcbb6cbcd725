//! A damaged FAT, which is mounted, read and changed.

use super::exercise::CLOCK;
use folio::block::{Device, MemoryDevice};
use folio::fat::FatFileSystem;
use folio::vfs::MountOptions;
use folio::{Fs, Kernel, KernelOptions};
use std::sync::Arc;

/// Size of the device: zeros follow the input, so that a small input can be a FAT16 or FAT32.
const DEVICE_BYTES: u64 = 4 << 20;
/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// Names visited in one walk, at most.
pub const NAMES_MAX: usize = 2000;

/// Mounts the FAT that begins with `data`, read-only and then for writing; reads and changes it.
pub fn fat(data: &[u8]) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    let input = &data[..data.len().min(INPUT_BYTES_MAX)];
    if device.write_at(input, 0).is_err() {
        return;
    }
    for is_read_only in [true, false] {
        let Some(fs) = mount(&device, is_read_only) else {
            continue;
        };
        let found = walk(&fs);
        if !is_read_only {
            change(&fs, &found);
            walk(&fs);
        }
        let _ = fs.close();
    }
    // What the changes left must be readable, or damaged as before.
    if let Some(fs) = mount(&device, true) {
        walk(&fs);
    }
}

fn mount(device: &Arc<dyn Device>, is_read_only: bool) -> Option<Fs> {
    let fat = FatFileSystem::mount(device.clone(), is_read_only, CLOCK).ok()?;
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        clock: CLOCK,
        ..KernelOptions::default()
    });
    kernel.mount(fat, "/", &MountOptions::default()).ok()?;
    Some(Fs::new(kernel))
}

/// Reads all of a tree, and returns its files. Errors are allowed.
pub fn walk(fs: &Fs) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut at = 0;
    while at < found.len() && found.len() < NAMES_MAX {
        let path = found[at].clone();
        at += 1;
        let is_directory = fs.metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if is_directory || path.is_empty() {
            let entries = fs.read_dir(format!("{path}/")).into_iter().flatten();
            for entry in entries.take(NAMES_MAX).map_while(Result::ok) {
                if let Some(name) = entry.file_name().to_str() {
                    found.push(format!("{path}/{name}"));
                }
            }
        } else if let Ok(file) = fs.open(&path) {
            let mut buf = vec![0; 1 << 16];
            for offset in [0, 1 << 16, u64::from(u32::MAX) - 10] {
                let _ = fs.process().pread(file.fd(), &mut buf, offset);
            }
        }
    }
    found
}

/// Changes much of a tree. Errors are allowed.
pub fn change(fs: &Fs, found: &[String]) {
    for (path, number) in found.iter().zip(0..) {
        let _ = match number % 6 {
            0 => fs.remove_file(path),
            1 => fs.rename(path, format!("/renamed {number}")),
            2 => fs.rename(path, "/SHORT.TXT"),
            3 => fs.write(path, vec![1; 3000]),
            4 => fs.create_dir(format!("{path}/new directory")),
            _ => fs
                .open_options()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(70_000)),
        };
    }
    let _ = fs.statistics("/");
    let _ = fs.sync();
}
