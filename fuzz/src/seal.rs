//! The update of ext4's checksums after damage. Source: the kernel's ext4 documentation.

use super::base::{BaseImage, ImageStructure, StructureClass, crc32c, u16_at, u32_at};

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_low(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

/// Updates the checksum in `bytes`, the changed contents of `structure`; `inode` is its owning
/// inode.
pub(crate) fn seal(base: &BaseImage, structure: &ImageStructure, bytes: &mut [u8], inode: &[u8]) {
    let seed = |inode: &[u8]| {
        let numbered = crc32c(base.seed, &structure.owner.to_le_bytes());
        crc32c(numbered, &inode[0x64..0x68])
    };
    match structure.class {
        StructureClass::Superblock => {
            let crc = crc32c(!0, &bytes[..1020]);
            put(bytes, 1020, crc);
        }
        StructureClass::Group => seal_descriptor(base, structure.owner, bytes),
        StructureClass::Bitmap => {}
        StructureClass::DirectoryInode | StructureClass::FileInode | StructureClass::XattrInode => {
            let seed = seed(bytes);
            seal_inode(seed, bytes);
        }
        StructureClass::Directory => seal_directory(seed(inode), bytes),
        StructureClass::ExtentBlock => {
            let tail = 12 + 12 * usize::from(u16_at(bytes, 4));
            if tail + 4 <= bytes.len() {
                let crc = crc32c(seed(inode), &bytes[..tail]);
                put(bytes, tail, crc);
            }
        }
        StructureClass::XattrBlock => {
            let number = (structure.offset / base.block_size) as u64;
            put(bytes, 16, 0);
            let crc = crc32c(crc32c(base.seed, &number.to_le_bytes()), bytes);
            put(bytes, 16, crc);
        }
    }
}

pub(crate) fn seal_descriptor(base: &BaseImage, group: u32, bytes: &mut [u8]) {
    put_low(bytes, 0x1E, 0);
    let crc = crc32c(crc32c(base.seed, &group.to_le_bytes()), bytes);
    put_low(bytes, 0x1E, crc);
}

/// Stores a bitmap's checksum in its group's descriptor.
pub(crate) fn store_bitmap_checksum(
    base: &BaseImage,
    structure: &ImageStructure,
    bitmap: &[u8],
    descriptor: &mut [u8],
) {
    let is_blocks = u32_at(descriptor, 0) as usize * base.block_size == structure.offset;
    let (field, covered) = if is_blocks { (0x20, 0) } else { (0x28, 2) };
    let len = (u32_at(&base.bytes, 1024 + field) as usize / 8).min(bitmap.len());
    let crc = crc32c(base.seed, &bitmap[..len]);
    put_low(descriptor, 0x18 + covered, crc);
    put_low(descriptor, 0x38 + covered, crc >> 16);
    seal_descriptor(base, structure.owner, descriptor);
}

pub(crate) fn seal_inode(seed: u32, bytes: &mut [u8]) {
    put_low(bytes, 0x7C, 0);
    let has_high = bytes.len() > 128 && u16_at(bytes, 0x80) >= 4;
    if has_high {
        put_low(bytes, 0x82, 0);
    }
    let crc = crc32c(seed, bytes);
    put_low(bytes, 0x7C, crc);
    if has_high {
        put_low(bytes, 0x82, crc >> 16);
    }
}

fn seal_directory(seed: u32, bytes: &mut [u8]) {
    let len = bytes.len();
    let tail = &bytes[len - 12..];
    if u32_at(tail, 0) == 0 && tail[7] == 0xDE {
        let crc = crc32c(seed, &bytes[..len - 12]);
        put(bytes, len - 4, crc);
        return;
    }
    // A node of a hash tree: the list of hashes follows two names and a header, or an empty entry.
    let list = if usize::from(u16_at(bytes, 4)) == len {
        8
    } else {
        0x20
    };
    let (limit, count) = (
        usize::from(u16_at(bytes, list)),
        usize::from(u16_at(bytes, list + 2)),
    );
    let (tail, end) = (list + 8 * limit, list + 8 * count);
    if tail + 8 <= len && end <= len {
        let crc = crc32c(
            crc32c(crc32c(seed, &bytes[..end]), &bytes[tail..tail + 4]),
            &[0; 4],
        );
        put(bytes, tail + 4, crc);
    }
}
