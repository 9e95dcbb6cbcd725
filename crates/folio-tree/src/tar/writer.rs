//! The writer: entries as ustar headers, with PAX records where ustar has no room.

use super::BLOCK_BYTES;
use super::acl;
use super::header::{RawHeader, set_number};
use super::pax::{Records, encoded_name, time_text};
use super::sparse::MapLines;
use crate::entry::{Entry, EntryKind};
use std::io::{self, Write};
use std::ops::Range;
use zerocopy::IntoBytes;

/// Bytes of a record of tapes: GNU tar pads archives to it.
const RECORD_BYTES: u64 = 10_240;

/// Writes a tar archive in the PAX format. Equal entries give equal bytes.
pub struct Writer<W> {
    output: W,
    at: u64,
    /// Bytes of content that the current entry still needs.
    remaining: u64,
}

impl<W: Write> Writer<W> {
    /// Creates a writer at the start of an archive.
    pub fn new(output: W) -> Self {
        Self {
            output,
            at: 0,
            remaining: 0,
        }
    }

    /// Writes an entry. For a file with holes, `segments` are its data ranges, ascending; their
    /// bytes follow through [`Writer::write_data`].
    ///
    /// # Errors
    ///
    /// The output fails, or the content of the previous entry is incomplete.
    pub fn append(&mut self, entry: &Entry, segments: Option<&[Range<u64>]>) -> io::Result<()> {
        if self.remaining > 0 {
            return Err(io::Error::other("the content of a file is incomplete"));
        }
        let mut records = Vec::new();
        let map = segments
            .map(|all| MapLines::format(all, entry.size_bytes()))
            .unwrap_or_default();
        let data: u64 = segments.map_or(entry.size_bytes(), |all| {
            all.iter().map(|one| one.end - one.start).sum()
        });
        let stored = data + map.len() as u64;
        let mut header = header(entry, stored, &mut records);
        if segments.is_some() {
            let name = entry.path.as_slice();
            let size = entry.size_bytes().to_string();
            for (key, value) in [
                ("GNU.sparse.major", &b"1"[..]),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", name),
                ("GNU.sparse.realsize", size.as_bytes()),
            ] {
                Records::append(&mut records, key.as_bytes(), value);
            }
            // Programs without the records see a file of another name.
            let other_name = short_name(b"GNUSparseFile.0", name);
            header.name = [0; 100];
            header.prefix = [0; 155];
            header.name[..other_name.len()].copy_from_slice(&other_name);
        }
        if !records.is_empty() {
            self.extended_header(&entry.path, &records)?;
        }
        header.seal();
        self.put(header.as_bytes())?;
        self.put(&map)?;
        self.remaining = data;
        self.pad()
    }

    /// Writes bytes of the current file's data ranges.
    ///
    /// # Errors
    ///
    /// The output fails, or the entry has no room for the bytes.
    pub fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.remaining.checked_sub(bytes.len() as u64);
        let left = left.ok_or_else(|| io::Error::other("a file is larger than its entry"))?;
        self.put(bytes)?;
        self.remaining = left;
        self.pad()
    }

    /// Adds up to 1 MiB of zeros to the current file's data ranges, for a file that has shrunk.
    /// Returns whether more are missing.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn fill(&mut self) -> io::Result<bool> {
        let zeros = [0; 4096];
        for _ in 0..256 {
            let len = self.remaining.min(zeros.len() as u64) as usize;
            self.write_data(&zeros[..len])?;
        }
        Ok(self.remaining > 0)
    }

    /// Writes the end of the archive; returns the output.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn finish(mut self) -> io::Result<W> {
        let end = (self.at + 2 * BLOCK_BYTES as u64).next_multiple_of(RECORD_BYTES);
        let zeros = [0; RECORD_BYTES as usize + 2 * BLOCK_BYTES];
        let len = (end - self.at) as usize;
        self.put(&zeros[..len])?;
        Ok(self.output)
    }

    fn extended_header(&mut self, path: &[u8], records: &[u8]) -> io::Result<()> {
        let mut header = RawHeader::ustar(b'x');
        let name = short_name(b"PaxHeaders", path);
        header.name[..name.len()].copy_from_slice(&name);
        // Programs that do not know the records extract them as a file.
        set_number(&mut header.mode, 0o644);
        set_number(&mut header.uid, 0);
        set_number(&mut header.gid, 0);
        set_number(&mut header.mtime, 0);
        set_number(&mut header.size, records.len() as u64);
        header.seal();
        self.put(header.as_bytes())?;
        self.put(records)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.output.write_all(bytes)
    }

    /// Pads the content to a whole block once it is complete.
    fn pad(&mut self) -> io::Result<()> {
        let over = self.at % BLOCK_BYTES as u64;
        if self.remaining > 0 || over == 0 {
            return Ok(());
        }
        self.put(&[0; BLOCK_BYTES][over as usize..])
    }
}

