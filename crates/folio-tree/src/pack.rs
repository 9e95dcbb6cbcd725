//! Packing: a tree of a mounted file system becomes an archive, sorted by name.

use crate::attributes::Xattrs;
use crate::entry::{Entry, EntryKind, read_names};
use crate::observer::{CopyFailure, Observer, Side};
use crate::tar::Writer;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags, Whence};
use folio::vfs::{Attributes, DeviceNumber, FileType};
use folio::{AlignedBuffer, Errno, Error, Process, Result};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes per read.
const READ_BYTES: usize = 1 << 20;

/// Whether to pack a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackChoice {
    /// Pack it.
    Pack,
    /// Skip the file itself, but not the files in it.
    Skip,
    /// Skip it with everything in it.
    Prune,
}

/// Changes an entry before it is packed, and decides whether to.
pub type PackSelect<'a> = Box<dyn FnMut(&mut Entry, &ContentReader<'_>) -> Result<PackChoice> + 'a>;

/// Reads the content of a file that may be packed.
pub struct ContentReader<'a> {
    process: &'a Process,
    at: Fd,
    name: &'a Path,
    attributes: &'a Attributes,
}

impl ContentReader<'_> {
    /// Passes the data ranges of a regular file to `sink`, with their offsets.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(&self, sink: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        let fd = self
            .process
            .openat(self.at, self.name, OpenFlags::NOFOLLOW, 0)?;
        let read = self.read_open(fd, sink);
        // The file was only read, so close cannot lose data.
        let _ = self.process.close(fd);
        read
    }

    fn read_open(&self, fd: Fd, sink: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        let segments = segments(self.process, fd, self.attributes)?;
        let segments = segments.unwrap_or_else(|| Vec::from_iter([whole(self.attributes)]));
        let mut buffer = vec![0; READ_BYTES];
        for range in segments {
            let mut at = range.start;
            while at < range.end {
                let len = buffer
                    .len()
                    .min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
                let count = self.process.pread(fd, &mut buffer[..len], at)?;
                if count == 0 {
                    return Err(Errno::IO.into());
                }
                sink(at, &buffer[..count]);
                at += count as u64;
            }
        }
        Ok(())
    }
}

/// Packs trees into an archive. Equal trees give equal bytes.
pub struct Packer<'a, W> {
    process: &'a Process,
    observer: &'a dyn Observer,
    writer: Writer<W>,
    select: Option<PackSelect<'a>>,
    /// The first name of each file with several names.
    links: HashMap<u64, Vec<u8>>,
    buffer: AlignedBuffer,
}

/// A directory of the walk.
struct Frame {
    fd: Fd,
    path: PathBuf,
    /// The start of the names of its entries in the archive.
    prefix: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<'a, W: Write> Packer<'a, W> {
    /// Creates a packer that writes to `output`.
    pub fn new(process: &'a Process, observer: &'a dyn Observer, output: W) -> Self {
        Self {
            process,
            observer,
            writer: Writer::new(output),
            select: None,
            links: HashMap::new(),
            buffer: AlignedBuffer::new(READ_BYTES),
        }
    }

    /// Passes each entry through `select` first.
    #[must_use]
    pub fn with_select(mut self, select: PackSelect<'a>) -> Self {
        self.select = Some(select);
        self
    }

    /// Packs the file or directory `path`. The names of a directory's files begin with `prefix`,
    /// which names the directory itself; a single file keeps its own name after `prefix`. Failures
    /// of single files go to the observer.
    ///
    /// # Errors
    ///
    /// `path` cannot be read, or the output fails.
    pub fn pack(&mut self, path: &Path, prefix: &[u8]) -> Result<()> {
        let found = self.process.lstat(path)?;
        let mut frames = Vec::new();
        let walked = if found.file_type == FileType::Directory {
            let file = self.reader(AT_FDCWD, path, &found);
            frames.extend(self.directory(&file, path, prefix.to_vec())?);
            self.walk(&mut frames)
        } else {
            let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
            let archive_name = [prefix, name].concat();
            let file = self.reader(AT_FDCWD, path, &found);
            self.file(&file, path, archive_name)
        };
        for frame in frames {
            // Only after a failure, which is returned.
            let _ = self.process.close(frame.fd);
        }
        walked
    }

    /// Writes the end of the archive; returns the output.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn finish(self) -> Result<W> {
        self.writer.finish().map_err(output_error)
    }

