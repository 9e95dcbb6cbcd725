//! Random operations of every kind, with files that stay open and files without a name.

use crate::crash::program::{File, Program};
use crate::crash::random::Random;
use folio::vfs::FallocateMode;

/// Limits and rates of a random mix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) operations: usize,
    pub(crate) names_max: usize,
    pub(crate) file_bytes_max: usize,
    /// Rate of fsync(2) and of sync(2), per 1000 operations.
    pub(crate) fsync_permille: usize,
    pub(crate) sync_permille: usize,
    /// Rate of freezes, per 1000 operations.
    pub(crate) freeze_permille: usize,
    /// Whether files can have space that reads as zeros, which a block map cannot express.
    pub(crate) has_unwritten_space: bool,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            operations: 600,
            names_max: 60,
            file_bytes_max: 48 << 10,
            fsync_permille: 60,
            sync_permille: 15,
            freeze_permille: 0,
            has_unwritten_space: true,
        }
    }
}

/// Maximum number of open files, with or without names.
const OPEN_MAX: usize = 6;

/// Runs the mix and closes all files.
pub(crate) fn run(program: &mut Program, random: &mut Random, mix: Mix) {
    let mut open: Vec<File> = Vec::new();
    for count in 0..mix.operations {
        if open.len() >= OPEN_MAX {
            let file = open.swap_remove(random.below(open.len()));
            program.close(file);
        }
        let synced = mix.fsync_permille + mix.sync_permille;
        match random.below(1000) {
            n if n < mix.fsync_permille => sync_one(program, random, &open),
            n if n < synced => program.sync(),
            n if n < synced + mix.freeze_permille => program.freeze(),
            n if n % 2 == 0 => change_data(program, random, mix, &mut open, count),
            _ => change_names(program, random, mix, count),
        }
    }
    open.into_iter().for_each(|file| program.close(file));
}

fn sync_one(program: &mut Program, random: &mut Random, open: &[File]) {
    match random.below(4) {
        0 => {
            let mut directories = program.names.paths('d');
            directories.push(String::new());
            let path = random.pick(&directories);
            program.fsync_directory(&path);
        }
        1 if !open.is_empty() => program.fdatasync(random.pick(open)),
        _ if !open.is_empty() => program.fsync(random.pick(open)),
        _ => program.sync(),
    }
}

fn directory(program: &Program, random: &mut Random) -> String {
    let mut all = program.names.paths('d');
    all.push(String::new());
    random.pick(&all)
}

/// Returns a path for a new name; some names are long, to fill directory blocks.
fn new_path(program: &Program, random: &mut Random, kind: char, count: usize) -> String {
    let parent = directory(program, random);
    let name = format!("{kind}{count}{}", "-long".repeat(random.below(12)));
    if parent.is_empty() {
        name
    } else {
        format!("{parent}/{name}")
    }
}

fn change_data(
    program: &mut Program,
    random: &mut Random,
    mix: Mix,
    open: &mut Vec<File>,
    count: usize,
) {
    let files = program.names.paths('f');
    if files.is_empty() || (files.len() < mix.names_max && random.percent(15)) {
        let path = new_path(program, random, 'f', count);
        open.extend(program.create(&path));
        return;
    }
    let file = if open.is_empty() || random.percent(30) {
        let file = program.open(&random.pick(&files));
        open.push(file);
        file
    } else {
        random.pick(open)
    };
    let size = program.names.inodes[file.node].content.now().len();
    let place = random.below(mix.file_bytes_max) as u64;
    let most = if random.percent(20) {
        mix.file_bytes_max / 2
    } else {
        6000
    };
    let len = 1 + random.below(most);
    match random.below(20) {
        0..=5 => drop(program.write(file, size as u64, len.min(mix.file_bytes_max))),
        6..=10 => drop(program.write(file, random.below(size + 1) as u64, len)),
        11 => drop(program.write(file, place, len)),
        12 | 13 => program.truncate(file, random.below(size + 1) as u64),
        14 => program.truncate(file, place),
        15 => program.truncate(file, 0),
        16.. if !mix.has_unwritten_space => {
            program.fallocate(file, FallocateMode::PunchHole, place, len as u64);
        }
        16 => program.fallocate(file, FallocateMode::PunchHole, place, len as u64),
        17 => program.fallocate(file, FallocateMode::ZeroRange, place, len as u64),
        18 => program.fallocate(file, FallocateMode::Allocate, place, len as u64),
        _ => program.fallocate(file, FallocateMode::AllocateKeepSize, place, len as u64),
    }
    if size > mix.file_bytes_max {
        program.truncate(file, place);
    }
}

