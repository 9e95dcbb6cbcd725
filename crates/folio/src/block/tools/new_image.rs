//! Images that take the place of existing files: the old file keeps its content until the new image
//! is complete, its lock is honored, and its owner, mode and extended attributes remain.
//!
//! | at the path is | the new image is created |
//! |---|---|
//! | nothing, or a link to nothing | there, or where the link leads |
//! | a regular file | beside it, and renamed at the end |
//! | a link, a file with several names, a file whose attributes the caller may not copy | in it |
//! | a block device | on it |
//! | any other file | not at all |

use super::create::{create_in, create_with};
use crate::base::{Errno, Error, Result};
use crate::block::file::HostFile;
use crate::block::image::{CreateOptions, ImageFormat};
use rustix::fs::XattrFlags;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest chain of symbolic links (Linux: `MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// An image file under construction. If it is dropped before [`NewImage::finish`], files that were
/// created for it are removed.
pub struct NewImage {
    path: PathBuf,
    stage: Stage,
    is_zero: bool,
}

enum Stage {
    /// A new file at its path.
    Created,
    /// A new file that gets the name of an old one, which is locked until then.
    Beside { target: PathBuf, _old: HostFile },
    /// An existing file or block device. Also: finished.
    InPlace,
}

impl NewImage {
    /// Creates an image at `path`, as [`create_with`] does. With `replaces`, an existing image is
    /// replaced, and a block device is written.
    ///
    /// # Errors
    ///
    /// Those of [`create_with`]; without `replaces`, EEXIST if the file exists. With it, EBUSY if
    /// another program or the kernel uses the file, EISDIR or EINVAL if it is neither a regular
    /// file nor a block device, ENOSPC if the device is too small.
    pub fn create(
        path: impl AsRef<Path>,
        format: ImageFormat,
        len_bytes: u64,
        options: &CreateOptions,
        replaces: bool,
    ) -> Result<Self> {
        let path = path.as_ref();
        let has_backing = options.backing.is_some();
        if fs::metadata(path).is_err() {
            let path = end_of_links(path)?;
            create_with(&path, format, len_bytes, options)?;
            return Ok(Self {
                path,
                stage: Stage::Created,
                is_zero: !has_backing,
            });
        }
        if !replaces {
            return Err(Error::from(Errno::EXIST).at(path.display().to_string()));
        }
        let old = HostFile::open(path, false)?;
        if let Some((beside, file)) = file_beside(path, &old)? {
            let new = Self {
                path: beside,
                stage: Stage::Beside {
                    target: path.to_owned(),
                    _old: old,
                },
                is_zero: !has_backing,
            };
            let file = HostFile::adopt(file, path.display().to_string())?;
            // Messages name the image, and relative names start at the same folder.
            create_in(file, path, format, len_bytes, options)?;
            return Ok(new);
        }
        // A raw image on a device keeps what the device holds.
        let has_old_data = old.is_block_device() && format == ImageFormat::Raw;
        let is_zero = !has_backing && !has_old_data;
        create_in(old, path, format, len_bytes, options)?;
        Ok(Self {
            path: path.to_owned(),
            stage: Stage::InPlace,
            is_zero,
        })
    }

    /// Returns the path at which the image can be opened until [`NewImage::finish`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the image reads as zeros.
    pub fn is_zero(&self) -> bool {
        self.is_zero
    }

    /// Gives the image its name. The caller has closed it.
    ///
    /// # Errors
    ///
    /// The host's errors; the old file is then unchanged.
    pub fn finish(mut self) -> Result<()> {
        if let Stage::Beside { target, .. } = &self.stage {
            fs::rename(&self.path, target)
                .map_err(|error| Error::io("rename", error).at(target.display().to_string()))?;
        }
        self.stage = Stage::InPlace;
        Ok(())
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::InPlace) {
            // The file is new and incomplete, so its removal loses nothing.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the path that a chain of symbolic links leads to.
fn end_of_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else {
            return Ok(path);
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(Error::from(Errno::LOOP).at(path.display().to_string()))
}

/// Returns a temporary name in the folder of `path`.
pub(in crate::block) fn name_beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new(""));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".folio-{}-{number}", std::process::id()))
}

/// Creates an empty file in the folder of `path` with owner, mode and extended attributes of `old`.
/// Returns `None` where a rename to `path` would replace a link or not keep these.
fn file_beside(path: &Path, old: &HostFile) -> Result<Option<(PathBuf, File)>> {
    let found = old.metadata()?;
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if old.is_block_device() || is_link || found.nlink() != 1 {
        return Ok(None);
    }
    let beside = name_beside(path);
    let Ok(file) = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
    else {
        return Ok(None);
    };
    // Behind a bind mount, a rename would fail.
    let is_same_host = file.metadata().is_ok_and(|made| made.dev() == found.dev());
    if !is_same_host || copy_attributes(old.as_file(), &found, &file).is_err() {
        // Created above, and empty.
        let _ = fs::remove_file(&beside);
        return Ok(None);
    }
    Ok(Some((beside, file)))
}

/// Gives an empty file the owner, mode and extended attributes of another one, with its ACL.
pub(in crate::block) fn copy_attributes(
    from: &File,
    found: &fs::Metadata,
    to: &File,
) -> std::io::Result<()> {
    let made = to.metadata()?;
    if (made.uid(), made.gid()) != (found.uid(), found.gid()) {
        std::os::unix::fs::fchown(to, Some(found.uid()), Some(found.gid()))?;
    }
    to.set_permissions(Permissions::from_mode(found.mode() & 0o7777))?;
    let names = xattr_names(from)?;
    for name in xattr_names(to)? {
        // Inherited from the folder.
        if !names.contains(&name) {
            rustix::fs::fremovexattr(to, name.as_slice())?;
        }
    }
    for name in names {
        let value = xattr(from, &name)?;
        if xattr(to, &name).is_ok_and(|has| has == value) {
            continue;
        }
        rustix::fs::fsetxattr(to.as_fd(), name.as_slice(), &value, XattrFlags::empty())?;
    }
    Ok(())
}

fn xattr_names(file: &File) -> std::io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let count = match rustix::fs::flistxattr(file, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    names.truncate(count);
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn xattr(file: &File, name: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    let count = rustix::fs::fgetxattr(file, name, value.as_mut_slice())?;
    value.truncate(count);
    Ok(value)
}
