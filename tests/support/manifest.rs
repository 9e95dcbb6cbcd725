//! Manifest of a tree on the host: names, types, modes, owners, times, sizes, link groups, xattrs,
//! content, holes.

use rustix::fs::SeekFrom;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The facts about a tree that a manifest records.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope {
    /// The places of holes. They are equal only if both file systems keep holes of the sizes in the
    /// tree.
    pub holes: bool,
    /// Leave out the root's own attributes, and `lost+found` below it.
    pub below_root: bool,
}

/// A tree as one line of facts per name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    entries: BTreeMap<Vec<u8>, String>,
    /// Files that are not directories.
    pub files: usize,
}

impl Manifest {
    /// Walks the tree at `root`. Symbolic links are not followed.
    #[track_caller]
    pub fn of(root: &Path, scope: Scope) -> Self {
        let mut walk = Walk {
            root: root.to_path_buf(),
            scope,
            links: HashMap::new(),
            entries: BTreeMap::new(),
        };
        walk.folder(&PathBuf::new())
            .unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        let files = walk
            .entries
            .values()
            .filter(|facts| !facts.starts_with("directory"))
            .count();
        Self {
            entries: walk.entries,
            files,
        }
    }

    /// Fails with the first differences if `other` is not the same tree.
    #[track_caller]
    pub fn assert_same(&self, other: &Self, what: &str) {
        let mut differences = String::new();
        let mut count = 0;
        let names: std::collections::BTreeSet<_> =
            self.entries.keys().chain(other.entries.keys()).collect();
        for name in names {
            let (left, right) = (self.entries.get(name), other.entries.get(name));
            if left != right {
                count += 1;
                if count <= 10 {
                    let shown = name.escape_ascii();
                    let (left, right) =
                        (left.map_or("absent", |s| s), right.map_or("absent", |s| s));
                    let _ = writeln!(differences, "{shown}:\n  want {left}\n  got  {right}");
                }
            }
        }
        assert!(
            count == 0,
            "{what}: {count} of {} entries differ\n{differences}",
            self.entries.len()
        );
    }

    /// Returns the number of entries, directories included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries whose facts contain `text`.
    pub fn count(&self, text: &str) -> usize {
        self.entries
            .values()
            .filter(|facts| facts.contains(text))
            .count()
    }
}

struct Walk {
    root: PathBuf,
    scope: Scope,
    /// The first name seen, by device and inode number.
    links: HashMap<(u64, u64), Vec<u8>>,
    entries: BTreeMap<Vec<u8>, String>,
}

impl Walk {
    fn folder(&mut self, inside: &Path) -> std::io::Result<()> {
        let is_root = inside.as_os_str().is_empty();
        if !(is_root && self.scope.below_root) {
            self.entry(inside)?;
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(inside))? {
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            if is_root && self.scope.below_root && name == "lost+found" {
                continue;
            }
            let path = inside.join(name);
            if fs::symlink_metadata(self.root.join(&path))?.is_dir() {
                self.folder(&path)?;
            } else {
                self.entry(&path)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, inside: &Path) -> std::io::Result<()> {
        let path = if inside.as_os_str().is_empty() {
            self.root.clone()
        } else {
            self.root.join(inside)
        };
        let metadata = fs::symlink_metadata(&path)?;
        let name = inside.as_os_str().as_bytes().to_vec();
        let mut facts = String::new();
        let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        let _ = write!(facts, "{} {mode:04o} {uid}:{gid}", kind(&metadata));
        let _ = write!(
            facts,
            " mtime {}.{:09}",
            metadata.mtime(),
            metadata.mtime_nsec()
        );
        if !metadata.is_dir() && metadata.nlink() > 1 {
            let first = self
                .links
                .entry((metadata.dev(), metadata.ino()))
                .or_insert_with(|| name.clone());
            let _ = write!(
                facts,
                " links {} as {}",
                metadata.nlink(),
                first.escape_ascii()
            );
        }
        if metadata.is_symlink() {
            let _ = write!(
                facts,
                " -> {}",
                fs::read_link(&path)?.as_os_str().as_bytes().escape_ascii()
            );
        } else if metadata.is_file() {
            let _ = write!(
                facts,
                " size {} content {:016x}",
                metadata.len(),
                content(&path)?
            );
            if self.scope.holes {
                let _ = write!(facts, " data {:?}", data_ranges(&path, metadata.len())?);
            }
        } else if metadata.file_type().is_block_device() || metadata.file_type().is_char_device() {
            let _ = write!(facts, " device {:x}", metadata.rdev());
        }
        for (name, value) in xattrs(&path)? {
            let _ = write!(facts, " [{}]={}", name.escape_ascii(), short(&value));
        }
        self.entries.insert(name, facts);
        Ok(())
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symlink",
        () if kind.is_file() => "file",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "socket",
        () if kind.is_block_device() => "block-device",
        () => "char-device",
    }
}

/// Returns a hash of the bytes and their offsets. Stored zeros and holes hash alike.
fn content(path: &Path) -> std::io::Result<u64> {
    const BLOCK: usize = 4096;
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    // SipHash with fixed keys: 64 bits suffice to find a difference.
    let mut hasher = std::hash::DefaultHasher::new();
    let mut buffer = vec![0; 64 * BLOCK];
    let mut at = 0;
    for (start, end) in data_ranges(path, len)? {
        // Two ranges may share a block: each block counts once.
        at = at.max(start - start % BLOCK as u64);
        let end = end.next_multiple_of(BLOCK as u64).min(len);
        while at < end {
            let want = buffer.len().min((end - at) as usize);
            file.read_exact_at(&mut buffer[..want], at)?;
            for (block, index) in buffer[..want].chunks(BLOCK).zip(at / BLOCK as u64..) {
                if block.iter().any(|&byte| byte != 0) {
                    hasher.write_u64(index);
                    hasher.write(block);
                }
            }
            at += want as u64;
        }
    }
    Ok(hasher.finish())
}

/// Returns the ranges of data, as (start, end) in bytes.
fn data_ranges(path: &Path, len: u64) -> std::io::Result<Vec<(u64, u64)>> {
    let file = File::open(path)?;
    let mut out = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        out.push((start, at));
    }
    Ok(out)
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let mut out = BTreeMap::new();
    for name in names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        let c_name = CString::new(name).expect("names were split at zero bytes");
        let len = rustix::fs::lgetxattr(path, c_name.as_c_str(), &mut value[..])?;
        value.truncate(len);
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}

fn short(value: &[u8]) -> String {
    if value.len() <= 64 {
        return value.escape_ascii().to_string();
    }
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(value);
    format!("{} bytes {:016x}", value.len(), hasher.finish())
}
