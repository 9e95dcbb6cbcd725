//! The tree that the jobs copy: generated, as a tar archive and as a git repository.

use crate::command::{run, tool};
use crate::outcome::{Context, Outcome};
use crate::random::{Random, pattern};
use rustix::fs::{AtFlags, CWD, FileType, statat};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Folders with this many entries each, themselves in folders with as many.
const ENTRIES_PER_FOLDER: usize = 12;
/// One entry of so many is a symbolic link.
const LINK_EVERY: usize = 97;

/// The tree, and what it holds.
#[derive(Debug)]
pub(crate) struct SampleTree {
    folder: PathBuf,
    pub(crate) files: usize,
    pub(crate) folders: usize,
    pub(crate) links: usize,
    pub(crate) bytes: u64,
}

impl SampleTree {
    /// Makes a tree with about `entries` entries in `folder`, and its archive.
    pub(crate) fn new(folder: &Path, entries: usize) -> Outcome<Self> {
        let mut source = Self {
            folder: folder.to_owned(),
            files: 0,
            folders: 1,
            links: 0,
            bytes: 0,
        };
        fs::create_dir(source.tree()).at(folder)?;
        let mut random = Random::new(1);
        let content = pattern(FILE_BYTES_MAX);
        let mut inside = source.tree();
        while source.entries() < entries {
            let number = source.entries();
            if number.is_multiple_of(ENTRIES_PER_FOLDER) {
                let parent = number / ENTRIES_PER_FOLDER / ENTRIES_PER_FOLDER;
                inside = source.tree().join(format!("module-{parent}"));
                source.folders += usize::from(!inside.exists());
                inside = inside.join(format!("part-{number}"));
                fs::create_dir_all(&inside).at(&inside)?;
                source.folders += 1;
            }
            let path = inside.join(format!("entry-{number:06}.txt"));
            if number % LINK_EVERY == LINK_EVERY - 1 {
                symlink("../somewhere/else", &path).at(&path)?;
                source.links += 1;
            } else {
                let bytes = file_bytes(&mut random);
                fs::write(&path, &content[..bytes]).at(&path)?;
                source.files += 1;
                source.bytes += bytes as u64;
            }
        }
        Ok(source)
    }

    /// Returns the number of files, folders and links.
    pub(crate) fn entries(&self) -> usize {
        self.files + self.folders + self.links
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Returns the archive, made at the first call.
    pub(crate) fn archive(&self) -> Outcome<PathBuf> {
        let archive = self.folder.join("tree.tar");
        if !archive.exists() {
            let mut tar = tool("tar")?;
            run(tar
                .arg("-cf")
                .arg(&archive)
                .arg("-C")
                .arg(self.tree())
                .arg("."))?;
        }
        Ok(archive)
    }

    /// Returns the repository, made at the first call.
    pub(crate) fn repository(&self) -> Outcome<PathBuf> {
        let tree = self.tree();
        if !tree.join(".git").exists() {
            self.archive()?;
            git(&tree, &["init", "--quiet"])?;
            git(&tree, &["add", "--all"])?;
            git(&tree, &["commit", "--quiet", "--message=tree"])?;
        }
        Ok(tree)
    }
}

/// Stats every entry of a tree, as find with a test of an attribute does, and calls `on_file` with
/// all but folders; returns the number of entries. It asks for no creation time, unlike the
/// metadata of std.
pub(crate) fn walk(folder: &Path, on_file: &mut dyn FnMut(&Path) -> Outcome) -> Outcome<usize> {
    let mut count = 1;
    for entry in fs::read_dir(folder).at(folder)? {
        let path = entry.at(folder)?.path();
        let found = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
        if FileType::from_raw_mode(found.at(&path)?.st_mode).is_dir() {
            count += walk(&path, on_file)?;
        } else {
            on_file(&path)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Runs git in `folder` without the user's configuration.
pub(crate) fn git(folder: &Path, words: &[&str]) -> Outcome<String> {
    let settings = [
        "safe.directory=*",
        "user.name=bench",
        "user.email=bench@localhost",
        "core.hooksPath=/dev/null",
        "gc.auto=0",
    ];
    let mut git = tool("git")?;
    git.arg("-C").arg(folder);
    for setting in settings {
        git.args(["-c", setting]);
    }
    run(git.args(words))
}

/// Size of the largest file.
const FILE_BYTES_MAX: usize = 512 << 10;

/// Sizes as in a source tree: half below 4 KiB, few large ones, 14 KiB on average.
fn file_bytes(random: &mut Random) -> usize {
    let (least, most) = match random.below(200) {
        0..100 => (200, 4 << 10),
        100..170 => (4 << 10, 16 << 10),
        170..197 => (16 << 10, 64 << 10),
        _ => (64 << 10, FILE_BYTES_MAX),
    };
    least + random.below((most - least) as u64) as usize
}
