//! Random operations of every kind, some files open all the time and some without a name.

use crate::crash::random::Random;
use crate::crash::world::{File, World};
use folio::vfs::FallocateMode;

/// How large the tree and its files become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) operations: usize,
    pub(crate) names_max: usize,
    pub(crate) file_bytes_max: usize,
    /// In so many of a thousand operations a file is synced, and everything.
    pub(crate) fsync_permille: usize,
    pub(crate) sync_permille: usize,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            operations: 600,
            names_max: 60,
            file_bytes_max: 48 << 10,
            fsync_permille: 60,
            sync_permille: 15,
        }
    }
}

/// Files that stay open, with or without names.
const OPEN_MAX: usize = 6;

/// Runs the mix and closes everything.
pub(crate) fn run(world: &mut World, random: &mut Random, mix: Mix) {
    let mut open: Vec<File> = Vec::new();
    for count in 0..mix.operations {
        if open.len() >= OPEN_MAX {
            let file = open.swap_remove(random.below(open.len()));
            world.close(file);
        }
        match random.below(1000) {
            n if n < mix.fsync_permille => sync_one(world, random, &open),
            n if n < mix.fsync_permille + mix.sync_permille => world.sync(),
            n if n % 2 == 0 => change_data(world, random, mix, &mut open, count),
            _ => change_names(world, random, mix, count),
        }
    }
    open.into_iter().for_each(|file| world.close(file));
}

fn sync_one(world: &mut World, random: &mut Random, open: &[File]) {
    match random.below(4) {
        0 => {
            let mut directories = world.names.paths('d');
            directories.push(String::new());
            let path = random.pick(&directories);
            world.fsync_directory(&path);
        }
        1 if !open.is_empty() => world.fdatasync(random.pick(open)),
        _ if !open.is_empty() => world.fsync(random.pick(open)),
        _ => world.sync(),
    }
}

fn directory(world: &World, random: &mut Random) -> String {
    let mut all = world.names.paths('d');
    all.push(String::new());
    random.pick(&all)
}

/// A path for a new name, long enough that some names fill directory blocks.
fn new_path(world: &World, random: &mut Random, kind: char, count: usize) -> String {
    let parent = directory(world, random);
    let name = format!("{kind}{count}{}", "-long".repeat(random.below(12)));
    if parent.is_empty() {
        name
    } else {
        format!("{parent}/{name}")
    }
}

fn change_data(
    world: &mut World,
    random: &mut Random,
    mix: Mix,
    open: &mut Vec<File>,
    count: usize,
) {
    let files = world.names.paths('f');
    if files.is_empty() || (files.len() < mix.names_max && random.percent(15)) {
        let path = new_path(world, random, 'f', count);
        open.extend(world.create(&path));
        return;
    }
    let file = if open.is_empty() || random.percent(30) {
        let file = world.open(&random.pick(&files));
        open.push(file);
        file
    } else {
        random.pick(open)
    };
    let size = world.names.inodes[file.node].content.now().len();
    let place = random.below(mix.file_bytes_max) as u64;
    let most = if random.percent(20) {
        mix.file_bytes_max / 2
    } else {
        6000
    };
    let len = 1 + random.below(most);
    match random.below(20) {
        0..=5 => drop(world.write(file, size as u64, len.min(mix.file_bytes_max))),
        6..=10 => drop(world.write(file, random.below(size + 1) as u64, len)),
        11 => drop(world.write(file, place, len)),
        12 | 13 => world.truncate(file, random.below(size + 1) as u64),
        14 => world.truncate(file, place),
        15 => world.truncate(file, 0),
        16 => world.fallocate(file, FallocateMode::PunchHole, place, len as u64),
        17 => world.fallocate(file, FallocateMode::ZeroRange, place, len as u64),
        18 => world.fallocate(file, FallocateMode::Allocate, place, len as u64),
        _ => world.fallocate(file, FallocateMode::AllocateKeepSize, place, len as u64),
    }
    if size > mix.file_bytes_max {
        world.truncate(file, place);
    }
}

fn change_names(world: &mut World, random: &mut Random, mix: Mix, count: usize) {
    let (files, directories, links) = (
        world.names.paths('f'),
        world.names.paths('d'),
        world.names.paths('l'),
    );
    let is_full = files.len() + directories.len() + links.len() >= mix.names_max;
    match random.below(20) {
        0..=2 if !is_full => drop(world.mkdir(&new_path(world, random, 'd', count))),
        3 if !is_full => {
            let target = "target/".repeat(1 + random.below(25));
            world.symlink(&target, &new_path(world, random, 'l', count));
        }
        4 | 5 if !is_full && !files.is_empty() => {
            world.link(&random.pick(&files), &new_path(world, random, 'h', count));
        }
        6..=9 => remove(world, random, &files, &directories, &links),
        10..=13 => rename(world, random, &files, &directories, count),
        14 | 15 => attributes(world, random, &files, &directories),
        _ if !files.is_empty() => xattrs(world, random, &files),
        _ => {}
    }
}

fn remove(
    world: &mut World,
    random: &mut Random,
    files: &[String],
    directories: &[String],
    links: &[String],
) {
    let empty: Vec<_> = directories
        .iter()
        .filter(|path| {
            world.names.inodes[world.names.find(path)]
                .entries
                .is_empty()
        })
        .cloned()
        .collect();
    if !empty.is_empty() && random.percent(30) {
        world.rmdir(&random.pick(&empty));
    } else if !links.is_empty() && random.percent(20) {
        world.unlink(&random.pick(links));
    } else if files.len() > 3 {
        world.unlink(&random.pick(files));
    }
}

fn rename(
    world: &mut World,
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
        0..=2 => world.rename(&from, &new_path(world, random, 'r', count)),
        3..=5 => world.rename(&from, &random.pick(files)),
        6 => world.exchange(&from, &random.pick(files)),
        _ if !directories.is_empty() => {
            let from = random.pick(directories);
            let to = new_path(world, random, 'd', count);
            if !to.starts_with(&format!("{from}/")) {
                world.rename(&from, &to);
            }
        }
        _ => {}
    }
}

fn attributes(world: &mut World, random: &mut Random, files: &[String], directories: &[String]) {
    let all: Vec<_> = files.iter().chain(directories).collect();
    if !all.is_empty() {
        let path = random.pick(&all).clone();
        if random.percent(50) {
            world.chmod(&path, random.below(0o1000) as u16)
        } else {
            world.chown(&path, random.below(2000) as u32, random.below(2000) as u32)
        }
    }
}

fn xattrs(world: &mut World, random: &mut Random, files: &[String]) {
    let path = random.pick(files);
    let node = world.names.find(&path);
    let has: Vec<_> = world.names.inodes[node]
        .look
        .xattrs
        .keys()
        .cloned()
        .collect();
    if !has.is_empty() && random.percent(40) {
        return world.removexattr(&path, &random.pick(&has));
    }
    // Some fit into the inode, some need a block, and equal blocks are shared.
    let len = random.pick(&[3, 40, 300, 300, 700]);
    world.setxattr(
        &path,
        &format!("user.x{}", random.below(3)),
        &vec![b'a' + (len % 7) as u8; len],
    );
}
