//! The device code, compiled as C++ for the host, against a model: reads and writes, epochs, and
//! tables and rings that are too small.

mod skip;
mod world;

use folio::block::ImageFormat;
use folio::ramfs::{FrameRead, FrameWrite};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::{FallocateMode, MountOptions};
use folio::{Errno, Image, Process};
use folio_cuda::{Absent, Device, HostDevice, Launch, fill};
use std::process::Command;
use std::sync::Arc;
use world::adjacent::AdjacentDevice;
use world::{World, keeps_every_byte, matches_model, read, write};

/// Returns whether there is a compiler for the device code; reports the skip if not.
fn has_compiler() -> bool {
    let run = Command::new("c++").arg("--version").output();
    run.inspect_err(|error| skip::report("device", &format!("c++: {error}")))
        .is_ok()
}

/// A device; `None` after a report of the skip.
fn device() -> Option<Arc<HostDevice>> {
    has_compiler().then(|| Arc::new(HostDevice::new(256 << 20).unwrap()))
}

/// A gpufs on a device; `None` after a report of the skip.
fn world(words: &str) -> Option<World> {
    Some(World::new(device()?, words))
}

#[test]
fn device_calls_match_model_with_4k_pages() {
    let Some(device) = device() else { return };
    matches_model(device, "size=100%,page=4k", usize::MAX, 1 << 16, 1);
}

#[test]
fn device_calls_match_model_with_64k_pages() {
    let Some(device) = device() else { return };
    matches_model(device, "size=100%", usize::MAX, 1 << 16, 2);
}

#[test]
fn device_calls_match_model_in_small_tables() {
    let Some(device) = device() else { return };
    matches_model(device, "size=100%,page=4k", 400, 3, 3);
}

#[test]
fn concurrent_writes_and_launches_keep_every_byte() {
    let Some(device) = device() else { return };
    keeps_every_byte(device);
}

#[test]
fn calls_outside_of_files_return_errnos() {
    let Some(world) = world("") else { return };
    let fd = world.open("/gpu/f");
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [read(1, 0, 5), read(0, 1 << 62, 5), read(0, 7, 5)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls.map(|call| call.result), [-9, -27, 0]);
}

/// The bits above the index of a page are the number of the file.
#[test]
fn write_past_the_last_index_fails_with_efbig() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fds = ["/gpu/a", "/gpu/b", "/gpu/c"].map(|path| world.open(path));
    for fd in fds {
        world.process.pwrite(fd, &[7; 4096], 0).unwrap();
    }
    let mut launch = fds
        .iter()
        .fold(world.launch(), |launch, fd| launch.file(*fd, Absent::Zeros));
    let last = (1 << 52) - 5;
    let mut calls = [
        write(0, 1 << 53, b"wrong"),
        write(0, last, b"crossing"),
        read(0, 4095, 100),
    ];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls.map(|call| call.result), [-27, -27, 1]);
    for fd in fds {
        assert_eq!(world.content(fd), [7; 4096]);
    }
}

/// The last warp of a block of 48 lanes has 16.
#[test]
fn partial_warp_copies_every_byte() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let world = World { lanes: 48, ..world };
    let fd = world.open("/gpu/f");
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 3) as u8).collect();
    world.process.pwrite(fd, &bytes, 0).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [read(0, 0, 4096), read(0, 5, 15_000)];
    calls.iter_mut().for_each(|call| call.scope = 1);
    world.operations(&mut launch, &mut calls).unwrap();
    for (call, start) in calls.iter().zip([0, 5]) {
        assert_eq!(call.result, call.bytes.len() as i64);
        assert!(call.bytes == bytes[start..start + call.bytes.len()]);
    }
    let mut calls = [write(0, 100, &[9; 9000])];
    calls[0].scope = 1;
    world.operations(&mut launch, &mut calls).unwrap();
    assert!(world.content(fd)[100..9100].iter().all(|byte| *byte == 9));
}

