//! A gpufs on a device, calls of the device's API, and the model that both must match.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod adjacent;

use folio::ramfs::{FrameFiles, FrameRead, FrameWrite};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use folio_cuda::{Absent, Device, Launch, LaunchReport};
use std::sync::Arc;

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);

/// The work of one launch: its number, and the function that makes calls.
pub(crate) type Turn<'a> =
    dyn FnMut(u64, &dyn Fn(usize) -> folio::Result<()>) -> folio::Result<()> + 'a;

/// A gpufs at `/gpu`.
pub(crate) struct World {
    pub(crate) process: Process,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) files: FrameFiles,
    /// Lanes of a block.
    pub(crate) lanes: u32,
}

impl World {
    pub(crate) fn new<D: Device + 'static>(device: Arc<D>, words: &str) -> Self {
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
            lanes: 64,
        }
    }

    pub(crate) fn open(&self, path: &str) -> Fd {
        self.process.open(path, CREATE, 0o644).unwrap()
    }

    pub(crate) fn launch(&self) -> Launch<'_> {
        Launch::new(&self.process, &*self.device, &self.files)
    }

    /// Makes calls of the device's API in one launch after the other, until none misses a page.
    pub(crate) fn operations(
        &self,
        launch: &mut Launch<'_>,
        calls: &mut [Call],
    ) -> folio::Result<LaunchReport> {
        let count = calls.len();
        self.operations_by_launch(launch, calls, &mut |_, make| make(count))
    }

    /// Makes calls of the device's API in one launch after the other. Each calls `turn` with its
    /// number, and a function that makes the first calls, of this number.
    pub(crate) fn operations_by_launch(
        &self,
        launch: &mut Launch<'_>,
        calls: &mut [Call],
        turn: &mut Turn<'_>,
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
        let mut number = 0;
        let report = launch.run(&mut |table| {
            number += 1;
            turn(number, &|count| {
                let bytes = &bytes[..];
                self.device.write(&[FrameWrite {
                    address: list,
                    bytes,
                }])?;
                let arguments = [table, list, count as u64];
                self.device
                    .launch("folio_operations", 3, self.lanes, &arguments)
            })
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

    pub(crate) fn content(&self, fd: Fd) -> Vec<u8> {
        let size = self.process.fstat(fd).unwrap().size_bytes;
        let mut bytes = vec![0; size as usize + 10];
        let count = self.process.pread(fd, &mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }
}

/// One call on the device.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    is_write: bool,
    /// 0: thread, 1: the last warp, 2: block.
    pub(crate) scope: u64,
    file: u64,
    pub(crate) offset: u64,
    /// Shift of the buffer from a multiple of 16.
    shift: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) result: i64,
}

pub(crate) fn read(file: u64, offset: u64, len: usize) -> Call {
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

pub(crate) fn write(file: u64, offset: u64, bytes: &[u8]) -> Call {
    Call {
        is_write: true,
        bytes: bytes.to_vec(),
        ..read(file, offset, 0)
    }
}

/// A generator of numbers, the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
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

/// The largest offset of random calls.
const SPAN: u64 = 300_000;

/// Makes random calls of the host.
fn host_turn(process: &Process, fds: [Fd; 3], models: &mut [Vec<u8>; 3], random: &mut Random) {
    for _ in 0..random.below(6) {
        let file = random.below(3) as usize;
        let offset = random.below(SPAN);
        match random.below(4) {
            0 => {
                process.ftruncate(fds[file], offset).unwrap();
                models[file].resize(offset as usize, 0);
            }
            _ => {
                let bytes = vec![random.below(255) as u8 + 1; random.below(20_000) as usize];
                process.pwrite(fds[file], &bytes, offset).unwrap();
                apply(&mut models[file], offset, &bytes);
            }
        }
    }
}

/// Runs random calls of host and device on three files beside a model, with these limits of pages
/// and misses.
pub(crate) fn matches_model<D: Device + 'static>(
    device: Arc<D>,
    words: &str,
    pages_max: usize,
    ring_capacity: usize,
    seed: u64,
) {
    let world = World::new(device, words);
    let fds = ["/gpu/a", "/gpu/b", "/gpu/c"].map(|path| world.open(path));
    let mut models = [const { Vec::new() }; 3];
    let mut random = Random(seed);
    let mut calls_made = 0;
    while calls_made < 2_000 {
        host_turn(&world.process, fds, &mut models, &mut random);
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
                    shift: [0, 4, 7, 8][random.below(4) as usize],
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

/// The host writes the even pages of a file, and other files come and go, while launches write the
/// odd pages and read back what they wrote before.
pub(crate) fn keeps_every_byte<D: Device + 'static>(device: Arc<D>) {
    const PAGES: u64 = 64;
    const ROUNDS: u8 = 40;
    let world = World::new(device, "size=256m,page=4k");
    let fd = world.open("/gpu/f");
    world
        .process
        .pwrite(fd, &vec![0; PAGES as usize * 4096], 0)
        .unwrap();
    let kernel = &world.kernel;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let process = kernel.process(Credentials::root());
            let fd = process.open("/gpu/f", CREATE, 0o644).unwrap();
            for round in 1..=ROUNDS {
                for page in (0..PAGES).step_by(2) {
                    process.pwrite(fd, &[round; 4096], page * 4096).unwrap();
                    let mut back = [0; 4096];
                    process.pread(fd, &mut back, page * 4096).unwrap();
                    assert_eq!(back, [round; 4096]);
                }
                let other = process.open("/gpu/other", CREATE, 0o644).unwrap();
                process.pwrite(other, &[0xee; 300_000], 0).unwrap();
                process.unlink("/gpu/other").unwrap();
                process.close(other).unwrap();
            }
        });
        for round in 1..=ROUNDS {
            let odd = (0..PAGES).skip(1).step_by(2);
            let mut calls: Vec<_> = odd
                .clone()
                .map(|page| write(0, page * 4096, &[round | 0x80; 4096]))
                .collect();
            let mut launch = world.launch().file(fd, Absent::Zeros);
            world.operations(&mut launch, &mut calls).unwrap();
            let mut calls: Vec<_> = odd.map(|page| read(0, page * 4096, 4096)).collect();
            world.operations(&mut launch, &mut calls).unwrap();
            assert!(calls.iter().all(|call| call.bytes == [round | 0x80; 4096]));
        }
    });
    for (page, bytes) in world.content(fd).chunks(4096).enumerate() {
        let expected = if page % 2 == 0 { ROUNDS } else { ROUNDS | 0x80 };
        assert!(bytes.iter().all(|byte| *byte == expected), "page {page}");
    }
}