/// Returns the last component of a path below `folder`, cut to the 100 bytes of a header.
fn short_name(folder: &[u8], path: &[u8]) -> Vec<u8> {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |at| at + 1);
    let start = path[..end]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    let mut name = [folder, b"/", &path[start..end]].concat();
    name.truncate(99);
    name
}

/// Returns the header of an entry, and appends the records for what it has no room for.
fn header(entry: &Entry, stored: u64, records: &mut Vec<u8>) -> RawHeader {
    let type_flag = match &entry.kind {
        EntryKind::File { .. } => b'0',
        EntryKind::HardLink(_) => b'1',
        EntryKind::Symlink(_) => b'2',
        EntryKind::CharacterDevice(..) => b'3',
        EntryKind::BlockDevice(..) => b'4',
        EntryKind::Directory => b'5',
        EntryKind::Fifo => b'6',
    };
    let mut header = RawHeader::ustar(type_flag);
    if !set_path(&mut header, &entry.path) {
        Records::append(records, b"path", &entry.path);
    }
    if let EntryKind::HardLink(target) | EntryKind::Symlink(target) = &entry.kind {
        let len = target.len().min(header.link_name.len());
        header.link_name[..len].copy_from_slice(&target[..len]);
        if len < target.len() {
            Records::append(records, b"linkpath", target);
        }
    }
    set_number(&mut header.mode, entry.mode.into());
    let mut number = |field: &mut [u8], key: &str, value: u64| {
        if !set_number(field, value) {
            set_number(field, 0);
            Records::append(records, key.as_bytes(), value.to_string().as_bytes());
        }
    };
    number(&mut header.uid, "uid", entry.uid.into());
    number(&mut header.gid, "gid", entry.gid.into());
    number(&mut header.size, "size", stored);
    if let EntryKind::CharacterDevice(major, minor) | EntryKind::BlockDevice(major, minor) =
        entry.kind
    {
        number(&mut header.device_major, "SCHILY.devmajor", major.into());
        number(&mut header.device_minor, "SCHILY.devminor", minor.into());
    }
    let secs = u64::try_from(entry.modified.secs);
    let is_exact = secs.is_ok_and(|secs| set_number(&mut header.mtime, secs));
    if !is_exact {
        set_number(&mut header.mtime, 0);
    }
    if !is_exact || entry.modified.nanos != 0 {
        Records::append(records, b"mtime", time_text(entry.modified).as_bytes());
    }
    if let Some(accessed) = entry.accessed {
        Records::append(records, b"atime", time_text(accessed).as_bytes());
    }
    for (name, value) in &entry.xattrs {
        let acl = match name.as_slice() {
            b"system.posix_acl_access" => Some("SCHILY.acl.access"),
            b"system.posix_acl_default" => Some("SCHILY.acl.default"),
            _ => None,
        };
        match acl.and_then(|key| Some((key, acl::to_text(value)?))) {
            Some((key, text)) => Records::append(records, key.as_bytes(), text.as_bytes()),
            None => {
                let key = [&b"SCHILY.xattr."[..], &encoded_name(name)].concat();
                Records::append(records, &key, value);
            }
        }
    }
    header
}

