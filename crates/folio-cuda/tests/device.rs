//! The device code, compiled as C++ for the host, against a model: reads and writes, epochs, and
//! tables and rings that are too small.

use folio::fs::ramfs::{FrameFiles, FrameMemory, FrameRead, FrameWrite};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, KernelOptions, Process};
use folio_cuda::{Absent, Device, HostDevice, Launch, LaunchReport, fill};
use std::sync::Arc;

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);

/// A gpufs at `/gpu` on a host device.
struct World {
    process: Process,
    kernel: Arc<Kernel>,
    device: Arc<HostDevice>,
    files: FrameFiles,
}

impl World {
    fn new(words: &str) -> Self {
        let device = Arc::new(HostDevice::new(256 << 20).unwrap());
        let kernel = Kernel::new(KernelOptions::default());
        let process = kernel.process(Credentials::root());
        process.mkdir("/gpu", 0o755).unwrap();
        let options = MountOptions::parse(words).unwrap();
        let files = kernel
            .mount_gpufs("/gpu", device.clone(), &options)
            .unwrap();
        Self {
            process,
            kernel,
            device,
            files,
        }
    }

    fn open(&self, path: &str) -> Fd {
        self.process.open(path, CREATE, 0o644).unwrap()
    }

    fn launch(&self) -> Launch<'_> {
        Launch::new(&self.process, &*self.device, &self.files)
    }

    /// Makes calls of the device's API in one launch after the other, until none misses a page.
    fn operations(
        &self,
        launch: &mut Launch<'_>,
        calls: &mut [Call],
    ) -> folio::Result<LaunchReport> {
        let data_bytes: usize = calls.iter().map(|call| call.bytes.len() + 64).sum();
        let data = self.device.allocate(data_bytes as u64)?;
        let list = self.device.allocate(calls.len() as u64 * 56)?;
        let mut words: Vec<u64> = Vec::new();
        let mut at = data;
        for call in &*calls {
            let address = at + call.shift;
            let (offset, len) = (call.offset, call.bytes.len() as u64);
            words.extend([
                call.is_write.into(),
                call.scope,
                call.file,
                offset,
                address,
                len,
            ]);
            words.push(i64::MAX as u64);
            let bytes = &call.bytes;
            self.device.write(&[FrameWrite { address, bytes }])?;
            at += (len + call.shift).next_multiple_of(16) + 16;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let report = launch.run(&mut |table| {
            let bytes = &bytes[..];
            self.device.write(&[FrameWrite {
                address: list,
                bytes,
            }])?;
            let arguments = [table, list, calls.len() as u64];
            self.device.launch("folio_operations", 3, 64, &arguments)
        });
        for (call, at) in calls.iter_mut().zip(0..) {
            let mut result = [0; 8];
            let place = &words[at * 7..][..7];
            self.device.read(&mut [
                FrameRead {
                    address: list + at as u64 * 56 + 48,
                    buf: &mut result,
                },
                FrameRead {
                    address: place[4],
                    buf: &mut call.bytes,
                },
            ])?;
            call.result = i64::from_ne_bytes(result);
        }
        self.device.release(list);
        self.device.release(data);
        report
    }

    fn content(&self, fd: Fd) -> Vec<u8> {
        let size = self.process.fstat(fd).unwrap().size_bytes;
        let mut bytes = vec![0; size as usize + 10];
        let count = self.process.pread(fd, &mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }
}

/// One call on the device.
#[derive(Debug, Clone)]
struct Call {
    is_write: bool,
    /// 0: thread, 1: warp, 2: block.
    scope: u64,
    file: u64,
    offset: u64,
    /// Shift of the buffer from a multiple of 16.
    shift: u64,
    bytes: Vec<u8>,
    result: i64,
}

fn read(file: u64, offset: u64, len: usize) -> Call {
    Call {
        is_write: false,
        scope: 0,
        file,
        offset,
        shift: 0,
        bytes: vec![0xcc; len],
        result: 0,
    }
}

fn write(file: u64, offset: u64, bytes: &[u8]) -> Call {
    Call {
        is_write: true,
        bytes: bytes.to_vec(),
        ..read(file, offset, 0)
    }
}

/// A generator of numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Applies a write to the model of a file.
fn apply(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if model.len() < end && !bytes.is_empty() {
        model.resize(end, 0);
    }
    if !bytes.is_empty() {
        model[offset as usize..end].copy_from_slice(bytes);
    }
}

fn check_read(call: &Call, model: &[u8]) {
    let start = (call.offset as usize).min(model.len());
    let end = (start + call.bytes.len()).min(model.len());
    assert_eq!(call.result, (end - start) as i64, "{call:?}");
    assert!(call.bytes[..end - start] == model[start..end], "{call:?}");
    assert!(call.bytes[end - start..].iter().all(|byte| *byte == 0xcc));
}

/// Runs random calls of host and device on three files beside a model, with these limits of pages
/// and misses.
fn matches_model(words: &str, (pages_max, ring_capacity): (usize, usize), seed: u64) {
    const SPAN: u64 = 300_000;
    let world = World::new(words);
    let fds = ["/gpu/a", "/gpu/b", "/gpu/c"].map(|path| world.open(path));
    let mut models = [const { Vec::new() }; 3];
    let mut random = Random(seed);
    let mut calls_made = 0;
    while calls_made < 2_000 {
        // The host's turn.
        for _ in 0..random.below(6) {
            let file = random.below(3) as usize;
            let offset = random.below(SPAN);
            match random.below(4) {
                0 => {
                    world.process.ftruncate(fds[file], offset).unwrap();
                    models[file].resize(offset as usize, 0);
                }
                _ => {
                    let bytes = vec![random.below(255) as u8 + 1; random.below(20_000) as usize];
                    world.process.pwrite(fds[file], &bytes, offset).unwrap();
                    apply(&mut models[file], offset, &bytes);
                }
            }
        }
        // One launch: either reads, or writes that do not overlap.
        let is_write = random.below(3) == 0;
        let mut calls: Vec<Call> = (0..random.below(30) + 1)
            .map(|_| {
                let most = if random.below(4) == 0 { 30_000 } else { 900 };
                let len = random.below(most);
                let bytes = vec![random.below(255) as u8 + 1; len as usize];
                Call {
                    is_write,
                    scope: random.below(3),
                    shift: [0, 0, 4, 7][random.below(4) as usize],
                    bytes: if is_write {
                        bytes
                    } else {
                        vec![0xcc; len as usize]
                    },
                    ..read(random.below(3), random.below(SPAN), 0)
                }
            })
            .collect();
        if is_write {
            for (call, at) in calls.iter_mut().zip(0..) {
                call.offset = at * 30_000 + call.offset % 1000;
                call.bytes.truncate(29_000);
            }
        }
        calls_made += calls.len();
        let mut launch = fds
            .iter()
            .fold(world.launch(), |launch, fd| launch.file(*fd, Absent::Zeros))
            .limits(pages_max, ring_capacity);
        world.operations(&mut launch, &mut calls).unwrap();
        for call in &calls {
            let model = &mut models[call.file as usize];
            if is_write {
                assert_eq!(call.result, call.bytes.len() as i64);
                apply(model, call.offset, &call.bytes);
            } else {
                check_read(call, model);
            }
        }
        for (fd, model) in fds.iter().zip(&models) {
            assert!(world.content(*fd) == *model);
        }
    }
}

#[test]
fn device_calls_match_model_with_4k_pages() {
    matches_model("size=100%,page=4k", (usize::MAX, 1 << 16), 1);
}

#[test]
fn device_calls_match_model_with_64k_pages() {
    matches_model("size=100%", (usize::MAX, 1 << 16), 2);
}

#[test]
fn device_calls_match_model_in_small_tables() {
    matches_model("size=100%,page=4k", (400, 3), 3);
}

#[test]
fn calls_outside_of_files_return_errnos() {
    let world = World::new("");
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [read(1, 0, 5), read(0, 1 << 62, 5), read(0, 7, 5)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls.map(|call| call.result), [-9, -27, 0]);
}

#[test]
fn missed_pages_are_written_after_a_relaunch() {
    let world = World::new("page=4k");
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
    let world = World::new("page=4k");
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
    let world = World::new("page=4k");
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
fn write_beyond_the_limit_fails_with_enospc() {
    let world = World::new("size=64k,page=4k");
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
    let world = World::new("size=1m,page=4k");
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
    let world = World::new("page=4k");
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
    let world = World::new("size=100%");
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
    let world = World::new("");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[1; 100_000], 0).unwrap();
    assert_ne!(world.device.used_bytes(), 0);
    world.process.close(fd).unwrap();
    world.kernel.unmount("/gpu").unwrap();
    drop(world.files);
    assert_eq!(world.device.used_bytes(), 0);
}
