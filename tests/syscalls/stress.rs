//! Many threads on the same names: no deadlock, no lost inode, no wrong count.

use crate::{CREATE, list, world};
use folio::Process;
use folio::syscall::{AT_FDCWD, Credentials, OpenFlags, Whence};
use folio::vfs::{FileType, MountOptions, RenameFlags};

/// A seeded generator, so that a run can be repeated: Marsaglia's xorshift64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        (0..depth).map(|_| format!("/{}", self.below(4))).collect()
    }
}

fn step(p: &Process, numbers: &mut Numbers) -> folio::Result<()> {
    let (path, other) = (numbers.path(), numbers.path());
    match numbers.below(12) {
        0 | 1 => p.mkdir(path, 0o755),
        2 => p.rmdir(path),
        3 => p.unlink(path),
        4 | 5 => p.rename(path, other),
        6 => p.renameat2(AT_FDCWD, path, AT_FDCWD, other, RenameFlags::EXCHANGE),
        7 => p.link(path, other),
        8 => p.stat(path).map(drop),
        9 => p.symlink(other, path),
        10 => {
            let fd = p.open(path, OpenFlags::DIRECTORY, 0)?;
            let listed = p.getdents(fd, 100).map(drop);
            p.close(fd)?;
            listed
        }
        _ => {
            let fd = p.open(path, CREATE, 0o644)?;
            let written = p.write(fd, b"some text").map(drop);
            p.close(fd)?;
            written
        }
    }
}

#[test]
fn threads_share_names_without_errors() {
    let (kernel, p) = world();
    std::thread::scope(|scope| {
        for seed in 1..=6u64 {
            let process = kernel.process(Credentials::root());
            scope.spawn(move || {
                let mut numbers = Numbers(seed << 32 | 0x9e37_79b9);
                for _ in 0..20_000 {
                    // Most steps fail with an errno; the test checks that they end, and the final
                    // tree.
                    let _ = step(&process, &mut numbers);
                }
            });
        }
    });
    check_tree(&p, "");
    remove_tree(&p, "");
    assert!(list(&p, "/").is_empty());
    assert_eq!(p.stat("/").unwrap().link_count, 2);
}

/// Checks that every directory counts its subdirectories, and that `..` is its parent.
fn check_tree(p: &Process, path: &str) {
    let here = p.lstat(format!("{path}/")).unwrap();
    let mut subdirectories = 0;
    for name in list(p, &format!("{path}/")) {
        let child = format!("{path}/{name}");
        if p.lstat(&child).unwrap().file_type == FileType::Directory {
            subdirectories += 1;
            assert_eq!(
                p.stat(format!("{child}/..")).unwrap().number,
                here.number,
                "{child}"
            );
            check_tree(p, &child);
        }
    }
    assert_eq!(here.link_count, 2 + subdirectories, "{path}");
}

fn remove_tree(p: &Process, path: &str) {
    for name in list(p, &format!("{path}/")) {
        let child = format!("{path}/{name}");
        if p.lstat(&child).unwrap().file_type == FileType::Directory {
            remove_tree(p, &child);
            p.rmdir(&child).unwrap();
        } else {
            p.unlink(&child).unwrap();
        }
    }
}

