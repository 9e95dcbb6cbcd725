//! Open files: flags, offsets, writing, holes, directories, copies.

use super::{
    CREATE, READ, fails, list, read, read_fd, tick, ticking_world, touch, user, world, write,
};
use folio::Process;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags, ReadAt, Whence};
use folio::vfs::{DeviceNumber, FallocateMode, FileType, MountOptions};
use std::ops::ControlFlow;

#[test]
fn open_flags_match_linux() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    write(&p, "/f", b"text");
    p.mknodat(
        AT_FDCWD,
        "/fifo",
        FileType::Fifo,
        0o644,
        DeviceNumber::default(),
    )
    .unwrap();
    p.chmod("/f", 0o600).unwrap();
    let other = user(&kernel, 5, 5, &[]);
    fails! {
        p.open("/", CREATE, 0o644) => ISDIR,
        p.open(".", CREATE | OpenFlags::EXCL, 0o644) => EXIST,
        p.open("/d", CREATE | OpenFlags::EXCL, 0o644) => EXIST,
        p.open("/d", CREATE, 0o644) => ISDIR,
        p.open("/d", OpenFlags::WRONLY, 0) => ISDIR,
        p.open("/d", OpenFlags::TRUNC, 0) => ISDIR,
        p.open("/new/", CREATE, 0o644) => ISDIR,
        p.open("/new/", CREATE | OpenFlags::EXCL, 0o644) => ISDIR,
        p.open("/f/", CREATE, 0o644) => ISDIR,
        p.open("/f/", READ, 0) => NOTDIR,
        p.open("/f", OpenFlags::DIRECTORY, 0) => NOTDIR,
        p.open("/f", CREATE | OpenFlags::EXCL, 0o644) => EXIST,
        p.open("/q", CREATE | OpenFlags::DIRECTORY, 0o644) => INVAL,
        p.open("/d", OpenFlags::TMPFILE, 0o644) => INVAL,
        p.open("/f", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644) => NOTDIR,
        p.open("/none", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644) => NOENT,
        p.open("/none", READ, 0) => NOENT,
        p.open("/fifo", READ, 0) => NXIO,
        other.open("/f", READ, 0) => ACCESS,
        other.open("/f", OpenFlags::NOATIME, 0) => ACCESS,
        other.open("/new", CREATE, 0o644) => ACCESS,
    }
    p.chmod("/f", 0o644).unwrap();
    fails! {
        other.open("/f", OpenFlags::NOATIME, 0) => PERM,
        other.open("/f", OpenFlags::TRUNC, 0) => ACCESS,
        other.open("/f", OpenFlags::RDWR, 0) => ACCESS,
    }
    assert_eq!(
        p.fstat(p.open("/fifo", OpenFlags::PATH, 0).unwrap())
            .unwrap()
            .file_type,
        FileType::Fifo
    );
    // Created with mode 0, and still open for writing.
    let fd = p.open("/closed", CREATE, 0).unwrap();
    p.write(fd, b"x").unwrap();
    p.open("/f", OpenFlags::TRUNC | OpenFlags::RDWR, 0).unwrap();
    assert_eq!(p.stat("/f").unwrap().size_bytes, 0);
}

#[test]
fn descriptors() {
    let (_kernel, p) = world();
    write(&p, "/f", b"0123456789");
    let open = || p.open("/f", READ, 0).unwrap();
    assert_eq!(
        [open(), open(), open()],
        [Fd::from_raw(0), Fd::from_raw(1), Fd::from_raw(2)]
    );
    p.close(Fd::from_raw(1)).unwrap();
    p.close(Fd::from_raw(0)).unwrap();
    assert_eq!(
        [open(), open(), open()],
        [Fd::from_raw(0), Fd::from_raw(1), Fd::from_raw(3)]
    );
    let copy = p.dup(Fd::from_raw(2)).unwrap();
    let mut buf = [0; 4];
    assert_eq!(p.read(Fd::from_raw(2), &mut buf).unwrap(), 4);
    assert_eq!(p.read(copy, &mut buf).unwrap(), 4);
    assert_eq!(&buf, b"4567");
    p.close(Fd::from_raw(2)).unwrap();
    assert_eq!(p.read(copy, &mut buf).unwrap(), 2);
    assert_eq!(p.read(copy, &mut buf).unwrap(), 0);
    fails! {
        p.close(Fd::from_raw(2)) => BADF,
        p.read(Fd::from_raw(2), &mut buf) => BADF,
        p.dup(Fd::from_raw(99)) => BADF,
        p.close(AT_FDCWD) => BADF,
    }
}