#[test]
fn missed_pages_are_written_after_a_relaunch() {
    let Some(world) = world("page=4k") else {
        return;
    };
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
    let Some(world) = world("page=4k") else {
        return;
    };
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
    let Some(world) = world("page=4k") else {
        return;
    };
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
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 40_960], 0).unwrap();
    world.process.ftruncate(fd, 81_920).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(5, 100);
    let mut calls = [read(0, 36_864, 8192), read(0, 81_000, 920)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls[0].bytes, [[7; 4096], [0; 4096]].concat());
    assert_eq!(calls[1].bytes, [0; 920]);
}

/// The first launch misses the hole to read it, the second to write it.
#[test]
fn hole_that_was_read_is_written_after_a_relaunch() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 40_960], 0).unwrap();
    world.process.ftruncate(fd, 81_920).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(5, 100);
    let mut calls = [read(0, 45_056, 4), write(0, 45_056, b"new")];
    let report = world
        .operations_by_launch(&mut launch, &mut calls, &mut |number, make| {
            make(number.min(2) as usize)
        })
        .unwrap();
    assert_eq!(report.launches, 3);
    assert_eq!(&world.content(fd)[45_055..45_059], b"\0new");
}

#[test]
fn page_that_the_host_frees_is_missed_again() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 40_960], 0).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros).limits(2, 100);
    let mut calls = [write(0, 36_864, b"new"), write(0, 32_768, b"new")];
    let punch = FallocateMode::PunchHole;
    let report = world
        .operations_by_launch(&mut launch, &mut calls, &mut |number, make| {
            if number == 2 {
                world.process.fallocate(fd, punch, 36_864, 4096).unwrap();
            }
            // The first launch misses one page, the second the other: then the first is free.
            make(number.min(2) as usize)
        })
        .unwrap();
    assert_eq!(report.launches, 4);
    let content = world.content(fd);
    assert_eq!(&content[36_863..36_868], b"\x07new\0");
    assert_eq!(&content[32_768..32_772], b"new\x07");
}

#[test]
fn size_set_by_the_host_stays_after_a_launch() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 8192], 0).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [write(0, 200, &[9; 5000])];
    world
        .operations_by_launch(&mut launch, &mut calls, &mut |_, make| {
            world.process.ftruncate(fd, 300).unwrap();
            make(1)
        })
        .unwrap();
    assert_eq!(world.content(fd), [[7; 200].as_slice(), &[9; 100]].concat());
    world.process.ftruncate(fd, 1000).unwrap();
    assert_eq!(world.content(fd)[300..], [0; 700]);
}

#[test]
fn failed_launch_leaves_no_bytes_past_the_end() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 100], 0).unwrap();
    let keep = FallocateMode::AllocateKeepSize;
    world.process.fallocate(fd, keep, 0, 8192).unwrap();
    let mut launch = world.launch().file(fd, Absent::Zeros);
    let mut calls = [write(0, 50, &[9; 5000])];
    let error = world
        .operations_by_launch(&mut launch, &mut calls, &mut |_, make| {
            make(1)?;
            Err(Errno::TIMEDOUT.into())
        })
        .unwrap_err();
    assert_eq!(calls[0].result, 5000);
    assert_eq!(error.errno(), Errno::TIMEDOUT);
    world.process.ftruncate(fd, 8192).unwrap();
    assert_eq!(world.content(fd)[100..], [0; 8092]);
}

#[test]
fn kernel_write_needs_a_writable_descriptor() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 100], 0).unwrap();
    let open = |flags| world.process.open("/gpu/f", flags, 0).unwrap();
    let fds = [open(OpenFlags::empty()), open(OpenFlags::WRONLY)];
    let mut launch = fds
        .iter()
        .fold(world.launch(), |launch, fd| launch.file(*fd, Absent::Zeros));
    let mut calls = [
        write(0, 0, b"no"),
        read(0, 0, 5),
        write(1, 1, b"yes"),
        read(1, 0, 5),
    ];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls.map(|call| call.result), [-9, 5, 3, -9]);
    assert_eq!(&world.content(fd)[..5], b"\x07yes\x07");
}

