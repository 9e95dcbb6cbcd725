//! The VFS's view of a FAT: inodes by the path of their names.

use crate::time::{from_fat, to_fat};
use crate::volume::{Fat, FatDir, Volume};
use folio::base::{Clock, InodeNumber};
use folio::block::Device;
use folio::cache::WriteSource;
use folio::syscall::Credentials;
use folio::vfs::{
    AttributeChange, Attributes, DirectoryEntry, FallocateMode, FileOperations, FileSystem,
    FileSystemStatistics, FileType, Inode, InodeCommon, NameFolding, NewInode, RenameFlags,
    RenameRequest, SeekKind, SetTime, WriteAt,
};
use folio::{Errno, Error, Result, Timespec};
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// `f_type` of statfs(2).
const MAGIC: u64 = 0x4d44;
/// Longest name in bytes: 255 UTF-16 code units.
const NAME_MAX: u32 = 765;
/// Largest file.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Modes of all files and directories, as by the mount option umask=022.
const MODE: u16 = 0o755;
const ROOT_NUMBER: u64 = 1;
/// Bytes that are written to fill a file at once.
const ZEROS: [u8; 4096] = [0; 4096];

/// A mounted FAT.
pub struct FatFileSystem {
    volume: Arc<Volume>,
    root: Arc<FatInode>,
}

/// A file or directory.
struct FatInode {
    common: InodeCommon,
    volume: Arc<Volume>,
    /// Its names from the root on; none is the root.
    path: Arc<Mutex<FatPath>>,
}

/// The place of an inode. The directory above it may be renamed.
struct FatPath {
    above: Option<Arc<Mutex<FatPath>>>,
    name: String,
    is_removed: bool,
}

/// What a directory entry says.
struct FatEntry {
    name: String,
    is_directory: bool,
    len_bytes: u64,
    modified: Timespec,
    accessed: Timespec,
    created: Timespec,
}

impl FatFileSystem {
    /// Opens the FAT on `device`. `clock` is the source of timestamps.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a damaged FAT, EROFS to write a read-only device, else the device's errors.
    pub fn mount(device: Arc<dyn Device>, is_read_only: bool, clock: Clock) -> Result<Arc<Self>> {
        if device.is_read_only() && !is_read_only {
            return Err(Errno::ROFS.into());
        }
        let volume = Arc::new(Volume::open(device, is_read_only, clock)?);
        let epoch = from_fat(to_fat(Timespec::new(0, 0)));
        let entry = FatEntry {
            name: String::new(),
            is_directory: true,
            len_bytes: 0,
            modified: epoch,
            accessed: epoch,
            created: epoch,
        };
        let root = FatInode::new(&volume, None, &entry, ROOT_NUMBER);
        Ok(Arc::new(Self { volume, root }))
    }
}

impl FileSystem for FatFileSystem {
    fn kind(&self) -> &'static str {
        "vfat"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        let stats = self.volume.call(Fat::stats)?;
        let free = u64::from(stats.free_clusters());
        Ok(FileSystemStatistics {
            magic: MAGIC,
            block_size: stats.cluster_size(),
            blocks: stats.total_clusters().into(),
            blocks_free: free,
            blocks_available: free,
            inodes: 0,
            inodes_free: 0,
            name_max: NAME_MAX,
        })
    }

    fn sync(&self) -> Result<()> {
        self.volume.sync()
    }

    fn unmount(&self) -> Result<()> {
        self.volume.close()
    }

    fn is_read_only(&self) -> bool {
        self.volume.is_read_only
    }
}

fn text(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name)
        .map_err(|_| Error::new(Errno::INVAL, "FAT cannot store a name that is not UTF-8"))
}

/// Returns the directory at `path`.
fn directory<'a>(fat: &'a Fat, path: &str) -> io::Result<FatDir<'a>> {
    if path.is_empty() {
        Ok(fat.root_dir())
    } else {
        fat.root_dir().open_dir(path)
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}/{name}")
    }
}

