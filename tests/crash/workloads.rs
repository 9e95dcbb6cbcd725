//! Workloads that stress a journal.

use crate::crash::judge::REPLACED_PREFIX;
use crate::crash::program::Program;
use crate::crash::random::Random;
use folio::vfs::FallocateMode;

/// Unlinks files while they are open; truncates other files.
pub(crate) fn orphans(program: &mut Program, random: &mut Random) {
    for round in 0..8 {
        let mut open = Vec::new();
        for n in 0..6 {
            let path = format!("gone-{round}-{n}");
            let Some(file) = program.create(&path) else {
                continue;
            };
            program.write(file, 0, 1 + random.below(40_000));
            if random.percent(50) {
                program.fsync(file);
            }
            if random.percent(60) {
                program.unlink(&path);
            }
            open.push(file);
        }
        if random.percent(50) {
            program.sync();
        }
        for file in &open {
            match random.below(3) {
                0 => program.truncate(*file, random.below(20_000) as u64),
                1 => drop(program.write(*file, random.below(50_000) as u64, 5000)),
                _ => program.fsync(*file),
            }
        }
        // In random order, so that orphans in the middle of the list are removed.
        while !open.is_empty() {
            let file = open.swap_remove(random.below(open.len()));
            program.close(file);
            if random.percent(20) {
                program.sync();
            }
        }
    }
}

const REPLACED_FILES: usize = 5;

fn first_versions(program: &mut Program, bytes: usize) {
    for n in 0..REPLACED_FILES {
        let file = program
            .create(&format!("{REPLACED_PREFIX}{n}"))
            .expect("space");
        program.write(file, 0, bytes);
        program.version(file);
        program.close(file);
    }
    program.sync();
}

/// Makes unrelated changes, so that transactions commit at every moment of a replacement.
fn commit_something(program: &mut Program, random: &mut Random, round: usize) {
    match random.below(5) {
        0 => {
            let path = format!("other-{round}");
            if let Some(file) = program.create(&path) {
                program.write(file, 0, 3000);
                program.fsync(file);
                program.close(file);
                program.unlink(&path);
            }
        }
        1 => program.fsync_directory(""),
        _ => {}
    }
}

/// Replaces files by a new file that is written, closed and renamed over the old one without fsync.
pub(crate) fn replace_by_rename(program: &mut Program, random: &mut Random) {
    const BYTES: usize = 40_000;
    first_versions(program, BYTES);
    for round in 0..60 {
        let path = format!("{REPLACED_PREFIX}{}", random.below(REPLACED_FILES));
        let file = program.create("new").expect("space");
        program.write(file, 0, BYTES / 2);
        commit_something(program, random, round);
        program.write(file, BYTES as u64 / 2, BYTES / 2 + random.below(3000));
        program.version(file);
        program.close(file);
        commit_something(program, random, round);
        program.rename("new", &path);
        commit_something(program, random, round);
    }
}

/// Replaces files by O_TRUNC, a new write and close, without fsync.
pub(crate) fn replace_by_truncation(program: &mut Program, random: &mut Random) {
    const BYTES: usize = 40_000;
    first_versions(program, BYTES);
    for round in 0..60 {
        let path = format!("{REPLACED_PREFIX}{}", random.below(REPLACED_FILES));
        let file = program.open_truncating(&path);
        commit_something(program, random, round);
        program.write(file, 0, BYTES / 2);
        commit_something(program, random, round);
        program.write(file, BYTES as u64 / 2, BYTES / 2 + random.below(3000));
        program.version(file);
        program.close(file);
        commit_something(program, random, round);
    }
}

/// Copies a tree like `cp -a && sync`: data, then owner, mode and attributes, then sync(2).
pub(crate) fn copy_of_a_tree(program: &mut Program, random: &mut Random) {
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
                if program.mkdir(&path) {
                    directories.push(path);
                }
            }
            2 => program.symlink(&"../".repeat(1 + random.below(30)), &path),
            _ => {
                let Some(file) = program.create(&path) else {
                    continue;
                };
                let most = if random.percent(10) { 100_000 } else { 8000 };
                program.write(file, 0, random.below(most));
                program.close(file);
                program.chown(&path, 1000, 100);
                program.chmod(&path, 0o640);
                if random.percent(20) {
                    program.setxattr(&path, "user.origin", &vec![b'o'; 10 + random.below(500)]);
                }
            }
        }
    }
    for path in directories.iter().filter(|path| !path.is_empty()) {
        program.chmod(path, 0o750);
    }
    program.sync();
}