#[test]
fn access_modes() {
    let (_kernel, p) = world();
    write(&p, "/f", b"text");
    p.mkdir("/d", 0o755).unwrap();
    let r = p.open("/f", READ, 0).unwrap();
    let w = p.open("/f", OpenFlags::WRONLY, 0).unwrap();
    let path = p.open("/f", OpenFlags::PATH | OpenFlags::RDWR, 0).unwrap();
    let neither = p
        .open("/f", OpenFlags::RDWR | OpenFlags::WRONLY, 0)
        .unwrap();
    let d = p.open("/d", READ, 0).unwrap();
    let mut buf = [0; 4];
    fails! {
        p.write(r, b"x") => BADF,
        p.write(r, b"") => BADF,
        p.pwrite(r, b"x", 0) => BADF,
        p.ftruncate(r, 0) => INVAL,
        p.fallocate(r, FallocateMode::Allocate, 0, 1) => BADF,
        p.read(w, &mut buf) => BADF,
        p.pread(w, &mut buf, 0) => BADF,
        p.pread(r, &mut buf, u64::MAX) => INVAL,
        p.pwrite(w, b"x", u64::MAX) => INVAL,
        p.read(path, &mut buf) => BADF,
        p.write(path, b"x") => BADF,
        p.lseek(path, 0, Whence::Set) => BADF,
        p.fchmod(path, 0o600) => BADF,
        p.fchown(path, None, None) => BADF,
        p.fsync(path) => BADF,
        p.ftruncate(path, 0) => BADF,
        p.fgetxattr(path, b"user.a") => BADF,
        p.read(neither, &mut buf) => BADF,
        p.write(neither, b"x") => BADF,
        p.read(d, &mut buf) => ISDIR,
        p.write(d, b"x") => BADF,
        p.ftruncate(d, 0) => INVAL,
        p.getdents(r, 10) => NOTDIR,
        p.getdents(d, 0) => INVAL,
        p.getdents(path, 10) => BADF,
        p.truncate("/d", 0) => ISDIR,
        p.truncate("/f", u64::MAX) => INVAL,
        p.pwrite(w, b"x", i64::MAX as u64) => FBIG,
    }
    p.fstat(path).unwrap();
    p.fsync(d).unwrap();
    p.fdatasync(r).unwrap();
    p.syncfs(r).unwrap();
    p.sync().unwrap();
}

#[test]
fn offsets_and_append() {
    let (_kernel, p) = world();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    assert_eq!(p.write(fd, b"hello").unwrap(), 5);
    assert_eq!(p.lseek(fd, -2, Whence::Current).unwrap(), 3);
    assert_eq!(p.write(fd, b"LO there").unwrap(), 8);
    assert_eq!(p.lseek(fd, -5, Whence::End).unwrap(), 6);
    assert_eq!(read_fd(&p, fd), b"there");
    assert_eq!(p.pwrite(fd, b"X", 20).unwrap(), 1);
    assert_eq!(p.lseek(fd, 0, Whence::Current).unwrap(), 11);
    assert_eq!(read(&p, "/f"), b"helLO there\0\0\0\0\0\0\0\0\0X");
    let append = p
        .open("/f", OpenFlags::APPEND | OpenFlags::RDWR, 0)
        .unwrap();
    assert_eq!(p.write(append, b"!").unwrap(), 1);
    assert_eq!(p.lseek(append, 0, Whence::Current).unwrap(), 22);
    p.pwrite(append, b"?", 0).unwrap();
    assert_eq!(p.stat("/f").unwrap().size_bytes, 23);
    assert_eq!(p.lseek(fd, 1 << 40, Whence::Set).unwrap(), 1 << 40);
    assert_eq!(p.read(fd, &mut [0; 4]).unwrap(), 0);
    fails! {
        p.lseek(fd, -1, Whence::Set) => INVAL,
        p.lseek(fd, i64::MAX, Whence::Current) => INVAL,
        p.lseek(fd, -100, Whence::End) => INVAL,
    }
    let large = vec![7; 3 << 20];
    assert_eq!(p.pwrite(fd, &large, 1).unwrap(), large.len());
    assert_eq!(p.stat("/f").unwrap().size_bytes, (3 << 20) + 1);
    assert_eq!(read(&p, "/f")[1..], large);
}

#[test]
fn empty_write_keeps_the_position() {
    let (_kernel, p) = world();
    for flags in [OpenFlags::empty(), OpenFlags::APPEND] {
        let fd = p.open("/f", CREATE | flags, 0o644).unwrap();
        p.ftruncate(fd, 0).unwrap();
        assert_eq!(p.write(fd, b"one").unwrap(), 3);
        assert_eq!(p.write(fd, b"").unwrap(), 0);
        assert_eq!(p.write(fd, b"two").unwrap(), 3);
        assert_eq!(read(&p, "/f"), b"onetwo");
    }
}

