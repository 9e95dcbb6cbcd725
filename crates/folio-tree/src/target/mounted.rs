//! Writes into a mounted file system. As root it can set every owner and create every type of
//! file.

use super::{Existing, FileMeta, Target, WrittenFile, dangling_link, existing};
use crate::attributes::{AttributeFailures, NewAttributes, is_plain_directory};
use crate::content_sink::{self, ContentSink};
use crate::entry::as_path as path;
use crate::options::CopyOptions;
use crate::rules::FileRules;
use folio::base::Owner;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags};
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error, Process, Timespec};
use std::fmt;
use std::path::PathBuf;

/// What a process sees, as the target of a copy.
pub struct MountTarget<'a> {
    process: &'a Process,
    /// What the copy keeps of the source's attributes.
    source_options: CopyOptions,
    /// What it sets.
    options: CopyOptions,
    rules: FileRules,
    /// Where contents go instead.
    contents: Option<&'a dyn ContentSink>,
    /// The owner of new files in a plain directory.
    own: Owner,
}

/// An open directory.
#[derive(Debug)]
pub struct MountDir {
    fd: Fd,
    path: PathBuf,
    is_new: bool,
    /// New files get root's group and no inherited ACL.
    is_plain: bool,
}

/// A file being written.
#[derive(Debug)]
pub struct MountFile {
    fd: Fd,
    /// Created here with owner root and its final mode.
    is_exact: bool,
    is_new: bool,
    /// The content goes to the sink.
    is_apart: bool,
}

impl fmt::Debug for MountTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountTarget")
            .field("options", &self.options)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<'a> MountTarget<'a> {
    /// Creates the target, and sets the umask of `process` to 0. Files get the owners and modes of
    /// `rules`.
    pub fn new(process: &'a Process, options: &CopyOptions, rules: FileRules) -> Self {
        process.umask(0);
        Self {
            process,
            source_options: options.clone(),
            options: CopyOptions {
                keeps_owner: options.keeps_owner || rules.has_owner(),
                keeps_mode: options.keeps_mode || rules.has_mode(),
                ..options.clone()
            },
            rules,
            contents: None,
            own: Owner::new(process.credentials().uid, process.credentials().gid),
        }
    }

    /// Sends the contents of files to a sink.
    #[must_use]
    pub fn with_contents(mut self, contents: Option<&'a dyn ContentSink>) -> Self {
        self.contents = contents;
        self
    }

    fn sink(&self, file: &MountFile) -> Option<&'a dyn ContentSink> {
        self.contents.filter(|_| file.is_apart)
    }

    fn mode(&self, meta: &FileMeta) -> u16 {
        meta.attributes.mode
    }

    /// Returns what to set on a file. An exact one was created with its mode, and belongs to the
    /// process.
    fn attributes<'m>(&self, meta: &'m FileMeta, is_exact: bool) -> NewAttributes<'m> {
        let (keeps, attributes) = (&self.options, &meta.attributes);
        let owner = Owner::new(attributes.uid, attributes.gid);
        let chowns = keeps.keeps_owner && !(is_exact && owner == self.own);
        let is_link = attributes.file_type == FileType::Symlink;
        // A change of the owner clears setuid and setgid.
        let is_cleared = chowns && attributes.mode & 0o6000 != 0;
        let chmods = keeps.keeps_mode && !is_link && (!is_exact || is_cleared);
        let (accessed, modified) = self.times(attributes);
        NewAttributes {
            owner: chowns.then_some(owner),
            mode: chmods.then_some(attributes.mode),
            xattrs: &meta.xattrs,
            accessed: keeps.keeps_times.then_some(accessed),
            modified: keeps.keeps_times.then_some(modified),
        }
    }

    /// Returns the times of access and modification to set.
    fn times(&self, attributes: &Attributes) -> (Timespec, Timespec) {
        let (accessed, modified) = (attributes.accessed, attributes.modified);
        match self.options.latest {
            Some(latest) => (modified.min(latest), modified.min(latest)),
            None => (accessed, modified),
        }
    }

    /// Sets the attributes of a file that cannot be opened.
    fn set_unopened(
        &self,
        at: &MountDir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) {
        self.attributes(meta, at.is_plain).set_unopened(
            self.process,
            at.fd,
            path(name),
            || at.path.join(path(name)),
            failures,
        );
    }

    /// Creates a name, and replaces an existing file.
    fn replacing(
        &self,
        at: &MountDir,
        name: &[u8],
        make: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        match make() {
            Err(error) if error.errno() == Errno::EXIST => {
                self.unlink(at, name)?;
                make()
            }
            made => made,
        }
    }

    /// Opens a new file, or an existing one to overwrite it.
    fn open_file(&self, at: &MountDir, name: &[u8], meta: &FileMeta) -> Result<MountFile, Error> {
        let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL;
        let mode = self.mode(meta);
        match self.process.openat(at.fd, path(name), flags, mode) {
            Ok(fd) => {
                return Ok(MountFile {
                    fd,
                    is_exact: at.is_plain,
                    is_new: true,
                    is_apart: false,
                });
            }
            // The source has two names that are one here: a FAT ignores case.
            Err(error) if error.errno() == Errno::EXIST && at.is_new => {
                let what = "will not overwrite a file of the same copy, which has this name here";
                return Err(Error::new(Errno::EXIST, what));
            }
            Err(error) if error.errno() == Errno::EXIST => {}
            Err(error) => return Err(error),
        }
        let there = self
            .process
            .fstatat(at.fd, path(name), AtFlags::empty())
            .map_err(dangling_link)?;
        if let Existing::Written = existing(&there, &self.source_options)? {
            let flags = OpenFlags::WRONLY | OpenFlags::TRUNC;
            let fd = self.process.openat(at.fd, path(name), flags, 0)?;
            return Ok(MountFile {
                fd,
                is_exact: false,
                is_new: false,
                is_apart: false,
            });
        }
        self.unlink(at, name)?;
        let fd = self.process.openat(at.fd, path(name), flags, mode)?;
        Ok(MountFile {
            fd,
            is_exact: at.is_plain,
            is_new: true,
            is_apart: false,
        })
    }

    fn unlink(&self, at: &MountDir, name: &[u8]) -> Result<(), Error> {
        self.process
            .unlinkat(at.fd, path(name), AtFlags::empty())
            .map_err(|error| match error.errno() {
                Errno::ISDIR | Errno::PERM => Error::new(
                    Errno::ISDIR,
                    "cannot overwrite a directory with a non-directory",
                ),
                _ => error,
            })
    }
}