/// A user that has the file open for writing, but is not its owner.
#[test]
fn kernel_write_of_a_user_clears_setuid() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 100], 0).unwrap();
    world.process.fchmod(fd, 0o4777).unwrap();
    let before = world.process.fstat(fd).unwrap().modified;
    let user = world.kernel.process(Credentials::user(5, 5, Vec::new()));
    let opened = user.open("/gpu/f", OpenFlags::RDWR, 0).unwrap();
    let mut launch = Launch::new(&user, &*world.device, &world.files).file(opened, Absent::Zeros);
    let mut calls = [write(0, 0, b"new")];
    world.operations(&mut launch, &mut calls).unwrap();
    let stat = world.process.fstat(fd).unwrap();
    assert_eq!((stat.mode, stat.size_bytes), (0o777, 100));
    assert!(stat.modified >= before);
}

#[test]
fn copies_stay_within_allocations() {
    if !has_compiler() {
        return;
    }
    let device = Arc::new(AdjacentDevice::new(64 << 20));
    let world = World::new(device.clone(), "size=32m");
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at / 5) as u8).collect();
    let fd = world.open("/gpu/f");
    let write_all = |fd| {
        let mut done = 0;
        while done < bytes.len() {
            let count = world.process.pwrite(fd, &bytes[done..], done as u64);
            done += count.unwrap();
        }
    };
    write_all(fd);
    assert!(device.allocation_count() > 4);
    assert!(world.content(fd) == bytes);
    let zero = FallocateMode::ZeroRange;
    world.process.fallocate(fd, zero, 0, 9_000_001).unwrap();
    assert!(world.content(fd).iter().all(|byte| *byte == 0));
    let source = world.open("/source");
    write_all(source);
    fill(&world.process, &*device, &world.files, source, fd, 2).unwrap();
    assert!(world.content(fd) == bytes);
}

#[test]
fn write_beyond_the_limit_fails_with_enospc() {
    let Some(world) = world("size=64k,page=4k") else {
        return;
    };
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
    let Some(world) = world("size=1m,page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[3; 8192], 0).unwrap();
    let file = world.process.hold(fd).unwrap();
    let pages = world.files.pages(&file).unwrap();
    world.process.unlink("/gpu/f").unwrap();
    world.process.close(fd).unwrap();
    drop(file);
    let free = || world.process.statfs("/gpu").unwrap().blocks_free;
    assert_eq!(free(), 254);
    drop(pages);
    assert_eq!(free(), 256);
}

/// The table of a launch has the pages as of its start, whatever the host does before the kernel
/// runs.
#[test]
fn launch_sees_the_pages_of_its_epoch() {
    let Some(world) = world("size=1m,page=4k") else {
        return;
    };
    let fds = ["/gpu/cut", "/gpu/gone", "/gpu/same"].map(|path| world.open(path));
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 3) as u8).collect();
    for fd in fds {
        world.process.pwrite(fd, &bytes, 0).unwrap();
    }
    let mut launch = fds
        .iter()
        .fold(world.launch(), |launch, fd| launch.file(*fd, Absent::Zeros));
    let mut calls = [0, 1, 2].map(|file| read(file, 0, 20_000));
    let report = world
        .operations_by_launch(&mut launch, &mut calls, &mut |_, make| {
            world.process.ftruncate(fds[0], 0).unwrap();
            world.process.unlink("/gpu/gone").unwrap();
            world.process.close(fds[1]).unwrap();
            // Takes every free frame: none of those in the table.
            let other = world.open("/gpu/other");
            let mut size = 0;
            while let Ok(count) = world.process.pwrite(other, &[0xee; 65_536], size) {
                size += count as u64;
            }
            make(3)
        })
        .unwrap();
    assert_eq!(report.launches, 1);
    assert!(calls.iter().all(|call| call.bytes == bytes));
    // The next launch sees the file as it is now.
    let mut launch = world.launch().file(fds[0], Absent::Zeros);
    let mut calls = [read(0, 0, 10)];
    world.operations(&mut launch, &mut calls).unwrap();
    assert_eq!(calls[0].result, 0);
    assert_eq!(world.process.stat("/gpu/cut").unwrap().size_bytes, 0);
}

