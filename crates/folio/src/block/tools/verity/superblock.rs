//! The superblock of a hash tree, as veritysetup(8) writes it.

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes per block of data and of hashes, in new trees.
pub const BLOCK_BYTES: u64 = 4096;
/// Sizes of blocks that are read.
const BLOCK_BYTES_RANGE: std::ops::RangeInclusive<u32> = 512..=65_536;

/// Sizes of blocks that the format has. cryptsetup: lib/verity/verity.h.
const FORMAT_RANGE: std::ops::RangeInclusive<u32> = 512..=512 << 10;

const SIGNATURE: [u8; 8] = *b"verity\0\0";
const VERSION: u32 = 1;
/// The salt precedes the block in the digest. Chrome OS's type 0 has it behind the block.
const HASH_TYPE: u32 = 1;
const ALGORITHM: &[u8] = b"sha256";
const SALT_BYTES_MAX: usize = 256;

/// cryptsetup: lib/verity/verity.c, `struct verity_sb`.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    signature: [u8; 8],
    version: U32,
    hash_type: U32,
    uuid: [u8; 16],
    algorithm: [u8; 32],
    data_block_size: U32,
    hash_block_size: U32,
    data_blocks: U64,
    salt_size: U16,
    pad1: [u8; 6],
    salt: [u8; SALT_BYTES_MAX],
    pad2: [u8; 168],
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES as usize);

/// Bytes of the superblock.
pub(super) const SUPERBLOCK_BYTES: u64 = 512;

/// The parameters of a hash tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VeritySuperblock {
    /// UUID, as text prints it.
    pub uuid: [u8; 16],
    /// Number of blocks of data.
    pub data_blocks: u64,
    /// Bytes per block of data: a power of two.
    pub data_block_bytes: u32,
    /// Bytes per block of hashes: a power of two.
    pub hash_block_bytes: u32,
    /// Hashed before each block, at most 256 bytes.
    pub salt: Vec<u8>,
}

impl VeritySuperblock {
    /// Returns the superblock of a new tree, with blocks of 4096 bytes.
    ///
    /// # Errors
    ///
    /// EINVAL for a salt of more than 256 bytes.
    pub fn new(uuid: [u8; 16], data_blocks: u64, salt: Vec<u8>) -> Result<Self> {
        if salt.len() > SALT_BYTES_MAX {
            let what = format!(
                "a salt of {} bytes: at most {SALT_BYTES_MAX} allowed",
                salt.len()
            );
            return Err(Error::new(Errno::INVAL, what));
        }
        Ok(Self {
            uuid,
            data_blocks,
            data_block_bytes: BLOCK_BYTES as u32,
            hash_block_bytes: BLOCK_BYTES as u32,
            salt,
        })
    }

    /// Reads the superblock at `offset` of `device`; returns `None` without its signature.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for another version, hash type or algorithm, EUCLEAN for sizes that contradict
    /// the format; else the device's errors.
    pub fn read(device: &dyn Device, offset: u64) -> Result<Option<Self>> {
        let is_inside = offset
            .checked_add(SUPERBLOCK_BYTES)
            .is_some_and(|end| end <= device.len_bytes());
        if !is_inside {
            return Ok(None);
        }
        let mut bytes = [0; SUPERBLOCK_BYTES as usize];
        device.read_at(&mut bytes, offset)?;
        let Ok(raw) = RawSuperblock::read_from_bytes(&bytes) else {
            return Ok(None);
        };
        if raw.signature != SIGNATURE {
            return Ok(None);
        }
        let at = |error: Error| error.at("verity superblock");
        Self::from_raw(&raw).map(Some).map_err(at)
    }

    fn from_raw(raw: &RawSuperblock) -> Result<Self> {
        let (version, hash_type) = (raw.version.get(), raw.hash_type.get());
        if version != VERSION || hash_type != HASH_TYPE {
            let what = format!("version {version} with hash type {hash_type}");
            return Err(Error::unsupported(what));
        }
        let name = raw.algorithm.split(|byte| *byte == 0).next();
        if name != Some(ALGORITHM) {
            let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
            return Err(Error::unsupported(format!("hash algorithm {name:?}")));
        }
        let sizes = [raw.data_block_size.get(), raw.hash_block_size.get()];
        let [data, hash] = sizes;
        let what = format!("blocks of {data} and {hash} bytes");
        let is_size = |size: &u32| size.is_power_of_two() && FORMAT_RANGE.contains(size);
        if !sizes.iter().all(is_size) {
            return Err(Error::corrupt(what));
        }
        if !sizes.iter().all(|size| BLOCK_BYTES_RANGE.contains(size)) {
            return Err(Error::unsupported(what));
        }
        let salt = raw.salt.get(..usize::from(raw.salt_size.get()));
        let salt = salt.ok_or_else(|| Error::corrupt("the salt is longer than its field"))?;
        if raw.data_blocks.get() == 0 {
            return Err(Error::corrupt("no blocks of data"));
        }
        Ok(Self {
            uuid: raw.uuid,
            data_blocks: raw.data_blocks.get(),
            data_block_bytes: sizes[0],
            hash_block_bytes: sizes[1],
            salt: salt.to_vec(),
        })
    }

    /// Returns the bytes on the disk, with the rest of the hash block.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut raw = RawSuperblock {
            signature: SIGNATURE,
            version: VERSION.into(),
            hash_type: HASH_TYPE.into(),
            uuid: self.uuid,
            algorithm: [0; 32],
            data_block_size: self.data_block_bytes.into(),
            hash_block_size: self.hash_block_bytes.into(),
            data_blocks: self.data_blocks.into(),
            salt_size: (self.salt.len() as u16).into(),
            pad1: [0; 6],
            salt: [0; SALT_BYTES_MAX],
            pad2: [0; 168],
        };
        raw.algorithm[..ALGORITHM.len()].copy_from_slice(ALGORITHM);
        raw.salt[..self.salt.len()].copy_from_slice(&self.salt);
        let mut bytes = raw.as_bytes().to_vec();
        bytes.resize(self.hash_block_bytes as usize, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use crate::block::MemoryDevice;

    #[test]
    fn hostile_superblocks_are_refused() {
        let good = VeritySuperblock::new([7; 16], 9, vec![1, 2]).unwrap();
        let read = |at: usize, bytes: &[u8]| {
            let device = MemoryDevice::new(8192);
            device.write_at(&good.to_bytes(), 512).unwrap();
            device.write_at(bytes, 512 + at as u64).unwrap();
            VeritySuperblock::read(&device, 512)
        };
        assert_eq!(read(0, b"verity").unwrap(), Some(good.clone()));
        assert_eq!(read(0, b"VERITY").unwrap(), None);
        for (at, bytes, kind) in [
            (8, &[2][..], ErrorKind::Unsupported),
            (12, &[0], ErrorKind::Unsupported),
            (32, b"sha512", ErrorKind::Unsupported),
            (64, &[1], ErrorKind::Corrupt),
            (68, &[0, 0, 0, 0x80], ErrorKind::Corrupt),
            (72, &[0], ErrorKind::Corrupt),
            (80, &[1, 1], ErrorKind::Corrupt),
        ] {
            assert_eq!(read(at, bytes).unwrap_err().kind(), kind, "byte {at}");
        }
        let device = MemoryDevice::new(600);
        assert_eq!(VeritySuperblock::read(&device, 100).unwrap(), None);
        assert_eq!(VeritySuperblock::read(&device, u64::MAX).unwrap(), None);
        assert!(VeritySuperblock::new([0; 16], 1, vec![0; 257]).is_err());
    }
}
