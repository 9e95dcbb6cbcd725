//! A device as the only file of a file system: each read of the file is a read of the device. It is
//! the backing file of a loop device.

use folio::block::Device;
use folio::cache::{CacheOptions, Mapping, PageCache};
use folio::vfs::{
    AttrValidity, AttributeCell, AttributeChange, Attributes, Credentials, DirectoryEntry,
    FileOperations, FileSystem, FileSystemStatistics, FileType, Inode, InodeCommon, InodeLock,
    InodeNumber,
};
use folio::{Errno, Result};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Name of the file.
pub(super) const NAME: &str = "disk";

const ROOT: InodeNumber = InodeNumber(1);
const FILE: InodeNumber = InodeNumber(2);
/// `f_type`, and the size of blocks that statfs(2) counts.
const MAGIC: u64 = 0x666f_6c69;
const BLOCK: u32 = 4096;

/// The file system, which cannot be changed.
pub(super) struct DeviceFileSystem {
    root: Arc<Root>,
}

struct Root {
    common: InodeCommon,
    file: Arc<DeviceFile>,
}

struct DeviceFile {
    common: InodeCommon,
    device: Arc<dyn Device>,
    /// The mapping's, which never holds a page: reads go past it.
    _cache: Arc<PageCache>,
}

impl DeviceFileSystem {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        let mut options = CacheOptions::default();
        options.background_writeback = false;
        let cache = PageCache::new(options);
        let size_bytes = device.len_bytes();
        let mapping = Mapping::without_store(&cache.writeback(), size_bytes, None);
        let mut common = self::common(FILE, FileType::Regular, 0o400, size_bytes);
        common.mapping = Some(mapping);
        // The cached data is never valid, so every read is a call of this file system.
        common.validity = Some(AttrValidity::uncached());
        let file = Arc::new(DeviceFile {
            common,
            device,
            _cache: cache,
        });
        let common = self::common(ROOT, FileType::Directory, 0o500, 0);
        Self {
            root: Arc::new(Root { common, file }),
        }
    }
}

fn common(number: InodeNumber, file_type: FileType, mode: u16, size_bytes: u64) -> InodeCommon {
    let attributes = AttributeCell::new(&Attributes {
        size_bytes,
        blocks_512: size_bytes / 512,
        block_size: BLOCK,
        ..Attributes::new(number, file_type, mode)
    });
    InodeCommon {
        number,
        file_type,
        lock: InodeLock::default(),
        mapping: None,
        attributes,
        validity: None,
    }
}

impl FileSystem for DeviceFileSystem {
    fn kind(&self) -> &'static str {
        "device"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        let blocks = self.root.file.device.len_bytes() / u64::from(BLOCK);
        Ok(FileSystemStatistics {
            magic: MAGIC,
            block_size: BLOCK,
            blocks,
            inodes: 2,
            name_max: 255,
            ..Default::default()
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

impl Inode for Root {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok((name == NAME.as_bytes()).then(|| self.file.clone() as Arc<dyn Inode>))
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = (ROOT, FileType::Directory);
        let entries = [
            (&b"."[..], directory),
            (b"..", directory),
            (NAME.as_bytes(), (FILE, FileType::Regular)),
        ];
        for (at, (name, (number, file_type))) in (1..).zip(entries).filter(|(at, _)| *at > cookie) {
            let entry = DirectoryEntry {
                name,
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
        Ok(ROOT)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Inode for DeviceFile {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        Some(self)
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileOperations for DeviceFile {
    fn write_begin(&self, _caller: &Credentials, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn write_end(&self, _written_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.device.len_bytes().saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            self.device.read_at(&mut buf[..len], offset)?;
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::Kernel;
    use folio::block::MemoryDevice;
    use folio::syscall::OpenFlags;
    use folio::vfs::MountOptions;

    #[test]
    fn the_file_is_the_device() {
        let device = Arc::new(MemoryDevice::new(10_000));
        device.write_at(b"bytes", 9_000).unwrap();
        let kernel = Kernel::new(Default::default());
        let mounted: Arc<dyn FileSystem> = Arc::new(DeviceFileSystem::new(device.clone()));
        kernel
            .mount(mounted, "/", &MountOptions::default())
            .unwrap();
        let process = kernel.process(Credentials::root());
        let fd = process.open("/disk", OpenFlags::empty(), 0).unwrap();
        assert_eq!(process.fstat(fd).unwrap().size_bytes, 10_000);
        let mut bytes = [1; 2000];
        assert_eq!(process.pread(fd, &mut bytes, 9_000).unwrap(), 1000);
        assert_eq!(
            (&bytes[..6], bytes[999], bytes[1000]),
            (&b"bytes\0"[..], 0, 1)
        );
        // Not what was read before.
        device.write_at(b"other", 9_000).unwrap();
        process.pread(fd, &mut bytes, 9_000).unwrap();
        assert_eq!(&bytes[..5], b"other");
        assert_eq!(process.pread(fd, &mut bytes, 10_000).unwrap(), 0);
        assert!(process.open("/disk", OpenFlags::WRONLY, 0).is_err());
        assert!(process.open("/other", OpenFlags::empty(), 0).is_err());
    }
}
