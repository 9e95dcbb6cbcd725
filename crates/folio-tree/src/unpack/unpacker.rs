//! The unpacker: creates the files of one entry after another.

use super::directories::{Directories, components};
use super::layer::{Layer, remove_tree};
use crate::attributes::{AttributeFailures, NewAttributes, Xattrs};
use crate::content_sink::{self, ContentSink};
use crate::entry::{Entry, EntryKind, as_path};
use crate::observer::{CopyFailure, Observer, Side};
use crate::tar::Reader;
use folio::base::Owner;
use folio::syscall::{AtFlags, Fd, OpenFlags};
use folio::vfs::{DeviceNumber, FileType};
use folio::{Errno, Error, Process, Result, Timespec};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// Changes an entry before it is unpacked; returns whether to unpack it.
pub type Select<'a> = Box<dyn FnMut(&mut Entry) -> bool + 'a>;

/// The attribute that new files inherit as their ACL.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// What a directory gets after the last file in it.
struct LateAttributes {
    /// The default ACL, if the archive has one.
    default_acl: Xattrs,
    accessed: Timespec,
    modified: Timespec,
}

/// Unpacks one archive, or the layers of a container image one after another.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use folio::{Kernel, KernelOptions, syscall::Credentials, vfs::MountOptions};
/// # use folio_tree::{Entry, EntryKind, FirstFailure, Unpacker, tar};
/// let mut archive = tar::Writer::new(Vec::new());
/// let file = Entry {
///     path: b"etc/motd".to_vec(),
///     kind: EntryKind::File { size_bytes: 3 },
///     mode: 0o644,
///     uid: 0,
///     gid: 0,
///     modified: folio::Timespec::new(1, 0),
///     accessed: None,
///     xattrs: Vec::new(),
///     unreadable: Vec::new(),
/// };
/// archive.append(&file, None)?;
/// archive.write_data(b"hi\n")?;
/// let bytes = archive.finish()?;
///
/// let kernel = Kernel::new(KernelOptions::default());
/// kernel.mount_ramfs("/", &MountOptions::default())?;
/// let process = kernel.process(Credentials::root());
/// let failures = FirstFailure::default();
/// let mut unpacker = Unpacker::new(&process, "/".as_ref(), &failures)?;
/// unpacker.unpack(&mut tar::Reader::new(bytes.as_slice()))?;
/// unpacker.finish()?;
/// failures.into_result()?;
/// assert_eq!(process.stat("/etc/motd")?.size_bytes, 3);
/// # Ok(())
/// # }
/// ```
pub struct Unpacker<'a> {
    process: &'a Process,
    observer: &'a dyn Observer,
    select: Option<Select<'a>>,
    /// Where contents go instead.
    contents: Option<&'a dyn ContentSink>,
    directories: Directories<'a>,
    /// What directories get at the end, by their paths below the destination.
    late: BTreeMap<Vec<u8>, LateAttributes>,
    /// Hard links that came before their files: name and target.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    /// The current layer of a container image.
    layer: Option<Layer>,
    unsupported_xattrs: u64,
}

impl<'a> Unpacker<'a> {
    /// Creates an unpacker into the directory `destination`. It sets the umask of `process` to 0.
    ///
    /// # Errors
    ///
    /// `destination` is not a directory.
    pub fn new(
        process: &'a Process,
        destination: &Path,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        process.umask(0);
        Ok(Self {
            process,
            observer,
            select: None,
            contents: None,
            directories: Directories::open(process, destination)?,
            late: BTreeMap::new(),
            links: Vec::new(),
            layer: None,
            unsupported_xattrs: 0,
        })
    }

    /// Passes each entry through `select` first.
    #[must_use]
    pub fn with_select(mut self, select: Select<'a>) -> Self {
        self.select = Some(select);
        self
    }

    /// Sends the contents of files to a sink.
    #[must_use]
    pub fn with_contents(mut self, contents: Option<&'a dyn ContentSink>) -> Self {
        self.contents = contents;
        self
    }

