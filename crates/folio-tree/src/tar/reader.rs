//! The reader: a stream of blocks as entries with their data ranges.

use super::acl::{self, FindOwner};
use super::header::{RawHeader, id, number, text};
use super::pax::{self, Records};
use super::sparse::{MapLines, SparseMap};
use super::{BLOCK_BYTES, HEADER_BYTES_MAX};
use crate::attributes::Xattrs;
use crate::base64::base64_decoded;
use crate::entry::{Entry, EntryKind};
use folio::{Errno, Error, Result, Timespec};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use zerocopy::FromBytes;

/// Longest name, in bytes. Linux has none above 4096.
const NAME_BYTES_MAX: usize = 64 << 10;
/// Bytes of all records of global extended headers, in memory.
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Bytes read at a time where content is skipped: headers, and small files between them.
const SEEKING_BUFFER_BYTES: usize = 4 << 10;

/// Reads a tar archive entry by entry.
///
/// ```
/// # fn main() -> folio::Result<()> {
/// let archive = [0_u8; 1024];
/// let mut reader = folio_tree::tar::Reader::new(&archive[..]);
/// assert_eq!(reader.next_entry()?, None);
/// # Ok(())
/// # }
/// ```
pub struct Reader<R> {
    input: R,
    /// Bytes read so far.
    at: u64,
    /// Bytes of the current chunk that the next call consumes.
    borrowed: usize,
    /// Bytes of the current entry that are in the archive and not read yet.
    remaining: u64,
    /// Bytes after them, up to the next block.
    padding: u64,
    /// The data ranges of the current entry, the next one last.
    segments: Vec<Range<u64>>,
    /// Records of global extended headers.
    global: Records,
    is_finished: bool,
    /// An input of zero bytes is an archive without files.
    accepts_empty: bool,
    /// Content that is skipped is not read.
    seek: Option<SeekInput<R>>,
    find_owner: Box<dyn Fn(bool, &[u8]) -> Option<u32>>,
}

/// The function that seeks by a distance, and the size of the archive.
type SeekInput<R> = (fn(&mut R, i64) -> std::io::Result<()>, u64);

/// Extended headers before an entry.
#[derive(Default)]
struct Extensions {
    records: Records,
    has_records: bool,
    name: Option<Vec<u8>>,
    link_name: Option<Vec<u8>>,
    len_bytes: u64,
}

impl Reader<BufReader<File>> {
    /// Creates a reader that seeks over content which is skipped: for the names of an uncompressed
    /// archive.
    ///
    /// # Errors
    ///
    /// The file cannot seek.
    pub fn seeking(mut file: File) -> std::io::Result<Self> {
        let len_bytes = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let input = BufReader::with_capacity(SEEKING_BUFFER_BYTES, file);
        Ok(Self {
            seek: Some((BufReader::seek_relative, len_bytes)),
            ..Self::new(input)
        })
    }
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader at the start of an uncompressed archive.
    pub fn new(input: R) -> Self {
        Self {
            input,
            at: 0,
            borrowed: 0,
            remaining: 0,
            padding: 0,
            segments: Vec::new(),
            global: Records::default(),
            is_finished: false,
            accepts_empty: false,
            seek: None,
            find_owner: Box::new(|_, _| None),
        }
    }

    /// Sets the function that finds the numbers of users (`true`) and groups in ACLs. Without it
    /// only ACLs with numbers are read.
    #[must_use]
    pub fn with_owners(self, find: impl Fn(bool, &[u8]) -> Option<u32> + 'static) -> Self {
        Self {
            find_owner: Box::new(find),
            ..self
        }
    }

    /// Accepts an input of zero bytes as an archive without files. Otherwise it is an error: the
    /// program before a pipe failed.
    #[must_use]
    pub fn accepting_empty(self) -> Self {
        Self {
            accepts_empty: true,
            ..self
        }
    }

    /// Returns the input.
    pub fn into_input(self) -> R {
        self.input
    }