#[test]
fn overwritten_table_fails_with_eio() {
    let Some(world) = world("page=4k") else {
        return;
    };
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[7; 100], 0).unwrap();
    let write_word = |address, word: u64| {
        let bytes = &word.to_ne_bytes()[..];
        world.device.write(&[FrameWrite { address, bytes }])
    };
    let read_word = |address| -> folio::Result<u64> {
        let mut bytes = [0; 8];
        let buf = &mut bytes[..];
        world.device.read(&mut [FrameRead { address, buf }])?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let fails = |kernel: &mut dyn FnMut(u64) -> folio::Result<()>| {
        let mut launch = world.launch().file(fd, Absent::Zeros);
        let error = launch.run(kernel).unwrap_err();
        assert_eq!(error.errno(), Errno::IO);
        error.to_string()
    };
    // The epoch is the first word, the number of misses the sixth, the ring's address the ninth.
    let stale = fails(&mut |table| write_word(table, read_word(table)? - 1));
    assert!(stale.contains("overwrote the table"), "{stale}");
    let unknown = fails(&mut |table| {
        write_word(table + 40, 1)?;
        write_word(read_word(table + 64)?, 9 << 40)
    });
    assert!(unknown.contains("overwrote the table"), "{unknown}");
    let mut launches = 0;
    let present = fails(&mut |table| {
        launches += 1;
        write_word(table + 40, 1)?;
        write_word(read_word(table + 64)?, 1 << 40)
    });
    assert!(present.contains("pages that its table has"), "{present}");
    assert_eq!(launches, 2);
    assert_eq!(world.content(fd), [7; 100]);
}

/// Inodes of different mounts have the same numbers.
#[test]
fn file_of_another_mount_fails_with_exdev() {
    let Some(world) = world("page=4k") else {
        return;
    };
    world.process.mkdir("/other", 0o755).unwrap();
    let options = MountOptions::default();
    let other = world
        .kernel
        .mount_gpufs("/other", world.device.clone(), &options)
        .unwrap();
    let (fd, foreign) = (world.open("/gpu/f"), world.open("/other/f"));
    let number = |fd| world.process.fstat(fd).unwrap().number;
    assert_eq!(number(fd), number(foreign));
    world.process.pwrite(fd, b"own", 0).unwrap();
    world.process.pwrite(foreign, b"foreign", 0).unwrap();
    let mut launch = world.launch().file(foreign, Absent::Zeros);
    let mut calls = [write(0, 0, b"kernel")];
    let error = world.operations(&mut launch, &mut calls).unwrap_err();
    assert_eq!(error.errno(), Errno::XDEV);
    let source = world.open("/source");
    world.process.pwrite(source, &[1; 9000], 0).unwrap();
    let fill = |files, target| fill(&world.process, &*world.device, files, source, target, 1);
    assert_eq!(
        fill(&world.files, foreign).unwrap_err().errno(),
        Errno::XDEV
    );
    assert_eq!(fill(&other, fd).unwrap_err().errno(), Errno::XDEV);
    assert_eq!(world.content(fd), b"own");
    assert_eq!(world.content(foreign), b"foreign");
}

