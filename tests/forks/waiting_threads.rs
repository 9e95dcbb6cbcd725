//! Children that use locks of their own, of a process whose threads wait for locks.

use super::own_kernels::run_child;
use super::{CREATE, run_alone};
use folio::block::{Allocation, Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Fs, Kernel, KernelOptions, Result};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};

/// Open files that have a thread in a read, and one that waits for the file's position.
const FILES: usize = 8;
const READER: &str = "reader";
const CHILDREN: u32 = 8;

#[test]
fn children_of_threads_that_wait_for_locks_never_hang() {
    run_alone(
        "forks::waiting_threads::children_of_threads_that_wait_for_locks_never_hang",
        fork_beside_waiting_threads,
    );
}

fn fork_beside_waiting_threads() {
    let device = Arc::new(HeldDevice {
        lower: MemoryDevice::new(16 << 20),
        reads: Mutex::new(()),
    });
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    let mount = || kernel.mount_ext4(device.clone(), "/disk", &MountOptions::default());
    mount().unwrap();
    let names = (0..FILES).map(|file| format!("/disk/{file}"));
    for name in names.clone() {
        let fd = process.open(&name, CREATE, 0o644).unwrap();
        process.write(fd, &[1; 9000]).unwrap();
        process.close(fd).unwrap();
    }
    kernel.unmount("/disk").unwrap();
    mount().unwrap();
    let files = names.map(|name| process.open(&name, OpenFlags::empty(), 0).unwrap());
    let files = files.collect::<Vec<_>>();

    let held = device.reads.lock().unwrap();
    thread::scope(|scope| {
        for fd in files.iter().chain(&files) {
            let read = || assert_eq!(process.read(*fd, &mut [0; 4500]).unwrap(), 4500);
            Builder::new()
                .name(READER.into())
                .spawn_scoped(scope, read)
                .unwrap();
        }
        while sleeping_readers() < 2 * FILES {
            thread::yield_now();
        }
        let failed = (0..CHILDREN).find_map(|_| run_child(contend).err());
        drop(held);
        if let Some(error) = failed {
            panic!("{error}");
        }
    });
}

fn sleeping_readers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let sleeping = format!("({READER}) S");
    stats.filter(|stat| stat.contains(&sleeping)).count()
}

/// Has threads wait for many locks of new kernels.
fn contend() -> io::Result<()> {
    for _ in 0..16 {
        let fs = Fs::memory();
        fs.write("/f", vec![1; 1 << 20])?;
        let process = fs.kernel().process(Credentials::root());
        let fd = process.open("/f", OpenFlags::empty(), 0)?;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut buf = vec![0; 1 << 18];
                    while process.read(fd, &mut buf).is_ok_and(|count| count > 0) {}
                });
            }
        });
        process.close(fd)?;
    }
    Ok(())
}

/// A device whose reads wait while the test holds a lock.
struct HeldDevice {
    lower: MemoryDevice,
    reads: Mutex<()>,
}

impl Device for HeldDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let _held = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        self.lower.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
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