#[test]
fn one_thread_wins_an_exclusive_create() {
    let (kernel, _root) = world();
    for round in 0..50 {
        let name = format!("/{round}");
        let winners: usize = std::thread::scope(|scope| {
            let open = || {
                let process = kernel.process(Credentials::root());
                process.open(&name, CREATE | OpenFlags::EXCL, 0o644).is_ok() as usize
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(winners, 1);
    }
}

#[test]
fn deep_tree_is_created_and_removed() {
    let (_kernel, p) = world();
    for _ in 0..20_000 {
        p.mkdir("d", 0o755).unwrap();
        p.chdir("d").unwrap();
    }
    p.chdir("/").unwrap();
}

/// Files of 3 bytes, each the low byte of the inode number, which identifies the file.
const STAMPED: u64 = 3;

/// Creates a stamped file elsewhere and moves it into place, or removes a name, or exchanges two.
fn change_stamped(p: &Process, numbers: &mut Numbers, own: u64) {
    let name = format!("/{}", numbers.below(4));
    match numbers.below(4) {
        0 => drop(p.unlink(name)),
        1 => {
            let other = format!("/{}", numbers.below(4));
            drop(p.renameat2(AT_FDCWD, name, AT_FDCWD, other, RenameFlags::EXCHANGE));
        }
        _ => {
            let fresh = format!("/fresh {own}");
            let fd = p.open(&fresh, CREATE, 0o644).unwrap();
            let stamp = p.fstat(fd).unwrap().number.0 as u8;
            assert_eq!(
                p.write(fd, &[stamp; STAMPED as usize]).unwrap(),
                STAMPED as usize
            );
            p.close(fd).unwrap();
            p.rename(&fresh, name).unwrap();
        }
    }
}

/// Checks that a name or descriptor refers to one whole file, whatever happens to the name.
fn look_at_stamped(p: &Process, numbers: &mut Numbers) {
    let name = format!("/{}", numbers.below(4));
    match p.stat(&name) {
        Ok(found) => assert_eq!(found.size_bytes, STAMPED),
        Err(error) => assert_eq!(error.errno(), folio::Errno::NOENT),
    }
    let Ok(fd) = p.open(&name, OpenFlags::empty(), 0) else {
        return;
    };
    let copy = p.dup(fd).unwrap();
    let number = p.fstat(fd).unwrap().number;
    p.close(fd).unwrap();
    for _ in 0..3 {
        let mut buf = [0; 5];
        assert_eq!(p.pread(copy, &mut buf, 0).unwrap(), STAMPED as usize);
        assert_eq!(buf[..STAMPED as usize], [number.0 as u8; STAMPED as usize]);
        assert_eq!(p.fstat(copy).unwrap().number, number);
    }
    assert_eq!(p.lseek(copy, -1, Whence::End).unwrap(), STAMPED - 1);
    p.close(copy).unwrap();
}

#[test]
fn open_files_survive_renames() {
    let (kernel, p) = world();
    let readers = kernel.process(Credentials::root());
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (kernel, readers) = (&kernel, &readers);
            scope.spawn(move || {
                let mut numbers = Numbers(seed << 32 | 0x9e37_79b9);
                let own = kernel.process(Credentials::root());
                for _ in 0..5_000 {
                    if seed <= 2 {
                        change_stamped(&own, &mut numbers, seed);
                    } else {
                        // Two threads share one file table.
                        look_at_stamped(readers, &mut numbers);
                    }
                }
            });
        }
    });
    // Every descriptor was released.
    assert_eq!(
        readers.open("/", OpenFlags::empty(), 0).unwrap().as_raw(),
        0
    );
    remove_tree(&p, "");
}

#[test]
fn walks_survive_mount_and_unmount() {
    let (kernel, p) = world();
    p.mkdir("/m", 0o755).unwrap();
    p.mkdir("/m/below", 0o755).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let is_done = &is_done;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let walker = kernel.process(Credentials::root());
            scope.spawn(move || {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    for name in ["/m/above", "/m/below"] {
                        let Ok(fd) = walker.open(name, OpenFlags::empty(), 0) else {
                            continue;
                        };
                        assert_eq!(walker.fstat(fd).unwrap().file_type, FileType::Directory);
                        walker.close(fd).unwrap();
                        drop(walker.stat(name));
                    }
                }
            });
        }
        for _ in 0..300 {
            kernel.mount_ramfs("/m", &MountOptions::default()).unwrap();
            p.mkdir("/m/above", 0o755).unwrap();
            // A failed attempt leaves the mount visible.
            while let Err(error) = kernel.unmount("/m") {
                assert_eq!(error.errno(), folio::Errno::BUSY);
                assert!(p.stat("/m/above").is_ok() && p.stat("/m/below").is_err());
            }
            assert!(p.stat("/m/above").is_err() && p.stat("/m/below").is_ok());
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
