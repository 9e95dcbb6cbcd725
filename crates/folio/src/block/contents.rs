//! Kinds of file systems on devices, and the names of other formats.

use super::device::Device;
use crate::base::Result;
use std::fmt;

/// Bytes at the start of a disk that are examined.
const HEAD_BYTES: usize = 128 << 10;

/// Format, offset of its magic number, the magic number.
const MAGICS: [(&str, usize, &[u8]); 26] = [
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("f2fs", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    (
        "bcachefs",
        4120,
        &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA],
    ),
    ("squashfs", 0, b"hsqs"),
    ("erofs", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("iso9660", 0x8001, b"CD001"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("fat", 54, b"FAT1"),
    ("fat", 82, b"FAT32   "),
    ("swap", 4086, b"SWAPSPACE2"),
    ("a verity tree", 0, b"verity\0\0"),
    ("a LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("an LVM volume", 536, b"LVM2 001"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VDI image", 0x40, &[0x7F, 0x10, 0xDA, 0xBE]),
    ("a VHDX image", 0, b"vhdxfile"),
    ("a VHD image", 0, b"conectix"),
    ("a qcow2 image", 0, b"QFI\xFB"),
    ("gzip data", 0, &[0x1F, 0x8B]),
    ("xz data", 0, b"\xFD7zXZ\0"),
    ("zstd data", 0, &[0x28, 0xB5, 0x2F, 0xFD]),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("a tar archive", 257, b"ustar"),
    ("a cpio archive", 0, b"070701"),
];

/// Returns the name of what a disk or partition without ext4 holds, as far as it is known.
///
/// # Errors
///
/// The device's errors.
pub fn contents(device: &dyn Device) -> Result<Option<&'static str>> {
    let len = usize::try_from(device.len_bytes()).unwrap_or(usize::MAX);
    let mut head = vec![0; len.min(HEAD_BYTES)];
    device.read_at(&mut head, 0)?;
    let found = MAGICS.iter().find(|(_, offset, magic)| {
        let bytes = head.get(*offset..*offset + magic.len());
        bytes.is_some_and(|bytes| bytes == *magic)
    });
    Ok(match found {
        Some((name, ..)) => Some(name),
        None if head.iter().all(|byte| *byte == 0) => Some("only zeros"),
        None => None,
    })
}

/// A kind of file system that Folio mounts from a device, if it was built with its feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSystemKind {
    /// ext2, ext3 or ext4.
    Ext4,
    /// FAT12, FAT16 or FAT32.
    Fat,
    /// squashfs 4.
    Squashfs,
    /// erofs.
    Erofs,
}

impl FileSystemKind {
    /// Returns the kind of the file system that `device` starts with, by its magic number; `None`
    /// without one that Folio mounts.
    ///
    /// # Errors
    ///
    /// The device's errors.
    pub fn of(device: &dyn Device) -> Result<Option<Self>> {
        // First, as mke2fs leaves a boot sector as it is, and with it the name of an earlier FAT.
        if holds_ext4(device)? {
            return Ok(Some(Self::Ext4));
        }
        Ok(match contents(device)? {
            Some("fat") => Some(Self::Fat),
            Some("squashfs") => Some(Self::Squashfs),
            Some("erofs") => Some(Self::Erofs),
            _ => None,
        })
    }
}

impl fmt::Display for FileSystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Fat => "fat",
            Self::Squashfs => "squashfs",
            Self::Erofs => "erofs",
        })
    }
}

/// Whether `device` starts with an ext2, ext3 or ext4 file system, by its magic number. Reads two
/// bytes.
pub(crate) fn holds_ext4(device: &dyn Device) -> Result<bool> {
    const MAGIC_OFFSET: u64 = 1024 + 56;
    const MAGIC: [u8; 2] = 0xef53u16.to_le_bytes();
    let mut magic = [0; 2];
    if device.len_bytes() < MAGIC_OFFSET + 2 {
        return Ok(false);
    }
    device.read_at(&mut magic, MAGIC_OFFSET)?;
    Ok(magic == MAGIC)
}

/// Returns the words about a disk or partition that holds `name` and no ext4.
pub(crate) fn foreign_contents(name: &str) -> String {
    let reads = match name {
        "only zeros" => "",
        _ => "; Folio reads ext4, FAT, squashfs and erofs",
    };
    format!("it holds {name}{reads}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn contents_are_named_by_magic() {
        let named = |offset: u64, magic: &[u8]| {
            let device = MemoryDevice::new(1 << 20);
            device.write_at(magic, offset).unwrap();
            contents(&device).unwrap()
        };
        for (name, offset, magic) in MAGICS {
            assert_eq!(named(offset as u64, magic), Some(name));
        }
        assert_eq!(named(0, &[0]), Some("only zeros"));
        assert_eq!(named(7, &[1]), None);
        assert_eq!(contents(&MemoryDevice::new(0)).unwrap(), Some("only zeros"));
    }
}
