//! Durability beyond fsync(2): changes that no program syncs, and devices without space.
//!
//! | file | subject |
//! |---|---|
//! | `unsynced.rs` | changes reach the device without a sync, by the commit thread |
//! | `failure.rs` | damage is marked, and the mark survives a power cut |
//! | `full_device.rs` | no space below: ENOSPC, and success once there is space again |
//! | `late_writeback.rs` | writeback while a commit stops operations |

mod failure;
mod full_device;
mod late_writeback;
mod unsynced;

use crate::crash::program::copy_of;
use crate::support;

use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, CheckOptions, FormatOptions};
use folio::syscall::{Credentials, Fd, OpenFlags, Process};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::sync::Arc;
use support::tools::mke2fs;

const ROOT: &str = "/disk";

const DEVICE_BYTES: u64 = 64 << 20;

/// Returns a device with an empty ext4.
fn formatted() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(DEVICE_BYTES);
    ext4::format(&device, &FormatOptions::default()).unwrap();
    Arc::new(device)
}

/// Returns a device with an empty ext4 that has no journal.
fn without_journal() -> Arc<MemoryDevice> {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("image");
    mke2fs(&path, "64M", &["-O", "^has_journal"]);
    let device = MemoryDevice::new(DEVICE_BYTES);
    device.write_at(&std::fs::read(&path).unwrap(), 0).unwrap();
    Arc::new(device)
}

/// Mounts a device with these mount options, and with threads or without.
fn mounted(device: Arc<dyn Device>, options: &str, has_threads: bool) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: has_threads,
        // The age of dirty pages alone must not write anything.
        dirty_writeback_ms: 0,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir(ROOT, 0o755).unwrap();
    let options = MountOptions::parse(options).unwrap();
    kernel.mount_ext4(device, ROOT, &options).unwrap();
    (kernel, process)
}

/// Returns the file's contents as they are after a crash now; `None` without the file.
fn after_crash(device: &Arc<dyn Device>, name: &str) -> Option<Vec<u8>> {
    let (kernel, process) = mounted(copy_of(&**device), "defaults", false);
    let read = || -> folio::Result<Vec<u8>> {
        let fd = process.open(format!("{ROOT}/{name}"), OpenFlags::empty(), 0)?;
        let mut bytes = vec![0; process.fstat(fd)?.size_bytes as usize];
        let count = process.pread(fd, &mut bytes, 0);
        process.close(fd)?;
        bytes.truncate(count?);
        Ok(bytes)
    };
    let found = read().ok();
    kernel.unmount(ROOT).unwrap();
    found
}

fn create(process: &Process, name: &str) -> Fd {
    let flags = OpenFlags::CREAT | OpenFlags::RDWR;
    process
        .open(format!("{ROOT}/{name}"), flags, 0o644)
        .unwrap()
}

/// Checks that `folio check` finds nothing.
#[track_caller]
fn assert_clean(device: &Arc<dyn Device>) {
    let mut findings = Vec::new();
    ext4::check(device, &CheckOptions::default(), &mut findings).unwrap();
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