    /// Returns the next entry, `None` at the end of the archive. The rest of the current content is
    /// skipped. At the end the input is read to its end, so that a checksum behind it is verified.
    ///
    /// # Errors
    ///
    /// EUCLEAN for bytes that contradict the format or end early, EOPNOTSUPP for archives of
    /// several volumes, and failures of the input. Afterwards the reader cannot continue.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let entry = self.read_entry();
        entry.map_err(|error| error.at(format!("archive: offset {}", self.at)))
    }

    /// Returns the next bytes of the current file with their offset in it, `None` at the end of the
    /// content. Offsets ascend; bytes between the ranges, and up to the file's size, are holes.
    ///
    /// # Errors
    ///
    /// EUCLEAN if the archive ends early, and failures of the input.
    pub fn next_data(&mut self) -> Result<Option<(u64, &[u8])>> {
        self.release();
        let Some(range) = self.segments.last_mut() else {
            return Ok(None);
        };
        let chunk = match self.input.fill_buf() {
            Ok([]) => return Err(truncated().at(format!("archive: offset {}", self.at))),
            Ok(chunk) => chunk,
            Err(error) => return Err(input_error(error)),
        };
        let wanted = (range.end - range.start).min(self.remaining);
        let len = chunk
            .len()
            .min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let offset = range.start;
        range.start += len as u64;
        if range.start == range.end {
            self.segments.pop();
        }
        self.borrowed = len;
        Ok(Some((offset, &chunk[..len])))
    }

    /// Returns the ranges of the current file that are not holes and not read yet.
    pub fn data_ranges(&self) -> Vec<Range<u64>> {
        self.segments.iter().rev().cloned().collect()
    }

    /// Returns the offset of the current file's content in the archive, `None` for one with holes.
    #[cfg(feature = "archive")]
    pub(crate) fn content_offset(&self) -> Option<u64> {
        let is_whole = match self.segments[..] {
            [] => self.remaining == 0,
            [ref range] => range.start == 0 && range.end == self.remaining,
            _ => false,
        };
        is_whole.then_some(self.at)
    }

    fn release(&mut self) {
        let len = std::mem::take(&mut self.borrowed);
        self.input.consume(len);
        self.at += len as u64;
        self.remaining -= len as u64;
    }

    fn read_entry(&mut self) -> Result<Option<Entry>> {
        self.release();
        let (rest, padding) = (self.remaining, self.padding);
        (self.remaining, self.padding) = (0, 0);
        self.segments.clear();
        self.skip(rest)?;
        // Some writers of container layers leave the last block unfilled.
        self.is_finished |= padding > 0 && self.input.fill_buf().map_err(input_error)?.is_empty();
        if !self.is_finished {
            self.skip(padding)?;
        }
        let mut extensions = Extensions::default();
        while !self.is_finished {
            let Some(block) = self.header_block()? else {
                self.is_finished = true;
                if self.at == 0 && !self.accepts_empty {
                    return Err(Error::corrupt("empty input: not a tar archive"));
                }
                let is_empty = !extensions.has_records
                    && extensions.name.is_none()
                    && extensions.link_name.is_none();
                if !is_empty {
                    return Err(truncated());
                }
                self.drain()?;
                break;
            };
            let (header, _) = RawHeader::read_from_prefix(&block).map_err(|_| truncated())?;
            header.check().map_err(|error| {
                if self.at == BLOCK_BYTES as u64 {
                    Error::corrupt("not a tar archive, or in an unknown compression")
                } else {
                    error
                }
            })?;
            match header.type_flag {
                b'x' | b'X' | b'g' => {
                    let bytes = self.extension(&header, &mut extensions)?;
                    if header.type_flag == b'g' {
                        self.add_global(&bytes)?;
                    } else {
                        extensions.has_records = true;
                        extensions.records.add(&bytes)?;
                    }
                }
                b'L' => {
                    let bytes = self.extension(&header, &mut extensions)?;
                    extensions.name = Some(text(&bytes).to_vec());
                }
                b'K' => {
                    let bytes = self.extension(&header, &mut extensions)?;
                    extensions.link_name = Some(text(&bytes).to_vec());
                }
                // The name of the volume.
                b'V' => self.skip(blocks(size(&header)?)?)?,
                b'M' | b'N' => {
                    return Err(Error::unsupported(
                        "a tar archive of several volumes, or of a GNU tar before 1.12",
                    ));
                }
                _ => return self.entry(&header, &block, extensions).map(Some),
            }
        }
        Ok(None)
    }

    /// Reads a block that should be a header; returns `None` at the end of the archive: a zero
    /// block, or the end of the input as GNU tar accepts it.
    fn header_block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>> {
        let mut block = [0; BLOCK_BYTES];
        let mut len = 0;
        while len < BLOCK_BYTES {
            match self.input.read(&mut block[len..]) {
                Ok(0) if len == 0 => return Ok(None),
                Ok(0) => return Err(truncated()),
                Ok(count) => len += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(input_error(error)),
            }
        }
        self.at += BLOCK_BYTES as u64;
        Ok(block.iter().any(|byte| *byte != 0).then_some(block))
    }

    fn block(&mut self) -> Result<[u8; BLOCK_BYTES]> {
        let mut block = [0; BLOCK_BYTES];
        self.input.read_exact(&mut block).map_err(input_error)?;
        self.at += BLOCK_BYTES as u64;
        Ok(block)
    }

    /// Adds the records of a global extended header, which are copied for each entry.
    fn add_global(&mut self, bytes: &[u8]) -> Result<()> {
        self.global.add(bytes)?;
        self.global.keep_last();
        if self.global.len_bytes() > GLOBAL_BYTES_MAX {
            return Err(Error::new(Errno::FBIG, "too many global PAX records"));
        }
        Ok(())
    }

    /// Reads the content of an extended header.
    fn extension(&mut self, header: &RawHeader, all: &mut Extensions) -> Result<Vec<u8>> {
        let len = size(header)?;
        all.len_bytes = all.len_bytes.saturating_add(len);
        if all.len_bytes > HEADER_BYTES_MAX {
            return Err(Error::new(
                Errno::FBIG,
                format!("the extended headers of one file have more than {HEADER_BYTES_MAX} bytes"),
            ));
        }
        let mut bytes = Vec::new();
        let padded = blocks(len)?;
        (&mut self.input)
            .take(padded)
            .read_to_end(&mut bytes)
            .map_err(input_error)?;
        self.at += bytes.len() as u64;
        if bytes.len() as u64 != padded {
            return Err(truncated());
        }
        bytes.truncate(usize::try_from(len).unwrap_or(0));
        Ok(bytes)
    }

    fn skip(&mut self, mut len: u64) -> Result<()> {
        if let Some((seek, end)) = self.seek {
            let distance = len.min(end.saturating_sub(self.at));
            self.at += distance;
            let sought = seek(&mut self.input, i64::try_from(distance).unwrap_or(i64::MAX));
            sought.map_err(input_error)?;
            len -= distance;
            return if len == 0 { Ok(()) } else { Err(truncated()) };
        }
        while len > 0 {
            let available = self.input.fill_buf().map_err(input_error)?.len();
            if available == 0 {
                return Err(truncated());
            }
            let count = available.min(usize::try_from(len).unwrap_or(usize::MAX));
            self.input.consume(count);
            self.at += count as u64;
            len -= count as u64;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        loop {
            let available = self.input.fill_buf().map_err(input_error)?.len();
            if available == 0 {
                return Ok(());
            }
            self.input.consume(available);
        }
    }

    fn entry(
        &mut self,
        header: &RawHeader,
        block: &[u8; BLOCK_BYTES],
        extensions: Extensions,
    ) -> Result<Entry> {
        let Extensions {
            records: own,
            name,
            link_name,
            ..
        } = extensions;
        let mut records = self.global.clone();
        records.0.extend(own.0);
        let value = |key: &str| records.get(key).map(<[u8]>::to_vec);
        let path = value("GNU.sparse.name").or_else(|| value("path")).or(name);
        let path = path.unwrap_or_else(|| header.path());
        let target = value("linkpath").or(link_name);
        let target = target.unwrap_or_else(|| text(&header.link_name).to_vec());
        for name in [&path, &target] {
            if name.len() > NAME_BYTES_MAX || name.contains(&0) {
                return Err(Error::new(
                    Errno::NAMETOOLONG,
                    "a name is too long or has a zero byte",
                ));
            }
        }
        let stored = records.number("size")?.map_or_else(|| size(header), Ok)?;
        let kind = self.kind(header, block, &records, stored, &path, target)?;
        let modified = match records.time("mtime")? {
            Some(time) => time,
            None => Timespec::new(number(&header.mtime, "mtime")?, 0),
        };
        let owner = |key: &'static str, field: &[u8]| {
            let value = records.number(key)?.map(i64::try_from);
            let value = match value {
                Some(value) => value.unwrap_or(i64::MAX),
                None => number(field, key)?,
            };
            id(value, key)
        };
        let (uid, gid) = (owner("uid", &header.uid)?, owner("gid", &header.gid)?);
        let mode = number(&header.mode, "mode")?;
        let mut unreadable = Vec::new();
        let xattrs = xattrs(&records, &self.find_owner, &mut unreadable);
        Ok(Entry {
            path,
            kind,
            mode: (mode & 0o7777) as u16,
            uid,
            gid,
            modified,
            accessed: records.time("atime")?,
            xattrs,
            unreadable,
        })
    }

    /// Returns the kind of an entry, and prepares the data ranges of its content.
    fn kind(
        &mut self,
        header: &RawHeader,
        block: &[u8; BLOCK_BYTES],
        records: &Records,
        stored: u64,
        path: &[u8],
        target: Vec<u8>,
    ) -> Result<EntryKind> {
        // Some writers store a directory as a regular file, in each dialect.
        let is_directory_name = path.ends_with(b"/") && matches!(header.type_flag, b'0' | 0 | b'7');
        Ok(match header.type_flag {
            b'1' => EntryKind::HardLink(target),
            b'2' => EntryKind::Symlink(target),
            b'3' => {
                let (major, minor) = device(header, records)?;
                EntryKind::CharacterDevice(major, minor)
            }
            b'4' => {
                let (major, minor) = device(header, records)?;
                EntryKind::BlockDevice(major, minor)
            }
            b'6' => EntryKind::Fifo,
            b'5' => {
                // A size here has no content with it; old programs stored a limit of the directory.
                EntryKind::Directory
            }
            // GNU's list of a directory's names, or a file by its type.
            type_flag if type_flag == b'D' || is_directory_name => {
                self.content(stored)?;
                self.segments.clear();
                EntryKind::Directory
            }
            type_flag => {
                self.content(stored)?;
                let map = self.sparse_map(type_flag, block, records)?;
                let size_bytes = map.as_ref().map_or(stored, |map| map.size_bytes);
                if let Some(map) = map {
                    if map.data_bytes() != self.remaining {
                        return Err(Error::corrupt(
                            "the map of a sparse file contradicts its length",
                        ));
                    }
                    self.segments = map.segments;
                    self.segments.reverse();
                }
                EntryKind::File { size_bytes }
            }
        })
    }

    /// Prepares the content of a file without holes.
    fn content(&mut self, stored: u64) -> Result<()> {
        self.padding = blocks(stored)? - stored;
        self.remaining = stored;
        self.segments.clear();
        self.segments.extend((stored > 0).then_some(0..stored));
        Ok(())
    }

    /// Reads the map of a file with holes, if it is one. The blocks of a map belong to the content
    /// in PAX 1.0, and precede it in the old form.
    fn sparse_map(
        &mut self,
        type_flag: u8,
        block: &[u8; BLOCK_BYTES],
        records: &Records,
    ) -> Result<Option<SparseMap>> {
        if type_flag == b'S' {
            let (mut map, mut is_extended) = SparseMap::old_gnu(block)?;
            while is_extended {
                is_extended = map.extend_old_gnu(&self.block()?)?;
            }
            return Ok(Some(map));
        }
        if records.get("GNU.sparse.major").is_none() {
            return SparseMap::from_records(records);
        }
        let version = (
            records.number("GNU.sparse.major")?,
            records.number("GNU.sparse.minor")?,
        );
        if version != (Some(1), Some(0)) {
            return Err(Error::unsupported("a sparse file of a version after 1.0"));
        }
        let size_bytes = records.number("GNU.sparse.realsize")?;
        let damaged = || Error::corrupt("the map of a sparse file contradicts its length");
        let mut lines = MapLines::new(size_bytes.ok_or_else(damaged)?);
        loop {
            self.remaining = self
                .remaining
                .checked_sub(BLOCK_BYTES as u64)
                .ok_or_else(damaged)?;
            if lines.block(&self.block()?)? {
                return Ok(Some(lines.into_map()));
            }
        }
    }
}

