//! One file of a manifest.

use folio::{Errno, Error, Result, Timespec};

/// Memory for the entries of any manifest, in bytes, and more for each byte of its text.
const BYTES_MIN: usize = 32 << 20;
const BYTES_PER_BYTE: usize = 64;

/// A user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// By number.
    Number(u32),
    /// By name, in the tables of the image.
    Name(String),
}

impl Owner {
    /// Parses a number or a name.
    pub(super) fn parse(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Name(text.to_owned()), Self::Number)
    }
}

/// The kind of a file that a manifest creates if it is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestKind {
    /// A regular file, empty if it is new.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// Another name of the file at this path.
    HardLink(Vec<u8>),
    /// A character device.
    CharacterDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

/// A file of a manifest; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The path below the root of the manifest, without `.` and `..`.
    pub path: Vec<u8>,
    /// The kind; `None` for a file that must exist.
    pub kind: Option<ManifestKind>,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: Option<u16>,
    /// The user.
    pub user: Option<Owner>,
    /// The group.
    pub group: Option<Owner>,
    /// The modification time.
    pub modified: Option<Timespec>,
    /// Extended attributes to add.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Owners and modes are also those of all files below.
    pub is_recursive: bool,
    /// A missing file is skipped.
    pub is_optional: bool,
    /// The number of the line.
    pub line: usize,
}

impl ManifestEntry {
    pub(super) fn new(path: Vec<u8>, line: usize) -> Self {
        Self {
            path,
            kind: None,
            mode: None,
            user: None,
            group: None,
            modified: None,
            xattrs: Vec::new(),
            is_recursive: false,
            is_optional: false,
            line,
        }
    }

    /// Returns about the number of bytes in memory.
    fn len_bytes(&self) -> usize {
        let owner = |owner: &Option<Owner>| match owner {
            Some(Owner::Name(name)) => name.len(),
            _ => 0,
        };
        let target = match &self.kind {
            Some(ManifestKind::Symlink(target) | ManifestKind::HardLink(target)) => target.len(),
            _ => 0,
        };
        size_of::<Self>() + self.path.len() + target + owner(&self.user) + owner(&self.group)
    }
}

/// The entries of a manifest. Their memory is limited, because a line may describe thousands of
/// device nodes, and defaults and names of directories count for many lines.
pub(super) struct ManifestEntries {
    all: Vec<ManifestEntry>,
    /// Bytes that further entries may take.
    left_bytes: usize,
}

impl ManifestEntries {
    /// Creates an empty list for a manifest of `text_len` bytes.
    pub(super) fn new(text_len: usize) -> Self {
        Self {
            all: Vec::new(),
            left_bytes: BYTES_MIN.saturating_add(text_len.saturating_mul(BYTES_PER_BYTE)),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// EINVAL if the entries take too much memory.
    pub(super) fn push(&mut self, entry: ManifestEntry) -> Result<()> {
        let left = self.left_bytes.checked_sub(entry.len_bytes());
        self.left_bytes = left.ok_or_else(|| {
            line_error(entry.line, "too many files with long names for a manifest")
        })?;
        self.all.push(entry);
        Ok(())
    }

    /// Returns the last entry.
    pub(super) fn last_mut(&mut self) -> Option<&mut ManifestEntry> {
        self.all.last_mut()
    }

    /// Returns all entries.
    pub(super) fn into_vec(self) -> Vec<ManifestEntry> {
        self.all
    }
}

/// Returns the error of a line.
pub(super) fn line_error(line: usize, reason: impl Into<String>) -> Error {
    Error::new(Errno::INVAL, reason.into()).at(format!("line {line}"))
}

/// Splits a path into components without "."; `None` if it has "..".
pub(super) fn plain_path(path: &[u8]) -> Option<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    (!parts.contains(&&b".."[..])).then(|| parts.join(&b'/'))
}