#[test]
fn truncation() {
    let (_kernel, p) = world();
    write(&p, "/f", &[1; 10_000]);
    let fd = p.open("/f", OpenFlags::RDWR, 0).unwrap();
    p.ftruncate(fd, 5000).unwrap();
    p.truncate("/f", 9000).unwrap();
    let mut expected = vec![1; 5000];
    expected.resize(9000, 0);
    assert_eq!(read(&p, "/f"), expected);
}

#[test]
fn holes() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    p.ftruncate(fd, 100 << 12).unwrap();
    p.pwrite(fd, &[1; 4096 * 2], 10 << 12).unwrap();
    let seek = |offset, whence| p.lseek(fd, offset, whence).map_err(|error| error.errno());
    assert_eq!(seek(0, Whence::Data), Ok(10 << 12));
    assert_eq!(seek(0, Whence::Hole), Ok(0));
    assert_eq!(seek((10 << 12) + 5, Whence::Data), Ok((10 << 12) + 5));
    assert_eq!(seek((10 << 12) + 5, Whence::Hole), Ok(12 << 12));
    assert_eq!(seek(12 << 12, Whence::Data), Err(folio::Errno::NXIO));
    assert_eq!(p.fstat(fd).unwrap().blocks_512, 16);
    p.pwrite(fd, b"x", 99 << 12).unwrap();
    assert_eq!(seek(99 << 12, Whence::Hole), Ok(100 << 12));
    let d = p.open("/d", READ, 0).unwrap();
    fails! {
        p.lseek(fd, 100 << 12, Whence::Hole) => NXIO,
        p.lseek(fd, -1, Whence::Data) => NXIO,
        p.lseek(d, 0, Whence::Data) => INVAL,
        p.lseek(d, 0, Whence::End) => INVAL,
    }
}

#[test]
fn fallocate() {
    let (_kernel, p) = world();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    p.write(fd, &[9; 20_000]).unwrap();
    let size = || p.fstat(fd).unwrap().size_bytes;
    p.fallocate(fd, FallocateMode::PunchHole, 100, 9000)
        .unwrap();
    let mut expected = vec![9; 20_000];
    expected[100..9100].fill(0);
    assert_eq!(read(&p, "/f"), expected);
    assert_eq!(p.lseek(fd, 4096, Whence::Data).unwrap(), 8192);
    p.fallocate(fd, FallocateMode::PunchHole, 12_000, 10)
        .unwrap();
    expected[12_000..12_010].fill(0);
    p.fallocate(fd, FallocateMode::PunchHole, 19_990, 1 << 40)
        .unwrap();
    expected[19_990..].fill(0);
    assert_eq!(read(&p, "/f"), expected);
    p.fallocate(fd, FallocateMode::AllocateKeepSize, 0, 30_000)
        .unwrap();
    p.fallocate(fd, FallocateMode::ZeroRangeKeepSize, 0, 30_000)
        .unwrap();
    assert_eq!((size(), read(&p, "/f")), (20_000, vec![0; 20_000]));
    p.fallocate(fd, FallocateMode::Allocate, 0, 30_000).unwrap();
    p.fallocate(fd, FallocateMode::ZeroRange, 30_000, 1)
        .unwrap();
    assert_eq!(size(), 30_001);
    let d = p.open("/", READ, 0).unwrap();
    fails! {
        p.fallocate(fd, FallocateMode::Allocate, 0, 0) => INVAL,
        p.fallocate(fd, FallocateMode::Allocate, u64::MAX, 1) => INVAL,
        p.fallocate(fd, FallocateMode::Allocate, i64::MAX as u64, 1) => FBIG,
        p.fallocate(d, FallocateMode::Allocate, 0, 1) => BADF,
    }
}

