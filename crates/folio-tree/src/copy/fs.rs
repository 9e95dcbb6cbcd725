//! Trees between the host and a mounted file system, as methods of [`Fs`].

use super::{CopyJob, copy};
use crate::observer::{CopyFailure, FirstFailure};
use crate::options::CopyOptions;
use crate::rules::FileRules;
use crate::source::{HostSource, MountSource, Source};
use crate::target::{HostTarget, MountTarget, Target};
use folio::{Fs, Process};
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
    /// The first failure, which names its file. After the failure of one file the copy continues,
    /// unless it would affect all further files: a full or failing device.
    fn copy_in(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> io::Result<()>;

    /// Copies a file or directory to the host; the copy has the path `to`, whose parent exists. No
    /// link of the file system leads the copy out of `to`.
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
    let at = process
        .getcwd()
        .map_err(|error| CopyFailure::of_target(to.as_os_str().as_bytes(), error))?;
    let to = PathBuf::from(OsString::from_vec(at)).join(to);
    // The copy sets its umask, so it has a process of its own.
    let process = process.kernel().process(process.credentials().clone());
    let target = MountTarget::new(&process, options, FileRules::default());
    copy_one(&HostSource::default(), &target, from, &to, options)
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
    failures.into_result().and(copied)
}
