//! The VFS's view of a FAT: inodes, their names and attributes.

use super::changes::{NewFile, Rename};
use super::entry::Entry;
use super::names::fold;
use super::time::{from_fat, to_fat};
use super::volume::{ROOT_NUMBER, State, Volume};
use crate::base::{Clock, DeviceNumber, Errno, Error, InodeNumber, Result, Timespec};
use crate::block::Device;
use crate::cache::WriteSource;
use crate::vfs::Credentials;
use crate::vfs::{
    AttributeChange, Attributes, DirectoryEntry, FallocateMode, FileOperations, FileSystem,
    FileSystemStatistics, FileType, Inode, InodeCommon, NameFolding, NewInode, RenameFlags,
    RenameRequest, SeekKind, SetTime, WriteAt,
};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

/// `f_type` of statfs(2).
const MAGIC: u64 = 0x4d44;
/// Longest name in bytes: 255 UTF-16 code units.
const NAME_MAX: u32 = 765;
/// Largest file.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Modes of all files and directories, as by the mount option umask=022.
const MODE: u16 = 0o755;
/// Names that one step of a listing reads.
const LISTED_NAMES: usize = 256;
/// Cookies of `.` and `..`; that of a slot follows.
const DOT_COOKIES: u64 = 2;

/// A mounted FAT.
pub struct FatFileSystem {
    volume: Arc<Volume>,
    root: Arc<FatInode>,
}

/// A file or directory.
pub(crate) struct FatInode {
    common: InodeCommon,
    volume: Arc<Volume>,
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
        let entry = Entry::new(b"           ", true, 0, epoch);
        let root = Arc::new(FatInode::new(&volume, &entry, ROOT_NUMBER));
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
        self.volume.read(|state| {
            let free = u64::from(state.disk.free_count()?);
            Ok(FileSystemStatistics {
                magic: MAGIC,
                block_size: state.disk.geometry.cluster_bytes as u32,
                blocks: state.disk.geometry.cluster_count.into(),
                blocks_free: free,
                blocks_available: free,
                inodes: 0,
                inodes_free: 0,
                name_max: NAME_MAX,
            })
        })
    }

    fn sync(&self) -> Result<()> {
        self.volume.sync()
    }

    fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.volume.freeze_while(work)
    }

    fn unmount(&self) -> Result<()> {
        self.volume.close()
    }

    fn is_read_only(&self) -> bool {
        self.volume.is_read_only
    }
}

impl FatInode {
    fn new(volume: &Arc<Volume>, entry: &Entry, number: u64) -> Self {
        let is_directory = entry.is_directory();
        let len_bytes = if is_directory {
            0
        } else {
            u64::from(entry.len_bytes())
        };
        let attributes = Attributes {
            number: InodeNumber(number),
            file_type: file_type(is_directory),
            mode: MODE,
            uid: 0,
            gid: 0,
            link_count: 1 + u32::from(is_directory),
            size_bytes: len_bytes,
            blocks_512: len_bytes.div_ceil(512),
            block_size: 4096,
            device: DeviceNumber::default(),
            accessed: entry.accessed(),
            modified: entry.modified(),
            changed: entry.modified(),
            created: Some(entry.created()),
        };
        Self {
            common: InodeCommon::new(&attributes, None),
            volume: volume.clone(),
        }
    }

    fn number(&self) -> u64 {
        self.common.number.0
    }

    /// Returns the inode of the entry at a place, the same one while it is in memory.
    fn inode_at(&self, state: &mut State, slot_offset: u64) -> Result<Arc<dyn Inode>> {
        if let Some(inode) = state.inode(slot_offset) {
            return Ok(inode);
        }
        let entry = state.entry(slot_offset)?;
        let inode = Self::new(&self.volume, &entry, state.number(slot_offset));
        let inode: Arc<dyn Inode> = Arc::new(inode);
        state.add_node(self.number(), slot_offset, &entry, Arc::downgrade(&inode));
        Ok(inode)
    }

