//! Writeback errors of failing and full devices are reported, and written data is not lost.

use crate::support::requires;
use crate::support::tools::{fsck, mke2fs};
use crate::{CREATE, READ, fails, read};
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, CheckOptions, FormatOptions};
use folio::syscall::Credentials;
use folio::testing::{FaultDevice, FaultKind, FaultWhen};
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, KernelOptions, Process};
use std::fs;
use std::sync::Arc;

/// Returns an ext4 on a device that can fail.
fn disk(cache_bytes: u64, background_writeback: bool) -> (Arc<FaultDevice>, Arc<Kernel>, Process) {
    let device = MemoryDevice::new(64 << 20);
    ext4::format(&device, &FormatOptions::default()).unwrap();
    mounted(device, cache_bytes, background_writeback)
}

/// Mounts the file system on `device` so that the device can fail.
fn mounted(
    device: MemoryDevice,
    cache_bytes: u64,
    background_writeback: bool,
) -> (Arc<FaultDevice>, Arc<Kernel>, Process) {
    let device = Arc::new(FaultDevice::new(Arc::new(device), 1));
    let kernel = Kernel::new(KernelOptions {
        cache_bytes,
        background_writeback,
        ..KernelOptions::default()
    });
    let p = kernel.process(Credentials::root());
    p.mkdir("/disk", 0o755).unwrap();
    // Without a journal, which a failing device would abort.
    let options = MountOptions::parse("noload").unwrap();
    kernel
        .mount_ext4(device.clone(), "/disk", &options)
        .unwrap();
    (device, kernel, p)
}

#[test]
fn failed_writeback_is_reported_once_per_open_file() {
    for errno in [Errno::IO, Errno::NOSPC] {
        let (device, kernel, p) = disk(16 << 20, false);
        let one = p.open("/disk/f", CREATE, 0o644).unwrap();
        p.write(one, b"old").unwrap();
        p.fsync(one).unwrap();
        let two = p.open("/disk/f", CREATE, 0).unwrap();
        p.pwrite(one, b"precious", 0).unwrap();
        device.fail_with(FaultKind::Write, FaultWhen::Always, errno);
        assert_eq!(p.fsync(one).unwrap_err().errno(), errno);
        assert!(
            p.file_counters(one).unwrap().dirty_pages > 0,
            "the page is not dropped"
        );
        assert_eq!(read(&p, "/disk/f"), b"precious");
        let after = p.open("/disk/f", READ, 0).unwrap();
        device.clear_faults();
        let second = p.fsync(two).map_err(|error| error.errno());
        if errno == Errno::NOSPC {
            assert_eq!(second, Ok(()), "nothing is lost once there is space");
        } else {
            assert_eq!(second, Err(errno), "not reported yet");
        }
        assert_eq!(
            p.file_counters(one).unwrap().dirty_pages,
            0,
            "and yet the page was written"
        );
        for fd in [two, one, after] {
            p.fsync(fd).unwrap();
        }
        for fd in [one, two, after] {
            p.close(fd).unwrap();
        }
        drop(p);
        kernel.unmount("/disk").unwrap();
        drop(kernel);
        let kernel = Kernel::new(KernelOptions::default());
        let p = kernel.process(Credentials::root());
        kernel
            .mount_ext4(device, "/", &MountOptions::default())
            .unwrap();
        assert_eq!(read(&p, "/f"), b"precious");
    }
}

/// As in Linux: what a failed fsync(2) could not write is never written, though it is still read.
#[test]
fn lost_write_is_reported_once_and_not_repeated() {
    let (device, kernel, p) = disk(16 << 20, false);
    lose_writes(device, &kernel, p);
}

/// A block map cannot store that a block is unwritten.
#[test]
fn lost_write_on_ext3_leaks_no_blocks() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("ext3.img");
    mke2fs(&image, "16M", &["-t", "ext3", "-b", "1024"]);
    let mut bytes = fs::read(&image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(&bytes, 0).unwrap();
    let (device, kernel, p) = mounted(device, 16 << 20, false);
    let device = lose_writes(device, &kernel, p);
    device.read_at(&mut bytes, 0).unwrap();
    fs::write(&image, bytes).unwrap();
    fsck(&image);
}

