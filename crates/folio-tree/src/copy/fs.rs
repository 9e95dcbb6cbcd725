//! Trees between the host and a mounted file system, as methods of [`Fs`].

use super::{CopyJob, copy};
use crate::observer::{CopyFailure, FirstFailure};
use crate::options::CopyOptions;
use crate::rules::FileRules;
use crate::source::{HostSource, MountSource, Source, attributes_of};
use crate::target::{HostTarget, MountTarget, Target};
use folio::vfs::Attributes;
use folio::{Errno, Error, Fs, Process};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Copies trees into and out of a mounted file system.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use folio::Image;
/// use folio_tree::{CopyOptions, CopyTree};
///
/// # let folder = std::env::temp_dir().join(format!("folio-tree-{}", std::process::id()));
/// # std::fs::create_dir_all(folder.join("tree"))?;
/// # std::fs::write(folder.join("tree/motd"), "hello")?;
/// let fs = Image::create(folder.join("disk.qcow2"), 64 << 20).mount()?;
/// fs.copy_in(folder.join("tree"), "/srv", &CopyOptions::archive())?;
/// fs.copy_out("/srv", folder.join("back"), &CopyOptions::archive())?;
/// assert_eq!(std::fs::read(folder.join("back/motd"))?, b"hello");
/// fs.close()?;
/// # std::fs::remove_dir_all(folder)
/// # }
/// ```
pub trait CopyTree {
    /// Copies a file or directory of the host; the copy has the path `to`, whose parent exists. If
    /// both are directories, the contents of `from` are added to those of `to`.
    ///
    /// # Errors
    ///
    /// The first failure, which names its file. After the failure of one file the copy continues.
    /// One that would affect all further files (a full or failing device) ends it, and is returned
    /// instead. EINVAL if the file system is a directory of the host, and the source is the target
    /// or a directory above it.
    fn copy_in(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> io::Result<()>;

    /// Copies a file or directory to the host; the copy has the path `to`, whose parent exists. No
    /// link that this copy makes leads it out of `to`. Links that were there before are followed,
    /// as by cp(1): copy an image that is not trusted into an empty directory. A host file that is
    /// open as a disk image is not overwritten (EBUSY).
    ///
    /// # Errors
    ///
    /// As [`copy_in`](Self::copy_in).
    fn copy_out(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> io::Result<()>;
}

impl CopyTree for Fs {
    fn copy_in(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> io::Result<()> {
        Ok(copy_in(
            self.process(),
            from.as_ref(),
            to.as_ref(),
            options,
        )?)
    }

    fn copy_out(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> io::Result<()> {
        Ok(copy_out(
            self.process(),
            from.as_ref(),
            to.as_ref(),
            options,
        )?)
    }
}

/// As [`CopyTree::copy_in`], with the credentials and the working directory of a process.
///
/// # Errors
///
/// As there.
pub fn copy_in(
    process: &Process,
    from: &Path,
    to: &Path,
    options: &CopyOptions,
) -> Result<(), CopyFailure> {
    let to = absolute(process, to).map_err(|error| CopyFailure::of_target(bytes(to), error))?;
    let source = HostSource::default();
    let found = source.stat(&source.start(), bytes(from), false);
    if let Ok(found) = found {
        let above = to.ancestors().filter_map(|path| process.stat(path).ok());
        check_apart(&found.attributes, above, &to)?;
    }
    // The copy sets its umask, so it has a process of its own.
    let process = process.kernel().process(process.credentials().clone());
    let target = MountTarget::new(&process, options, FileRules::default());
    copy_one(&source, &target, from, &to, options)
}

/// As [`CopyTree::copy_out`], with the credentials and the working directory of a process.
///
/// # Errors
///
/// As there.
pub fn copy_out(
    process: &Process,
    from: &Path,
    to: &Path,
    options: &CopyOptions,
) -> Result<(), CopyFailure> {
    if let Ok(found) = process.lstat(from) {
        // Canonical, so that its ancestors are those of the file system.
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).canonicalize();
        let above = parent.iter().flat_map(|parent| parent.ancestors());
        let all = std::iter::once(to).chain(above);
        let above = all.filter_map(|path| rustix::fs::stat(path).ok());
        check_apart(&found, above.map(|stat| attributes_of(&stat)), to)?;
    }
    let target = HostTarget::new(options, Vec::new());
    copy_one(&MountSource::new(process), &target, from, to, options)
}

fn copy_one(
    source: &impl Source,
    target: &impl Target,
    from: &Path,
    to: &Path,
    options: &CopyOptions,
) -> Result<(), CopyFailure> {
    let failures = FirstFailure::default();
    let copied = copy(source, target, &[CopyJob::to(from, to)], options, &failures);
    copied.and(failures.into_result())
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Returns a path from the root; ENOENT for an empty one, as system calls do.
fn absolute(process: &Process, path: &Path) -> folio::Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    Ok(PathBuf::from(OsString::from_vec(process.getcwd()?)).join(path))
}

/// Fails if the source is the target or a directory above it: the file system may be a directory of
/// the host, so that a copy would truncate what it reads, or never end. `above` are the target, if
/// it exists, and the directories above it.
fn check_apart(
    source: &Attributes,
    mut above: impl Iterator<Item = Attributes>,
    to: &Path,
) -> Result<(), CopyFailure> {
    // A directory of the host keeps numbers and times, and no other file has both by chance.
    let facts = |of: &Attributes| (of.number, of.file_type, of.changed, of.modified);
    if above.any(|found| facts(&found) == facts(source)) {
        let reason = "the source is the target, or a directory above it";
        let error = Error::new(Errno::INVAL, reason);
        return Err(CopyFailure::of_target(bytes(to), error));
    }
    Ok(())
}