/// Lists a directory, without `.`, `..` and the volume's label.
fn entries(dir: &FatDir<'_>) -> io::Result<Vec<FatEntry>> {
    let mut found = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == "." || name == ".." {
            continue;
        }
        found.push(FatEntry {
            is_directory: entry.is_dir(),
            len_bytes: entry.len(),
            modified: from_fat(entry.modified()),
            accessed: from_fat(fatfs::DateTime {
                date: entry.accessed(),
                time: fatfs::Time {
                    hour: 0,
                    min: 0,
                    sec: 0,
                    millis: 0,
                },
            }),
            created: from_fat(entry.created()),
            name,
        });
    }
    Ok(found)
}

/// Moves to `offset`, and fills what is missing before it with zeros.
fn seek_filled<F: Write + Seek>(file: &mut F, offset: u64) -> io::Result<()> {
    let mut at = file.seek(SeekFrom::Start(offset))?;
    while at < offset {
        let count = (offset - at).min(ZEROS.len() as u64) as usize;
        file.write_all(&ZEROS[..count])?;
        at += count as u64;
    }
    Ok(())
}

impl FatInode {
    fn new(
        volume: &Arc<Volume>,
        above: Option<Arc<Mutex<FatPath>>>,
        entry: &FatEntry,
        number: u64,
    ) -> Arc<Self> {
        let attributes = Attributes {
            number: InodeNumber(number),
            file_type: if entry.is_directory {
                FileType::Directory
            } else {
                FileType::Regular
            },
            mode: MODE,
            uid: 0,
            gid: 0,
            link_count: 1 + u32::from(entry.is_directory),
            size_bytes: entry.len_bytes,
            blocks_512: entry.len_bytes.div_ceil(512),
            block_size: 4096,
            device: (0, 0),
            accessed: entry.accessed,
            modified: entry.modified,
            changed: entry.modified,
            created: Some(entry.created),
        };
        let path = FatPath {
            above,
            name: entry.name.clone(),
            is_removed: false,
        };
        Arc::new(Self {
            common: InodeCommon::new(&attributes, None),
            volume: volume.clone(),
            path: Arc::new(Mutex::new(path)),
        })
    }

    /// Returns the path, without a slash at its start.
    fn path(&self) -> Result<String> {
        let mut names = Vec::new();
        let mut at = Some(self.path.clone());
        while let Some(path) = at {
            let path = path.lock().unwrap_or_else(PoisonError::into_inner);
            if path.is_removed {
                return Err(Errno::NOENT.into());
            }
            if !path.name.is_empty() {
                names.push(path.name.clone());
            }
            at = path.above.clone();
        }
        names.reverse();
        Ok(names.join("/"))
    }

    fn child(&self, path: &str, entry: &FatEntry) -> Arc<Self> {
        Self::new(
            &self.volume,
            Some(self.path.clone()),
            entry,
            number(&joined(path, &entry.name)),
        )
    }

    /// Changes the attributes in memory.
    fn update(&self, change: impl FnOnce(&mut Attributes)) {
        let mut attributes = self.common.attributes();
        change(&mut attributes);
        attributes.blocks_512 = attributes.size_bytes.div_ceil(512);
        self.common.attributes.store(&attributes);
    }

    fn set_removed(&self) {
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        path.is_removed = true;
    }

    fn remove(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let path = joined(&self.path()?, text(name)?);
        self.volume
            .change(move |fat| fat.root_dir().remove(&path))?;
        if let Some(target) = target.as_any().downcast_ref::<Self>() {
            target.set_removed();
        }
        Ok(())
    }
}

/// Returns the form of a name that all names have which are the same name in a FAT.
fn fold(name: &[u8]) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(name).ok()?;
    Some(name.to_uppercase().into_bytes())
}

/// Returns the inode number of a path; case does not count.
fn number(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.to_uppercase().hash(&mut hasher);
    // 1 is the root.
    (hasher.finish() >> 1).max(ROOT_NUMBER + 1)
}

