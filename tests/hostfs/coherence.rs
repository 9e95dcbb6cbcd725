//! Coherence: a writer on the host and readers in Folio see whole pages, never older than the TTL.

use super::{MARGIN, Over, World, errno, eventually, mounts_and_ttls, pause, read_all, write_host};
use folio::syscall::{AT_FDCWD, Fd, OpenFlags, Whence};
use folio::vfs::{DeviceNumber, FileType};
use folio::{Errno, Process};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 8;
const RUN: Duration = Duration::from_millis(1500);

/// When each version was complete on the host.
#[derive(Default)]
struct History(Mutex<VecDeque<(Instant, u64)>>);

impl History {
    fn acknowledge(&self, version: u64) {
        self.0.lock().unwrap().push_back((Instant::now(), version));
    }

    /// Returns the oldest version that a reader may see at `asked`.
    fn promised(&self, asked: Instant, ttl: Duration) -> u64 {
        let history = self.0.lock().unwrap();
        let is_old = |(at, _): &&(Instant, u64)| *at + ttl + MARGIN <= asked;
        history
            .iter()
            .rev()
            .find(is_old)
            .map_or(0, |(_, version)| *version)
    }
}

fn page(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

/// Returns the oldest and the newest version in some bytes.
fn versions(bytes: &[u8]) -> (u64, u64) {
    let all = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    (all.clone().min().unwrap_or(0), all.max().unwrap_or(0))
}

/// Reads one page by one of the read calls.
fn read_page(p: &Process, fd: Fd, spare: Fd, way: usize, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let sent = |count: usize| {
        assert_eq!(count, PAGE);
        let mut bytes = vec![0; PAGE];
        assert_eq!(p.pread(spare, &mut bytes, 0).unwrap(), PAGE);
        bytes
    };
    match way {
        0 => assert_eq!(p.pread(fd, &mut bytes, at).unwrap(), PAGE),
        1 => {
            p.lseek(fd, at as i64, Whence::Set).unwrap();
            assert_eq!(p.read(fd, &mut bytes).unwrap(), PAGE);
        }
        2 => {
            let borrowed = p.read_borrowed(fd, at, PAGE).unwrap();
            bytes = borrowed.read().slices().flatten().copied().collect();
        }
        3 => {
            p.lseek(spare, 0, Whence::Set).unwrap();
            return sent(p.sendfile(spare, fd, Some(&mut at.clone()), PAGE).unwrap());
        }
        _ => {
            let (mut from, mut to) = (at, 0);
            return sent(
                p.copy_file_range(fd, Some(&mut from), spare, Some(&mut to), PAGE)
                    .unwrap(),
            );
        }
    }
    bytes
}

/// Writes version after version into every page on the host, until the test is over.
fn overwrite_pages(world: &World, history: &History, is_over: &Over) {
    let file = File::options().write(true).open(world.host("f")).unwrap();
    for version in 1.. {
        for index in 0..PAGES {
            file.write_all_at(&page(version), (index * PAGE) as u64)
                .unwrap();
        }
        history.acknowledge(version);
        // The writer pauses now and then, so that wrongly cached pages are visible.
        let is_long = version % 16 == 0;
        pause(Duration::from_millis(if is_long { 320 } else { 1 }));
        if is_over.is_over() {
            break;
        }
    }
}

#[test]
fn overwritten_file_reads_within_ttl() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        write_host(&world.host("f"), &page(0).repeat(PAGES));
        let (history, is_over) = (History::default(), Over::default());
        let (mut reads, mut mixed) = (0, 0);
        std::thread::scope(|scope| {
            let _ender = is_over.ender();
            scope.spawn(|| overwrite_pages(&world, &history, &is_over));
            let p = &world.p;
            let fd = p.open("/h/f", OpenFlags::empty(), 0).unwrap();
            let spare = p
                .open("/h/spare", OpenFlags::CREAT | OpenFlags::RDWR, 0o600)
                .unwrap();
            let mut seen = [0; PAGES];
            let start = Instant::now();
            while start.elapsed() < RUN {
                for way in 0..5 {
                    let index = reads % PAGES;
                    reads += 1;
                    let asked = Instant::now();
                    let promised = history.promised(asked, ttl);
                    let (oldest, newest) =
                        versions(&read_page(p, fd, spare, way, (index * PAGE) as u64));
                    assert!(
                        oldest >= promised,
                        "{words}, way {way}: {oldest} instead of {promised}"
                    );
                    assert!(
                        newest >= seen[index],
                        "{words}, way {way}: {newest} after {}",
                        seen[index]
                    );
                    // The host lets readers copy out of a page while it copies into it, but only
                    // then.
                    mixed += usize::from(oldest != newest);
                    assert!(
                        newest - oldest <= 1,
                        "{words}, way {way}: {oldest} and {newest} in one page"
                    );
                    seen[index] = newest;
                }
            }
            p.close(fd).unwrap();
            p.close(spare).unwrap();
        });
        println!("{words}: {reads} reads, {mixed} of pages just being written");
        assert!(reads > 100, "{words}");
        // After the last write, no page may be mixed or old.
        eventually("the last version", ttl, || {
            versions(&world.read("/h/f").unwrap())
                == versions(&std::fs::read(world.host("f")).unwrap())
        });
    }
}

