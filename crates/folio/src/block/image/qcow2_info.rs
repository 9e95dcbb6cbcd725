//! The facts that a qcow2 header states, for `folio image info`.

use super::create_options::{Compat, Compression, DataFileName};

/// Properties of a qcow2 image, as `qemu-img info` reports them.
#[derive(Debug, Clone)]
pub struct Qcow2Info {
    /// Size of the disk in bytes.
    pub len_bytes: u64,
    /// Size of a cluster in bytes.
    pub cluster_bytes: u64,
    /// The kind of encryption, as qemu-img names it. An encrypted image is not opened.
    pub encryption: Option<&'static str>,
    /// Version of the format.
    pub compat: Compat,
    /// Compression of compressed clusters.
    pub compression: Compression,
    /// Refcounts in the file may be stale while the image is in use.
    pub lazy_refcounts: bool,
    /// Size of a refcount in bits.
    pub refcount_bits: u32,
    /// A program marked the image corrupt.
    pub is_corrupt: bool,
    /// The image was not closed.
    pub is_dirty: bool,
    /// L2 entries describe the subclusters of a cluster.
    pub extended_l2: bool,
    /// The external data file, if the guest's data is stored outside the image.
    pub data_file: Option<DataFileName>,
    /// Name of the backing file, as written in the image.
    pub backing_name: Option<String>,
    /// Format of the backing file, as written in the image.
    pub backing_format: Option<String>,
}
