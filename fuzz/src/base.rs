//! The base image: small, with every kind of structure, and a map of their offsets.

use super::exercise::{self, DATA};
use folio::block::{Device, MemoryDevice, OverlayDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{AT_FDCWD, OpenFlags};
use folio::vfs::{DeviceNumber, FallocateMode, FileType, MountOptions, XattrFlags};
use std::sync::{Arc, OnceLock};

const IMAGE_BYTES: u64 = 8 << 20;
const ROOT_INODE: u32 = 2;
pub(crate) const JOURNAL_INODE: u32 = 8;
const FLAG_INDEX: u32 = 0x1000;
const FLAG_EXTENTS: u32 = 0x8_0000;

/// The class of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StructureClass {
    Superblock,
    Group,
    Bitmap,
    DirectoryInode,
    FileInode,
    /// The inode of a file with extended attributes.
    XattrInode,
    Directory,
    ExtentBlock,
    XattrBlock,
}

/// One structure of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageStructure {
    pub(crate) class: StructureClass,
    /// First byte in the image.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// The group or inode that owns the structure.
    pub(crate) owner: u32,
    /// First byte of the owning inode.
    pub(crate) owner_offset: usize,
}

/// The intact image.
pub(crate) struct BaseImage {
    pub(crate) bytes: Vec<u8>,
    pub(crate) structures: Vec<ImageStructure>,
    pub(crate) block_size: usize,
    /// Device blocks of the journal, in order.
    pub(crate) journal: Vec<u64>,
    /// Seed of all checksums.
    pub(crate) seed: u32,
    device: Arc<dyn Device>,
}

/// Returns a little-endian number at an offset.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl BaseImage {
    /// Returns the image, which is created once.
    pub(crate) fn get() -> &'static Self {
        static BASE: OnceLock<BaseImage> = OnceLock::new();
        BASE.get_or_init(Self::make)
    }

    /// Returns a writable overlay over the image.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(self.device.clone()))
    }

    /// Returns the offset of inode `number`.
    pub(crate) fn inode_offset(&self, number: u32) -> usize {
        let bytes = &self.bytes;
        let per_group = u32_at(bytes, 1024 + 0x28);
        let size = usize::from(u16_at(bytes, 1024 + 0x58));
        let (group, index) = ((number - 1) / per_group, (number - 1) % per_group);
        let table = u32_at(bytes, self.descriptor_offset(group) + 8) as usize;
        table * self.block_size + index as usize * size
    }

    pub(crate) fn descriptor_offset(&self, group: u32) -> usize {
        let first = u32_at(&self.bytes, 1024 + 0x14) as usize + 1;
        let len = usize::from(u16_at(&self.bytes, 1024 + 0xFE));
        first * self.block_size + group as usize * len
    }

    fn make() -> Self {
        let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
        let options = FormatOptions {
            uuid: Some(*b"folio-fuzz-image"),
            block_size: Some(1024),
            inode_count: Some(512),
            clock: exercise::CLOCK,
            ..FormatOptions::default()
        };
        ext4::format(&*device, &options).expect("the base image can be formatted");
        fill(device.clone());
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        device.read_at(&mut bytes, 0).expect("memory can be read");
        let block_size = 1024 << u32_at(&bytes, 1024 + 0x18);
        let has_seed = u32_at(&bytes, 1024 + 0x60) & 0x2000 != 0;
        let seed = if has_seed {
            u32_at(&bytes, 1024 + 0x270)
        } else {
            crc32c(!0, &bytes[1024 + 0x68..1024 + 0x78])
        };
        let mut base = Self {
            bytes,
            structures: Vec::new(),
            block_size,
            journal: Vec::new(),
            seed,
            device,
        };
        base.find();
        base
    }

    fn find(&mut self) {
        let block_size = self.block_size;
        let blocks = u32_at(&self.bytes, 1024 + 4) - u32_at(&self.bytes, 1024 + 0x14);
        let groups = blocks.div_ceil(u32_at(&self.bytes, 1024 + 0x20));
        let per_group = u32_at(&self.bytes, 1024 + 0x28);
        self.add(StructureClass::Superblock, 1024, 1024, 0, 0);
        for group in 0..groups {
            let at = self.descriptor_offset(group);
            self.add(
                StructureClass::Group,
                at,
                usize::from(u16_at(&self.bytes, 1024 + 0xFE)),
                group,
                0,
            );
            for field in [0, 4] {
                let bitmap = u32_at(&self.bytes, at + field) as usize;
                self.add(
                    StructureClass::Bitmap,
                    bitmap * block_size,
                    block_size,
                    group,
                    0,
                );
            }
        }
        for number in 1..=groups * per_group {
            self.find_in_inode(number);
        }
        assert!(
            self.structures.len() > 40,
            "{} structures",
            self.structures.len()
        );
    }

    fn find_in_inode(&mut self, number: u32) {
        let at = self.inode_offset(number);
        let len = usize::from(u16_at(&self.bytes, 1024 + 0x58));
        let (mode, flags) = (u16_at(&self.bytes, at), u32_at(&self.bytes, at + 0x20));
        let mut extents = Vec::new();
        if mode != 0 && flags & FLAG_EXTENTS != 0 {
            self.walk_extents(at + 0x28, number, at, &mut extents);
        }
        if number == JOURNAL_INODE {
            self.journal = extents
                .iter()
                .flat_map(|(first, len)| *first..first + len)
                .collect();
            return;
        }
        if mode == 0 || (number < 11 && number != ROOT_INODE) {
            return;
        }
        let xattr_block = u32_at(&self.bytes, at + 0x68) as usize;
        let extra_end = at + 128 + usize::from(u16_at(&self.bytes, at + 0x80));
        if xattr_block != 0 {
            self.add(
                StructureClass::XattrBlock,
                xattr_block * self.block_size,
                self.block_size,
                number,
                at,
            );
        }
        if xattr_block != 0 || u32_at(&self.bytes, extra_end) == 0xEA02_0000 {
            self.add(StructureClass::XattrInode, at, len, number, at);
        }
        if mode & 0xF000 != 0x4000 {
            self.add(StructureClass::FileInode, at, len, number, at);
            return;
        }
        // Only a few similar directories.
        if flags & FLAG_INDEX != 0 || number < 20 {
            self.add(StructureClass::DirectoryInode, at, len, number, at);
            for (first, len) in extents {
                for block in first..first + len {
                    self.add(
                        StructureClass::Directory,
                        block as usize * self.block_size,
                        self.block_size,
                        number,
                        at,
                    );
                }
            }
        }
    }

    /// Collects the runs below an extent node.
    fn walk_extents(
        &mut self,
        node: usize,
        number: u32,
        inode: usize,
        extents: &mut Vec<(u64, u64)>,
    ) {
        let (count, depth) = (
            usize::from(u16_at(&self.bytes, node + 2)),
            u16_at(&self.bytes, node + 6),
        );
        for entry in (1..=count).map(|index| node + 12 * index) {
            match depth {
                0 => {
                    let len = u64::from(u16_at(&self.bytes, entry + 4)) & 0x7FFF;
                    extents.push((u32_at(&self.bytes, entry + 8).into(), len));
                }
                _ => {
                    let child = u32_at(&self.bytes, entry + 4) as usize * self.block_size;
                    self.add(
                        StructureClass::ExtentBlock,
                        child,
                        self.block_size,
                        number,
                        inode,
                    );
                    self.walk_extents(child, number, inode, extents);
                }
            }
        }
    }

    fn add(
        &mut self,
        class: StructureClass,
        offset: usize,
        len: usize,
        owner: u32,
        owner_offset: usize,
    ) {
        self.structures.push(ImageStructure {
            class,
            offset,
            len,
            owner,
            owner_offset,
        });
    }
}