#[test]
fn replaced_file_reads_whole() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        write_host(&world.host("f"), &page(0).repeat(PAGES));
        let (history, is_over) = (History::default(), Over::default());
        std::thread::scope(|scope| {
            let _ender = is_over.ender();
            scope.spawn(|| {
                for version in 1.. {
                    // The size identifies the version, too.
                    let bytes = page(version).repeat(PAGES + (version % 3) as usize);
                    write_host(&world.host("new"), &bytes);
                    std::fs::rename(world.host("new"), world.host("f")).unwrap();
                    history.acknowledge(version);
                    pause(Duration::from_millis(if version % 16 == 0 {
                        320
                    } else {
                        1
                    }));
                    if is_over.is_over() {
                        break;
                    }
                }
            });
            let start = Instant::now();
            let mut last = 0;
            while start.elapsed() < RUN {
                let promised = history.promised(Instant::now(), ttl);
                let bytes = world.read("/h/f").unwrap();
                let (oldest, newest) = versions(&bytes);
                assert_eq!(oldest, newest, "{words}: a mix");
                assert_eq!(
                    bytes.len(),
                    PAGE * (PAGES + (newest % 3) as usize),
                    "{words}: version {newest}"
                );
                assert!(
                    oldest >= promised.max(last),
                    "{words}: {oldest} instead of {promised} after {last}"
                );
                last = oldest;
                let promised = history.promised(Instant::now(), ttl);
                let size = world.p.stat("/h/f").unwrap().size_bytes as usize / PAGE - PAGES;
                assert!(size < 3 && promised <= last + 10_000, "{words}");
            }
        });
    }
}

#[test]
fn growing_file_reads_grow() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        write_host(&world.host("log"), b"");
        let (history, is_over) = (History::default(), Over::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ender = is_over.ender();
                let file = File::options()
                    .append(true)
                    .open(world.host("log"))
                    .unwrap();
                for version in 1..=2000_u64 {
                    std::io::Write::write_all(&mut &file, &version.to_le_bytes()).unwrap();
                    history.acknowledge(version);
                    pause(Duration::from_micros(700));
                }
            });
            let p = &world.p;
            let fd = p.open("/h/log", OpenFlags::empty(), 0).unwrap();
            let mut last = 0;
            while !is_over.is_over() {
                let asked = Instant::now();
                let end = p.lseek(fd, 0, Whence::End).unwrap() / 8;
                assert!(
                    end >= history.promised(asked, ttl).max(last),
                    "{words}: end {end} after {last}"
                );
                let asked = Instant::now();
                let size = p.stat("/h/log").unwrap().size_bytes / 8;
                assert!(
                    size >= history.promised(asked, ttl).max(end),
                    "{words}: size {size} after {end}"
                );
                // All bytes are present, and no zeros that were never written.
                let bytes = read_all(p, fd).unwrap();
                for (place, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    assert_eq!(
                        u64::from_le_bytes(*word),
                        place as u64 + 1,
                        "{words}: of {} bytes",
                        bytes.len()
                    );
                }
                assert!(
                    bytes.len() as u64 / 8 >= size,
                    "{words}: {} bytes of {size} words",
                    bytes.len()
                );
                last = size;
            }
            p.close(fd).unwrap();
        });
    }
}

