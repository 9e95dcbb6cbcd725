//! Writes: write-through reaches the host at once, write-back later.

use super::{LOST, World, eventually, read_all, write_host};
use folio::base::Timespec;
use folio::syscall::{Fd, OpenFlags};
use folio::vfs::SetTime;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const PAGE: usize = 4096;

fn create(world: &World, path: &str) -> Fd {
    world
        .p
        .open(path, OpenFlags::CREAT | OpenFlags::RDWR, 0o644)
        .unwrap()
}

#[test]
fn write_reaches_the_host_before_it_returns() {
    for words in [
        "push=off",
        "ttl=inf,push=off",
        "cache=none",
        "cache=host",
        "push=inotify",
    ] {
        let world = World::new(words);
        let fd = create(&world, "/h/f");
        let p = &world.p;
        for (offset, len) in [
            (0, 10),
            (5, 3 * PAGE),
            (100 * PAGE as u64, 7),
            (PAGE as u64 - 1, 2),
        ] {
            let bytes = vec![len as u8; len];
            assert_eq!(p.pwrite(fd, &bytes, offset).unwrap(), len);
            let mut found = vec![0; len];
            File::open(world.host("f"))
                .unwrap()
                .read_exact_at(&mut found, offset)
                .unwrap();
            assert_eq!(found, bytes, "{words}");
            assert_eq!(
                read_all(p, fd).unwrap(),
                std::fs::read(world.host("f")).unwrap(),
                "{words}"
            );
        }
        p.ftruncate(fd, 5).unwrap();
        assert_eq!(std::fs::metadata(world.host("f")).unwrap().len(), 5);
        p.ftruncate(fd, 2 * PAGE as u64).unwrap();
        assert_eq!(
            read_all(p, fd).unwrap(),
            std::fs::read(world.host("f")).unwrap(),
            "{words}"
        );
        p.close(fd).unwrap();
    }
}

#[test]
fn concurrent_appends_do_not_overlap() {
    for words in ["push=off", "ttl=0", "cache=none", "cache=host"] {
        let world = World::new(words);
        write_host(&world.host("log"), b"");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = File::options()
                    .append(true)
                    .open(world.host("log"))
                    .unwrap();
                for _ in 0..500 {
                    std::io::Write::write_all(&mut &file, b"outside\n").unwrap();
                }
            });
            let fd = world
                .p
                .open("/h/log", OpenFlags::WRONLY | OpenFlags::APPEND, 0)
                .unwrap();
            for _ in 0..500 {
                assert_eq!(world.p.write(fd, b"inside.\n").unwrap(), 8);
            }
            world.p.close(fd).unwrap();
        });
        let log = std::fs::read(world.host("log")).unwrap();
        assert_eq!(log.len(), 8000, "{words}");
        let count = |line: &[u8]| log.chunks(8).filter(|found| *found == line).count();
        assert_eq!(
            (count(b"inside.\n"), count(b"outside\n")),
            (500, 500),
            "{words}"
        );
        eventually("the whole log", Duration::from_millis(1), || {
            world.read("/h/log").unwrap() == log
        });
    }
}

#[test]
fn external_change_between_own_writes_is_seen() {
    for words in [
        "push=off",
        "ttl=0,push=off",
        "ttl=inf,push=off",
        "push=inotify",
    ] {
        let world = World::new(words);
        let p = &world.p;
        let fd = create(&world, "/h/f");
        p.pwrite(fd, &[1; 4 * PAGE], 0).unwrap();
        let host = File::options().write(true).open(world.host("f")).unwrap();
        for round in 2..30 {
            read_all(p, fd).unwrap();
            host.write_all_at(&[round; PAGE], PAGE as u64).unwrap();
            p.pwrite(fd, &[round; PAGE], 0).unwrap();
            let is_seen = || {
                let bytes = read_all(p, fd).unwrap();
                bytes[..2 * PAGE].iter().all(|byte| *byte == round)
            };
            eventually(&format!("{words}: the other's page"), LOST, is_seen);
        }
        p.close(fd).unwrap();
    }
}

#[test]
fn writeback_data_is_on_the_host_after_fsync() {
    for words in [
        "cache=writeback,push=off",
        "cache=writeback,push=inotify",
        "cache=writeback,ttl=inf,push=off",
    ] {
        let world = World::new(words);
        let p = &world.p;
        let fd = create(&world, "/h/f");
        for round in 1..20_u8 {
            let bytes = vec![round; 3 * PAGE + usize::from(round)];
            p.pwrite(fd, &bytes, 0).unwrap();
            assert_eq!(
                p.fstat(fd).unwrap().size_bytes,
                3 * PAGE as u64 + u64::from(round)
            );
            assert_eq!(read_all(p, fd).unwrap(), bytes);
            p.fsync(fd).unwrap();
            assert_eq!(
                std::fs::read(world.host("f")).unwrap(),
                bytes,
                "{words}, round {round}"
            );
        }
        // Closing writes the data back, too.
        p.pwrite(fd, b"closed", 0).unwrap();
        p.close(fd).unwrap();
        assert!(
            std::fs::read(world.host("f"))
                .unwrap()
                .starts_with(b"closed"),
            "{words}"
        );
    }
}

#[test]
fn dirty_pages_survive_external_changes() {
    let world = World::new("cache=writeback,ttl=0,push=off");
    let p = &world.p;
    write_host(&world.host("f"), &[b'a'; 4 * PAGE]);
    let fd = create(&world, "/h/f");
    p.pwrite(fd, &[b'b'; PAGE], PAGE as u64).unwrap();
    let host = File::options().write(true).open(world.host("f")).unwrap();
    host.write_all_at(&[b'c'; PAGE], 3 * PAGE as u64).unwrap();
    let bytes = read_all(p, fd).unwrap();
    assert_eq!((bytes[0], bytes[PAGE], bytes[3 * PAGE]), (b'a', b'b', b'c'));
    p.fsync(fd).unwrap();
    assert_eq!(std::fs::read(world.host("f")).unwrap(), bytes);
    p.close(fd).unwrap();
}

#[test]
fn file_growing_in_the_cache_keeps_its_size() {
    let world = World::new("cache=writeback,ttl=0,push=off");
    let p = &world.p;
    let fd = create(&world, "/h/f");
    let mut expected = Vec::new();
    for round in 0..2000_u32 {
        let bytes = round.to_le_bytes();
        assert_eq!(p.pwrite(fd, &bytes, expected.len() as u64).unwrap(), 4);
        expected.extend(bytes);
        assert_eq!(p.fstat(fd).unwrap().size_bytes, expected.len() as u64);
    }
    assert_eq!(read_all(p, fd).unwrap(), expected);
    p.close(fd).unwrap();
    assert_eq!(std::fs::read(world.host("f")).unwrap(), expected);
}

#[test]
fn set_time_survives_earlier_cached_writes() {
    let world = World::new("cache=writeback,ttl=0,push=off");
    let p = &world.p;
    let fd = create(&world, "/h/f");
    p.pwrite(fd, b"written before", 0).unwrap();
    let time = Timespec::new(1_221_488_676, 123_456_789);
    p.futimens(fd, None, Some(SetTime::To(time))).unwrap();
    assert_eq!(p.fstat(fd).unwrap().modified, time);
    p.fsync(fd).unwrap();
    assert_eq!(p.fstat(fd).unwrap().modified, time);
    p.close(fd).unwrap();
    let modified = std::fs::metadata(world.host("f"))
        .unwrap()
        .modified()
        .unwrap();
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(
        (since.as_secs() as i64, since.subsec_nanos()),
        (time.secs, time.nanos)
    );
}