/// Stores a path, split at a slash if it is long; returns whether it fits.
fn set_path(header: &mut RawHeader, path: &[u8]) -> bool {
    if path.len() <= header.name.len() {
        header.name[..path.len()].copy_from_slice(path);
        return true;
    }
    let from = path.len() - header.name.len() - 1;
    let slash = (from..path.len() - 1)
        .find(|at| path[*at] == b'/' && *at > 0)
        .filter(|at| *at <= header.prefix.len());
    match slash {
        Some(at) => {
            header.prefix[..at].copy_from_slice(&path[..at]);
            header.name[..path.len() - at - 1].copy_from_slice(&path[at + 1..]);
            true
        }
        None => {
            let len = header.name.len();
            header.name.copy_from_slice(&path[..len]);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::Reader;
    use folio::Timespec;

    fn entry(path: &[u8], kind: EntryKind) -> Entry {
        Entry {
            path: path.to_vec(),
            kind,
            mode: 0o4755,
            uid: 1000,
            gid: u32::MAX - 1,
            modified: Timespec::new(1_700_000_000, 123_456_789),
            accessed: None,
            xattrs: vec![
                (b"security.capability".to_vec(), (0..=255).collect()),
                (b"user.line".to_vec(), b"a\nb=c\n".to_vec()),
            ],
            unreadable: Vec::new(),
        }
    }

    fn entries() -> Vec<Entry> {
        let long = [b"d/".repeat(90), b"n".repeat(255)].concat();
        vec![
            Entry {
                modified: Timespec::new(-5, 250_000_000),
                ..entry(b"dir/", EntryKind::Directory)
            },
            entry(b"file", EntryKind::File { size_bytes: 1000 }),
            entry(&long, EntryKind::File { size_bytes: 0 }),
            entry(&[&b"p/".repeat(60)[..], b"name"].concat(), EntryKind::Fifo),
            entry(b"s", EntryKind::Symlink(b"t".repeat(300))),
            entry(b"h", EntryKind::HardLink(long)),
            entry(b"c", EntryKind::CharacterDevice(511, 1_048_575)),
            entry(b"b", EntryKind::BlockDevice(8, 1 << 24)),
            entry(b"big", EntryKind::File { size_bytes: 0 }),
        ]
    }

    #[test]
    fn every_kind_is_read_back() {
        let mut writer = Writer::new(Vec::new());
        for entry in entries() {
            writer.append(&entry, None).unwrap();
            writer
                .write_data(&vec![7; entry.size_bytes() as usize])
                .unwrap();
        }
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.len() % 10_240, 0);
        let mut reader = Reader::new(bytes.as_slice());
        for entry in entries() {
            assert_eq!(reader.next_entry().unwrap(), Some(entry.clone()));
            let mut len = 0;
            while let Some((offset, data)) = reader.next_data().unwrap() {
                assert!(offset == len && data.iter().all(|byte| *byte == 7));
                len += data.len() as u64;
            }
            assert_eq!(len, entry.size_bytes());
        }
        assert_eq!(reader.next_entry().unwrap(), None);
    }

    #[test]
    fn holes_are_read_back_as_ranges() {
        let file = entry(
            b"sparse",
            EntryKind::File {
                size_bytes: 1 << 40,
            },
        );
        let segments = [5..8, 4096..4100, (1 << 40) - 1..1 << 40];
        let mut writer = Writer::new(Vec::new());
        writer.append(&file, Some(&segments)).unwrap();
        writer.write_data(b"abcdefgh").unwrap();
        assert!(writer.write_data(b"x").is_err());
        let bytes = writer.finish().unwrap();
        let mut reader = Reader::new(bytes.as_slice());
        assert_eq!(reader.next_entry().unwrap(), Some(file));
        let mut found = Vec::new();
        while let Some((offset, data)) = reader.next_data().unwrap() {
            found.push((offset, data.to_vec()));
        }
        let want = [(5, &b"abc"[..]), (4096, b"defg"), ((1 << 40) - 1, b"h")];
        assert_eq!(found, want.map(|(offset, data)| (offset, data.to_vec())));
        assert_eq!(reader.next_entry().unwrap(), None);
    }

    #[test]
    fn fill_adds_zeros_in_steps() {
        let mut writer = Writer::new(Vec::new());
        let size_bytes = (2 << 20) + 5;
        let file = entry(b"shrunk", EntryKind::File { size_bytes });
        writer.append(&file, None).unwrap();
        writer.write_data(b"abc").unwrap();
        assert!(writer.fill().unwrap());
        assert!(writer.fill().unwrap());
        assert!(!writer.fill().unwrap());
        let bytes = writer.finish().unwrap();
        let mut reader = Reader::new(bytes.as_slice());
        assert_eq!(reader.next_entry().unwrap(), Some(file));
        let mut len = 0;
        while let Some((_, data)) = reader.next_data().unwrap() {
            len += data.len() as u64;
        }
        assert_eq!(len, size_bytes);
        assert_eq!(reader.next_entry().unwrap(), None);
    }

    #[test]
    fn every_cut_ends_with_an_error_or_an_entry() {
        let mut writer = Writer::new(Vec::new());
        let mut paddings = Vec::new();
        for entry in &entries()[..3] {
            writer.append(entry, None).unwrap();
            assert!(!writer.fill().unwrap());
            let len = entry.size_bytes().next_multiple_of(512) - entry.size_bytes();
            paddings.push(writer.at - len..writer.at);
        }
        let bytes = writer.finish().unwrap();
        for cut in 0..6000 {
            let mut reader = Reader::new(&bytes[..cut]);
            let is_torn = loop {
                match reader.next_entry() {
                    Ok(Some(_)) => {}
                    Ok(None) => break false,
                    Err(_) => break true,
                }
            };
            // What fills the last block of a file may be missing.
            let is_whole = paddings
                .iter()
                .any(|padding| padding.contains(&(cut as u64)));
            assert!(is_torn || cut % BLOCK_BYTES == 0 || is_whole, "{cut}");
        }
    }
}
