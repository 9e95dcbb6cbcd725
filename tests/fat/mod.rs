//! FAT12, FAT16 and FAT32: random operations against a model, damaged images, full ones, names;
//! judged by fsck.vfat and mtools.

mod damage;
mod format;
mod freeze;
mod model;
mod mtools;
mod names;
mod space;
mod threads;

use crate::support::tools::run;
use folio::block::{Device, MemoryDevice};
use folio::fat::{self, FatOptions, FatWidth};
use folio::vfs::MountOptions;
use folio::{Errno, Fs, Kernel, KernelOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// The widths, each with the size of a small disk.
const WIDTHS: [(FatWidth, u64); 3] = [
    (FatWidth::Fat12, 6 << 20),
    (FatWidth::Fat16, 20 << 20),
    (FatWidth::Fat32, 36 << 20),
];

fn formatted(width: FatWidth, len_bytes: u64) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(len_bytes));
    let mut options = FatOptions::default();
    options.width = width;
    options.label = "TEST".to_owned();
    options.volume_id = 0x1234_5678;
    fat::format(&device, &options).unwrap();
    assert_eq!(FatWidth::of(&device).unwrap(), width);
    device
}

fn mounted(device: &Arc<dyn Device>) -> Fs {
    try_mount(device).unwrap()
}

fn try_mount(device: &Arc<dyn Device>) -> folio::Result<Fs> {
    let options = KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        ..KernelOptions::default()
    };
    let kernel = Kernel::new(options);
    kernel.mount_image(device.clone(), "/", &MountOptions::default())?;
    Ok(Fs::new(kernel))
}

fn bytes_of(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.len_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Writes a disk, which is not mounted, to a file.
fn stored(device: &Arc<dyn Device>) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("fat.img");
    std::fs::write(&path, bytes_of(device)).unwrap();
    (dir, path)
}

/// Asserts that fsck.vfat has nothing to say about a disk that is not mounted.
#[track_caller]
fn assert_clean(device: &Arc<dyn Device>) {
    let (_dir, path) = stored(device);
    let said = run("fsck.vfat", ["-n".as_ref(), path.as_os_str()]);
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    let error = result.unwrap_err();
    let inner = error.get_ref().and_then(|error| error.downcast_ref());
    let found = inner.map_or(Errno::from_io_error(&error), |inner: &folio::Error| {
        Some(inner.errno())
    });
    assert_eq!(found, Some(errno), "{error}");
}

fn names(fs: &Fs, path: &str) -> Vec<String> {
    let entries = fs.read_dir(path).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}
