//! What programs do that is hard on a journal, one after the other.

use crate::crash::judge::KEPT;
use crate::crash::random::Random;
use crate::crash::world::World;
use folio::vfs::FallocateMode;

/// Files whose last name goes while they are open, among others that are truncated.
pub(crate) fn orphans(world: &mut World, random: &mut Random) {
    for round in 0..8 {
        let mut open = Vec::new();
        for n in 0..6 {
            let path = format!("gone-{round}-{n}");
            let Some(file) = world.create(&path) else {
                continue;
            };
            world.write(file, 0, 1 + random.below(40_000));
            if random.percent(50) {
                world.fsync(file);
            }
            if random.percent(60) {
                world.unlink(&path);
            }
            open.push(file);
        }
        if random.percent(50) {
            world.sync();
        }
        for file in &open {
            match random.below(3) {
                0 => world.truncate(*file, random.below(20_000) as u64),
                1 => drop(world.write(*file, random.below(50_000) as u64, 5000)),
                _ => world.fsync(*file),
            }
        }
        // In another order than they came, so that the list of orphans loses its middle.
        while !open.is_empty() {
            let file = open.swap_remove(random.below(open.len()));
            world.close(file);
            if random.percent(20) {
                world.sync();
            }
        }
    }
}

const KEPT_FILES: usize = 5;

fn first_versions(world: &mut World, bytes: usize) {
    for n in 0..KEPT_FILES {
        let file = world.create(&format!("{KEPT}{n}")).expect("space");
        world.write(file, 0, bytes);
        world.version(file);
        world.close(file);
    }
    world.sync();
}

/// What else goes on, so that transactions commit at every moment of a replacement.
fn commit_something(world: &mut World, random: &mut Random, round: usize) {
    match random.below(5) {
        0 => {
            let path = format!("other-{round}");
            if let Some(file) = world.create(&path) {
                world.write(file, 0, 3000);
                world.fsync(file);
                world.close(file);
                world.unlink(&path);
            }
        }
        1 => world.fsync_directory(""),
        _ => {}
    }
}

/// Write a new file, close it, and rename it over the old one, without fsync.
pub(crate) fn replace_by_rename(world: &mut World, random: &mut Random) {
    const BYTES: usize = 40_000;
    first_versions(world, BYTES);
    for round in 0..60 {
        let path = format!("{KEPT}{}", random.below(KEPT_FILES));
        let file = world.create("new").expect("space");
        world.write(file, 0, BYTES / 2);
        commit_something(world, random, round);
        world.write(file, BYTES as u64 / 2, BYTES / 2 + random.below(3000));
        world.version(file);
        world.close(file);
        commit_something(world, random, round);
        world.rename("new", &path);
        commit_something(world, random, round);
    }
}

/// Open the file with O_TRUNC, write it anew and close it, without fsync.
pub(crate) fn replace_by_truncation(world: &mut World, random: &mut Random) {
    const BYTES: usize = 40_000;
    first_versions(world, BYTES);
    for round in 0..60 {
        let path = format!("{KEPT}{}", random.below(KEPT_FILES));
        let file = world.open_truncating(&path);
        commit_something(world, random, round);
        world.write(file, 0, BYTES / 2);
        commit_something(world, random, round);
        world.write(file, BYTES as u64 / 2, BYTES / 2 + random.below(3000));
        world.version(file);
        world.close(file);
        commit_something(world, random, round);
    }
}

/// A tree as `cp -a` makes it: data, then owner, mode and attributes; synced at the end, as by
/// `cp -a && sync`.
pub(crate) fn copy_of_a_tree(world: &mut World, random: &mut Random) {
    let mut directories = vec![String::new()];
    for n in 0..220 {
        let parent = random.pick(&directories);
        let path = if parent.is_empty() {
            format!("t{n}")
        } else {
            format!("{parent}/t{n}")
        };
        match random.below(10) {
            0 | 1 => {
                if world.mkdir(&path) {
                    directories.push(path);
                }
            }
            2 => world.symlink(&"../".repeat(1 + random.below(30)), &path),
            _ => {
                let Some(file) = world.create(&path) else {
                    continue;
                };
                let most = if random.percent(10) { 100_000 } else { 8000 };
                world.write(file, 0, random.below(most));
                world.close(file);
                world.chown(&path, 1000, 100);
                world.chmod(&path, 0o640);
                if random.percent(20) {
                    world.setxattr(&path, "user.origin", &vec![b'o'; 10 + random.below(500)]);
                }
            }
        }
    }
    for path in directories.iter().filter(|path| !path.is_empty()) {
        world.chmod(path, 0o750);
    }
    world.sync();
}