/// Loses writes on a disk, then checks the file system and its files. Returns its device.
fn lose_writes(device: Arc<FaultDevice>, kernel: &Kernel, p: Process) -> Arc<dyn Device> {
    use folio::syscall::SyncFileRange;
    let sparse = p.open("/disk/sparse", CREATE, 0o644).unwrap();
    p.ftruncate(sparse, 100_000).unwrap();
    p.fsync(sparse).unwrap();
    let one = p.open("/disk/old", CREATE, 0o644).unwrap();
    p.write(one, &[1; 10_000]).unwrap();
    p.fsync(one).unwrap();
    // From here on nothing is synced: that would write all.
    p.pwrite(sparse, &[4; 5000], 50_000).unwrap();
    let two = p.open("/disk/old", READ, 0).unwrap();
    p.pwrite(one, &[2; 10_000], 0).unwrap();
    let fresh = p.open("/disk/fresh", CREATE, 0o644).unwrap();
    p.write(fresh, &[3; 5000]).unwrap();
    let third = p.open("/disk/fresh", READ, 0).unwrap();
    device.lose_writes_in(|| {
        for fd in [third, two, sparse] {
            p.sync_file_range(fd, 0, 0, SyncFileRange::WRITE).unwrap();
        }
    });
    assert!(device.failed() >= 3, "{}", device.failed());
    for fd in [one, two, fresh, sparse] {
        fails! { p.fsync(fd) => IO }
        p.fsync(fd).unwrap();
    }
    assert!(read(&p, "/disk/old") == [2; 10_000], "it is in memory");
    for fd in [one, two, fresh, third, sparse] {
        p.close(fd).unwrap();
    }
    drop(p);
    kernel.unmount("/disk").unwrap();
    let device: Arc<dyn Device> = device;
    let mut findings = Vec::new();
    ext4::check(&device, &CheckOptions::default(), &mut findings).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    let kernel = Kernel::new(KernelOptions::default());
    let p = kernel.process(Credentials::root());
    kernel
        .mount_ext4(device.clone(), "/", &MountOptions::default())
        .unwrap();
    assert!(
        read(&p, "/old") == [1; 10_000],
        "the disk has the old bytes"
    );
    assert!(read(&p, "/fresh") == [0; 5000], "no bytes of other files");
    assert!(read(&p, "/sparse") == [0; 100_000], "a hole");
    drop(p);
    kernel.unmount("/").unwrap();
    device
}

#[test]
fn failure_after_close_is_reported_to_next_open() {
    let (device, _kernel, p) = disk(16 << 20, false);
    let fd = p.open("/disk/f", CREATE, 0o644).unwrap();
    p.write(fd, b"precious").unwrap();
    p.close(fd).unwrap();
    device.fail(FaultKind::Write, FaultWhen::Always);
    fails! { p.sync() => IO }
    device.clear_faults();
    let fd = p.open("/disk/f", READ, 0).unwrap();
    fails! { p.fsync(fd) => IO }
    p.fsync(fd).unwrap();
    let late = p.open("/disk/f", READ, 0).unwrap();
    p.fsync(late).unwrap();
}

#[test]
fn sync_file_range_reports_errors_as_fsync() {
    let (device, _kernel, p) = disk(16 << 20, false);
    let fd = p.open("/disk/f", CREATE, 0o644).unwrap();
    p.write(fd, &[1; 9000]).unwrap();
    device.fail(FaultKind::Write, FaultWhen::Always);
    use folio::syscall::SyncFileRange;
    p.sync_file_range(fd, 0, 0, SyncFileRange::WRITE).unwrap();
    fails! { p.sync_file_range(fd, 0, 0, SyncFileRange::WAIT_AFTER) => IO }
    p.sync_file_range(fd, 0, 0, SyncFileRange::WAIT_AFTER)
        .unwrap();
    device.clear_faults();
    p.fsync(fd).unwrap();
}

#[test]
fn writes_to_dead_device_fail_before_memory_is_full() {
    for background_writeback in [false, true] {
        let (device, kernel, p) = disk(4 << 20, background_writeback);
        let fd = p.open("/disk/f", CREATE, 0o644).unwrap();
        p.write(fd, &[1; 1 << 20]).unwrap();
        p.fsync(fd).unwrap();
        device.fail(FaultKind::Write, FaultWhen::Always);
        let mut written = 1 << 20;
        let error = loop {
            assert!(written < 32 << 20, "a write must fail");
            match p.write(fd, &[2; 100_000]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::IO);
        let counters = kernel.counters();
        assert!(counters.file_pages <= (4 << 20) / 4096, "{counters:?}");
        device.clear_faults();
        fails! { p.fsync(fd) => IO }
        p.fsync(fd).unwrap();
        let bytes = read(&p, "/disk/f");
        assert_eq!(bytes.len(), written);
        assert!(
            bytes[1 << 20..].iter().all(|byte| *byte == 2),
            "nothing that was taken is lost"
        );
    }
}

#[test]
fn names_stay_within_the_memory_budget() {
    [false, true]
        .into_iter()
        .for_each(names_stay_within_the_budget);
}

fn names_stay_within_the_budget(background_writeback: bool) {
    let (device, kernel, p) = disk(1 << 20, background_writeback);
    p.mkdir("/disk/well", 0o755).unwrap();
    for number in 0..1000 {
        p.mkdir(format!("/disk/well/{number}"), 0o755).unwrap();
        assert!(
            kernel.counters().file_pages <= 256,
            "{:?}",
            kernel.counters()
        );
    }
    device.fail(FaultKind::Write, FaultWhen::Always);
    let made = (0..).find(|number| {
        let made = p.mkdir(format!("/disk/{number}"), 0o755);
        assert!(
            kernel.counters().file_pages <= 256,
            "{:?}",
            kernel.counters()
        );
        made.is_err_and(|error| error.errno() == Errno::IO)
    });
    device.clear_faults();
    p.sync().unwrap();
    for number in 0..made.unwrap() {
        p.rmdir(format!("/disk/{number}")).unwrap();
    }
}