impl Inode for FatInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        (self.common.file_type == FileType::Regular).then_some(self)
    }

    /// Sets size and modification time. Owners and modes have no place in a FAT.
    fn set_attributes(&self, _caller: &Credentials, change: &AttributeChange) -> Result<()> {
        let path = self.path()?;
        let now = self.volume.clock.now();
        if let Some(size) = change.size_bytes {
            if size > FILE_BYTES_MAX {
                return Err(Errno::FBIG.into());
            }
            let path = path.clone();
            self.volume.change(move |fat| {
                let mut file = fat.root_dir().open_file(&path)?;
                seek_filled(&mut file, size)?;
                file.truncate()
            })?;
            self.update(|attributes| {
                attributes.size_bytes = size;
                attributes.modified = now;
            });
        }
        let modified = change.modified.map(|time| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        });
        if let Some(modified) = modified {
            let stored = to_fat(modified);
            #[expect(deprecated, reason = "a copy sets the time of the source")]
            if self.common.file_type == FileType::Regular {
                self.volume.change(move |fat| {
                    let mut file = fat.root_dir().open_file(&path)?;
                    file.set_modified(stored);
                    file.flush()
                })?;
                self.update(|attributes| attributes.modified = from_fat(stored));
            }
        }
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        let Ok(name) = text(name) else {
            return Ok(None);
        };
        let (path, sought) = (self.path()?, name.to_uppercase());
        let at = path.clone();
        let found = self.volume.call(move |fat| {
            let all = entries(&directory(fat, &at)?)?;
            Ok(all
                .into_iter()
                .find(|entry| entry.name.to_uppercase() == sought))
        })?;
        Ok(found.map(|entry| self.child(&path, &entry) as Arc<dyn Inode>))
    }

    /// Upper and lower case are the same, so a file has one inode whatever the case of its name.
    fn name_folding(&self) -> Option<NameFolding> {
        (self.common.file_type == FileType::Directory).then_some(fold as NameFolding)
    }

    fn create(
        &self,
        _caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let is_directory = match new.file_type {
            FileType::Regular => false,
            FileType::Directory => true,
            _ => {
                return Err(Error::new(
                    Errno::PERM,
                    "FAT has only files and directories",
                ));
            }
        };
        let (path, name) = (self.path()?, text(name)?.to_owned());
        let now = from_fat(to_fat(self.volume.clock.now()));
        let entry = FatEntry {
            name: name.clone(),
            is_directory,
            len_bytes: 0,
            modified: now,
            accessed: now,
            created: now,
        };
        let place = joined(&path, &name);
        // The crate would open the file that has this short name beside its own.
        let (at, short) = (path.clone(), name.to_uppercase());
        let alias_of = self.volume.call(move |fat| {
            for entry in directory(fat, &at)?.iter() {
                let entry = entry?;
                if entry.short_file_name().to_uppercase() == short {
                    return Ok(Some(entry.file_name()));
                }
            }
            Ok(None)
        })?;
        if let Some(other) = alias_of {
            let what = format!("this is the short name of {other} here; choose another name");
            return Err(Error::new(Errno::INVAL, what));
        }
        if is_directory {
            self.volume.create_directory(place)?;
        } else {
            let create = move |fat: &Fat| fat.root_dir().create_file(&place).map(drop);
            self.volume.change(create)?;
        }
        Ok(self.child(&path, &entry))
    }

    fn link(&self, _: &Credentials, _: &[u8], _: &Arc<dyn Inode>) -> Result<()> {
        Err(Error::new(Errno::PERM, "FAT has no hard links"))
    }

    fn unlink(&self, _: &Credentials, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.remove(name, target)
    }

    fn remove_directory(
        &self,
        _: &Credentials,
        name: &[u8],
        target: &Arc<dyn Inode>,
    ) -> Result<()> {
        self.remove(name, target)
    }

    fn rename(&self, _: &Credentials, request: &RenameRequest<'_>) -> Result<()> {
        if request
            .flags
            .intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT)
        {
            return Err(Errno::INVAL.into());
        }
        let of = |inode: &Arc<dyn Inode>| inode.as_any().downcast_ref::<Self>().map(Self::path);
        let Some(Ok(parent)) = of(request.new_parent) else {
            return Err(Errno::XDEV.into());
        };
        let above = self.path()?;
        if request.source.common().file_type == FileType::Directory && above != parent {
            // The crate would leave `..` as it is.
            let what = "a directory of a FAT stays in its folder: copy it, and remove the old one";
            return Err(Error::new(Errno::XDEV, what));
        }
        let from = joined(&above, text(request.name)?);
        let to = joined(&parent, text(request.new_name)?);
        let replaces = request.replaced.is_some();
        self.volume.change(move |fat| {
            let root = fat.root_dir();
            if replaces {
                root.remove(&to)?;
            }
            root.rename(&from, &root, &to)
        })?;
        if let Some(replaced) = request
            .replaced
            .and_then(|inode| inode.as_any().downcast_ref::<Self>())
        {
            replaced.set_removed();
        }
        let source = request.source.as_any().downcast_ref::<Self>();
        let above = request.new_parent.as_any().downcast_ref::<Self>();
        if let (Some(source), Some(above)) = (source, above) {
            let mut path = source.path.lock().unwrap_or_else(PoisonError::into_inner);
            path.above = Some(above.path.clone());
            text(request.new_name)?.clone_into(&mut path.name);
        }
        Ok(())
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let path = self.path()?;
        let at = path.clone();
        let found = self
            .volume
            .call(move |fat| entries(&directory(fat, &at)?))?;
        let dots = [(".", self.common.number), ("..", self.parent_number()?)];
        let dots = dots.map(|(name, number)| (name.to_owned(), number, FileType::Directory));
        let files = found.into_iter().map(|entry| {
            let file_type = if entry.is_directory {
                FileType::Directory
            } else {
                FileType::Regular
            };
            let number = InodeNumber(number(&joined(&path, &entry.name)));
            (entry.name, number, file_type)
        });
        for ((name, number, file_type), at) in dots.into_iter().chain(files).zip(1..) {
            if at <= cookie {
                continue;
            }
            let entry = DirectoryEntry {
                name: name.as_bytes(),
                number,
                file_type: Some(file_type),
                next_cookie: at,
            };
            if sink(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        let path = self.path()?;
        let above = path.rsplit_once('/').map(|(above, _)| number(above));
        Ok(InodeNumber(above.unwrap_or(ROOT_NUMBER)))
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        self.volume.sync()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileOperations for FatInode {
    fn write_begin(&self, _: &Credentials, _: u64, _: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn write_end(&self, _: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (path, len) = (self.path()?, buf.len());
        let bytes = self.volume.call(move |fat| {
            let mut file = fat.root_dir().open_file(&path)?;
            if file.seek(SeekFrom::Start(offset))? < offset {
                return Ok(Vec::new());
            }
            let mut bytes = Vec::with_capacity(len);
            file.take(len as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        })?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write(
        &self,
        _: &Credentials,
        at: WriteAt,
        source: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => self.common.attributes().size_bytes,
        };
        let bytes = source.with_slices(|slices| {
            slices
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .collect::<Vec<u8>>()
        });
        let (path, len) = (self.path()?, bytes.len());
        let end = offset.saturating_add(len as u64);
        if end > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        self.volume.change(move |fat| {
            let mut file = fat.root_dir().open_file(&path)?;
            seek_filled(&mut file, offset)?;
            file.write_all(&bytes)
        })?;
        let now = self.volume.clock.now();
        self.update(|attributes| {
            attributes.size_bytes = attributes.size_bytes.max(end);
            attributes.modified = now;
        });
        Ok((offset, len))
    }

    fn fallocate(&self, _: &Credentials, _: FallocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// A FAT has no holes.
    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let size = self.common.attributes().size_bytes;
        Ok((offset < size).then_some(match kind {
            SeekKind::Data => offset,
            SeekKind::Hole => size,
        }))
    }
}
