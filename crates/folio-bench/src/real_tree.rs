//! A tree of the machine's own files: headers, documents, the toolchain; hard links and symbolic
//! links among them.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Limits of the copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Fewer files than this is an error.
    pub(crate) files_min: usize,
    /// No more files than this.
    pub(crate) files_max: usize,
    /// No more bytes of content than this.
    pub(crate) bytes_max: u64,
}

/// Copies files into the folder `target` until a limit is reached. The error says what the machine
/// has.
pub(crate) fn copy_to(target: &Path, limits: Limits) -> Result<(), String> {
    let mut copy = Copy {
        limits,
        files: 0,
        bytes: 0,
    };
    for (index, source) in sources().iter().enumerate() {
        let inside = target.join(format!("{index}"));
        fs::create_dir(&inside).map_err(|error| error.to_string())?;
        copy.folder(source, &inside)
            .map_err(|error| format!("{}: {error}", source.display()))?;
    }
    if copy.files < limits.files_min {
        let list: Vec<_> = sources()
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        return Err(format!(
            "needs {} files, {} hold {}",
            limits.files_min,
            list.join(" "),
            copy.files
        ));
    }
    // The machine's own trees seldom have hard links.
    let mut count = 0;
    link_some(target, target, &mut count).map_err(|error| error.to_string())
}

fn sources() -> Vec<PathBuf> {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .ok();
    let sysroot =
        sysroot.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let toolchain = sysroot
        .into_iter()
        .flat_map(|root| [root.join("lib"), root.join("share")]);
    let system = ["/usr/include", "/usr/share"].map(PathBuf::from);
    system
        .into_iter()
        .chain(toolchain)
        .filter(|path| path.is_dir())
        .collect()
}

struct Copy {
    limits: Limits,
    files: usize,
    bytes: u64,
}

impl Copy {
    fn folder(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        for path in sorted(from)? {
            let metadata = fs::symlink_metadata(&path)?;
            let target = to.join(path.file_name().unwrap_or_default());
            let len = metadata.len();
            let is_full =
                self.files >= self.limits.files_max || self.bytes + len > self.limits.bytes_max;
            if metadata.is_dir() {
                if self.files < self.limits.files_max {
                    fs::create_dir(&target)?;
                    self.folder(&path, &target)?;
                }
            } else if metadata.is_symlink() && !is_full {
                symlink(fs::read_link(&path)?, &target)?;
                self.files += 1;
            } else if metadata.is_file() && !is_full && len <= self.limits.bytes_max / 8 {
                // No single file may take the place of thousands.
                fs::copy(&path, &target)?;
                self.bytes += len;
                self.files += 1;
            }
        }
        Ok(())
    }
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

/// Gives every 500th file a second name in the tree's root.
fn link_some(root: &Path, folder: &Path, count: &mut usize) -> io::Result<()> {
    for path in sorted(folder)? {
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            link_some(root, &path, count)?;
        } else if metadata.is_file() {
            *count += 1;
            if count.is_multiple_of(500) {
                fs::hard_link(&path, root.join(format!("link-{count}")))?;
            }
        }
    }
    Ok(())
}
