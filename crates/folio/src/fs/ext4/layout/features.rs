//! Feature flags of ext4, with the names of mke2fs and dumpe2fs.

use crate::base::{Error, Result};
use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`: unknown flags can be ignored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Compat: u32 {
        #[allow(missing_docs)]
        const DIR_PREALLOC = 0x1;
        #[allow(missing_docs)]
        const IMAGIC_INODES = 0x2;
        #[allow(missing_docs)]
        const HAS_JOURNAL = 0x4;
        #[allow(missing_docs)]
        const EXT_ATTR = 0x8;
        #[allow(missing_docs)]
        const RESIZE_INODE = 0x10;
        #[allow(missing_docs)]
        const DIR_INDEX = 0x20;
        #[allow(missing_docs)]
        const SPARSE_SUPER2 = 0x200;
        #[allow(missing_docs)]
        const FAST_COMMIT = 0x400;
        #[allow(missing_docs)]
        const STABLE_INODES = 0x800;
        #[allow(missing_docs)]
        const ORPHAN_FILE = 0x1000;
    }

    /// `s_feature_incompat`: an implementation must not mount a file system with an unknown flag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Incompat: u32 {
        #[allow(missing_docs)]
        const COMPRESSION = 0x1;
        #[allow(missing_docs)]
        const FILETYPE = 0x2;
        #[allow(missing_docs)]
        const NEEDS_RECOVERY = 0x4;
        #[allow(missing_docs)]
        const JOURNAL_DEV = 0x8;
        #[allow(missing_docs)]
        const META_BG = 0x10;
        #[allow(missing_docs)]
        const EXTENT = 0x40;
        #[allow(missing_docs)]
        const BIT64 = 0x80;
        #[allow(missing_docs)]
        const MMP = 0x100;
        #[allow(missing_docs)]
        const FLEX_BG = 0x200;
        #[allow(missing_docs)]
        const EA_INODE = 0x400;
        #[allow(missing_docs)]
        const DIRDATA = 0x1000;
        #[allow(missing_docs)]
        const METADATA_CSUM_SEED = 0x2000;
        #[allow(missing_docs)]
        const LARGE_DIR = 0x4000;
        #[allow(missing_docs)]
        const INLINE_DATA = 0x8000;
        #[allow(missing_docs)]
        const ENCRYPT = 0x10000;
        #[allow(missing_docs)]
        const CASEFOLD = 0x20000;
    }

    /// `s_feature_ro_compat`: an implementation must not write a file system with an unknown flag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct RoCompat: u32 {
        #[allow(missing_docs)]
        const SPARSE_SUPER = 0x1;
        #[allow(missing_docs)]
        const LARGE_FILE = 0x2;
        #[allow(missing_docs)]
        const HUGE_FILE = 0x8;
        #[allow(missing_docs)]
        const UNINIT_BG = 0x10;
        #[allow(missing_docs)]
        const DIR_NLINK = 0x20;
        #[allow(missing_docs)]
        const EXTRA_ISIZE = 0x40;
        #[allow(missing_docs)]
        const QUOTA = 0x100;
        #[allow(missing_docs)]
        const BIGALLOC = 0x200;
        #[allow(missing_docs)]
        const METADATA_CSUM = 0x400;
        #[allow(missing_docs)]
        const READ_ONLY = 0x1000;
        #[allow(missing_docs)]
        const PROJECT = 0x2000;
        #[allow(missing_docs)]
        const SHARED_BLOCKS = 0x4000;
        #[allow(missing_docs)]
        const VERITY = 0x8000;
        #[allow(missing_docs)]
        const ORPHAN_PRESENT = 0x10000;
    }
}

impl Incompat {
    /// Flags that Folio reads.
    pub(crate) const READABLE: Self = Self::FILETYPE
        .union(Self::NEEDS_RECOVERY)
        .union(Self::META_BG)
        .union(Self::EXTENT)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::METADATA_CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);

    /// Flags that Folio also writes.
    pub(crate) const WRITABLE: Self = Self::FILETYPE
        .union(Self::NEEDS_RECOVERY)
        .union(Self::META_BG)
        .union(Self::EXTENT)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::METADATA_CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA)
        .union(Self::CASEFOLD);

    /// Flags of file systems that Folio writes only while they are mounted.
    const MOUNTED_ONLY: Self = Self::MMP;
}

impl RoCompat {
    /// Flags that Folio writes; file systems with other flags can be read.
    pub(crate) const WRITABLE: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::HUGE_FILE)
        .union(Self::UNINIT_BG)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::QUOTA)
        .union(Self::BIGALLOC)
        .union(Self::METADATA_CSUM)
        .union(Self::PROJECT)
        .union(Self::VERITY)
        .union(Self::ORPHAN_PRESENT);

    /// Flags of file systems that Folio writes only while they are mounted.
    const MOUNTED_ONLY: Self = Self::QUOTA.union(Self::BIGALLOC);
}

/// The three sets of flags of a file system; unknown bits are preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    /// Flags that may be ignored.
    pub(crate) compat: Compat,
    /// Flags that must be known.
    pub(crate) incompat: Incompat,
    /// Flags that must be known for writing.
    pub(crate) ro_compat: RoCompat,
}

impl Features {
    /// The flags of a new file system, as in mke2fs 1.47.
    pub(crate) const DEFAULT: Self = Self {
        compat: Compat::HAS_JOURNAL
            .union(Compat::EXT_ATTR)
            .union(Compat::RESIZE_INODE)
            .union(Compat::DIR_INDEX)
            .union(Compat::ORPHAN_FILE),
        incompat: Incompat::FILETYPE
            .union(Incompat::EXTENT)
            .union(Incompat::BIT64)
            .union(Incompat::FLEX_BG)
            .union(Incompat::METADATA_CSUM_SEED),
        ro_compat: RoCompat::SPARSE_SUPER
            .union(RoCompat::LARGE_FILE)
            .union(RoCompat::HUGE_FILE)
            .union(RoCompat::DIR_NLINK)
            .union(RoCompat::EXTRA_ISIZE)
            .union(RoCompat::METADATA_CSUM),
    };

    /// Fails with EOPNOTSUPP, naming the features, for features that Folio cannot read.
    pub(crate) fn check_readable(&self) -> Result<()> {
        let unknown = self.incompat.difference(Incompat::READABLE);
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(Error::unsupported(format!(
                "feature {}",
                names(&unknown, "incompat")
            )))
        }
    }

    /// Fails with EOPNOTSUPP, naming the features, for features that Folio cannot write without a
    /// mount.
    pub(crate) fn check_writable_offline(&self) -> Result<()> {
        self.check_writable()?;
        let incompat = self.incompat.intersection(Incompat::MOUNTED_ONLY);
        let ro_compat = self.ro_compat.intersection(RoCompat::MOUNTED_ONLY);
        let named = named(incompat, ro_compat);
        if named.is_empty() {
            Ok(())
        } else {
            let what =
                format!("changing a file system with {named} offline; clear the feature first");
            Err(Error::unsupported(what))
        }
    }

    /// Fails with EOPNOTSUPP, naming the features, for features that Folio cannot write.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let incompat = self.incompat.difference(Incompat::WRITABLE);
        let ro_compat = self.ro_compat.difference(RoCompat::WRITABLE);
        let missing = named(incompat, ro_compat);
        if missing.is_empty() {
            Ok(())
        } else {
            let what = format!("writing a file system with {missing}; open it read-only");
            Err(Error::unsupported(what))
        }
    }
}

impl Features {
    /// Returns the names of all flags that are set, in the order of dumpe2fs.
    pub(crate) fn list(&self) -> Vec<String> {
        let mut list = name_list(&self.compat, |bit| format!("FEATURE_C{bit}"));
        list.extend(name_list(&self.incompat, |bit| format!("FEATURE_I{bit}")));
        list.extend(name_list(&self.ro_compat, |bit| format!("FEATURE_R{bit}")));
        list
    }
}

/// Returns the names of flags of two sets, for messages.
fn named(incompat: Incompat, ro_compat: RoCompat) -> String {
    let parts = [names(&incompat, "incompat"), names(&ro_compat, "ro_compat")];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// Returns the names of flags by bit, as in mke2fs; `unnamed` makes one of the bit's number.
fn name_list<F: bitflags::Flags<Bits = u32>>(
    flags: &F,
    unnamed: impl Fn(u32) -> String,
) -> Vec<String> {
    let name = |bit: u32| {
        let flag = F::from_bits_retain(1 << bit);
        let named = flag.iter_names().next();
        named.map_or_else(
            || unnamed(bit),
            |(name, _)| match name {
                "BIT64" => "64bit".to_owned(),
                "READ_ONLY" => "read-only".to_owned(),
                name => name.to_lowercase(),
            },
        )
    };
    (0..32)
        .filter(|bit| flags.bits() & 1 << bit != 0)
        .map(name)
        .collect()
}

/// Returns the names of flags as in mke2fs; a flag without a name becomes "incompat bit 0x40000".
fn names<F: bitflags::Flags<Bits = u32>>(flags: &F, set: &str) -> String {
    name_list(flags, |bit| format!("{set} bit {:#x}", 1_u32 << bit)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_named() {
        let mut features = Features {
            compat: Compat::empty(),
            incompat: Incompat::EXTENT
                | Incompat::from_bits_retain(0x40000)
                | Incompat::COMPRESSION,
            ro_compat: RoCompat::SHARED_BLOCKS,
        };
        let error = features.check_readable().unwrap_err().to_string();
        assert_eq!(error, "feature compression, incompat bit 0x40000");
        features.incompat = Incompat::EXTENT;
        features.check_readable().unwrap();
        let error = features.check_writable().unwrap_err().to_string();
        assert_eq!(
            error,
            "writing a file system with shared_blocks; open it read-only"
        );
    }
}
