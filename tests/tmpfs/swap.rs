//! Swap: a tmpfs larger than the page cache, with its pages on a swap device.

use crate::tmpfs::{CREATE, PAGE, blocks_free, create, errno, mounted};
use folio::block::{Device, FaultDevice, FaultKind, FaultWhen, MemoryDevice};
use folio::syscall::{Credentials, OpenFlags, Whence};
use folio::vfs::FallocateMode;
use folio::{Errno, Kernel, KernelOptions, Process};
use std::sync::Arc;

/// Returns a kernel with a page cache of 1 MiB, a tmpfs at `/t` and this swap device.
fn world(words: &str, device: Arc<dyn Device>) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        ..Default::default()
    });
    kernel.swap_on(device).unwrap();
    mounted(kernel, words)
}

/// Returns bytes that differ from page to page.
fn pattern(from: usize, len: usize, seed: usize) -> Vec<u8> {
    (from..from + len)
        .map(|at| ((at / PAGE * 7 + at % 249 + seed) % 256) as u8)
        .collect()
}

#[test]
fn file_larger_than_the_cache_reads_back() {
    let (kernel, p) = world("size=8m", Arc::new(MemoryDevice::new(8 << 20)));
    let fd = create(&p, "/t/f");
    let mut expected = pattern(0, 6 << 20, 0);
    assert_eq!(p.pwrite(fd, &expected, 0).unwrap(), expected.len());
    assert_eq!(
        (blocks_free(&p), p.fstat(fd).unwrap().blocks_512),
        (512, (6 << 20) / 512)
    );
    let check = |expected: &[u8]| {
        let mut read = vec![0; expected.len() + 1];
        assert_eq!(p.pread(fd, &mut read, 0).unwrap(), expected.len());
        assert!(read[..expected.len()] == *expected);
    };
    check(&expected);
    // Sync writes nothing and loses nothing.
    p.sync().unwrap();
    // Parts of pages, whole pages and large folios, most of them swapped.
    for (at, len) in [
        (100, 50),
        (PAGE * 3 - 7, 20),
        (1 << 20, PAGE),
        (2 << 20, 40 * PAGE),
        ((5 << 20) + 5, 70_000),
    ] {
        expected[at..at + len].copy_from_slice(&pattern(at, len, 9));
        assert_eq!(p.pwrite(fd, &pattern(at, len, 9), at as u64).unwrap(), len);
    }
    check(&expected);
    assert_eq!(p.lseek(fd, 0, Whence::Hole).unwrap(), 6 << 20);
    // A hole with edges inside pages, and a shorter and longer file.
    let hole = 5000..(3 << 20) + 99;
    p.fallocate(
        fd,
        FallocateMode::PunchHole,
        hole.start as u64,
        hole.len() as u64,
    )
    .unwrap();
    expected[hole].fill(0);
    assert_eq!(blocks_free(&p), 512 + 766);
    assert_eq!(p.lseek(fd, 4096, Whence::Hole).unwrap(), 8192);
    assert_eq!(p.lseek(fd, 8192, Whence::Data).unwrap(), 3 << 20);
    check(&expected);
    for size in [(5 << 20) - 17, (4 << 20) + 1] {
        p.ftruncate(fd, size as u64).unwrap();
        p.ftruncate(fd, 6 << 20).unwrap();
        expected[size..].fill(0);
        check(&expected);
    }
    let counted = p.fstat(fd).unwrap().blocks_512 / 8;
    assert_eq!(blocks_free(&p), 2048 - counted);
    p.close(fd).unwrap();
    p.unlink("/t/f").unwrap();
    assert_eq!(blocks_free(&p), 2048);
    drop(p);
    kernel.unmount("/t").unwrap();
}

