//! Sources of blobs: a folder, or a tar archive with an index of its members.

use super::digest::{Digest, Verify};
use super::documents::{DOCUMENT_BYTES_MAX, Descriptor};
use crate::compression::decoder;
use crate::entry::EntryKind;
use crate::tar::Reader;
use folio::{Errno, Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of a blob.
pub(super) type BlobReader = Box<dyn Read + Send>;

/// A source of the files of an image.
pub(super) trait Blobs: Send + Sync {
    /// Opens a file by its name in a layout: `index.json`, `blobs/sha256/...`.
    fn open(&self, name: &str) -> Result<BlobReader>;

    /// Opens a blob, unverified.
    fn open_blob(&self, descriptor: &Descriptor) -> Result<BlobReader> {
        self.open(&blob_name(&descriptor.digest()?))
    }

    /// Reads a small file.
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        read_document(self.open(name)?, name)
    }

    /// Reads and verifies a document.
    fn read_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let digest = descriptor.digest()?;
        let verify = Verify::new(self.open_blob(descriptor)?, digest, Arc::default());
        read_document(Box::new(verify), &digest.to_string())
    }
}

/// Returns the name of a blob in a layout.
pub(super) fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

pub(super) fn read_document(reader: BlobReader, name: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = reader.take(DOCUMENT_BYTES_MAX + 1);
    limited
        .read_to_end(&mut bytes)
        .map_err(|error| blob_error(error).at(name.to_owned()))?;
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        let reason = format!("larger than {DOCUMENT_BYTES_MAX} bytes");
        return Err(Error::new(Errno::FBIG, reason).at(name.to_owned()));
    }
    Ok(bytes)
}

/// Converts a failure of a blob; one without an errno of the system is damage.
pub(super) fn blob_error(error: io::Error) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(error) => return error,
        Err(error) => error,
    };
    if error.raw_os_error().is_none() {
        Error::corrupt(error.to_string())
    } else {
        Error::io("read", error)
    }
}

pub(super) fn host_error(path: &Path, error: &io::Error) -> Error {
    Error::from(Errno::from_io_error(error).unwrap_or(Errno::IO)).at(path.display().to_string())
}

/// An OCI layout in a folder.
pub(super) struct Folder(pub(super) PathBuf);

impl Blobs for Folder {
    fn open(&self, name: &str) -> Result<BlobReader> {
        let path = self.0.join(name);
        Ok(Box::new(
            File::open(&path).map_err(|error| host_error(&path, &error))?,
        ))
    }
}

/// A tar archive: where its members are.
pub(super) struct ArchiveFile {
    file: Arc<File>,
    name: String,
    members: HashMap<Vec<u8>, Member>,
}

enum Member {
    Data { offset: u64, len_bytes: u64 },
    Link(Vec<u8>),
}

impl ArchiveFile {
    /// Indexes an archive. `-` is standard input. What cannot be read twice, a pipe or a compressed
    /// archive, is copied to a temporary file first: its list of layers comes last.
    ///
    /// # Errors
    ///
    /// The archive is damaged or cannot be read.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let is_stdin = path == Path::new("-");
        let name = if is_stdin {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let failed = |error: io::Error| blob_error(error).at(name.clone());
        let file = if is_stdin {
            spool(Box::new(io::stdin())).map_err(failed)?
        } else {
            let mut file = File::open(path).map_err(|error| host_error(path, &error))?;
            let mut start = Vec::new();
            (&file).take(8).read_to_end(&mut start).map_err(failed)?;
            let is_plain = crate::Compression::of(&start) == crate::Compression::None;
            if is_plain && file.rewind().is_ok() {
                file
            } else {
                spool(Box::new(io::Cursor::new(start).chain(file))).map_err(failed)?
            }
        };
        let members = Self::index(&file).map_err(|error| error.at(name.clone()))?;
        Ok(Self {
            file: Arc::new(file),
            name,
            members,
        })
    }

    fn index(file: &File) -> Result<HashMap<Vec<u8>, Member>> {
        let file = file.try_clone().map_err(blob_error)?;
        let mut reader = Reader::seeking(file).map_err(blob_error)?;
        let mut members = HashMap::new();
        while let Some(entry) = reader.next_entry()? {
            let parts = entry.path.split(|byte| *byte == b'/');
            let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
            let name = parts.join(&b'/');
            let member = match entry.kind {
                EntryKind::File { size_bytes } => {
                    let offset = reader.content_offset();
                    let offset = offset.ok_or_else(|| Error::unsupported("a sparse member"))?;
                    Member::Data {
                        offset,
                        len_bytes: size_bytes,
                    }
                }
                EntryKind::HardLink(target) => Member::Link(target),
                // `docker save` links equal layers: ../ID/layer.tar.
                EntryKind::Symlink(target) => {
                    let folder = parts[..parts.len().saturating_sub(1)].join(&b'/');
                    Member::Link(resolve(&folder, &target))
                }
                _ => continue,
            };
            members.insert(name, member);
        }
        Ok(members)
    }

    /// Whether the archive has this member.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name.as_bytes())
    }

    /// Returns the size of a member; 0 for a missing one.
    pub(super) fn len_bytes(&self, name: &str) -> u64 {
        self.find(name).map_or(0, |(_, len_bytes)| len_bytes)
    }

    /// Returns the place of a member in the archive: offset and size.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut key = name.as_bytes();
        // Links lead to links at most a few times.
        for _ in 0..8 {
            match self.members.get(key)? {
                Member::Data { offset, len_bytes } => return Some((*offset, *len_bytes)),
                Member::Link(target) => key = target,
            }
        }
        None
    }
}

/// Returns the name that a relative link in `folder` leads to.
fn resolve(folder: &[u8], target: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = folder.split(|byte| *byte == b'/').collect();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join(&b'/')
}

impl Blobs for ArchiveFile {
    fn open(&self, name: &str) -> Result<BlobReader> {
        let Some((offset, len_bytes)) = self.find(name) else {
            let missing = Error::new(Errno::NOENT, format!("{name} is missing"));
            return Err(missing.at(self.name.clone()));
        };
        Ok(Box::new(Section {
            file: self.file.clone(),
            offset,
            end: offset.saturating_add(len_bytes),
        }))
    }
}

/// Copies a stream, decompressed, to a temporary file.
fn spool(input: BlobReader) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut input = decoder(input)?;
    io::copy(&mut input, &mut file)?;
    file.flush()?;
    Ok(file)
}

/// A part of a file, read without its position.
struct Section {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let len = buf.len().min(rest);
        let count = self.file.read_at(&mut buf[..len], self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
