//! Panics in code of the embedding program: the kernel stays usable, and returns EIO.

mod file_system;

use file_system::{CallKind, PanicFs};
use folio::block::{Allocation, Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, KernelOptions, Process, Result};
use std::io::{IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);
const READ: u8 = 1;
const WRITE: u8 = 2;
const FLUSH: u8 = 4;

/// A device in memory that panics in the selected calls.
struct PanicDevice {
    lower: MemoryDevice,
    panics: AtomicU8,
}

impl PanicDevice {
    fn maybe_panic(&self, call: u8) {
        assert!(
            self.panics.load(Ordering::SeqCst) & call == 0,
            "the test's device panics"
        );
    }
}

impl Device for PanicDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.maybe_panic(READ);
        self.lower.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.maybe_panic(WRITE);
        self.lower.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        self.maybe_panic(FLUSH);
        self.lower.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.lower.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.maybe_panic(WRITE);
        self.lower.write_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.lower.allocation(offset, len_bytes)
    }
}

fn kernel(background_writeback: bool) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 4 << 20,
        background_writeback,
        dirty_expire_ms: 1,
        dirty_writeback_ms: 10,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    (kernel, process)
}

/// Returns an ext4 on a device that can panic, mounted with these words.
fn disk(background_writeback: bool, words: &str) -> (Arc<PanicDevice>, Arc<Kernel>, Process) {
    let device = Arc::new(PanicDevice {
        lower: MemoryDevice::new(64 << 20),
        panics: AtomicU8::new(0),
    });
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let (kernel, process) = kernel(background_writeback);
    let options = MountOptions::parse(words).unwrap();
    kernel
        .mount_ext4(device.clone(), "/disk", &options)
        .unwrap();
    (device, kernel, process)
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn written(process: &Process, path: &str) -> Fd {
    let fd = process.open(path, CREATE, 0o644).unwrap();
    process.pwrite(fd, &[1; 100_000], 0).unwrap();
    fd
}

#[test]
fn device_panic_in_write_is_eio_and_is_retried() {
    let (device, _kernel, process) = disk(false, "noload");
    let fd = written(&process, "/disk/f");
    device.panics.store(WRITE, Ordering::SeqCst);
    assert_eq!(errno(process.fsync(fd)), Some(Errno::IO));
    assert_eq!(errno(process.sync()), Some(Errno::IO));
    assert!(process.file_counters(fd).unwrap().dirty_pages > 0);
    device.panics.store(0, Ordering::SeqCst);
    let _ = process.fsync(fd);
    process.fsync(fd).unwrap();
    process.sync().unwrap();
    assert_eq!(process.file_counters(fd).unwrap().dirty_pages, 0);
}

#[test]
fn device_panic_in_flush_fails_sync_only() {
    for words in ["noload", ""] {
        let (device, kernel, process) = disk(false, words);
        let fd = written(&process, "/disk/f");
        device.panics.store(FLUSH, Ordering::SeqCst);
        assert!(process.fsync(fd).is_err(), "{words}");
        assert!(process.sync().is_err(), "{words}");
        device.panics.store(0, Ordering::SeqCst);
        // With a journal, a failed commit refuses later changes; none of these calls hangs.
        let _ = process.sync();
        let mut byte = [0];
        assert_eq!(process.pread(fd, &mut byte, 99_999).unwrap(), 1);
        process.close(fd).unwrap();
        let _ = kernel.unmount("/disk");
    }
}

#[test]
fn device_panic_in_read_is_eio_for_the_reader() {
    for background in [false, true] {
        let (device, kernel, process) = disk(background, "");
        let fd = written(&process, "/disk/f");
        process.fsync(fd).unwrap();
        process.close(fd).unwrap();
        kernel.unmount("/disk").unwrap();
        kernel
            .mount_ext4(device.clone(), "/disk", &MountOptions::default())
            .unwrap();
        let fd = process.open("/disk/f", OpenFlags::empty(), 0).unwrap();
        device.panics.store(READ, Ordering::SeqCst);
        let mut buf = vec![0; 100_000];
        assert_eq!(errno(process.pread(fd, &mut buf, 0)), Some(Errno::IO));
        assert_eq!(errno(process.pread(fd, &mut buf, 50_000)), Some(Errno::IO));
        device.panics.store(0, Ordering::SeqCst);
        assert_eq!(process.pread(fd, &mut buf, 0).unwrap(), buf.len());
        assert_eq!(buf, vec![1; 100_000]);
        process.sync().unwrap();
    }
}

#[test]
fn device_panic_in_writeback_thread_is_reported() {
    let (device, _kernel, process) = disk(true, "noload");
    let fd = process.open("/disk/f", CREATE, 0o644).unwrap();
    device.panics.store(WRITE, Ordering::SeqCst);
    // More than the background limit: the thread writes, and panics.
    let pages = vec![2; 1 << 20];
    process.pwrite(fd, &pages, 0).unwrap();
    // The next sync reports the thread's error, or its own.
    assert_eq!(errno(process.fsync(fd)), Some(Errno::IO));
    device.panics.store(0, Ordering::SeqCst);
    let _ = process.fsync(fd);
    process.fsync(fd).unwrap();
    // The thread lives: these pages are written without a sync.
    process.pwrite(fd, &pages, 1 << 20).unwrap();
    while process.file_counters(fd).unwrap().dirty_pages > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn file_system_panic_unwinds_to_its_caller_only() {
    let (kernel, process) = kernel(false);
    let file_system = PanicFs::new(&kernel);
    kernel
        .mount(file_system.clone(), "/disk", &MountOptions::default())
        .unwrap();
    for kind in [CallKind::Lookup, CallKind::Write] {
        file_system.panic_in(kind);
        let call = catch_unwind(AssertUnwindSafe(|| {
            let fd = process.open("/disk/f", OpenFlags::RDWR, 0)?;
            process.pwrite(fd, b"x", 0).map(drop)
        }));
        assert!(call.is_err(), "{kind:?}");
        file_system.panic_in(CallKind::Nothing);
        let fd = process.open("/disk/f", OpenFlags::RDWR, 0).unwrap();
        process.pwrite(fd, b"y", 0).unwrap();
        process.fsync(fd).unwrap();
        process.close(fd).unwrap();
        process.sync().unwrap();
    }
}

#[test]
fn file_system_panic_in_store_is_eio() {
    for background in [false, true] {
        let (kernel, process) = kernel(background);
        let file_system = PanicFs::new(&kernel);
        kernel
            .mount(file_system.clone(), "/disk", &MountOptions::default())
            .unwrap();
        let fd = process.open("/disk/f", OpenFlags::RDWR, 0).unwrap();
        file_system.panic_in(CallKind::Store);
        let mut buf = [0; 10];
        assert_eq!(errno(process.pread(fd, &mut buf, 0)), Some(Errno::IO));
        file_system.panic_in(CallKind::Nothing);
        process.pwrite(fd, &[1; 1 << 20], 0).unwrap();
        file_system.panic_in(CallKind::Store);
        assert_eq!(errno(process.fsync(fd)), Some(Errno::IO), "{background}");
        file_system.panic_in(CallKind::Nothing);
        let _ = process.fsync(fd);
        process.fsync(fd).unwrap();
        process.sync().unwrap();
        assert_eq!(process.file_counters(fd).unwrap().dirty_pages, 0);
    }
}

#[test]
fn file_system_panic_in_sync_is_eio() {
    let (kernel, process) = kernel(false);
    let file_system = PanicFs::new(&kernel);
    kernel
        .mount(file_system.clone(), "/disk", &MountOptions::default())
        .unwrap();
    file_system.panic_in(CallKind::Sync);
    assert_eq!(errno(process.sync()), Some(Errno::IO));
    assert_eq!(errno(kernel.unmount("/disk")), Some(Errno::IO));
    // Not mounted any more, and the rest of the tree works.
    process.mkdir("/disk/again", 0o755).unwrap();
    drop(process);
    drop(kernel);
}