fn size(header: &RawHeader) -> Result<u64> {
    let size = number(&header.size, "size")?;
    u64::try_from(size).map_err(|_| Error::corrupt("negative size in a tar header"))
}

/// Returns `len` rounded up to whole blocks.
fn blocks(len: u64) -> Result<u64> {
    len.checked_next_multiple_of(BLOCK_BYTES as u64)
        .ok_or_else(|| Error::corrupt("invalid size in a tar header"))
}

fn device(header: &RawHeader, records: &Records) -> Result<(u32, u32)> {
    let part = |key: &'static str, field: &[u8]| {
        let value = match records.number(key)? {
            Some(value) => i64::try_from(value).unwrap_or(i64::MAX),
            None => number(field, "device number")?,
        };
        id(value, "device number")
    };
    Ok((
        part("SCHILY.devmajor", &header.device_major)?,
        part("SCHILY.devminor", &header.device_minor)?,
    ))
}

/// Collects extended attributes and ACLs. Where both a name of star and one of libarchive give the
/// same attribute, star's value counts: it is the value itself.
fn xattrs(records: &Records, find: FindOwner<'_>, unreadable: &mut Vec<String>) -> Xattrs {
    let mut found = BTreeMap::new();
    let mut set = |name: Vec<u8>, value: Vec<u8>, replaces: bool| {
        if replaces {
            found.insert(name, value);
        } else {
            found.entry(name).or_insert(value);
        }
    };
    for (key, value) in &records.0 {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            set(pax::decoded_name(name), value.clone(), true);
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            match percent_decoded(name).zip(base64_decoded(value)) {
                Some((name, value)) => set(name, value, false),
                None => unreadable.push(format!(
                    "invalid extended attribute {} in the archive",
                    String::from_utf8_lossy(name)
                )),
            }
        } else if key == b"RHT.security.selinux" && !value.is_empty() {
            let context = value.strip_suffix(b"\0").unwrap_or(value);
            set(
                b"security.selinux".to_vec(),
                [context, b"\0"].concat(),
                false,
            );
        }
    }
    for (key, name) in [
        ("SCHILY.acl.access", "system.posix_acl_access"),
        ("SCHILY.acl.default", "system.posix_acl_default"),
    ] {
        match records.get(key).map(|text| acl::from_text(text, find)) {
            Some(Ok(value)) => set(name.as_bytes().to_vec(), value, true),
            Some(Err(error)) => unreadable.push(format!("cannot set the ACL: {error}")),
            None => {}
        }
    }
    found.into_iter().collect()
}

fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

fn truncated() -> Error {
    Error::corrupt("the archive is truncated: it ends within a file")
}

fn input_error(error: std::io::Error) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(error) => return error,
        Err(error) => error,
    };
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof if error.get_ref().is_none() => truncated(),
        // A decoder's failure, which says everything.
        _ if error.raw_os_error().is_none() => Error::corrupt(error.to_string()),
        _ => Error::io("read the archive", error),
    }
}
