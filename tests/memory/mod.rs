//! The budget of memory: inodes and names count, and unused ones are evicted.

use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use std::sync::Arc;

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::WRONLY);
const CACHE_BYTES: u64 = 4 << 20;
const FILES: usize = 20_000;

/// Returns a kernel with a small cache and an empty ext4 at `/disk`.
fn disk() -> (Arc<Kernel>, Process) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let options = FormatOptions {
        inode_ratio: Some(4096),
        ..FormatOptions::default()
    };
    ext4::format(&*device, &options).unwrap();
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: CACHE_BYTES,
        background_writeback: false,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    kernel
        .mount_ext4(device, "/disk", &MountOptions::default())
        .unwrap();
    (kernel, process)
}

fn create(process: &Process, path: &str) {
    let fd = process.open(path, CREATE, 0o644).unwrap();
    process.close(fd).unwrap();
}

/// The most bytes that objects may have: the limit, and what the running transaction pins.
fn most(kernel: &Kernel) -> u64 {
    kernel.cache().objects().limit_bytes() + CACHE_BYTES / 2
}

#[test]
fn names_and_inodes_stay_within_the_budget() {
    let (kernel, process) = disk();
    let objects = kernel.cache().objects().clone();
    assert_eq!(objects.limit_bytes(), CACHE_BYTES / 2);
    let before = objects.used_bytes();
    for number in 0..FILES {
        create(&process, &format!("/disk/{number:05}"));
        if number == 500 {
            let each = (objects.used_bytes() - before) / 500;
            assert!((500..5_000).contains(&each), "{each} bytes for each file");
        }
        assert!(
            objects.used_bytes() <= most(&kernel),
            "{} bytes after {number} files",
            objects.used_bytes()
        );
    }
    for number in 0..FILES {
        process.stat(format!("/disk/{number:05}")).unwrap();
        process
            .stat(format!("/disk/missing {number}"))
            .expect_err("does not exist");
    }
    assert!(objects.used_bytes() <= most(&kernel), "after reading them");
    for number in 0..FILES {
        process.unlink(format!("/disk/{number:05}")).unwrap();
    }
    process.sync().unwrap();
    assert!(objects.used_bytes() <= most(&kernel), "after removing them");
    kernel.unmount("/disk").unwrap();
    assert!(
        objects.used_bytes() < 64 << 10,
        "{} bytes after the unmount",
        objects.used_bytes()
    );
}

#[test]
fn open_files_keep_their_names_over_the_limit() {
    let (kernel, process) = disk();
    let open: Vec<_> = (0..1_000)
        .map(|number| {
            let path = format!("/disk/open {number}");
            let fd = process.open(&path, CREATE, 0o644).unwrap();
            (path, fd, process.fstat(fd).unwrap())
        })
        .collect();
    for number in 0..FILES {
        create(&process, &format!("/disk/{number:05}"));
    }
    for (path, fd, created) in &open {
        assert_eq!(process.fstat(*fd).unwrap().number, created.number);
        assert_eq!(process.stat(path).unwrap().number, created.number);
        process.close(*fd).unwrap();
    }
    assert!(kernel.cache().objects().used_bytes() > 0);
    kernel.unmount("/disk").unwrap();
}

#[test]
fn objects_leave_less_memory_to_pages() {
    let (kernel, process) = disk();
    let fd = process.open("/disk/data", CREATE, 0o644).unwrap();
    let chunk = vec![7; 1 << 20];
    (0..8).for_each(|_| assert_eq!(process.write(fd, &chunk).unwrap(), chunk.len()));
    process.fsync(fd).unwrap();
    for number in 0..FILES {
        create(&process, &format!("/disk/{number:05}"));
    }
    process.sync().unwrap();
    // The next page makes room.
    process.write(fd, &chunk).unwrap();
    process.fsync(fd).unwrap();
    let pages = kernel.counters().file_pages * 4096;
    let objects = kernel.cache().objects().used_bytes();
    assert!(
        pages + objects <= CACHE_BYTES * 5 / 4,
        "{pages} bytes of pages and {objects} of objects"
    );
    process.close(fd).unwrap();
}