#[test]
fn shrinking_file_shows_no_zeros() {
    for (words, _) in mounts_and_ttls() {
        let world = World::new(words);
        write_host(&world.host("f"), &[1; 3 * PAGE]);
        let is_over = Over::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ender = is_over.ender();
                let file = File::options().write(true).open(world.host("f")).unwrap();
                let start = Instant::now();
                while start.elapsed() < RUN / 2 {
                    // To size 0: the host itself briefly shows the rest of a folio as zeros.
                    file.set_len(0).unwrap();
                    file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
                    pause(Duration::from_micros(300));
                }
            });
            while !is_over.is_over() {
                let bytes = world.read("/h/f").unwrap();
                let zero = bytes.iter().position(|byte| *byte != 1);
                assert_eq!(zero, None, "{words}: of {} bytes", bytes.len());
            }
        });
    }
}

#[test]
fn rewrite_of_same_size_in_same_tick_is_seen() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        for round in 0..100_u32 {
            let (old, new) = (format!("old {round:04}"), format!("new {round:04}"));
            write_host(&world.host("f"), old.as_bytes());
            // Cached, with a time that the next write has, too.
            if ttl.is_zero() {
                assert_eq!(world.read("/h/f").unwrap(), old.as_bytes(), "{words}");
            } else {
                drop(world.read("/h/f").unwrap());
            }
            File::options()
                .write(true)
                .open(world.host("f"))
                .unwrap()
                .write_all_at(new.as_bytes(), 0)
                .unwrap();
            if ttl.is_zero() {
                assert_eq!(world.read("/h/f").unwrap(), new.as_bytes(), "{words}");
            }
            eventually(&format!("{words}: the rewrite"), ttl, || {
                world.read("/h/f").unwrap() == new.as_bytes()
            });
        }
    }
}

#[test]
fn external_name_changes_are_seen_within_ttl() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        let p = &world.p;
        let is_there = |name: &str| p.stat(format!("/h/{name}")).is_ok();
        for round in 0..10 {
            let name = format!("n{round}");
            // Cached as missing.
            assert_eq!(errno(p.stat(format!("/h/{name}"))), Some(Errno::NOENT));
            write_host(&world.host(&name), b"1");
            eventually("a new file", ttl, || is_there(&name));
            assert!(world.list("/h").contains(&name), "{words}");
            std::fs::remove_file(world.host(&name)).unwrap();
            eventually("a removal", ttl, || !is_there(&name));
            assert_eq!(world.list("/h"), [""; 0], "{words}");
            // Another inode under the same name.
            std::fs::create_dir(world.host(&name)).unwrap();
            write_host(&world.host(&name).join("in"), b"in");
            eventually("a directory", ttl, || {
                world
                    .read(&format!("/h/{name}/in"))
                    .is_ok_and(|b| b == b"in")
            });
            std::fs::remove_dir_all(world.host(&name)).unwrap();
            symlink("/r", world.host(&name)).unwrap();
            eventually("a link", ttl, || {
                p.readlink(format!("/h/{name}"))
                    .is_ok_and(|target| target == b"/r")
            });
            std::fs::remove_file(world.host(&name)).unwrap();
            eventually("its removal", ttl, || !is_there(&name));
        }
    }
}

