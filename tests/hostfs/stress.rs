//! Stress: concurrent changes through Folio and on the host do not hang, and both see one final
//! tree.

use super::{LOST, Over, World, eventually, pause};
use crate::support::random::Random;
use folio::syscall::{AT_FDCWD, Caller, Credentials, OpenFlags};
use folio::vfs::{FileType, MountOptions, RenameFlags};
use folio::{Kernel, KernelOptions, Process};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A tree: names with sizes and contents, or link targets.
type Tree = BTreeMap<String, Vec<u8>>;

/// Returns a random path of up to three of three names.
fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    (0..depth)
        .map(|_| ["a", "b", "c"][random.below(3)])
        .collect::<Vec<_>>()
        .join("/")
}

/// Makes one change on the host. Most changes fail, as the names have changed.
fn change_host(share: &Path, random: &mut Random) {
    let (one, other) = (
        share.join(random_path(random)),
        share.join(random_path(random)),
    );
    let bytes = vec![random.below(256) as u8; random.below(10_000)];
    let result = match random.below(9) {
        0 | 1 => std::fs::create_dir(one),
        2 | 3 => std::fs::write(one, bytes),
        4 | 5 => std::fs::rename(one, other),
        6 => std::fs::hard_link(one, other),
        7 => std::fs::remove_file(one),
        _ => std::fs::remove_dir(one),
    };
    drop(result);
}

/// Makes one change through Folio.
fn change_here(p: &Process, random: &mut Random) {
    let (one, other) = (
        format!("/h/{}", random_path(random)),
        format!("/h/{}", random_path(random)),
    );
    let bytes = vec![random.below(256) as u8; random.below(10_000)];
    let rename = |flags| p.renameat2(AT_FDCWD, &one, AT_FDCWD, &other, flags);
    let write = |flags| {
        let fd = p.open(&one, flags, 0o644)?;
        let written = p.pwrite(fd, &bytes, 0);
        p.close(fd)?;
        written.map(drop)
    };
    let result = match random.below(12) {
        0 | 1 => p.mkdir(&one, 0o755),
        2 | 3 => write(OpenFlags::CREAT | OpenFlags::TRUNC | OpenFlags::WRONLY),
        4 => rename(RenameFlags::empty()),
        5 => rename(RenameFlags::EXCHANGE),
        6 => rename(RenameFlags::NOREPLACE),
        7 => p.link(&one, &other),
        8 => p.unlink(&one),
        9 => p.rmdir(&one),
        10 => p.truncate(&one, random.below(10_000) as u64),
        _ => p.chdir(&one),
    };
    drop(result);
}

fn tree_of_host(folder: &Path, prefix: &str, tree: &mut Tree) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            tree.insert(name.clone(), b"directory".to_vec());
            tree_of_host(&entry.path(), &name, tree);
        } else {
            tree.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
}

fn tree_here(world: &World, path: &str, prefix: &str, tree: &mut Tree) -> folio::Result<()> {
    // A name found a moment ago may have been removed within the TTL; the read is repeated.
    for name in world.try_list(path)? {
        let (path, name) = (format!("{path}/{name}"), format!("{prefix}/{name}"));
        if world.p.lstat(&path)?.file_type == FileType::Directory {
            tree.insert(name.clone(), b"directory".to_vec());
            tree_here(world, &path, &name, tree)?;
        } else {
            tree.insert(name, world.read(&path)?);
        }
    }
    Ok(())
}

fn stress(words: &str) {
    let world = World::new(words);
    let is_over = Over::default();
    let share = world.host("");
    std::thread::scope(|scope| {
        let _ender = is_over.ender();
        for seed in 1..=2 {
            let (share, is_over) = (&share, &is_over);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !is_over.is_over() {
                    change_host(share, &mut random);
                }
            });
        }
        for seed in 3..=5 {
            let (kernel, is_over) = (&world.kernel, &is_over);
            scope.spawn(move || {
                let p = kernel.process(Credentials::root());
                let mut random = Random::new(seed);
                while !is_over.is_over() {
                    change_here(&p, &mut random);
                }
            });
        }
        pause(Duration::from_millis(1500));
    });
    let mut expected = Tree::new();
    tree_of_host(&share, "", &mut expected);
    // Other tests check when the change is seen. The directories may be some hundred deep.
    let mut printed = String::new();
    eventually(&format!("{words}: the same tree"), LOST, || {
        let mut found = Tree::new();
        let listed = tree_here(&world, "/h", "", &mut found);
        let error = listed.as_ref().err().map(ToString::to_string);
        let other = expected
            .keys()
            .chain(found.keys())
            .find(|name| found.get(*name) != expected.get(*name));
        // Asked for often: each state is printed once.
        let state = format!("{words}: {error:?}, first name that is not the same: {other:?}");
        if error.is_some() || other.is_some() {
            if state != printed {
                eprintln!("{state}");
            }
            printed = state;
            return false;
        }
        true
    });
    world.kernel.unmount("/h").unwrap();
}

#[test]
fn stress_with_time_to_live() {
    stress("push=off");
}

#[test]
fn stress_with_ttl_zero() {
    stress("ttl=0,push=off");
}

#[test]
fn stress_with_inotify() {
    stress("push=inotify");
}

#[test]
fn stress_with_writeback() {
    stress("cache=writeback,push=off");
}

#[test]
fn stress_with_cache_host() {
    stress("cache=host,push=off");
}

/// The notification of a change arrives at any moment of the question about it.
#[test]
fn question_after_a_change_finds_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let on_host = std::fs::File::create(folder.path().join("f")).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    let options = MountOptions::parse("push=inotify").unwrap();
    kernel.mount_hostfs(folder.path(), "/", &options).unwrap();
    let root = Credentials::root();
    let caller = Caller::new(&kernel, &root, 0);
    let file = caller.lookup(&caller.root(), b"f").unwrap().unwrap();
    let opened = caller.open(&file, OpenFlags::empty()).unwrap();
    let mut buf = vec![0; 1 << 20];
    for round in 0..10_000_u32 {
        let size_bytes = u64::from(round) * 81_910 % 1_000_003;
        on_host.set_len(size_bytes).unwrap();
        let changed = Instant::now();
        while changed.elapsed() < Duration::from_micros(u64::from(round % 64)) {
            std::hint::spin_loop();
        }
        file.invalidate();
        assert_eq!(file.stat().unwrap().size_bytes, size_bytes, "{round}");
        opened.read(&mut buf, 0).unwrap();
    }
}
