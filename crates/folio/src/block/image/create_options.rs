//! Options of a new image, named as `qemu-img create -o` names them.

use super::format::ImageFormat;
use crate::base::{Detail, Errno, Error};

#[cfg(feature = "qcow2")]
const BACKING_NAME_BYTES_MAX: usize = 1023;

/// How compressed clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// A deflate stream without a zlib header (RFC 1951), which QEMU names zlib.
    Zlib,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// Returns the name, as qemu-img spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

/// An external data file: stores the guest's data outside the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFileName {
    /// Its name, as written in the image; a relative name starts at the image's folder.
    pub name: String,
    /// Its bytes are the disk's bytes, at the same offsets.
    pub is_raw: bool,
}

/// Version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compat {
    /// Version 2: no zero clusters; for QEMU before 1.1.
    V0_10,
    /// Version 3.
    #[default]
    V1_1,
}

impl Compat {
    /// Returns the name, as qemu-img spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V0_10 => "0.10",
            Self::V1_1 => "1.1",
        }
    }
}

/// How much of a new image is allocated when it is created (`qemu-img create -o preallocation=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// The tables, which name a host cluster for every guest cluster; qcow2 only.
    Metadata,
    /// Space of the host as well, by fallocate(2).
    Falloc,
    /// Space of the host as well, by writing zeros.
    Full,
}

impl Preallocation {
    /// Returns the error of a preallocation without growth: EINVAL.
    pub(crate) fn without_growth() -> Error {
        Error::new(Errno::INVAL, "preallocation applies to growing only")
            .about(Detail::PreallocationWithoutGrowth)
    }
}

/// The backing file of a new image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingName {
    /// Its name, stored unchanged; a relative name starts at the image's folder.
    pub name: String,
    /// Its format. Without one, readers detect it by the magic number, and QEMU prints a warning.
    pub format: Option<ImageFormat>,
}

/// Properties of a new image, as `qemu-img create -o` names them.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Size of a cluster in bytes: a power of two from 512 to 2 MiB.
    pub cluster_bytes: u32,
    /// Version of the format.
    pub compat: Compat,
    /// Size of a refcount in bits: a power of two from 1 to 64.
    pub refcount_bits: u32,
    /// Refcounts in the file may be stale while the image is in use.
    pub lazy_refcounts: bool,
    /// Compression of compressed clusters.
    pub compression: Compression,
    /// L2 entries that describe the 32 subclusters of a cluster.
    pub extended_l2: bool,
    /// The backing file, if the image stores only the differences to one.
    pub backing: Option<BackingName>,
    /// The external data file, if the guest's data is stored outside the image.
    pub data_file: Option<DataFileName>,
    /// How much is allocated at creation; also for raw images. Over a backing file it needs
    /// `extended_l2`. With a raw data file the tables are allocated in any case.
    pub preallocation: Preallocation,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            cluster_bytes: 64 << 10,
            compat: Compat::V1_1,
            refcount_bits: 16,
            lazy_refcounts: false,
            compression: Compression::Zlib,
            extended_l2: false,
            backing: None,
            data_file: None,
            preallocation: Preallocation::Off,
        }
    }
}

#[cfg(feature = "qcow2")]
impl CreateOptions {
    /// Rejects options that contradict each other or the format.
    ///
    /// # Errors
    ///
    /// EINVAL with the option at fault.
    pub(crate) fn check(&self) -> crate::base::Result<()> {
        let refuse = |what: &'static str| Err(Error::new(Errno::INVAL, what));
        let refuse_about =
            |detail: Detail, what: &'static str| Err(Error::new(Errno::INVAL, what).about(detail));
        if !self.cluster_bytes.is_power_of_two() || !(512..=2 << 20).contains(&self.cluster_bytes) {
            return refuse_about(
                Detail::InvalidClusterSize,
                "invalid cluster size: expected a power of two from 512 bytes to 2 MiB",
            );
        }
        if !self.refcount_bits.is_power_of_two() || self.refcount_bits > 64 {
            return refuse_about(
                Detail::InvalidRefcountWidth,
                "invalid refcount width: expected a power of two from 1 to 64 bits",
            );
        }
        if self.extended_l2 && self.cluster_bytes < 16 << 10 {
            return refuse("extended L2 entries need clusters of at least 16 KiB");
        }
        if self
            .backing
            .as_ref()
            .is_some_and(|backing| backing.name.len() > BACKING_NAME_BYTES_MAX)
        {
            return refuse("the name of the backing file is longer than 1023 bytes");
        }
        if self.backing.is_some() && self.data_file.as_ref().is_some_and(|file| file.is_raw) {
            return refuse("a raw data file and a backing file exclude each other");
        }
        if self.backing.is_some() && self.preallocation != Preallocation::Off && !self.extended_l2 {
            return refuse("preallocation over a backing file needs extended L2 entries");
        }
        if self.compat == Compat::V1_1 {
            return Ok(());
        }
        match () {
            () if self.refcount_bits != 16 => refuse_about(
                Detail::RefcountWidthNeedsVersion3,
                "refcounts of other than 16 bits need compat 1.1",
            ),
            () if self.lazy_refcounts => refuse_about(
                Detail::LazyRefcountsNeedVersion3,
                "lazy refcounts need compat 1.1",
            ),
            () if self.compression != Compression::Zlib => refuse("zstd needs compat 1.1"),
            () if self.extended_l2 => refuse("extended L2 entries need compat 1.1"),
            () if self.data_file.is_some() => refuse("an external data file needs compat 1.1"),
            () => Ok(()),
        }
    }
}