#[test]
fn external_attribute_changes_are_seen_within_ttl() {
    use std::os::unix::fs::PermissionsExt;
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        let p = &world.p;
        write_host(&world.host("f"), b"1");
        std::fs::hard_link(world.host("f"), world.host("g")).unwrap();
        for round in 0..20_u16 {
            let mode = 0o600 | round;
            p.stat("/h/f").unwrap();
            // Through another name than the cached one.
            std::fs::set_permissions(world.host("g"), PermissionsExt::from_mode(mode.into()))
                .unwrap();
            eventually("a mode", ttl, || p.stat("/h/f").unwrap().mode == mode);
            write_host(&world.host("g"), &vec![b'x'; round.into()]);
            eventually("a size", ttl, || {
                world.read("/h/f").unwrap().len() == usize::from(round)
            });
        }
        std::fs::remove_file(world.host("f")).unwrap();
        eventually("one name less", ttl, || {
            p.stat("/h/g").unwrap().link_count == 1
        });
        let stat = std::fs::metadata(world.host("g")).unwrap();
        let seen = p.stat("/h/g").unwrap();
        assert_eq!(
            (seen.number.0, seen.uid, seen.blocks_512),
            (stat.ino(), stat.uid(), stat.blocks())
        );
        assert_eq!(
            (seen.modified.secs, i64::from(seen.modified.nanos)),
            (stat.mtime(), stat.mtime_nsec())
        );
    }
}

#[test]
fn externally_moved_working_directory_stays_usable() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        std::fs::create_dir_all(world.host("a/deep/down")).unwrap();
        std::fs::create_dir(world.host("b")).unwrap();
        write_host(&world.host("a/deep/down/f"), b"1");
        let p = &world.p;
        p.chdir("/h/a/deep/down").unwrap();
        assert_eq!(world.read("f").unwrap(), b"1");
        std::fs::rename(world.host("a/deep"), world.host("b/deep")).unwrap();
        eventually("the old place", ttl, || p.stat("/h/a/deep").is_err());
        assert_eq!(p.stat("/h/b/deep/down/f").unwrap().size_bytes, 1);
        assert_eq!(world.read("f").unwrap(), b"1", "{words}");
        assert_eq!(p.getcwd().unwrap(), b"/h/b/deep/down", "{words}");
        // And back, with another inode at its old position.
        std::fs::create_dir_all(world.host("a/deep/down")).unwrap();
        std::fs::rename(world.host("b/deep"), world.host("a/other")).unwrap();
        eventually("another at the old place", ttl, || {
            p.stat("/h/a/deep/down/f").is_err()
        });
        assert_eq!(p.stat("/h/a/other/down/f").unwrap().size_bytes, 1);
        assert_eq!(world.read("f").unwrap(), b"1", "{words}");
        p.chdir("/").unwrap();
    }
}