impl Target for MountTarget<'_> {
    type Dir = MountDir;
    type File = MountFile;

    fn change(&self, attributes: &mut Attributes) {
        self.source_options.drop_unkept(attributes);
        self.rules.change(attributes);
    }

    fn open_parent(&self, parent: &[u8]) -> Result<MountDir, Error> {
        let fd = self.process.open(path(parent), OpenFlags::DIRECTORY, 0)?;
        Ok(MountDir {
            fd,
            path: path(parent).into(),
            is_new: false,
            is_plain: is_plain_directory(self.process, fd)?,
        })
    }

    fn make_dir(&self, at: &MountDir, name: &[u8], meta: &FileMeta) -> Result<MountDir, Error> {
        let is_new = match self
            .process
            .mkdirat(at.fd, path(name), self.mode(meta) & 0o777)
        {
            Ok(()) => true,
            Err(error) if error.errno() == Errno::EXIST => false,
            Err(error) => return Err(error),
        };
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = self
            .process
            .openat(at.fd, path(name), flags, 0)
            .map_err(|error| match error.errno() {
                Errno::NOTDIR | Errno::LOOP => Error::new(
                    Errno::NOTDIR,
                    "cannot overwrite a non-directory with a directory",
                ),
                _ => error,
            })?;
        let is_plain = if is_new {
            at.is_plain
        } else {
            is_plain_directory(self.process, fd)?
        };
        Ok(MountDir {
            fd,
            path: at.path.join(path(name)),
            is_new,
            is_plain,
        })
    }

    fn finish_dir(
        &self,
        dir: MountDir,
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        let is_exact = dir.is_new && dir.is_plain && meta.attributes.mode < 0o1000;
        self.attributes(meta, is_exact)
            .set_open(self.process, dir.fd, failures);
        self.process.close(dir.fd)
    }

    fn create(&self, at: &MountDir, name: &[u8], meta: &FileMeta) -> Result<MountFile, Error> {
        let mut file = self.open_file(at, name, meta)?;
        let size_bytes = meta.attributes.size_bytes;
        match content_sink::begin(self.contents, self.process, file.fd, name, size_bytes) {
            Ok(sink) => file.is_apart = sink.is_some(),
            Err(error) => {
                let _ = self.process.close(file.fd);
                self.remove(at, name);
                return Err(error);
            }
        }
        Ok(file)
    }

    fn write(&self, file: &MountFile, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
        if let Some(sink) = self.sink(file) {
            return sink.write(bytes, offset);
        }
        while !bytes.is_empty() {
            let count = self.process.pwrite(file.fd, bytes, offset)?;
            bytes = &bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }

    fn finish(
        &self,
        written: WrittenFile<'_, MountFile>,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        let (file, size_bytes) = (written.file, written.size_bytes);
        let result = match self.sink(&file) {
            Some(sink) => content_sink::end(sink, self.process, file.fd, size_bytes),
            None if size_bytes > written.written_bytes => {
                self.process.ftruncate(file.fd, size_bytes)
            }
            None => Ok(()),
        };
        self.attributes(written.meta, file.is_exact && file.is_new)
            .set_open(self.process, file.fd, failures);
        let closed = self.process.close(file.fd);
        result.and(closed)
    }

    fn symlink(
        &self,
        at: &MountDir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        self.replacing(at, name, || {
            self.process.symlinkat(path(target), at.fd, path(name))
        })?;
        self.set_unopened(at, name, meta, failures);
        Ok(())
    }

    fn special(
        &self,
        at: &MountDir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error> {
        let (attributes, mode) = (&meta.attributes, self.mode(meta));
        self.replacing(at, name, || {
            self.process.mknodat(
                at.fd,
                path(name),
                attributes.file_type,
                mode,
                attributes.device,
            )
        })?;
        self.set_unopened(at, name, meta, failures);
        Ok(())
    }

    fn link(&self, first: &[u8], at: &MountDir, name: &[u8]) -> Result<(), Error> {
        self.replacing(at, name, || {
            self.process
                .linkat(AT_FDCWD, path(first), at.fd, path(name), AtFlags::empty())
        })
    }

    fn remove(&self, at: &MountDir, name: &[u8]) {
        // Removes an incomplete file, but no link to it that was there before. The failure that
        // left it is already reported.
        let found = self
            .process
            .fstatat(at.fd, path(name), AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| found.file_type != FileType::Regular || found.link_count > 1) {
            return;
        }
        let _ = self.process.unlinkat(at.fd, path(name), AtFlags::empty());
    }
}
