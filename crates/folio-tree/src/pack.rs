//! Packing: a tree of a source becomes an archive, sorted by name.

use crate::attributes::Xattrs;
use crate::entry::{Entry, EntryKind, join};
use crate::observer::{CopyFailure, Observer, Side};
use crate::source::{FileId, FoundFile, OpenMode, Source, SourceName, data_ranges, is_plain_name};
use crate::tar::Writer;
use folio::vfs::{Attributes, DeviceNumber, FileType};
use folio::{AlignedBuffer, Errno, Error, Result};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
pub struct ContentReader<'a>(&'a dyn Fn(ContentSink<'_>) -> Result<()>);

type ContentSink<'a> = &'a mut dyn FnMut(u64, &[u8]);

impl ContentReader<'_> {
    /// Passes the data ranges of a regular file to `sink`, with their offsets.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(&self, sink: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        (self.0)(sink)
    }
}

fn read_content<S: Source>(
    source: &S,
    file: &Listed<'_, S::Node>,
    sink: ContentSink<'_>,
) -> Result<()> {
    let (node, found) = source.open(file.dir, file.name, FILE)?;
    let mut buffer = vec![0; READ_BYTES];
    for range in data_ranges(source, &node, &found)? {
        let mut at = range.start;
        while at < range.end {
            let len = len_of(&(at..range.end)).min(buffer.len());
            let count = source.read_at(&node, &mut buffer[..len], at)?;
            if count == 0 {
                return Err(Errno::IO.into());
            }
            sink(at, &buffer[..count]);
            at += count as u64;
        }
    }
    Ok(())
}

/// A name in an open directory, with its attributes.
struct Listed<'a, N> {
    dir: &'a N,
    name: &'a [u8],
    found: FoundFile,
}

/// How files are opened: through no link.
const FILE: OpenMode = OpenMode {
    follows_links: false,
    is_directory: false,
};

/// Packs trees into an archive. Equal trees give equal bytes.
pub struct Packer<'a, S: Source, W> {
    source: &'a S,
    observer: &'a dyn Observer,
    writer: Writer<W>,
    select: Option<PackSelect<'a>>,
    /// The first name of each file with several names.
    links: HashMap<FileId, Vec<u8>>,
    buffer: AlignedBuffer,
}

/// A directory of the walk.
struct Frame<N> {
    node: N,
    path: Vec<u8>,
    /// The start of the names of its entries in the archive.
    prefix: Vec<u8>,
    names: std::vec::IntoIter<SourceName>,
}

impl<'a, S: Source, W: Write> Packer<'a, S, W> {
    /// Creates a packer that writes to `output`.
    pub fn new(source: &'a S, observer: &'a dyn Observer, output: W) -> Self {
        Self {
            source,
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
        let start = self.source.start();
        let place = path.as_os_str().as_bytes();
        let file = Listed {
            dir: &start,
            name: place,
            found: self.source.stat(&start, place, false)?,
        };
        if file.found.attributes.file_type == FileType::Directory {
            let top = self.directory(&file, place, prefix.to_vec())?;
            return self.walk(Vec::from_iter(top));
        }
        let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
        self.file(&file, place, [prefix, name].concat())
    }

    /// Writes the end of the archive; returns the output.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn finish(self) -> Result<W> {
        self.writer.finish().map_err(output_error)
    }

    fn walk(&mut self, mut frames: Vec<Frame<S::Node>>) -> Result<()> {
        while let Some(frame) = frames.last_mut() {
            if self.observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            let Some(SourceName { name, .. }) = frame.names.next() else {
                frames.pop();
                continue;
            };
            let path = join(&frame.path, &name);
            if !is_plain_name(&name) {
                let reason = "skipped: the name would lead out of its directory";
                let error = Error::new(Errno::PERM, reason);
                self.observer.failed(CopyFailure::of_source(path, error));
                continue;
            }
            let archive_name = [&frame.prefix[..], &name].concat();
            let file = match self.source.stat(&frame.node, &name, false) {
                Ok(found) => Listed {
                    dir: &frame.node,
                    name: &name,
                    found,
                },
                Err(error) => {
                    self.observer.failed(CopyFailure::of_source(path, error));
                    continue;
                }
            };
            if file.found.attributes.file_type == FileType::Directory {
                match self.directory(&file, &path, [&archive_name[..], b"/"].concat()) {
                    Ok(entered) => frames.extend(entered),
                    Err(error) => self.fail(path, error)?,
                }
            } else if let Err(error) = self.file(&file, &path, archive_name) {
                self.fail(path, error)?;
            }
        }
        Ok(())
    }