/// The new path of the directory is not looked up.
#[test]
fn externally_moved_directory_is_found_by_itself() {
    let kept = [("ttl=inf,push=off", Duration::MAX)];
    for (words, ttl) in mounts_and_ttls().into_iter().chain(kept) {
        let world = World::new(words);
        let p = &world.p;
        std::fs::create_dir_all(world.host("a/deep/down")).unwrap();
        std::fs::create_dir(world.host("b")).unwrap();
        write_host(&world.host("a/deep/down/f"), b"1");
        p.chdir("/h/a/deep/down").unwrap();
        assert_eq!(world.list("."), ["f"]);
        let check_use = |place: &str, name: &str| {
            assert_eq!(world.read("f").unwrap(), b"1", "{words}: {name}");
            world.write(name, b"new").unwrap();
            p.mkdir(format!("{name}.d"), 0o755).unwrap();
            let made = world.host(place);
            assert_eq!(std::fs::read(made.join(name)).unwrap(), b"new");
            assert!(made.join(format!("{name}.d")).is_dir(), "{words}: {name}");
            assert!(world.list(".").contains(&name.to_owned()), "{words}");
        };
        std::fs::rename(world.host("a/deep"), world.host("b/deep")).unwrap();
        // Afterwards no position is valid any more.
        pause(Duration::from_millis(1200));
        check_use("b/deep/down", "moved");
        // A directory that was moved out of one that is removed, found to have no name.
        std::fs::rename(world.host("b/deep/down"), world.host("b/up")).unwrap();
        std::fs::remove_dir(world.host("b/deep")).unwrap();
        if ttl < Duration::MAX {
            eventually("the old place", ttl, || p.stat("/h/a/deep/down").is_err());
        }
        pause(Duration::from_millis(1200));
        check_use("b/up", "again");
        assert_eq!(p.stat("/h/b/up/again").unwrap().size_bytes, 3);
        assert_eq!(p.getcwd().unwrap(), b"/h/b/up", "{words}");
        p.chdir("/").unwrap();
    }
}

#[test]
fn directory_moved_to_too_long_path_is_stale() {
    let world = World::new("ttl=0,push=off");
    let p = &world.p;
    std::fs::create_dir_all(world.host("a/down")).unwrap();
    write_host(&world.host("a/down/f"), b"1");
    p.chdir("/h/a/down").unwrap();
    assert_eq!(world.read("f").unwrap(), b"1");
    // Each half can be made by its path, which has at most 4095 bytes.
    let half = |name: &str| vec![name.repeat(250); 10].join("/");
    let (upper, lower) = (world.host(&half("u")), world.host(&half("l")));
    std::fs::create_dir_all(&upper).unwrap();
    std::fs::create_dir_all(&lower).unwrap();
    std::fs::rename(world.host("a"), lower.join("a")).unwrap();
    std::fs::rename(world.host(&"l".repeat(250)), upper.join("l")).unwrap();
    // Afterwards no position is valid any more.
    pause(Duration::from_millis(1200));
    assert_eq!(errno(world.read("f")), Some(Errno::STALE));
    p.chdir("/").unwrap();
}

#[test]
fn externally_removed_open_file_stays_readable() {
    for (words, ttl) in mounts_and_ttls() {
        let world = World::new(words);
        write_host(&world.host("f"), b"before");
        let p = &world.p;
        let fd = p.open("/h/f", OpenFlags::RDWR, 0).unwrap();
        std::fs::remove_file(world.host("f")).unwrap();
        eventually("the removal", ttl, || p.stat("/h/f").is_err());
        assert_eq!(read_all(p, fd).unwrap(), b"before");
        p.pwrite(fd, b"after!", 0).unwrap();
        assert_eq!(read_all(p, fd).unwrap(), b"after!");
        eventually("no name", ttl, || p.fstat(fd).unwrap().link_count == 0);
        p.close(fd).unwrap();
    }
}

/// The descriptor of a file that was created and not opened is not that of a later file.
#[test]
fn descriptor_of_a_creation_is_of_that_file_only() {
    let world = World::new("push=off");
    for round in 0..200 {
        let file = FileType::Regular;
        world
            .p
            .mknodat(AT_FDCWD, "/h/created", file, 0o644, DeviceNumber::default())
            .unwrap();
        world.p.unlink("/h/created").unwrap();
        let name = format!("f{round}");
        std::fs::write(world.host(&name), b"theirs").unwrap();
        let path = format!("/h/{name}");
        eventually("the file", Duration::from_secs(1), || {
            world.read(&path).is_ok_and(|bytes| bytes == b"theirs")
        });
        world.write(&path, b"ours").unwrap();
        assert_eq!(std::fs::read(world.host(&name)).unwrap(), b"ours");
    }
}