#[test]
fn entry_that_breaks_is_listed_again() {
    let (_kernel, p) = world();
    touch(&p, "/a", 0o644);
    let fd = p.open("/", READ, 0).unwrap();
    let mut seen = Vec::new();
    for most in [1, 0, 9] {
        let mut count = 0;
        p.getdents_with(fd, &mut |entry| {
            if count == most {
                return ControlFlow::Break(());
            }
            count += 1;
            seen.push((entry.name.to_vec(), entry.next_cookie));
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    let names: Vec<_> = seen.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [&b"."[..], b"..", b"a"]);
    // A cookie is a position.
    p.lseek(fd, seen[1].1 as i64, Whence::Set).unwrap();
    assert_eq!(p.getdents(fd, 9).unwrap()[0].name, b"a");
}

#[test]
fn listing_continues_at_its_cookie() {
    let (_kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    for name in ["a", "b", "c", "e"] {
        touch(&p, &format!("/d/{name}"), 0o644);
    }
    let fd = p.open("/d", READ, 0).unwrap();
    let names = |count| -> Vec<_> {
        let entries = p.getdents(fd, count).unwrap();
        entries
            .into_iter()
            .map(|entry| String::from_utf8(entry.name).unwrap())
            .collect()
    };
    assert_eq!(names(3), [".", "..", "a"]);
    p.unlink("/d/b").unwrap();
    p.unlink("/d/a").unwrap();
    touch(&p, "/d/f", 0o644);
    assert_eq!(names(100), ["c", "e", "f"]);
    assert!(names(100).is_empty());
    p.lseek(fd, 0, Whence::Set).unwrap();
    assert_eq!(
        p.getdents(fd, 100).unwrap()[1].number,
        p.stat("/").unwrap().number.0
    );
    assert_eq!(p.stat("/d").unwrap().size_bytes, 5 * 20);
    for name in list(&p, "/d") {
        p.unlink(format!("/d/{name}")).unwrap();
    }
    p.rmdir("/d").unwrap();
    fails! { p.getdents(fd, 1) => NOENT }
}

#[test]
fn unlinked_files_live_until_closed() {
    let (_kernel, p) = world();
    write(&p, "/f", b"text");
    let fd = p.open("/f", OpenFlags::RDWR, 0).unwrap();
    p.unlink("/f").unwrap();
    assert_eq!(p.fstat(fd).unwrap().link_count, 0);
    assert_eq!(read_fd(&p, fd), b"text");
    write(&p, "/f", b"new");
    p.pwrite(fd, b"old", 0).unwrap();
    assert_eq!(read(&p, "/f"), b"new");
    fails! { p.linkat(fd, "", AT_FDCWD, "/g", AtFlags::EMPTY_PATH) => NOENT }
}

#[test]
fn unnamed_file_can_be_linked_unless_exclusive() {
    let (_kernel, p) = world();
    let tmpfile = OpenFlags::TMPFILE | OpenFlags::RDWR;
    let fd = p.open("/", tmpfile, 0o600).unwrap();
    p.write(fd, b"text").unwrap();
    assert_eq!(
        (p.fstat(fd).unwrap().link_count, list(&p, "/").len()),
        (0, 0)
    );
    p.linkat(fd, "", AT_FDCWD, "/f", AtFlags::EMPTY_PATH)
        .unwrap();
    assert_eq!(
        (read(&p, "/f").as_slice(), p.fstat(fd).unwrap().link_count),
        (b"text".as_slice(), 1)
    );
    p.unlink("/f").unwrap();
    let never = p.open("/", tmpfile | OpenFlags::EXCL, 0o600).unwrap();
    fails! {
        p.linkat(fd, "", AT_FDCWD, "/f", AtFlags::EMPTY_PATH) => NOENT,
        p.linkat(never, "", AT_FDCWD, "/f", AtFlags::EMPTY_PATH) => NOENT,
    }
}

#[test]
fn copies() {
    let (kernel, p) = world();
    p.mkdir("/m", 0o755).unwrap();
    kernel.mount_ramfs("/m", &MountOptions::default()).unwrap();
    let bytes: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
    write(&p, "/in", &bytes);
    let input = p.open("/in", READ, 0).unwrap();
    let out = p.open("/out", CREATE, 0o644).unwrap();
    let append = p
        .open("/append", CREATE | OpenFlags::APPEND, 0o644)
        .unwrap();
    let away = p.open("/m/away", CREATE, 0o644).unwrap();
    let d = p.open("/m", READ, 0).unwrap();
    assert_eq!(p.sendfile(out, input, None, 600_000).unwrap(), 600_000);
    let mut from = 600_000;
    assert_eq!(
        p.copy_file_range(input, Some(&mut from), out, None, 1 << 30)
            .unwrap(),
        100_000
    );
    assert_eq!((from, read(&p, "/out") == bytes), (700_000, true));
    let (mut from, mut to) = (0, 699_995);
    assert_eq!(
        p.copy_file_range(out, Some(&mut from), out, Some(&mut to), 10)
            .unwrap(),
        10
    );
    assert_eq!(
        (from, to, p.fstat(out).unwrap().size_bytes),
        (10, 700_005, 700_005)
    );
    // Bytes behind the end of the file do not overlap.
    let (mut from, mut to) = (700_000, 0);
    assert_eq!(
        p.copy_file_range(out, Some(&mut from), out, Some(&mut to), 1 << 20)
            .unwrap(),
        5
    );
    fails! {
        p.sendfile(append, input, None, 1) => INVAL,
        p.sendfile(input, out, None, 1) => BADF,
        p.sendfile(out, d, None, 1) => INVAL,
        p.copy_file_range(input, None, append, None, 1) => BADF,
        p.copy_file_range(input, None, away, None, 1) => XDEV,
        p.copy_file_range(d, None, out, None, 1) => ISDIR,
        p.copy_file_range(out, Some(&mut 0), out, Some(&mut 5), 10) => INVAL,
    }
}

#[test]
fn relatime() {
    let (kernel, p) = ticking_world();
    p.mkdir("/m", 0o755).unwrap();
    let quiet = MountOptions::parse("noatime").unwrap();
    kernel.mount_ramfs("/m", &quiet).unwrap();
    for (path, is_noted) in [("/f", true), ("/m/f", false)] {
        write(&p, path, b"text");
        let before = p.stat(path).unwrap();
        tick(&p);
        read(&p, path);
        let first = p.stat(path).unwrap();
        assert_eq!(first.accessed > before.accessed, is_noted, "{path}");
        // Later than modification and change: not updated again.
        read(&p, path);
        assert_eq!(p.stat(path).unwrap().accessed, first.accessed);
    }
}

/// Makes a batch of reads, given as offset and length, and the same reads one by one.
fn assert_batch_reads_as_single_reads(p: &Process, fd: Fd, ranges: &[(u64, usize)]) {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, len)| vec![9; *len]).collect();
    let mut reads: Vec<ReadAt<'_>> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|((offset, _), buf)| ReadAt::new(*offset, buf))
        .collect();
    assert_eq!(p.pread_batch(fd, &mut reads).unwrap(), ranges.len());
    let lens: Vec<usize> = reads.iter().map(|read| read.len).collect();
    for (at, (offset, len)) in ranges.iter().enumerate() {
        let mut single = vec![9; *len];
        assert_eq!(lens[at], p.pread(fd, &mut single, *offset).unwrap(), "{at}");
        assert_eq!(buffers[at], single, "{at}");
    }
}

#[test]
fn batch_reads_what_single_reads_read() {
    let (_kernel, p) = world();
    let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    p.pwrite(fd, &bytes, 0).unwrap();
    // A hole, and bytes behind it.
    p.pwrite(fd, b"end", 1 << 20).unwrap();
    let ranges = [
        (0, 4096),
        (150_000, 1),
        (70_000, 0),
        (199_999, 5_000),
        (500_000, 4096),
        ((1 << 20) - 10, 20),
        ((1 << 20) + 1, 100),
        (1 << 30, 10),
        (4095, 131_072),
    ];
    assert_batch_reads_as_single_reads(&p, fd, &ranges);
    assert_eq!(p.lseek(fd, 0, Whence::Current).unwrap(), 0);
    // More bytes than one pin may last for.
    assert_batch_reads_as_single_reads(&p, fd, &[(0, 200_000); 20]);
}

#[test]
fn batch_stops_at_the_first_failure() {
    let (_kernel, p) = world();
    write(&p, "/f", b"12345");
    let fd = p.open("/f", READ, 0).unwrap();
    let written = p.open("/f", OpenFlags::WRONLY, 0).unwrap();
    let dir = p.open("/", READ, 0).unwrap();
    let (mut a, mut b, mut c) = ([0; 3], [0; 3], [0; 3]);
    let mut reads = [
        ReadAt::new(1, &mut a),
        ReadAt::new(u64::MAX, &mut b),
        ReadAt::new(0, &mut c),
    ];
    assert_eq!(p.pread_batch(fd, &mut reads).unwrap(), 1);
    assert_eq!((reads[0].len, reads[2].len), (3, 0));
    fails! {
        p.pread_batch(fd, &mut reads[1..]) => INVAL,
        p.pread_batch(written, &mut reads) => BADF,
        p.pread_batch(dir, &mut reads) => ISDIR,
        p.pread_batch(Fd::from_raw(99), &mut reads) => BADF,
        p.pread_batch(Fd::from_raw(99), &mut []) => BADF,
        p.pread_batch(written, &mut []) => BADF,
    }
    assert_eq!(p.pread_batch(fd, &mut []).unwrap(), 0);
    assert_eq!(a, *b"234");
}
