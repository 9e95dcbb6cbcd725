//! The device code, compiled as C++ for the host, against a model: reads and writes, epochs, and
//! tables and rings that are too small.

mod world;

use folio::syscall::Fd;
use folio::{Errno, Process};
use folio_cuda::{Absent, HostDevice, fill};
use std::sync::Arc;
use world::{World, matches_model, read, write};

fn device() -> Arc<HostDevice> {
    Arc::new(HostDevice::new(256 << 20).unwrap())
}

fn world(words: &str) -> World {
    World::new(device(), words)
}

#[test]
fn device_calls_match_model_with_4k_pages() {
    matches_model(device(), "size=100%,page=4k", (usize::MAX, 1 << 16), 1);
}

#[test]
fn device_calls_match_model_with_64k_pages() {
    matches_model(device(), "size=100%", (usize::MAX, 1 << 16), 2);
}

#[test]
fn device_calls_match_model_in_small_tables() {
    matches_model(device(), "size=100%,page=4k", (400, 3), 3);
}

#[test]
fn calls_outside_of_files_return_errnos() {
    let world = world("");
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [read(1, 0, 5), read(0, 1 << 62, 5), read(0, 7, 5)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls.map(|call| call.result), [-9, -27, 0]);
}

#[test]
fn missed_pages_are_written_after_a_relaunch() {
    let world = world("page=4k");
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [write(0, 9000, b"far"), write(0, 5, b"near")];
    let report = world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!((report.launches, report.misses), (2, 2));
    let stat = world.process.fstat(fd).unwrap();
    assert_eq!((stat.size_bytes, stat.blocks_512), (9003, 16));
    let content = world.content(fd);
    assert_eq!(
        (&content[5..9], &content[9000..]),
        (&b"near"[..], &b"far"[..])
    );
}

#[test]
fn ring_overflow_ends_with_every_page() {
    let world = world("page=4k");
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(usize::MAX, 4);
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let mut calls = [write(0, 0, &bytes)];
    let report = world.operations(&mut launch, &mut calls).unwrap();
    // 25 pages, of which the ring carries 4 at a time.
    assert_eq!(report.launches, 8);
    assert!(world.content(fd) == bytes);
}

#[test]
fn full_table_fails_with_enomem() {
    let world = world("page=4k");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 40_960], 0).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(9, 100);
    let error = world
        .operations(&mut launch, &mut [read(0, 0, 40_960)])
        .unwrap_err();
    assert_eq!(error.errno(), Errno::NOMEM);
    let mut calls = [read(0, 4096, 36_864)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls[0].bytes, [7; 36_864]);
}

#[test]
fn holes_in_a_small_table_read_as_zeros() {
    let world = world("page=4k");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 40_960], 0).unwrap();
    world.process.ftruncate(fd, 81_920).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(5, 100);
    let mut calls = [read(0, 36_864, 8192), read(0, 81_000, 920)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls[0].bytes, [[7; 4096], [0; 4096]].concat());
    assert_eq!(calls[1].bytes, [0; 920]);
}

#[test]
fn write_beyond_the_limit_fails_with_enospc() {
    let world = world("size=64k,page=4k");
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let error = world
        .operations(&mut launch, &mut [write(0, 0, &[1; 70_000])])
        .unwrap_err();
    assert_eq!(error.errno(), Errno::NOSPC);
    let stat = world.process.statfs("/gpu").unwrap();
    assert_eq!((stat.blocks, stat.blocks_free), (16, 0));
}

#[test]
fn unlinked_frames_stay_during_a_launch() {
    let world = world("size=1m,page=4k");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[3; 8192], 0).unwrap();
    let number = world.process.fstat(fd).unwrap().number;
    let held = world.files.pages(number).unwrap();
    world.process.unlink("/gpu/f").unwrap();
    world.process.close(fd).unwrap();
    assert!(world.files.pages(number).is_none());
    let free = || world.process.statfs("/gpu").unwrap().blocks_free;
    assert_eq!(free(), 254);
    drop(held);
    assert_eq!(free(), 256);
}

#[test]
fn absent_pages_are_filled_from_another_mount() {
    let world = world("page=4k");
    let bytes: Vec<u8> = (0..50_000_u32).map(|at| (at / 7) as u8).collect();
    let source = world.open("/source");
    world.process.pwrite(source, &bytes, 0).unwrap();
    let fd = world.open("/gpu/f");
    world.process.ftruncate(fd, 50_000).unwrap();
    let mut filled = Vec::new();
    let mut fill_page = |process: &Process, fd: Fd, range: std::ops::Range<u64>| {
        let mut page = vec![0; (range.end - range.start) as usize];
        process.pread(source, &mut page, range.start)?;
        process.pwrite(fd, &page, range.start)?;
        filled.push(range.start);
        Ok(())
    };
    let mut launch = world.launch().file(fd, Absent::Fill(&mut fill_page));
    let mut calls = [read(0, 4000, 200), read(0, 49_000, 2000)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert!(calls[0].bytes == bytes[4000..4200]);
    assert_eq!(calls[1].result, 1000);
    assert!(calls[1].bytes[..1000] == bytes[49_000..]);
    drop(launch);
    // 49,000 is on page 11, and the last byte on page 12.
    assert_eq!(filled, [0, 4096, 45_056, 49_152]);
}

#[test]
fn fill_copies_a_file_of_another_mount() {
    let world = world("size=100%");
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at / 5) as u8).collect();
    let source = world.open("/source");
    world.process.pwrite(source, &bytes, 0).unwrap();
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[9; 100], 20_000_000).unwrap();
    let fds = (source, fd);
    let count = fill(&world.process, &*world.device, &world.files, fds, 3).unwrap();
    assert_eq!(count, 9_000_001);
    assert!(world.content(fd) == bytes);
    let empty = world.open("/empty");
    let fds = (empty, fd);
    assert_eq!(
        fill(&world.process, &*world.device, &world.files, fds, 3).unwrap(),
        0
    );
    assert_eq!(world.process.fstat(fd).unwrap().blocks_512, 0);
}

#[test]
fn unmount_returns_the_memory_of_the_device() {
    let device = device();
    let world = World::new(device.clone(), "");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[1; 100_000], 0).unwrap();
    assert_ne!(device.used_bytes(), 0);
    world.process.close(fd).unwrap();
    world.kernel.unmount("/gpu").unwrap();
    drop(world.files);
    assert_eq!(device.used_bytes(), 0);
}