/// Grows a directory to an htree of several blocks and shrinks it again.
pub(crate) fn large_directory(program: &mut Program, random: &mut Random) {
    program.mkdir("many");
    let name = |n: usize| format!("many/{n}-{}", "name".repeat(40));
    for n in 0..500 {
        if let Some(file) = program.create(&name(n)) {
            if random.percent(5) {
                program.fsync(file);
            }
            program.close(file);
        }
        if random.percent(2) {
            program.fsync_directory("many");
        }
        if random.percent(10) {
            let to = format!("{}-moved", name(n));
            program.rename(&name(n), &to);
        }
    }
    for path in program.names.paths('f') {
        program.unlink(&path);
        if random.percent(3) {
            program.fsync_directory("many");
        }
    }
    program.rmdir("many");
    program.sync();
}

/// Fills the disk, removes some files, and repeats.
pub(crate) fn no_space(program: &mut Program, random: &mut Random) {
    for round in 0..4 {
        for n in 0.. {
            let Some(file) = program.create(&format!("fill-{round}-{n}")) else {
                break;
            };
            let len = 200_000 + random.below(900_000);
            let written = program.write(file, 0, len);
            if random.percent(20) {
                program.fsync(file);
            }
            program.close(file);
            if written < len {
                break;
            }
        }
        // The disk is full: operations that need space must fail without any change.
        for n in 0..20 {
            program.mkdir(&format!("late-{round}-{n}"));
            program.symlink(&"x".repeat(200), &format!("link-{round}-{n}"));
            if let Some(file) = program.create(&format!("late-{round}-f{n}")) {
                program.write(file, 0, 3000);
                program.fallocate(file, FallocateMode::Allocate, 0, 50_000);
                program.close(file);
            }
        }
        program.sync();
        let files = program.names.paths('f');
        for path in files.iter().filter(|_| random.percent(60)) {
            program.unlink(path);
        }
    }
    program.sync();
}

/// Reuses blocks of directories and extent trees as file data: an old copy in the journal must not
/// overwrite the data.
pub(crate) fn metadata_becomes_data(program: &mut Program, random: &mut Random) {
    for round in 0..12 {
        let directory = format!("d{round}");
        program.mkdir(&directory);
        for n in 0..40 {
            if let Some(file) = program.create(&format!("{directory}/{n}-{}", "y".repeat(120))) {
                program.close(file);
            }
        }
        if let Some(file) = program.create("holes") {
            for n in 0..60 {
                program.write(file, n * 8192, 700);
            }
            program.setxattr("holes", "user.large", &vec![b'h' + (round % 8) as u8; 800]);
            program.fsync(file);
            program.close(file);
        }
        for path in program
            .names
            .paths('f')
            .iter()
            .filter(|path| path.starts_with(&directory))
        {
            program.unlink(path);
        }
        program.rmdir(&directory);
        program.unlink("holes");
        if random.percent(50) {
            program.sync();
        }
        let path = format!("data-{}", round % 4);
        if program.names.exists(&path) {
            program.unlink(&path);
        }
        if let Some(file) = program.create(&path) {
            program.write(file, 0, 300_000 + random.below(300_000));
            program.fsync(file);
            program.close(file);
        }
    }
}

/// Punches and truncates a file with an extent tree of several levels.
pub(crate) fn many_extents(program: &mut Program, random: &mut Random) {
    let file = program.create("extents").expect("space");
    for n in 0..700 {
        program.write(file, n * 4096 * 2, 1000);
        if n % 100 == 99 {
            program.fsync(file);
        }
    }
    for _ in 0..150 {
        let place = random.below(700 * 8192) as u64;
        match random.below(8) {
            0..=2 => program.fallocate(file, FallocateMode::PunchHole, place, 20_000),
            3 | 4 => drop(program.write(file, place, 3000)),
            5 => program.fallocate(file, FallocateMode::AllocateKeepSize, place, 30_000),
            6 => program.fallocate(file, FallocateMode::ZeroRangeKeepSize, place, 30_000),
            _ => program.fdatasync(file),
        }
    }
    program.truncate(file, 1_000_000);
    program.fsync(file);
    program.truncate(file, 100);
    program.sync();
    program.close(file);
}