    /// Unpacks all entries of an archive. Failures of single files go to the observer.
    ///
    /// # Errors
    ///
    /// A damaged archive, and failures that would affect all further files: a full or failing
    /// device.
    pub fn unpack<R: BufRead>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        while let Some(mut entry) = reader.next_entry()? {
            if self.observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            if self
                .select
                .as_mut()
                .is_some_and(|select| !select(&mut entry))
            {
                continue;
            }
            if let Err(failure) = self.entry(&entry, reader) {
                match failure {
                    Failure::File(error) if !error.is_final() => {
                        self.observer
                            .failed(CopyFailure::of_target(entry.path, error));
                    }
                    Failure::File(error) | Failure::Archive(error) => {
                        let path = String::from_utf8_lossy(&entry.path).into_owned();
                        return Err(error.at(path));
                    }
                }
            }
        }
        Ok(())
    }

    /// Unpacks a layer of a container image onto the layers before it.
    ///
    /// # Errors
    ///
    /// The errors of [`Unpacker::unpack`].
    pub fn unpack_layer<R: BufRead>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        self.layer = Some(Layer::default());
        self.unpack(reader)?;
        // A link may not reach into the next layer.
        self.make_links()
    }

    /// Creates the hard links that came before their files, and sets the default ACLs and times of
    /// directories.
    ///
    /// # Errors
    ///
    /// Failures that affect all files.
    pub fn finish(mut self) -> Result<()> {
        self.make_links()?;
        for (path, late) in std::mem::take(&mut self.late) {
            let new = NewAttributes {
                owner: None,
                mode: None,
                xattrs: &late.default_acl,
                accessed: Some(late.accessed),
                modified: Some(late.modified),
            };
            let place = if path.is_empty() { b"." } else { &path[..] };
            let (root, absolute) = (self.directories.root(), || self.directories.below(&path));
            let mut failures = AttributeFailures::default();
            new.set_unopened(self.process, root, as_path(place), absolute, &mut failures);
            if let Some(at) = failures
                .failed
                .iter()
                .position(|(_, error)| error.is_final())
            {
                return Err(failures.failed.swap_remove(at).1);
            }
            self.report(&path, failures);
        }
        if self.unsupported_xattrs > 0 {
            let count = self.unsupported_xattrs;
            let remark = format!(
                "extended attributes not set: {count}; the file system does not support them"
            );
            self.observer.note(Side::Target, b"", &remark);
        }
        Ok(())
    }

    fn make_links(&mut self) -> Result<()> {
        for (path, target) in std::mem::take(&mut self.links) {
            match self.link(&path, &target, true) {
                Ok(()) => {}
                Err(error) if error.is_final() => return Err(error),
                Err(error) => self.observer.failed(CopyFailure::of_target(path, error)),
            }
        }
        Ok(())
    }

    fn entry<R: BufRead>(&mut self, entry: &Entry, reader: &mut Reader<R>) -> Result<(), Failure> {
        let all = components(&entry.path)?;
        let Some((name, parents)) = all.split_last() else {
            if entry.kind == EntryKind::Directory {
                self.directories.go_to_root();
                self.directory_attributes(entry, Vec::new());
            }
            return Ok(());
        };
        if let Some(layer) = &self.layer
            && let Some(removed) = layer.whiteout(&mut self.directories, parents, name)?
        {
            removed.iter().for_each(|path| self.forget_late(path));
            return Ok(());
        }
        if let EntryKind::HardLink(target) = &entry.kind {
            return Ok(self.link(&entry.path, target, false)?);
        }
        self.enter_parent(parents)?;
        match &entry.kind {
            EntryKind::Directory => self.directory(entry, name)?,
            EntryKind::File { size_bytes } => self.file(entry, name, *size_bytes, reader)?,
            _ => self.special(entry, name)?,
        }
        self.observer.created();
        Ok(())
    }

    /// Opens the directory of an entry, and creates missing ones.
    fn enter_parent(&mut self, parents: &[&[u8]]) -> Result<()> {
        let Self {
            directories, layer, ..
        } = self;
        directories.enter(parents, true)?;
        if let Some(layer) = layer {
            layer.keep(directories);
        }
        Ok(())
    }

    fn directory(&mut self, entry: &Entry, name: &[u8]) -> Result<()> {
        let at = self.directories.fd();
        match self.process.mkdirat(at, as_path(name), entry.mode & 0o777) {
            Ok(()) => self.directories.enter_new(name)?,
            Err(error) if error.errno() == Errno::EXIST => {
                let found = self
                    .process
                    .fstatat(at, as_path(name), AtFlags::SYMLINK_NOFOLLOW)?;
                if found.file_type == FileType::Directory {
                    self.directories.enter_existing(name)?;
                } else {
                    self.process.unlinkat(at, as_path(name), AtFlags::empty())?;
                    self.process
                        .mkdirat(at, as_path(name), entry.mode & 0o777)?;
                    self.directories.enter_new(name)?;
                }
            }
            Err(error) => return Err(error),
        }
        let path = self.directories.path();
        if let Some(layer) = &mut self.layer {
            layer.add(path.clone());
        }
        self.directory_attributes(entry, path);
        Ok(())
    }

    /// Sets the attributes of the current directory. Its times and default ACL wait for the end:
    /// the files of the archive have ACLs of their own, or none.
    fn directory_attributes(&mut self, entry: &Entry, path: Vec<u8>) {
        let xattrs = entry.xattrs.iter().cloned();
        let (default_acl, now): (Xattrs, Xattrs) =
            xattrs.partition(|(name, _)| name == DEFAULT_ACL);
        let new = NewAttributes {
            accessed: None,
            modified: None,
            xattrs: &now,
            ..attributes(entry, self.directories.is_exact())
        };
        let mut failures = AttributeFailures::default();
        new.set_open(self.process, self.directories.fd(), &mut failures);
        self.report_entry(entry, failures);
        self.directories.has_attributes(entry);
        let late = LateAttributes {
            default_acl,
            accessed: entry.accessed.unwrap_or(entry.modified),
            modified: entry.modified,
        };
        self.late.insert(path, late);
    }

    fn file<R: BufRead>(
        &mut self,
        entry: &Entry,
        name: &[u8],
        size_bytes: u64,
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let at = self.directories.fd();
        let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL;
        let create = || self.process.openat(at, as_path(name), flags, entry.mode);
        let fd = match create() {
            Err(error) if error.errno() == Errno::EXIST => {
                self.remove(name)?;
                let at = self.directories.fd();
                self.process.openat(at, as_path(name), flags, entry.mode)?
            }
            created => created?,
        };
        self.add_to_layer(name);
        let written = self.content(fd, name, size_bytes, reader);
        if written.is_ok() {
            let mut failures = AttributeFailures::default();
            let new = attributes(entry, self.directories.is_plain());
            new.set_open(self.process, fd, &mut failures);
            self.report_entry(entry, failures);
        }
        let closed = self.process.close(fd);
        if written.is_err() {
            // The failure that left an incomplete file is returned.
            let _ = self
                .process
                .unlinkat(self.directories.fd(), as_path(name), AtFlags::empty());
        }
        written?;
        Ok(closed?)
    }

    /// Writes the content of a file, or sends it to the sink; the file gets its size.
    fn content<R: BufRead>(
        &self,
        fd: Fd,
        name: &[u8],
        size_bytes: u64,
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let sink = content_sink::begin(self.contents, self.process, fd, name, size_bytes)?;
        let mut written = 0;
        while let Some((mut offset, mut bytes)) = reader.next_data().map_err(Failure::Archive)? {
            if self.observer.is_stopped() {
                return Err(Failure::Archive(Errno::INTR.into()));
            }
            self.observer.copied(bytes.len() as u64);
            if let Some(sink) = sink {
                sink.write(bytes, offset)?;
                continue;
            }
            while !bytes.is_empty() {
                let count = self.process.pwrite(fd, bytes, offset)?;
                bytes = &bytes[count..];
                offset += count as u64;
            }
            written = offset;
        }
        match sink {
            Some(sink) => content_sink::end(sink, self.process, fd, size_bytes)?,
            None if size_bytes > written => self.process.ftruncate(fd, size_bytes)?,
            None => {}
        }
        Ok(())
    }

    /// Creates a symbolic link, a device node or a FIFO.
    fn special(&mut self, entry: &Entry, name: &[u8]) -> Result<()> {
        let make = |at: Fd, process: &Process| {
            let (file_type, device) = match &entry.kind {
                EntryKind::Symlink(target) => {
                    return process.symlinkat(as_path(target), at, as_path(name));
                }
                EntryKind::CharacterDevice(major, minor) => {
                    (FileType::CharacterDevice, DeviceNumber::new(*major, *minor))
                }
                EntryKind::BlockDevice(major, minor) => {
                    (FileType::BlockDevice, DeviceNumber::new(*major, *minor))
                }
                _ => (FileType::Fifo, DeviceNumber::default()),
            };
            process.mknodat(at, as_path(name), file_type, entry.mode, device)
        };
        match make(self.directories.fd(), self.process) {
            Err(error) if error.errno() == Errno::EXIST => {
                self.remove(name)?;
                make(self.directories.fd(), self.process)?;
            }
            made => made?,
        }
        self.add_to_layer(name);
        let mut failures = AttributeFailures::default();
        let new = attributes(entry, self.directories.is_plain());
        let (at, path) = (self.directories.fd(), || self.directories.absolute(name));
        new.set_unopened(self.process, at, as_path(name), path, &mut failures);
        self.report_entry(entry, failures);
        Ok(())
    }

    /// Creates a hard link. Unless `is_last`, one without its target waits for the end.
    fn link(&mut self, path: &[u8], target: &[u8], is_last: bool) -> Result<()> {
        let all = components(target)?;
        let Some((target_name, target_parents)) = all.split_last() else {
            return Err(Error::new(
                Errno::PERM,
                "a hard link to the destination itself",
            ));
        };
        let mut from = Vec::new();
        let found = self
            .directories
            .enter(target_parents, false)
            .and_then(|()| {
                from = self.directories.path();
                if !from.is_empty() {
                    from.push(b'/');
                }
                from.extend_from_slice(target_name);
                let nofollow = AtFlags::SYMLINK_NOFOLLOW;
                self.process
                    .fstatat(self.directories.fd(), as_path(target_name), nofollow)
            });
        let found = match found {
            Err(error) if error.errno() == Errno::NOENT => {
                if is_last {
                    let target = String::from_utf8_lossy(target);
                    let reason = format!("not linked: its target {target} is missing");
                    return Err(Error::new(Errno::NOENT, reason));
                }
                self.links.push((path.to_vec(), target.to_vec()));
                return Ok(());
            }
            found => found?,
        };
        let all = components(path)?;
        let Some((name, parents)) = all.split_last() else {
            return Ok(());
        };
        self.enter_parent(parents)?;
        let make = |to: Fd, process: &Process| {
            let root = self.directories.root();
            process.linkat(root, as_path(&from), to, as_path(name), AtFlags::empty())
        };
        match make(self.directories.fd(), self.process) {
            Err(error) if error.errno() == Errno::EXIST => {
                let (at, nofollow) = (self.directories.fd(), AtFlags::SYMLINK_NOFOLLOW);
                let there = self.process.fstatat(at, as_path(name), nofollow)?;
                if there.number != found.number {
                    self.remove(name)?;
                    let (root, at) = (self.directories.root(), self.directories.fd());
                    let none = AtFlags::empty();
                    self.process
                        .linkat(root, as_path(&from), at, as_path(name), none)?;
                }
            }
            made => made?,
        }
        self.add_to_layer(name);
        self.observer.created();
        Ok(())
    }

    /// Removes the file that an entry replaces. Layers replace directories too.
    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let at = self.directories.fd();
        let found = self
            .process
            .fstatat(at, as_path(name), AtFlags::SYMLINK_NOFOLLOW)?;
        if found.file_type != FileType::Directory {
            return self.process.unlinkat(at, as_path(name), AtFlags::empty());
        }
        self.directories.forget(name);
        if self.layer.is_some() {
            remove_tree(self.process, at, name)?;
        } else {
            self.process
                .unlinkat(at, as_path(name), AtFlags::REMOVEDIR)
                .map_err(|error| match error.errno() {
                    Errno::NOTEMPTY => Error::new(
                        Errno::ISDIR,
                        "cannot overwrite a directory that is not empty with a non-directory",
                    ),
                    _ => error,
                })?;
        }
        self.forget_late(&self.directories.path_of(name));
        Ok(())
    }

    /// Drops what waits for a removed directory, and of those below it.
    fn forget_late(&mut self, path: &[u8]) {
        self.late.remove(path);
        let below = [path, b"/"].concat();
        let keys = self.late.range(below.clone()..).map(|(key, _)| key);
        let removed: Vec<_> = keys
            .take_while(|key| key.starts_with(&below))
            .cloned()
            .collect();
        for key in removed {
            self.late.remove(&key);
        }
    }

    fn add_to_layer(&mut self, name: &[u8]) {
        if let Some(layer) = &mut self.layer {
            layer.add(self.directories.path_of(name));
        }
    }

    fn report_entry(&mut self, entry: &Entry, failures: AttributeFailures) {
        for reason in &entry.unreadable {
            let error = Error::new(Errno::INVAL, reason.clone());
            self.observer
                .failed(CopyFailure::of_target(&*entry.path, error));
        }
        self.report(&entry.path, failures);
    }

    fn report(&mut self, path: &[u8], failures: AttributeFailures) {
        self.unsupported_xattrs += failures.unsupported_xattrs;
        for failure in failures.of_file(path) {
            self.observer.failed(failure);
        }
    }
}

/// Returns what to set on the file of an entry. An exact file was created with the entry's mode,
/// and belongs to root.
fn attributes(entry: &Entry, is_exact: bool) -> NewAttributes<'_> {
    let owner = Owner::new(entry.uid, entry.gid);
    let is_link = matches!(entry.kind, EntryKind::Symlink(_));
    // A change of the owner clears setuid and setgid; mkdir ignores all special bits.
    let sets_mode = !is_link && (!is_exact || entry.mode >= 0o1000);
    NewAttributes {
        owner: (!is_exact || owner != Owner::ROOT).then_some(owner),
        mode: sets_mode.then_some(entry.mode),
        xattrs: &entry.xattrs,
        accessed: Some(entry.accessed.unwrap_or(entry.modified)),
        modified: Some(entry.modified),
    }
}

/// The failure of one entry.
enum Failure {
    /// Of its file.
    File(Error),
    /// Of the archive, so that no entry can follow.
    Archive(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}
