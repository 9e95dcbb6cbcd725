//! The tree that a scenario copies, read once so that the host has it in memory.

use crate::real_tree::{self, Limits};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where a scenario's tree comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The user's own.
    At(PathBuf),
    /// Copied from the machine's own files.
    Machine,
    /// 20,000 files of 100 bytes in one folder.
    OneFolder,
    /// One file of 500 MB.
    OneFile,
}

/// A tree that is ready to be copied.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
    /// Entries that are not folders.
    pub(crate) files: u64,
    pub(crate) folders: u64,
    /// Bytes of file content.
    pub(crate) bytes: u64,
}

/// Name of the one file of the scenario `file`.
pub(crate) const ONE_FILE: &str = "big";
const LIMITS: Limits = Limits {
    files_min: 1000,
    files_max: 22_000,
    bytes_max: 300 << 20,
};
const QUICK_LIMITS: Limits = Limits {
    files_min: 10,
    files_max: 200,
    bytes_max: 4 << 20,
};

/// Makes the tree, below `folder` unless it is the user's own, and reads it all.
pub(crate) fn prepare(source: &Source, folder: &Path, is_quick: bool) -> Result<Tree, String> {
    let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let made = folder.join("tree");
    let (path, what) = match source {
        Source::At(path) => (
            path.canonicalize().map_err(|error| at(path, error))?,
            "given".to_owned(),
        ),
        Source::Machine => {
            fs::create_dir(&made).map_err(|error| at(&made, error))?;
            real_tree::copy_to(&made, if is_quick { QUICK_LIMITS } else { LIMITS })?;
            (
                made,
                "the machine's own headers, documents and toolchain".to_owned(),
            )
        }
        Source::OneFolder => {
            fs::create_dir(&made).map_err(|error| at(&made, error))?;
            let count = if is_quick { 200 } else { 20_000 };
            for index in 0..count {
                let path = made.join(format!("file-{index:05}"));
                fs::write(&path, [b'0' + (index % 10) as u8; 100])
                    .map_err(|error| at(&path, error))?;
            }
            (made, format!("{count} files of 100 bytes in one folder"))
        }
        Source::OneFile => {
            fs::create_dir(&made).map_err(|error| at(&made, error))?;
            let path = made.join(ONE_FILE);
            let count = if is_quick { 5 } else { 500 };
            one_file(&path, count).map_err(|error| at(&path, error))?;
            (made, format!("one file of {count} MB"))
        }
    };
    let mut tree = Tree {
        path: path.clone(),
        what,
        files: 0,
        folders: 0,
        bytes: 0,
    };
    tree.read(&path).map_err(|error| at(&path, error))?;
    Ok(tree)
}

/// Writes in parts: a child's resident set begins at this process's largest.
fn one_file(path: &Path, count: usize) -> io::Result<()> {
    // No run of zeros, so that no contender makes holes.
    let part: Vec<u8> = (0..1_000_000_u32)
        .map(|index| (index % 253) as u8 + 1)
        .collect();
    let mut file = fs::File::create(path)?;
    (0..count).try_for_each(|_| file.write_all(&part))
}

impl Tree {
    fn read(&mut self, folder: &Path) -> io::Result<()> {
        self.folders += 1;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read(&entry.path())?;
            } else {
                self.files += 1;
                if kind.is_file() {
                    self.bytes += io::copy(&mut fs::File::open(entry.path())?, &mut io::sink())?;
                }
            }
        }
        Ok(())
    }
}