#[test]
fn truncate_zeroes_tail_of_swapped_page() {
    let (_kernel, p) = world("size=8m", Arc::new(MemoryDevice::new(8 << 20)));
    let fd = create(&p, "/t/f");
    p.write(fd, &[1; PAGE]).unwrap();
    let other = create(&p, "/t/g");
    p.write(other, &vec![2; 4 << 20]).unwrap();
    p.ftruncate(fd, 10).unwrap();
    p.ftruncate(fd, 100).unwrap();
    let mut read = [9; 200];
    assert_eq!(p.pread(fd, &mut read, 0).unwrap(), 100);
    assert_eq!((&read[..10], &read[10..100]), (&[1; 10][..], &[0; 90][..]));
}

#[test]
fn full_memory_and_swap_is_enospc() {
    let (_kernel, p) = world("size=0", Arc::new(MemoryDevice::new(1 << 20)));
    let fd = create(&p, "/t/f");
    let bytes = pattern(0, 4 << 20, 3);
    let written = p.write(fd, &bytes).unwrap();
    assert!((15 << 17..=2 << 20).contains(&written), "{written} bytes");
    let mut read = vec![0; written];
    assert_eq!(p.pread(fd, &mut read, 0).unwrap(), written);
    assert!(read == bytes[..written]);
    assert_eq!(
        errno(p.pwrite(fd, &vec![1; 1 << 20], 8 << 20)),
        Some(Errno::NOSPC)
    );
    // Freed space can be used again, also on the device.
    for round in 0..5 {
        p.ftruncate(fd, 0).unwrap();
        let bytes = pattern(0, 3 << 19, round);
        assert_eq!(p.pwrite(fd, &bytes, 0).unwrap(), bytes.len());
        let mut read = vec![0; bytes.len()];
        assert_eq!(p.pread(fd, &mut read, 0).unwrap(), bytes.len());
        assert!(read == bytes);
    }
}

#[test]
fn second_swap_device_is_busy() {
    let (kernel, _p) = world("", Arc::new(MemoryDevice::new(1 << 20)));
    assert_eq!(
        errno(kernel.swap_on(Arc::new(MemoryDevice::new(1 << 20)))),
        Some(Errno::BUSY)
    );
}

