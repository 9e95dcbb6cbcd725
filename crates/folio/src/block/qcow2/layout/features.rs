//! Feature bits of the header, and their names.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("incompatible_features", "compatible_features",
//! "autoclear_features", "Feature name table").

/// Incompatible feature: the refcounts in the file may be stale.
pub(crate) const DIRTY: u64 = 1 << 0;
/// Incompatible feature: a program found the image corrupt.
pub(crate) const CORRUPT: u64 = 1 << 1;
/// Incompatible feature: guest data is stored in an external file.
pub(crate) const DATA_FILE: u64 = 1 << 2;
/// Incompatible feature: the header has a compression type.
pub(crate) const COMPRESSION_TYPE: u64 = 1 << 3;
/// Incompatible feature: L2 entries have 16 bytes and describe subclusters.
pub(crate) const EXTENDED_L2: u64 = 1 << 4;
/// The incompatible features that Folio reads.
pub(crate) const READABLE: u64 = DIRTY | CORRUPT | DATA_FILE | COMPRESSION_TYPE | EXTENDED_L2;

/// Compatible feature: a flush need not write refcounts.
pub(crate) const LAZY_REFCOUNTS: u64 = 1 << 0;

/// Autoclear feature: the bitmaps extension is consistent with the disk.
pub(crate) const AUTOCLEAR_BITMAPS: u64 = 1 << 0;
/// Autoclear feature: the external data file is the disk byte for byte.
pub(crate) const AUTOCLEAR_RAW_DATA_FILE: u64 = 1 << 1;

/// Autoclear features that stay true when the disk changes.
pub(crate) const AUTOCLEAR_KEPT: u64 = AUTOCLEAR_BITMAPS | AUTOCLEAR_RAW_DATA_FILE;

/// Kind of an incompatible feature in the feature name table.
pub(crate) const KIND_INCOMPATIBLE: u8 = 0;
/// Kind (incompatible, compatible, autoclear), bit and name of each known feature.
pub(crate) const FEATURE_NAMES: [(u8, u8, &str); 8] = [
    (KIND_INCOMPATIBLE, 0, "dirty bit"),
    (KIND_INCOMPATIBLE, 1, "corrupt bit"),
    (KIND_INCOMPATIBLE, 2, "external data file"),
    (KIND_INCOMPATIBLE, 3, "compression type"),
    (KIND_INCOMPATIBLE, 4, "extended L2 entries"),
    (1, 0, "lazy refcounts"),
    (2, 0, "bitmaps"),
    (2, 1, "raw external data"),
];
/// Size of an entry of the feature name table in bytes: kind, bit, and the name padded with zeros.
pub(crate) const FEATURE_NAME_BYTES: usize = 48;