/// A directory that grows to an htree of several blocks and shrinks again.
pub(crate) fn large_directory(world: &mut World, random: &mut Random) {
    world.mkdir("many");
    let name = |n: usize| format!("many/{n}-{}", "name".repeat(40));
    for n in 0..500 {
        if let Some(file) = world.create(&name(n)) {
            if random.percent(5) {
                world.fsync(file);
            }
            world.close(file);
        }
        if random.percent(2) {
            world.fsync_directory("many");
        }
        if random.percent(10) {
            let to = format!("{}-moved", name(n));
            world.rename(&name(n), &to);
        }
    }
    for path in world.names.paths('f') {
        world.unlink(&path);
        if random.percent(3) {
            world.fsync_directory("many");
        }
    }
    world.rmdir("many");
    world.sync();
}

/// Writes until nothing fits, removes some, and again.
pub(crate) fn no_space(world: &mut World, random: &mut Random) {
    for round in 0..4 {
        for n in 0.. {
            let Some(file) = world.create(&format!("fill-{round}-{n}")) else {
                break;
            };
            let len = 200_000 + random.below(900_000);
            let written = world.write(file, 0, len);
            if random.percent(20) {
                world.fsync(file);
            }
            world.close(file);
            if written < len {
                break;
            }
        }
        // Full now: everything else that needs space has to fail as a whole.
        for n in 0..20 {
            world.mkdir(&format!("late-{round}-{n}"));
            world.symlink(&"x".repeat(200), &format!("link-{round}-{n}"));
            if let Some(file) = world.create(&format!("late-{round}-f{n}")) {
                world.write(file, 0, 3000);
                world.fallocate(file, FallocateMode::Allocate, 0, 50_000);
                world.close(file);
            }
        }
        world.sync();
        let files = world.names.paths('f');
        for path in files.iter().filter(|_| random.percent(60)) {
            world.unlink(path);
        }
    }
    world.sync();
}

/// Blocks of directories and of extent trees become blocks of files, again and again: an old
/// journal entry must not come back over the file's bytes.
pub(crate) fn metadata_becomes_data(world: &mut World, random: &mut Random) {
    for round in 0..12 {
        let directory = format!("d{round}");
        world.mkdir(&directory);
        for n in 0..40 {
            if let Some(file) = world.create(&format!("{directory}/{n}-{}", "y".repeat(120))) {
                world.close(file);
            }
        }
        if let Some(file) = world.create("holes") {
            for n in 0..60 {
                world.write(file, n * 8192, 700);
            }
            world.setxattr("holes", "user.large", &vec![b'h' + (round % 8) as u8; 800]);
            world.fsync(file);
            world.close(file);
        }
        for path in world
            .names
            .paths('f')
            .iter()
            .filter(|path| path.starts_with(&directory))
        {
            world.unlink(path);
        }
        world.rmdir(&directory);
        world.unlink("holes");
        if random.percent(50) {
            world.sync();
        }
        let path = format!("data-{}", round % 4);
        if world.names.exists(&path) {
            world.unlink(&path);
        }
        if let Some(file) = world.create(&path) {
            world.write(file, 0, 300_000 + random.below(300_000));
            world.fsync(file);
            world.close(file);
        }
    }
}

/// One file of so many extents that its tree has several levels, punched and cut.
pub(crate) fn many_extents(world: &mut World, random: &mut Random) {
    let file = world.create("extents").expect("space");
    for n in 0..700 {
        world.write(file, n * 4096 * 2, 1000);
        if n % 100 == 99 {
            world.fsync(file);
        }
    }
    for _ in 0..150 {
        let place = random.below(700 * 8192) as u64;
        match random.below(8) {
            0..=2 => world.fallocate(file, FallocateMode::PunchHole, place, 20_000),
            3 | 4 => drop(world.write(file, place, 3000)),
            5 => world.fallocate(file, FallocateMode::AllocateKeepSize, place, 30_000),
            6 => world.fallocate(file, FallocateMode::ZeroRangeKeepSize, place, 30_000),
            _ => world.fdatasync(file),
        }
    }
    world.truncate(file, 1_000_000);
    world.fsync(file);
    world.truncate(file, 100);
    world.sync();
    world.close(file);
}