/// Creates every kind of structure in the file system on `device`.
fn fill(device: Arc<dyn Device>) {
    let (kernel, process) = exercise::kernel();
    kernel
        .mount_ext4(device, "/disk", &MountOptions::default())
        .expect("the base image can be mounted");
    let done: folio::Result<()> = (|| {
        process.mkdir("/disk/many", 0o755)?;
        for i in 0..120 {
            let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
            process.close(process.open(
                format!("/disk/many/a-rather-long-name-{i}"),
                flags,
                0o644,
            )?)?;
        }
        let flags = OpenFlags::CREAT | OpenFlags::RDWR;
        let fd = process.open("/disk/fragments", flags, 0o644)?;
        for i in 0..300 {
            process.pwrite(fd, &[DATA; 1024], i * 8192)?;
        }
        process.fallocate(fd, FallocateMode::Allocate, 3 << 20, 64 << 10)?;
        process.close(fd)?;
        let fd = process.open("/disk/file", flags, 0o644)?;
        process.write(fd, &[DATA; 100_000])?;
        process.close(fd)?;
        process.setxattr("/disk/file", b"user.small", b"value", XattrFlags::empty())?;
        process.setxattr("/disk/file", b"user.large", &[7; 600], XattrFlags::empty())?;
        process.setxattr("/disk/many", b"user.little", &[7; 20], XattrFlags::empty())?;
        process.link("/disk/file", "/disk/hard")?;
        process.symlink("file", "/disk/short")?;
        process.symlink("x/".repeat(200), "/disk/long")?;
        process.mknodat(
            AT_FDCWD,
            "/disk/node",
            FileType::BlockDevice,
            0o600,
            DeviceNumber::new(8, 1),
        )?;
        (1..5).try_for_each(|depth| process.mkdir(format!("/disk{}", "/deep".repeat(depth)), 0o755))
    })();
    done.expect("the base image can be filled");
    drop(process);
    kernel
        .unmount("/disk")
        .expect("the base image can be unmounted");
}

/// Returns the crc32c register without inversion, as in ext4 and jbd2.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!seed, bytes)
}
