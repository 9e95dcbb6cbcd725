//! Writeback while a commit stops operations: a size on disk never covers data that is not there.

use super::{DEVICE_BYTES, ROOT, after_crash, assert_clean, create, mounted};
use crate::crash::program::copy_of;
use folio::Result;
use folio::block::{Allocation, Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Fd, Process, SyncFileRange};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

const LEN: usize = 64 << 10;
const LATER: u64 = 2 << 20;

type Hook = Box<dyn FnOnce() + Send>;

/// A device in memory that runs a hook before the first write of data with a certain byte.
struct HookDevice {
    lower: MemoryDevice,
    hooks: Mutex<Vec<(u8, Hook)>>,
}

impl Device for HookDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.lower.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let hook = {
            let mut hooks = self.hooks.lock().unwrap();
            let found = hooks
                .iter()
                .position(|(byte, _)| bufs[0].len() >= 1024 && bufs[0].iter().all(|b| b == byte));
            found.map(|index| hooks.remove(index))
        };
        if let Some((_, hook)) = hook {
            hook();
        }
        self.lower.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        self.lower.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.lower.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.lower.write_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.lower.allocation(offset, len_bytes)
    }
}

/// Writes `byte` to a file and makes it larger: its data is to be written before the next commit.
fn write_ordered(process: &Process, file: Fd, byte: u8) {
    process.pwrite(file, &[byte; LEN], 0).unwrap();
    process.ftruncate(file, 2 * LEN as u64).unwrap();
}

#[test]
fn size_committed_by_late_writeback_has_its_data() {
    let device = Arc::new(HookDevice {
        lower: MemoryDevice::new(DEVICE_BYTES),
        hooks: Mutex::default(),
    });
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let (_kernel, process) = mounted(device.clone(), "defaults", false);
    let process = Arc::new(process);
    let [early, late, sparse, synced] =
        ["early", "late", "sparse", "synced"].map(|name| create(&process, name));
    process.sync().unwrap();
    process.pwrite(sparse, &[7; LEN], 0).unwrap();
    process.pwrite(sparse, &[7; LEN], LATER).unwrap();
    write_ordered(&process, early, 1);
    let on_thread = |work: Box<dyn Fn(&Process) + Send>| -> Hook {
        let process = process.clone();
        Box::new(move || std::thread::spawn(move || work(&process)).join().unwrap())
    };
    // While operations still run.
    let order = on_thread(Box::new(move |process| write_ordered(process, late, 2)));
    // While they are stopped: writeback of the end of a file whose start has no blocks yet.
    let write_back = on_thread(Box::new(move |process| {
        let flags = SyncFileRange::WRITE | SyncFileRange::WAIT_AFTER;
        process
            .sync_file_range(sparse, LATER, LEN as u64, flags)
            .unwrap();
    }));
    device
        .hooks
        .lock()
        .unwrap()
        .extend([(1, order), (2, write_back)]);
    process.pwrite(synced, b"text", 0).unwrap();
    process.fsync(synced).unwrap();
    assert!(
        device.hooks.lock().unwrap().is_empty(),
        "the commit wrote both files"
    );

    let device: Arc<dyn Device> = copy_of(&*device);
    let after = after_crash(&device, "sparse").unwrap();
    let is_there = after.len() <= LEN || after[..LEN] == [7; LEN];
    assert!(is_there, "{} bytes begin with zeros", after.len());
    let (kernel, process) = mounted(device.clone(), "defaults", false);
    drop(process);
    kernel.unmount(ROOT).unwrap();
    assert_clean(&device);
}