    fn walk(&mut self, frames: &mut Vec<Frame>) -> Result<()> {
        while let Some(frame) = frames.last_mut() {
            if self.observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            let Some(name) = frame.names.next() else {
                if let Some(frame) = frames.pop() {
                    self.process.close(frame.fd)?;
                }
                continue;
            };
            let (fd, path) = (frame.fd, frame.path.join(OsStr::from_bytes(&name)));
            let archive_name = [&frame.prefix[..], &name].concat();
            let place = Path::new(OsStr::from_bytes(&name));
            let found = match self.process.fstatat(fd, place, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(error) => {
                    let path = path.as_os_str().as_bytes();
                    self.observer.failed(CopyFailure::of_source(path, error));
                    continue;
                }
            };
            let file = self.reader(fd, place, &found);
            if found.file_type == FileType::Directory {
                let prefix = [&archive_name[..], b"/"].concat();
                match self.directory(&file, &path, prefix) {
                    Ok(entered) => frames.extend(entered),
                    Err(error) => self.fail(&path, error)?,
                }
            } else if let Err(error) = self.file(&file, &path, archive_name) {
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    /// Passes the failure of one file to the observer; returns one of the output or of the stop.
    fn fail(&self, path: &Path, error: Error) -> Result<()> {
        let is_output = error.place() == Some(OUTPUT);
        if is_output || error.errno() == Errno::INTR {
            return Err(error);
        }
        let path = path.as_os_str().as_bytes();
        self.observer.failed(CopyFailure::of_source(path, error));
        Ok(())
    }

    fn reader<'f>(&self, at: Fd, name: &'f Path, attributes: &'f Attributes) -> ContentReader<'f>
    where
        'a: 'f,
    {
        ContentReader {
            process: self.process,
            at,
            name,
            attributes,
        }
    }

    fn directory(
        &mut self,
        file: &ContentReader<'_>,
        path: &Path,
        prefix: Vec<u8>,
    ) -> Result<Option<Frame>> {
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = self.process.openat(file.at, file.name, flags, 0)?;
        let listed = self
            .list(fd)
            .and_then(|names| Ok((names, self.open_xattrs(fd)?)));
        let entered = listed.and_then(|(names, xattrs)| {
            let kind = EntryKind::Directory;
            let mut entry = entry(prefix.clone(), kind, file.attributes, xattrs);
            match self.choose(&mut entry, file)? {
                PackChoice::Pack => self.append(&entry, None)?,
                PackChoice::Skip => {}
                PackChoice::Prune => return Ok(None),
            }
            Ok(Some(Frame {
                fd,
                path: path.to_path_buf(),
                prefix,
                names: names.into_iter(),
            }))
        });
        if !matches!(entered, Ok(Some(_))) {
            self.process.close(fd)?;
        }
        entered
    }

    fn choose(&mut self, entry: &mut Entry, file: &ContentReader<'_>) -> Result<PackChoice> {
        match &mut self.select {
            Some(select) => select(entry, file),
            None => Ok(PackChoice::Pack),
        }
    }

    fn list(&self, fd: Fd) -> Result<Vec<Vec<u8>>> {
        let mut names = read_names(self.process, fd)?;
        names.sort_unstable();
        Ok(names)
    }

    fn file(&mut self, file: &ContentReader<'_>, path: &Path, archive_name: Vec<u8>) -> Result<()> {
        let found = file.attributes;
        if found.link_count > 1
            && let Some(first) = self.links.get(&found.number.0)
        {
            let kind = EntryKind::HardLink(first.clone());
            let mut entry = entry(archive_name, kind, found, Vec::new());
            if self.choose(&mut entry, file)? == PackChoice::Pack {
                self.append(&entry, None)?;
            }
            return Ok(());
        }
        let DeviceNumber { major, minor } = found.device;
        let kind = match found.file_type {
            FileType::Regular => return self.regular(file, archive_name),
            FileType::Symlink => EntryKind::Symlink(self.process.readlinkat(file.at, file.name)?),
            FileType::CharacterDevice => EntryKind::CharacterDevice(major, minor),
            FileType::BlockDevice => EntryKind::BlockDevice(major, minor),
            FileType::Fifo => EntryKind::Fifo,
            _ => {
                let path = path.as_os_str().as_bytes();
                self.observer
                    .note(Side::Source, path, "not packed: archives have no sockets");
                return Ok(());
            }
        };
        let mut xattrs = Vec::new();
        for name in self.process.llistxattr(path)? {
            let value = self.process.lgetxattr(path, &name)?;
            xattrs.push((name, value));
        }
        let mut entry = entry(archive_name, kind, found, xattrs);
        let choice = self.choose(&mut entry, file)?;
        self.remember(found, &entry, choice);
        if choice == PackChoice::Pack {
            self.append(&entry, None)?;
        }
        Ok(())
    }

    /// Appends an entry of the caller, such as a whiteout, without content.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn append(&mut self, entry: &Entry, segments: Option<&[Range<u64>]>) -> Result<()> {
        self.writer.append(entry, segments).map_err(output_error)?;
        self.observer.created();
        Ok(())
    }

    fn remember(&mut self, found: &Attributes, entry: &Entry, choice: PackChoice) {
        if found.link_count > 1 && choice != PackChoice::Prune {
            self.links.insert(found.number.0, entry.path.clone());
        }
    }

    fn open_xattrs(&self, fd: Fd) -> Result<Xattrs> {
        let mut xattrs = Vec::new();
        for name in self.process.flistxattr(fd)? {
            let value = self.process.fgetxattr(fd, &name)?;
            xattrs.push((name, value));
        }
        Ok(xattrs)
    }

    fn regular(&mut self, file: &ContentReader<'_>, archive_name: Vec<u8>) -> Result<()> {
        let fd = self
            .process
            .openat(file.at, file.name, OpenFlags::NOFOLLOW, 0)?;
        let packed = self.open_file(fd, file, archive_name);
        // The file was only read, so close cannot lose data.
        let _ = self.process.close(fd);
        packed
    }

    fn open_file(&mut self, fd: Fd, file: &ContentReader<'_>, archive_name: Vec<u8>) -> Result<()> {
        let found = file.attributes;
        let size_bytes = found.size_bytes;
        let kind = EntryKind::File { size_bytes };
        let mut entry = entry(archive_name, kind, found, self.open_xattrs(fd)?);
        let choice = self.choose(&mut entry, file)?;
        self.remember(found, &entry, choice);
        if choice != PackChoice::Pack {
            return Ok(());
        }
        let segments = segments(self.process, fd, found)?;
        self.append(&entry, segments.as_deref())?;
        match segments {
            None => self.content(fd, whole(found))?,
            Some(segments) => {
                for range in segments {
                    self.content(fd, range)?;
                }
            }
        }
        Ok(())
    }

    fn content(&mut self, fd: Fd, mut range: Range<u64>) -> Result<()> {
        while range.start < range.end {
            if self.observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            let len = self
                .buffer
                .len()
                .min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
            let read = self.process.pread(fd, &mut self.buffer[..len], range.start);
            let count = match read {
                Ok(0) => Err(Errno::IO.into()),
                read => read,
            };
            let count = match count {
                Ok(count) => count,
                Err(error) => {
                    // The header has promised the bytes.
                    while self.writer.fill().map_err(output_error)? {
                        if self.observer.is_stopped() {
                            return Err(Errno::INTR.into());
                        }
                    }
                    return Err(error);
                }
            };
            self.writer
                .write_data(&self.buffer[..count])
                .map_err(output_error)?;
            self.observer.copied(count as u64);
            range.start += count as u64;
        }
        Ok(())
    }
}

/// The place of failures of the output.
const OUTPUT: &str = "archive";

fn output_error(error: std::io::Error) -> Error {
    Error::io("write", error).at(OUTPUT)
}

fn entry(path: Vec<u8>, kind: EntryKind, found: &Attributes, mut xattrs: Xattrs) -> Entry {
    xattrs.sort_unstable();
    Entry {
        path,
        kind,
        mode: found.mode,
        uid: found.uid,
        gid: found.gid,
        modified: found.modified,
        accessed: None,
        xattrs,
        unreadable: Vec::new(),
    }
}

fn whole(found: &Attributes) -> Range<u64> {
    0..found.size_bytes
}

/// Returns the data ranges of a file with holes, `None` for one without.
fn segments(process: &Process, fd: Fd, found: &Attributes) -> Result<Option<Vec<Range<u64>>>> {
    let size = found.size_bytes;
    if found.blocks_512.saturating_mul(512) >= size {
        return Ok(None);
    }
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(from) = i64::try_from(at) else { break };
        let start = match process.lseek(fd, from, Whence::Data) {
            Err(error) if error.errno() == Errno::NXIO => break,
            start => start?,
        };
        let Ok(from) = i64::try_from(start) else {
            break;
        };
        let end = process.lseek(fd, from, Whence::Hole)?.min(size);
        if end <= start || start < at {
            break;
        }
        segments.push(start..end);
        at = end;
    }
    let is_whole = segments.len() == 1 && segments[0] == (0..size);
    Ok(if is_whole { None } else { Some(segments) })
}