    /// Changes the attributes in memory.
    fn update(&self, change: impl FnOnce(&mut Attributes)) {
        let mut attributes = self.common.attributes();
        change(&mut attributes);
        attributes.blocks_512 = attributes.size_bytes.div_ceil(512);
        self.common.attributes.store(&attributes);
    }

    /// Returns the time of a change, in the resolution of FAT.
    fn now(&self) -> Timespec {
        from_fat(to_fat(self.volume.clock.now()))
    }

    /// Sets the times of a directory whose names changed.
    fn set_changed(&self, now: Timespec) -> Result<()> {
        self.volume.change(|state| {
            let (disk, node) = state.node(self.number())?;
            node.change_entry(disk, |entry| entry.set_modified(now))
        })?;
        self.update(|attributes| (attributes.modified, attributes.changed) = (now, now));
        Ok(())
    }

    fn remove(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let (name, number) = (text(name)?, target.common().number.0);
        self.volume
            .change(|state| state.remove(self.number(), name, number))?;
        set_unlinked(target);
        self.set_changed(self.now())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let now = self.now();
        self.volume.change(|state| {
            let (disk, node) = state.node(self.number())?;
            node.set_len(disk, size, now)
        })?;
        self.update(|attributes| {
            attributes.size_bytes = size;
            (attributes.modified, attributes.changed) = (now, now);
        });
        Ok(())
    }

    fn set_times(&self, accessed: Option<SetTime>, modified: Option<SetTime>) -> Result<()> {
        let time = |set: SetTime| match set {
            SetTime::Now => self.volume.clock.now(),
            SetTime::To(time) => time,
        };
        let mut stored = None;
        self.volume.change(|state| {
            let (disk, node) = state.node(self.number())?;
            node.change_entry(disk, |entry| {
                if let Some(accessed) = accessed {
                    entry.set_accessed(time(accessed));
                }
                if let Some(modified) = modified {
                    entry.set_modified(time(modified));
                }
                stored = Some((entry.accessed(), entry.modified()));
            })
        })?;
        if let Some((accessed, modified)) = stored {
            self.update(|attributes| {
                attributes.accessed = accessed;
                (attributes.modified, attributes.changed) = (modified, modified);
            });
        }
        Ok(())
    }
}

impl Drop for FatInode {
    fn drop(&mut self) {
        self.volume
            .release(self.number(), std::ptr::from_ref(self).cast());
    }
}

fn file_type(is_directory: bool) -> FileType {
    if is_directory {
        FileType::Directory
    } else {
        FileType::Regular
    }
}

fn text(name: &[u8]) -> Result<&str> {
    Ok(std::str::from_utf8(name).map_err(|_| Errno::NOENT)?)
}

fn set_unlinked(inode: &Arc<dyn Inode>) {
    if let Some(inode) = inode.as_any().downcast_ref::<FatInode>() {
        inode.update(|attributes| attributes.link_count = 0);
    }
}

/// Returns the form of a name that all names have which are the same name in a FAT.
fn fold_bytes(name: &[u8]) -> Option<Vec<u8>> {
    Some(fold(std::str::from_utf8(name).ok()?).into_bytes())
}

