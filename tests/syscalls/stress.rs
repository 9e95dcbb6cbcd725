//! Many threads at the same names: no deadlock, no lost inode, no wrong count.

use crate::{CREATE, list, world};
use folio::Process;
use folio::syscall::{AT_FDCWD, Credentials, OpenFlags};
use folio::vfs::{FileType, RenameFlags};

/// A small generator of numbers, so that a run can be had again. Marsaglia's xorshift64.
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
fn threads_at_the_same_names() {
    let (kernel, p) = world();
    std::thread::scope(|scope| {
        for seed in 1..=6u64 {
            let process = kernel.process(Credentials::root());
            scope.spawn(move || {
                let mut numbers = Numbers(seed << 32 | 0x9e37_79b9);
                for _ in 0..20_000 {
                    // Most steps fail with an errno; that they end, and what is left, is what counts.
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

/// Every directory counts its subdirectories, and `..` leads back.
fn check_tree(p: &Process, path: &str) {
    let here = p.lstat(format!("{path}/")).unwrap();
    let mut subdirectories = 0;
    for name in list(p, &format!("{path}/")) {
        let child = format!("{path}/{name}");
        if p.lstat(&child).unwrap().file_type == FileType::Directory {
            subdirectories += 1;
            assert_eq!(p.stat(format!("{child}/..")).unwrap().number, here.number, "{child}");
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
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
    }
}

#[test]
fn a_deep_tree_comes_and_goes() {
    let (_kernel, p) = world();
    for _ in 0..20_000 {
        p.mkdir("d", 0o755).unwrap();
        p.chdir("d").unwrap();
    }
    p.chdir("/").unwrap();
}
