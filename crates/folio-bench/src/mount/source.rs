//! The tree that the jobs copy: generated, as a tar archive and as a git repository.

use crate::ext4::hosted::command;
use crate::report::with_context;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Folders with this many entries each, themselves in folders with as many.
const ENTRIES_PER_FOLDER: usize = 12;
/// One entry of so many is a symbolic link.
const LINK_EVERY: usize = 97;

/// The tree, and what it holds.
#[derive(Debug)]
pub(super) struct Source {
    folder: PathBuf,
    pub(super) files: usize,
    pub(super) folders: usize,
    pub(super) links: usize,
    pub(super) bytes: u64,
}

impl Source {
    /// Makes a tree with about `entries` entries in `folder`, and its archive.
    pub(super) fn new(folder: &Path, entries: usize) -> Result<Self, String> {
        let mut source = Self {
            folder: folder.to_owned(),
            files: 0,
            folders: 1,
            links: 0,
            bytes: 0,
        };
        fs::create_dir(source.tree()).map_err(with_context(folder.display()))?;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let content: Vec<u8> = (0..FILE_BYTES_MAX).map(|at| (at % 251) as u8 + 1).collect();
        let mut inside = source.tree();
        while source.entries() < entries {
            let number = source.entries();
            if number.is_multiple_of(ENTRIES_PER_FOLDER) {
                let parent = number / ENTRIES_PER_FOLDER / ENTRIES_PER_FOLDER;
                inside = source.tree().join(format!("module-{parent}"));
                source.folders += usize::from(!inside.exists());
                inside = inside.join(format!("part-{number}"));
                fs::create_dir_all(&inside).map_err(with_context(inside.display()))?;
                source.folders += 1;
            }
            let path = inside.join(format!("entry-{number:06}.txt"));
            let at = with_context(path.display());
            if number % LINK_EVERY == LINK_EVERY - 1 {
                symlink("../somewhere/else", &path).map_err(at)?;
                source.links += 1;
            } else {
                let bytes = file_bytes(&mut random);
                fs::write(&path, &content[..bytes]).map_err(at)?;
                source.files += 1;
                source.bytes += bytes as u64;
            }
        }
        Ok(source)
    }

    /// Returns the number of files, folders and links.
    pub(super) fn entries(&self) -> usize {
        self.files + self.folders + self.links
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Returns the archive, made at the first call.
    pub(super) fn archive(&self) -> Result<PathBuf, String> {
        let archive = self.folder.join("tree.tar");
        if !archive.exists() {
            let (archive, tree) = (archive.as_os_str(), self.tree());
            command(
                "tar",
                [
                    "-cf".as_ref(),
                    archive,
                    "-C".as_ref(),
                    tree.as_os_str(),
                    ".".as_ref(),
                ],
            )?;
        }
        Ok(archive)
    }

    /// Returns the repository, made at the first call.
    pub(super) fn repository(&self) -> Result<PathBuf, String> {
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

/// Runs git in `folder` without the user's configuration.
pub(super) fn git(folder: &Path, words: &[&str]) -> Result<String, String> {
    let settings = [
        "safe.directory=*",
        "user.name=bench",
        "user.email=bench@localhost",
        "core.hooksPath=/dev/null",
        "gc.auto=0",
    ];
    let folder = folder.display().to_string();
    let mut arguments = vec!["-C", &folder];
    arguments.extend(settings.iter().flat_map(|setting| ["-c", setting]));
    arguments.extend(words);
    command("git", arguments)
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

/// xorshift64*: the same numbers for every contender.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}