    /// Passes the failure of one file to the observer; returns one of the output or of the stop.
    fn fail(&self, path: Vec<u8>, error: Error) -> Result<()> {
        let is_output = error.place() == Some(OUTPUT);
        if is_output || error.errno() == Errno::INTR {
            return Err(error);
        }
        self.observer.failed(CopyFailure::of_source(path, error));
        Ok(())
    }

    fn directory(
        &mut self,
        file: &Listed<'_, S::Node>,
        path: &[u8],
        prefix: Vec<u8>,
    ) -> Result<Option<Frame<S::Node>>> {
        let mode = OpenMode {
            is_directory: true,
            ..FILE
        };
        let (node, _) = self.source.open(file.dir, file.name, mode)?;
        let mut names = self.source.list(&node)?;
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let xattrs = self.source.xattrs(&node, &file.found)?;
        let kind = EntryKind::Directory;
        let mut entry = entry(prefix.clone(), kind, &file.found.attributes, xattrs);
        match self.choose(&mut entry, file)? {
            PackChoice::Pack => self.append(&entry, None)?,
            PackChoice::Skip => {}
            PackChoice::Prune => return Ok(None),
        }
        Ok(Some(Frame {
            node,
            path: path.to_vec(),
            prefix,
            names: names.into_iter(),
        }))
    }

    fn choose(&mut self, entry: &mut Entry, file: &Listed<'_, S::Node>) -> Result<PackChoice> {
        let source = self.source;
        match &mut self.select {
            Some(select) => {
                let read = |sink: ContentSink<'_>| read_content(source, file, sink);
                select(entry, &ContentReader(&read))
            }
            None => Ok(PackChoice::Pack),
        }
    }

    fn file(
        &mut self,
        file: &Listed<'_, S::Node>,
        path: &[u8],
        archive_name: Vec<u8>,
    ) -> Result<()> {
        let found = &file.found.attributes;
        if found.link_count > 1
            && let Some(first) = self.links.get(&file.found.id())
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
            FileType::Symlink => EntryKind::Symlink(self.source.read_link(file.dir, file.name)?),
            FileType::CharacterDevice => EntryKind::CharacterDevice(major, minor),
            FileType::BlockDevice => EntryKind::BlockDevice(major, minor),
            FileType::Fifo => EntryKind::Fifo,
            _ => {
                let remark = "not packed: archives have no sockets";
                self.observer.note(Side::Source, path, remark);
                return Ok(());
            }
        };
        let xattrs = self.source.link_xattrs(file.dir, file.name, &file.found)?;
        let mut entry = entry(archive_name, kind, found, xattrs);
        let choice = self.choose(&mut entry, file)?;
        self.remember(&file.found, &entry, choice);
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

    fn remember(&mut self, found: &FoundFile, entry: &Entry, choice: PackChoice) {
        if found.attributes.link_count > 1 && choice != PackChoice::Prune {
            self.links.insert(found.id(), entry.path.clone());
        }
    }

    fn regular(&mut self, file: &Listed<'_, S::Node>, archive_name: Vec<u8>) -> Result<()> {
        let (node, _) = self.source.open(file.dir, file.name, FILE)?;
        let found = &file.found.attributes;
        let size_bytes = found.size_bytes;
        let kind = EntryKind::File { size_bytes };
        let xattrs = self.source.xattrs(&node, &file.found)?;
        let mut entry = entry(archive_name, kind, found, xattrs);
        let choice = self.choose(&mut entry, file)?;
        self.remember(&file.found, &entry, choice);
        if choice != PackChoice::Pack {
            return Ok(());
        }
        let ranges = data_ranges(self.source, &node, &file.found)?;
        let is_whole = size_bytes == 0 || matches!(&ranges[..], [all] if *all == (0..size_bytes));
        self.append(&entry, (!is_whole).then_some(&ranges[..]))?;
        ranges
            .into_iter()
            .try_for_each(|range| self.content(&node, range))
    }

    fn content(&mut self, node: &S::Node, mut range: Range<u64>) -> Result<()> {
        while range.start < range.end {
            if self.observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            let len = len_of(&range).min(self.buffer.len());
            let read = self
                .source
                .read_at(node, &mut self.buffer[..len], range.start);
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

fn len_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}