/// Each writer changes its own file and compares it with a model. All threads read one shared file,
/// which one thread truncates: every byte was written there, or is zero.
fn work_alone_and_together(kernel: &Arc<Kernel>, number: usize) {
    let process = kernel.process(Credentials::root());
    let fd = create(&process, &format!("/t/{number}"));
    let shared = process.open("/t/shared", OpenFlags::RDWR, 0).unwrap();
    let whole = pattern(0, 1 << 20, 1);
    let mut model = vec![0; 1 << 20];
    let mut state = 12_345 + number;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    process.ftruncate(fd, 1 << 20).unwrap();
    for round in 0..600 {
        let at = random(1 << 20);
        let len = (1 + random(60_000)).min((1 << 20) - at);
        match random(4) {
            0 => {
                process
                    .fallocate(fd, FallocateMode::PunchHole, at as u64, len as u64)
                    .unwrap();
                model[at..at + len].fill(0);
            }
            1 => {
                process.ftruncate(fd, at as u64).unwrap();
                process.ftruncate(fd, 1 << 20).unwrap();
                model[at..].fill(0);
            }
            _ => {
                let bytes = pattern(at, len, round);
                // A write may be short while other threads' pages are on their way to the swap
                // device.
                let mut done = 0;
                while done < len {
                    let count = process.pwrite(fd, &bytes[done..], (at + done) as u64);
                    done += count.unwrap();
                }
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        let at = random(1 << 20);
        let mut read = vec![0; 100_000];
        let count = process.pread(fd, &mut read, at as u64).unwrap();
        assert_eq!(count, ((1 << 20) - at).min(100_000));
        assert!(read[..count] == model[at..at + count], "round {round}");
        let count = process.pread(shared, &mut read, at as u64).unwrap();
        for (read, written) in read[..count].iter().zip(&whole[at..]) {
            assert!(read == written || number > 0 || *read == 0 || *written == 0);
            assert!(read == written || *read == 0);
        }
        match number {
            0 => process.ftruncate(shared, random(1 << 20) as u64).unwrap(),
            1 => drop(process.pwrite(
                shared,
                &whole[at..at + len.min(whole.len() - at)],
                at as u64,
            )),
            _ => {}
        }
    }
    let mut read = vec![0; 1 << 20];
    assert_eq!(process.pread(fd, &mut read, 0).unwrap(), 1 << 20);
    assert!(read == model);
}

#[test]
fn concurrent_changes_survive_swapping() {
    let (kernel, p) = world("size=16m", Arc::new(MemoryDevice::new(16 << 20)));
    let shared = create(&p, "/t/shared");
    p.write(shared, &pattern(0, 1 << 20, 1)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..3_usize {
            let kernel = &kernel;
            scope.spawn(move || work_alone_and_together(kernel, number));
        }
    });
    let fd = p.open("/t/0", CREATE, 0).unwrap();
    for path in ["/t/0", "/t/1", "/t/2", "/t/shared"] {
        p.unlink(path).unwrap();
    }
    p.close(fd).unwrap();
    p.close(shared).unwrap();
    assert_eq!(blocks_free(&p), 4096);
}

#[test]
fn writes_of_many_threads_are_complete() {
    const LEN: usize = 1 << 20;
    let (kernel, p) = world("size=16m", Arc::new(MemoryDevice::new(16 << 20)));
    let shared = create(&p, "/t/shared");
    p.write(shared, &pattern(0, LEN, 1)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..8_usize {
            let kernel = &kernel;
            scope.spawn(move || {
                let process = kernel.process(Credentials::root());
                let fd = create(&process, &format!("/t/{number}"));
                let shared = process.open("/t/shared", OpenFlags::empty(), 0).unwrap();
                let mut read = vec![0; 100_000];
                for round in 0..200 {
                    let at = (number * 77_777 + round * 131_071) % (LEN - 60_000);
                    let bytes = pattern(at, 60_000, round);
                    let count = process.pwrite(fd, &bytes, at as u64);
                    assert_eq!(
                        count.unwrap(),
                        bytes.len(),
                        "thread {number}, round {round}"
                    );
                    process.pread(shared, &mut read, at as u64).unwrap();
                    assert!(read[..1000] == pattern(at, 1000, 1));
                }
            });
        }
    });
}

#[test]
fn failing_swap_device_loses_nothing() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(8 << 20)), 1));
    let (_kernel, p) = world("size=8m", device.clone());
    let fd = create(&p, "/t/f");
    let bytes = pattern(0, 3 << 20, 5);
    assert_eq!(p.write(fd, &bytes).unwrap(), bytes.len());
    device.fail(FaultKind::Read, FaultWhen::Always);
    let mut read = vec![0; bytes.len()];
    assert_eq!(errno(p.pread(fd, &mut read, 0)), Some(Errno::IO));
    assert_eq!(errno(p.pwrite(fd, b"x", 5)), Some(Errno::IO));
    p.ftruncate(fd, (2 << 20) - 9).unwrap();
    device.clear_faults();
    let count = p.pread(fd, &mut read, 0).unwrap();
    assert!(count == (2 << 20) - 9 && read[..count] == bytes[..count]);
    // Pages that cannot be swapped stay in memory, which then becomes full.
    device.fail(FaultKind::Write, FaultWhen::Always);
    let other = create(&p, "/t/g");
    let written = p.write(other, &vec![1; 2 << 20]).unwrap_or(0);
    assert!(written <= 1 << 20, "{written} bytes");
    device.clear_faults();
    let count = p.pread(fd, &mut read, 0).unwrap();
    assert!(count == (2 << 20) - 9 && read[..count] == bytes[..count]);
    assert_eq!(blocks_free(&p), 2048 - 512 - written.div_ceil(PAGE) as u64);
}
