//! Mounts of one device: one writer at a time in the whole process, and devices that shrink.

use folio::block::partition::PartitionDevice;
use folio::block::qcow2::Qcow2Device;
use folio::block::{Device, ImageFormat, MemoryDevice, OpenOptions, create, open, overlay};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::vfs::MountOptions;
use folio::{Errno, Image, Kernel, KernelOptions};
use std::sync::Arc;
use tempfile::TempDir;

const LEN: u64 = 16 << 20;

fn mount(device: &Arc<dyn Device>, read_only: bool) -> Result<Arc<Kernel>, Errno> {
    let kernel = Kernel::new(KernelOptions::default());
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    match kernel.mount_ext4(device.clone(), "/", &options) {
        Ok(()) => Ok(kernel),
        Err(error) => Err(error.errno()),
    }
}

fn is_busy(device: &Arc<dyn Device>, read_only: bool) -> bool {
    match mount(device, read_only) {
        Err(errno) => errno == Errno::BUSY,
        Ok(_) => false,
    }
}

#[test]
fn device_is_mounted_for_writing_once() {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(2 * LEN));
    let part = |start| -> Arc<dyn Device> {
        Arc::new(PartitionDevice::new(disk.clone(), start, LEN).unwrap())
    };
    for start in [0, LEN] {
        ext4::format(&*part(start), &FormatOptions::default()).unwrap();
    }
    let kernel = mount(&part(0), false).unwrap();
    let again = kernel
        .mount_ext4(part(0), "/lost+found", &MountOptions::default())
        .unwrap_err();
    assert_eq!(again.errno(), Errno::BUSY, "{again}");
    for read_only in [false, true] {
        assert!(is_busy(&disk, read_only), "the whole disk");
        assert!(is_busy(&part(0), read_only), "the same partition");
    }
    assert!(is_busy(&overlay(part(0)), false));
    let other = mount(&part(LEN), false).unwrap();
    drop(other);
    // A halted kernel stays in memory, and its devices are free.
    kernel.halt().unwrap();
    let first = mount(&part(0), true).unwrap();
    let second = mount(&part(0), true).unwrap();
    assert!(is_busy(&part(0), false));
    drop((first, second));
    drop(mount(&part(0), false).unwrap());
    assert!(Image::device(part(0)).mount().is_ok());
}

#[test]
fn device_of_a_mounted_qcow2_is_busy() {
    let below: Arc<dyn Device> = Arc::new(MemoryDevice::new(2 * LEN));
    let options = folio::block::CreateOptions::default();
    let image = Qcow2Device::create_on(below.clone(), LEN, &options).unwrap();
    ext4::format(&image, &FormatOptions::default()).unwrap();
    image.flush().unwrap();
    drop(image);
    let open = || -> Arc<dyn Device> { Arc::new(Qcow2Device::open_on(below.clone()).unwrap()) };
    let kernel = mount(&open(), false).unwrap();
    assert!(is_busy(&open(), false) && is_busy(&open(), true));
    drop(kernel);
    drop(mount(&open(), false).unwrap());
}

/// Writes a file and syncs it; returns what failed.
fn write_file(process: &Process, path: &str) -> Result<(), Errno> {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
    let fd = process
        .open(path, flags, 0o644)
        .map_err(|error| error.errno())?;
    let written = process
        .write(fd, &[7; 100_000])
        .and_then(|_| process.fsync(fd));
    let closed = process.close(fd);
    written.and(closed).map_err(|error| error.errno())
}

#[test]
fn truncated_image_fails_the_next_sync() {
    let folder = TempDir::new().unwrap();
    for format in ImageFormat::ALL {
        let path = folder.path().join(format.name());
        let device = create(&path, format, LEN).unwrap();
        ext4::format(&*device, &FormatOptions::default()).unwrap();
        let kernel = mount(&device, false).unwrap();
        let process = kernel.process(Credentials::root());
        write_file(&process, "/a").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let len_bytes = file.metadata().unwrap().len();
        file.set_len(len_bytes / 2).unwrap();
        let errno = write_file(&process, "/b").unwrap_err();
        assert_eq!(errno, Errno::IO, "{format}");
        // No write after the end hides the loss.
        assert_eq!(file.metadata().unwrap().len(), len_bytes / 2, "{format}");
        drop(process);
        assert!(kernel.halt().is_err());
        let error = device.flush().unwrap_err();
        assert!(error.to_string().contains("truncated the file"), "{error}");
        drop(device);
        drop(open(&path, &OpenOptions::default()));
    }
}