#[test]
fn absent_pages_are_filled_from_another_mount() {
    let Some(world) = world("page=4k") else {
        return;
    };
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
    let Some(world) = world("size=100%") else {
        return;
    };
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at / 5) as u8).collect();
    let source = world.open("/source");
    world.process.pwrite(source, &bytes, 0).unwrap();
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[9; 100], 20_000_000).unwrap();
    let count = fill(&world.process, &*world.device, &world.files, source, fd, 3).unwrap();
    assert_eq!(count, 9_000_001);
    assert!(world.content(fd) == bytes);
    let empty = world.open("/empty");
    assert_eq!(
        fill(&world.process, &*world.device, &world.files, empty, fd, 3).unwrap(),
        0
    );
    assert_eq!(world.process.fstat(fd).unwrap().blocks_512, 0);
}

#[test]
fn fill_copies_from_qcow2_and_the_host() {
    let Some(device) = device() else { return };
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|at| (at / 5) as u8).collect();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), &bytes).unwrap();
    let image = folder.path().join("image");
    let fs = Image::create(&image, 32 << 20).image_format(ImageFormat::Qcow2);
    let fs = fs.mount().unwrap();
    fs.create_dir("/gpu").unwrap();
    fs.create_dir("/host").unwrap();
    fs.write("/file", &bytes).unwrap();
    fs.close().unwrap();
    assert_eq!(&std::fs::read(&image).unwrap()[..4], b"QFI\xfb");

    let fs = Image::file(&image).read_only().mount().unwrap();
    let (kernel, process) = (fs.kernel(), fs.process());
    let options = MountOptions::default();
    let files = kernel
        .mount_gpufs("/gpu", device.clone(), &options)
        .unwrap();
    kernel
        .mount_hostfs(folder.path(), "/host", &options)
        .unwrap();
    let create = OpenFlags::CREAT | OpenFlags::RDWR;
    for path in ["/file", "/host/file"] {
        let source = process.open(path, OpenFlags::empty(), 0).unwrap();
        let target = process.open("/gpu/f", create, 0o644).unwrap();
        assert_eq!(
            fill(process, &*device, &files, source, target, 2).unwrap(),
            5_000_001
        );
        let mut content = vec![0; 5_000_001];
        assert_eq!(process.pread(target, &mut content, 0).unwrap(), 5_000_001);
        assert!(content == bytes, "{path}");
        process.close(target).unwrap();
        process.unlink("/gpu/f").unwrap();
    }
}

#[test]
fn fill_beyond_the_limit_fails_with_enospc() {
    let Some(world) = world("size=64k,page=4k") else {
        return;
    };
    let (source, fd) = (world.open("/source"), world.open("/gpu/f"));
    world.process.pwrite(source, &[1; 70_000], 0).unwrap();
    let fill = |from, to| fill(&world.process, &*world.device, &world.files, from, to, 1);
    assert_eq!(fill(source, fd).unwrap_err().errno(), Errno::NOSPC);
    world.process.ftruncate(source, 65_536).unwrap();
    assert_eq!(fill(source, fd).unwrap(), 65_536);
    assert_eq!(world.content(fd), [1; 65_536]);
}

#[test]
fn kernel_with_too_few_arguments_fails_with_einval() {
    let Some(device) = device() else { return };
    let start = |name, arguments: &[u64]| device.start(name, 1, 32, arguments);
    let errno = |result: folio::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(start("folio_copy_parts", &[0])), Errno::INVAL);
    assert_eq!(errno(start("folio_copy_parts", &[0; 3])), Errno::INVAL);
    assert_eq!(errno(start("folio_copy", &[0])), Errno::NOENT);
    start("folio_copy_parts", &[0; 2]).unwrap();
}

#[test]
fn unmount_returns_the_memory_of_the_device() {
    let Some(device) = device() else { return };
    let world = World::new(device.clone(), "");
    let fd = world.open("/gpu/f");
    world.process.pwrite(fd, &[1; 100_000], 0).unwrap();
    assert_ne!(device.used_bytes(), 0);
    world.process.close(fd).unwrap();
    world.kernel.unmount("/gpu").unwrap();
    drop(world.files);
    assert_eq!(device.used_bytes(), 0);
}