impl Inode for FatInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        (self.common.file_type == FileType::Regular).then_some(self)
    }

    /// Sets size and times. Owners and modes have no place in a FAT.
    fn set_attributes(&self, _caller: &Credentials, change: &AttributeChange) -> Result<()> {
        if let Some(size) = change.size_bytes {
            self.set_size(size)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            self.set_times(change.accessed, change.modified)?;
        }
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        let Ok(name) = text(name) else {
            return Ok(None);
        };
        self.volume.read(|state| {
            let Some((_, slot_offset)) = state.find(self.number(), name)? else {
                return Ok(None);
            };
            self.inode_at(state, slot_offset).map(Some)
        })
    }

    /// Upper and lower case are the same, so a file has one inode whatever the case of its name.
    fn name_folding(&self) -> Option<NameFolding> {
        (self.common.file_type == FileType::Directory).then_some(fold_bytes as NameFolding)
    }

    fn stored_name(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(name) = text(name) else {
            return Ok(None);
        };
        self.volume.read(|state| {
            let (_, _, directory) = state.directory(self.number())?;
            let name = directory.find(name).and_then(|slot| directory.name(slot));
            Ok(name.map(|name| name.text.clone().into_bytes()))
        })
    }

    fn create(
        &self,
        _caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        if !matches!(new.file_type, FileType::Regular | FileType::Directory) {
            let what = "FAT has only files and directories";
            return Err(Error::new(Errno::PERM, what));
        }
        let now = self.volume.clock.now();
        let inode = self.volume.change(|state| {
            let new = NewFile {
                name,
                is_directory: new.file_type == FileType::Directory,
                now,
            };
            let slot_offset = state.create(self.number(), &new)?;
            self.inode_at(state, slot_offset)
        })?;
        self.set_changed(self.now())?;
        Ok(inode)
    }

    fn link(&self, _: &Credentials, _: &[u8], _: &Arc<dyn Inode>) -> Result<()> {
        Err(Error::new(Errno::PERM, "FAT has no hard links"))
    }

    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.remove(name, target)
    }

    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.remove(name, target)
    }

    fn rename(&self, request: &RenameRequest<'_>) -> Result<()> {
        if request
            .flags
            .intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT)
        {
            return Err(Errno::INVAL.into());
        }
        let number = |inode: &Arc<dyn Inode>| inode.common().number.0;
        let rename = Rename {
            source: number(request.source),
            parent: self.number(),
            name: text(request.name)?,
            new_parent: number(request.new_parent),
            new_name: request.new_name,
            replaced: request.replaced.map(number),
        };
        self.volume.change(|state| state.rename(&rename))?;
        request.replaced.into_iter().for_each(set_unlinked);
        let now = self.now();
        if let Some(parent) = request.new_parent.as_any().downcast_ref::<Self>() {
            parent.set_changed(now)?;
        }
        self.set_changed(now)
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut emit = |name: &str, number, is_directory, next_cookie| {
            sink(&DirectoryEntry {
                name: name.as_bytes(),
                number: InodeNumber(number),
                file_type: Some(file_type(is_directory)),
                next_cookie,
            })
        };
        let dots = [(".", self.number()), ("..", self.parent_number()?.0)];
        for ((name, number), next) in dots.into_iter().zip(1..) {
            if cookie < next && emit(name, number, true, next).is_break() {
                return Ok(());
            }
        }
        let mut slot = cookie.saturating_sub(DOT_COOKIES).min(u32::MAX.into()) as u32;
        loop {
            let names = self
                .volume
                .read(|state| state.list(self.number(), slot, LISTED_NAMES))?;
            for (at, name, number) in &names {
                let next = u64::from(*at) + DOT_COOKIES + 1;
                if emit(&name.text, *number, name.is_directory, next).is_break() {
                    return Ok(());
                }
            }
            let Some((last, ..)) = names.last() else {
                return Ok(());
            };
            slot = last + 1;
        }
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        self.volume.read(|state| {
            let (_, node) = state.node(self.number())?;
            Ok(InodeNumber(node.parent))
        })
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
        self.volume.read(|state| {
            let (disk, node) = state.node(self.number())?;
            node.read(disk, offset, buf)
        })
    }

    /// Writes fewer bytes than there are if there is no space for all.
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
        if offset.saturating_add(source.len() as u64) > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let now = self.now();
        let write = |bytes: &[u8]| {
            self.volume.change(|state| {
                let (disk, node) = state.node(self.number())?;
                node.write(disk, offset, bytes, now)
            })
        };
        let count = source.with_slices(|slices| match slices {
            [bytes] => write(bytes),
            _ => write(
                &slices
                    .iter()
                    .flat_map(|bytes| bytes.iter().copied())
                    .collect::<Vec<_>>(),
            ),
        })?;
        let end = offset + count as u64;
        self.update(|attributes| {
            attributes.size_bytes = attributes.size_bytes.max(end);
            (attributes.modified, attributes.changed) = (now, now);
        });
        Ok((end, count))
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