fn change_names(program: &mut Program, random: &mut Random, mix: Mix, count: usize) {
    let (files, directories, links) = (
        program.names.paths('f'),
        program.names.paths('d'),
        program.names.paths('l'),
    );
    let is_full = files.len() + directories.len() + links.len() >= mix.names_max;
    match random.below(20) {
        0..=2 if !is_full => drop(program.mkdir(&new_path(program, random, 'd', count))),
        3 if !is_full => {
            let target = "target/".repeat(1 + random.below(25));
            program.symlink(&target, &new_path(program, random, 'l', count));
        }
        4 | 5 if !is_full && !files.is_empty() => {
            program.link(&random.pick(&files), &new_path(program, random, 'h', count));
        }
        6..=9 => remove(program, random, &files, &directories, &links),
        10..=13 => rename(program, random, &files, &directories, count),
        14 | 15 => attributes(program, random, &files, &directories),
        _ if !files.is_empty() => xattrs(program, random, &files),
        _ => {}
    }
}

fn remove(
    program: &mut Program,
    random: &mut Random,
    files: &[String],
    directories: &[String],
    links: &[String],
) {
    let empty: Vec<_> = directories
        .iter()
        .filter(|path| {
            program.names.inodes[program.names.find(path)]
                .entries
                .is_empty()
        })
        .cloned()
        .collect();
    if !empty.is_empty() && random.percent(30) {
        program.rmdir(&random.pick(&empty));
    } else if !links.is_empty() && random.percent(20) {
        program.unlink(&random.pick(links));
    } else if files.len() > 3 {
        program.unlink(&random.pick(files));
    }
}

fn rename(
    program: &mut Program,
    random: &mut Random,
    files: &[String],
    directories: &[String],
    count: usize,
) {
    if files.is_empty() {
        return;
    }
    let from = random.pick(files);
    match random.below(8) {
        0..=2 => program.rename(&from, &new_path(program, random, 'r', count)),
        3..=5 => program.rename(&from, &random.pick(files)),
        6 => program.exchange(&from, &random.pick(files)),
        _ if !directories.is_empty() => {
            let from = random.pick(directories);
            let to = new_path(program, random, 'd', count);
            if !to.starts_with(&format!("{from}/")) {
                program.rename(&from, &to);
            }
        }
        _ => {}
    }
}

fn attributes(
    program: &mut Program,
    random: &mut Random,
    files: &[String],
    directories: &[String],
) {
    let all: Vec<_> = files.iter().chain(directories).collect();
    if !all.is_empty() {
        let path = random.pick(&all).clone();
        if random.percent(50) {
            program.chmod(&path, random.below(0o1000) as u16)
        } else {
            program.chown(&path, random.below(2000) as u32, random.below(2000) as u32)
        }
    }
}

fn xattrs(program: &mut Program, random: &mut Random, files: &[String]) {
    let path = random.pick(files);
    let node = program.names.find(&path);
    let has: Vec<_> = program.names.inodes[node]
        .attributes
        .xattrs
        .keys()
        .cloned()
        .collect();
    if !has.is_empty() && random.percent(40) {
        return program.removexattr(&path, &random.pick(&has));
    }
    // Some attributes fit into the inode, some need a block, and equal blocks are shared.
    let len = random.pick(&[3, 40, 300, 300, 700]);
    program.setxattr(
        &path,
        &format!("user.x{}", random.below(3)),
        &vec![b'a' + (len % 7) as u8; len],
    );
}
