//! The checked header: the properties of an image and the features that a reader needs.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header", "Header extensions", "Feature name table").

use super::extensions::{self, Extension};
use super::features::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, COMPRESSION_TYPE, CORRUPT, DATA_FILE, DIRTY,
    EXTENDED_L2, FEATURE_NAME_BYTES, KIND_INCOMPATIBLE, LAZY_REFCOUNTS, READABLE,
};
use super::raw_header::{
    BACKING_NAME_BYTES_MAX, CLUSTER_BITS, L1_BYTES_MAX, REFCOUNT_ORDER_MAX,
    REFCOUNT_TABLE_BYTES_MAX, RawHeader, V2_BYTES, V3_BYTES_MIN, read_raw,
};
use super::snapshot_table::SnapshotEntry;
use crate::base::{Detail, Error, Result};
use crate::block::file::ImageFile;
use crate::block::image::{Compression, DataFileName};
use std::io::IoSliceMut;

/// Subclusters have at least 512 bytes.
const EXTENDED_L2_CLUSTER_BITS_MIN: u32 = 14;
/// Host offsets fit in this many bits.
const OFFSET_BITS: u32 = 56;

/// A checked header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) cluster_bits: u32,
    pub(crate) len_bytes: u64,
    pub(crate) l1_offset: u64,
    /// Entries of the L1 table that the size needs; the file may have more.
    pub(crate) l1_entries: usize,
    pub(crate) refcount_table_offset: u64,
    pub(crate) refcount_table_clusters: u64,
    pub(crate) refcount_order: u32,
    pub(crate) incompatible: u64,
    /// Refcounts in the file may be stale while the image is open.
    pub(crate) has_lazy_refcounts: bool,
    pub(crate) autoclear: u64,
    /// The autoclear features that stay set when the disk changes.
    pub(crate) kept_autoclear: u64,
    pub(crate) compression: Compression,
    pub(crate) data_file: Option<DataFileName>,
    pub(crate) backing_name: Option<String>,
    pub(crate) backing_format: Option<String>,
    pub(crate) backing_version: Option<String>,
    /// The encryption method; 0 for none.
    pub(crate) encryption: u32,
    has_snapshots: bool,
}

impl Header {
    /// Reads and checks the header, its extensions and the name of the backing file.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a field that contradicts the format or the file, EOPNOTSUPP for a feature that
    /// Folio does not read; the message names it.
    pub(crate) fn read(file: &dyn ImageFile) -> Result<Self> {
        let header = Self::read_encrypted(file)?;
        match header.encryption {
            0 => Ok(header),
            1 => Err(Error::unsupported("encryption (AES) is not supported")),
            2 => Err(Error::unsupported("encryption (LUKS) is not supported")),
            other => Err(Error::unsupported(format!(
                "encryption method {other} is not supported"
            ))),
        }
    }

    /// Reads and checks the header as [`Header::read`] does, also that of an encrypted image.
    pub(crate) fn read_encrypted(file: &dyn ImageFile) -> Result<Self> {
        let raw = read_raw(file)?;
        let file_bytes = file.len_bytes()?;
        let cluster_bits = raw.cluster_bits.get();
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return bad(format!("cluster_bits {cluster_bits} is not in 9 to 21"));
        }
        let cluster_bytes = 1u64 << cluster_bits;
        check_header_len(&raw)?;
        let extensions = KnownExtensions::read(file, &raw, cluster_bytes)?;
        let incompatible = raw.incompatible.get();
        check_features(incompatible, &extensions)?;
        let refcount_order = raw.refcount_order.get();
        if refcount_order > REFCOUNT_ORDER_MAX {
            return bad(format!("refcount_order {refcount_order} is above 6"));
        }
        let backing_name = read_backing_name(file, &raw, cluster_bytes)?;
        let autoclear = raw.autoclear.get();
        let data_file = if incompatible & DATA_FILE != 0 {
            let is_raw = autoclear & AUTOCLEAR_RAW_DATA_FILE != 0;
            Some(data_file_name(extensions.data_file, is_raw)?)
        } else {
            None
        };
        let is_raw = data_file.as_ref().is_some_and(|file| file.is_raw);
        if is_raw && backing_name.is_some() {
            return bad("a raw external data file and a backing file".to_owned());
        }
        if incompatible & EXTENDED_L2 != 0 && cluster_bits < EXTENDED_L2_CLUSTER_BITS_MIN {
            return bad(format!(
                "extended L2 entries with cluster_bits {cluster_bits}"
            ));
        }
        let l1_entries = check_l1_table(&raw, cluster_bytes, file_bytes)?;
        let compression = compression(&raw)?;
        check_refcount_table(&raw, cluster_bytes, file_bytes)?;
        let kept = AUTOCLEAR_BITMAPS | if is_raw { AUTOCLEAR_RAW_DATA_FILE } else { 0 };
        Ok(Self {
            version: raw.version.get(),
            cluster_bits,
            len_bytes: raw.len_bytes.get(),
            l1_offset: raw.l1_offset.get(),
            l1_entries,
            refcount_table_offset: raw.refcount_table_offset.get(),
            refcount_table_clusters: raw.refcount_table_clusters.get().into(),
            refcount_order,
            incompatible,
            has_lazy_refcounts: raw.compatible.get() & LAZY_REFCOUNTS != 0,
            autoclear,
            kept_autoclear: autoclear & kept,
            compression,
            data_file,
            backing_name,
            backing_format: extensions.backing_format,
            backing_version: extensions.backing_version,
            encryption: raw.crypt_method.get(),
            has_snapshots: raw.snapshots.get() != 0,
        })
    }

    /// Whether L2 entries describe the subclusters of a cluster.
    pub(crate) fn has_extended_l2(&self) -> bool {
        self.incompatible & EXTENDED_L2 != 0
    }

    /// Makes the header describe the disk of a snapshot, for reading.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a table that does not fit its disk, or leaves the file.
    pub(crate) fn select_snapshot(
        &mut self,
        file: &dyn ImageFile,
        entry: &SnapshotEntry,
    ) -> Result<()> {
        let len_bytes = entry.disk_bytes().unwrap_or(self.len_bytes);
        let bits = l2_covers_bits(self.cluster_bits, self.incompatible);
        let entries = len_bytes.div_ceil(1 << bits);
        if entries > entry.l1_entries.into() || entries * 8 > L1_BYTES_MAX {
            let have = entry.l1_entries;
            let what = format!("{have} L1 entries, the size of {len_bytes} bytes needs {entries}");
            return Err(Error::corrupt(what).at("snapshot"));
        }
        if entries > 0 {
            let cluster_bytes = 1 << self.cluster_bits;
            let (at, table_bytes) = (entry.l1_offset, entries * 8);
            check_table(
                "L1 table of the snapshot",
                at,
                table_bytes,
                cluster_bytes,
                file.len_bytes()?,
            )?;
        }
        self.len_bytes = len_bytes;
        self.l1_offset = entry.l1_offset;
        self.l1_entries = entries as usize;
        Ok(())
    }

    /// Whether the refcounts in the file may be stale.
    pub(crate) fn is_dirty(&self) -> bool {
        self.incompatible & DIRTY != 0
    }

    /// Rejects an image whose metadata must not be written.
    ///
    /// # Errors
    ///
    /// EUCLEAN for an image marked corrupt, EOPNOTSUPP for snapshots in an external data file.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.incompatible & CORRUPT != 0 {
            return Err(Error::corrupt(
                "the image is marked corrupt: run `folio image check --repair all`",
            ));
        }
        if self.has_snapshots && self.data_file.is_some() {
            // Their clusters have no refcounts, so it is unknown which are shared.
            return Err(Error::unsupported(
                "writing with snapshots in an external data file",
            ));
        }
        Ok(())
    }
}

fn bad<T>(what: String) -> Result<T> {
    Err(Error::corrupt(what).at("header"))
}

/// Returns the number of L1 entries that the disk's size needs.
fn check_l1_table(raw: &RawHeader, cluster_bytes: u64, file_bytes: u64) -> Result<usize> {
    let covers_bits = l2_covers_bits(raw.cluster_bits.get(), raw.incompatible.get());
    let entries = raw.len_bytes.get().div_ceil(1 << covers_bits);
    if entries > u64::from(raw.l1_entries.get()) {
        return bad(format!(
            "{} L1 entries, the size needs {entries}",
            raw.l1_entries
        ));
    }
    if entries * 8 > L1_BYTES_MAX {
        return bad(format!("an L1 table of {entries} entries"));
    }
    if entries > 0 {
        let offset = raw.l1_offset.get();
        check_table("L1 table", offset, entries * 8, cluster_bytes, file_bytes)?;
    }
    Ok(entries as usize)
}

fn check_refcount_table(raw: &RawHeader, cluster_bytes: u64, file_bytes: u64) -> Result<()> {
    let clusters = u64::from(raw.refcount_table_clusters.get());
    let bytes = clusters * cluster_bytes;
    if clusters == 0 || bytes > REFCOUNT_TABLE_BYTES_MAX {
        return bad(format!("a refcount table of {clusters} clusters"));
    }
    let offset = raw.refcount_table_offset.get();
    check_table("refcount table", offset, bytes, cluster_bytes, file_bytes)
}

/// Returns the number of guest bytes that an L2 table maps, as a power of two: its entries of 8 or
/// 16 bytes fill a cluster.
fn l2_covers_bits(cluster_bits: u32, incompatible: u64) -> u32 {
    let entry_bits = if incompatible & EXTENDED_L2 != 0 {
        4
    } else {
        3
    };
    2 * cluster_bits - entry_bits
}

fn compression(raw: &RawHeader) -> Result<Compression> {
    let has_type = raw.incompatible.get() & COMPRESSION_TYPE != 0;
    match (has_type, raw.compression_type) {
        (false, 0) => Ok(Compression::Zlib),
        (true, 0) => bad("the compression type bit with type zlib".to_owned()),
        (true, 1) => Ok(Compression::Zstd),
        (true, other) => Err(Error::unsupported(format!("compression type {other}"))),
        (false, _) => bad("a compression type without its feature bit".to_owned()),
    }
}

/// The header itself must end inside the first cluster.
fn check_header_len(raw: &RawHeader) -> Result<()> {
    match raw.header_bytes() {
        len if len == V2_BYTES as u64 && raw.version.get() == 2 => Ok(()),
        len if len >= V3_BYTES_MIN as u64 && len <= 1 << raw.cluster_bits.get() => Ok(()),
        len => bad(format!("header length {len}")),
    }
}

fn check_table(
    what: &'static str,
    offset: u64,
    bytes: u64,
    cluster_bytes: u64,
    file_bytes: u64,
) -> Result<()> {
    let place = || format!("{what} at {offset:#x}");
    if !offset.is_multiple_of(cluster_bytes) || offset == 0 || offset >> OFFSET_BITS != 0 {
        return Err(Error::corrupt("not at a cluster's start").at(place()));
    }
    if offset + bytes > file_bytes {
        return Err(Error::corrupt(format!(
            "reaches beyond the end of the file at {file_bytes:#x}"
        ))
        .at(place()));
    }
    Ok(())
}

/// Rejects unknown incompatible features, by the names that Folio or the image has for them.
fn check_features(incompatible: u64, extensions: &KnownExtensions) -> Result<()> {
    let unknown = incompatible & !READABLE;
    if unknown != 0 {
        let names = extensions.feature_names(unknown);
        let what = format!("unsupported features: {names}");
        return Err(Error::unsupported(what).about(Detail::UnsupportedFeatures { names }));
    }
    Ok(())
}

fn read_backing_name(
    file: &dyn ImageFile,
    raw: &RawHeader,
    cluster_bytes: u64,
) -> Result<Option<String>> {
    let (offset, len) = (raw.backing_name_offset.get(), raw.backing_name_len.get());
    if offset == 0 || len == 0 {
        return Ok(None);
    }
    if len as usize > BACKING_NAME_BYTES_MAX
        || offset >= cluster_bytes
        || offset + u64::from(len) > cluster_bytes
    {
        return Err(Error::corrupt(format!("{len} bytes at {offset:#x}")).at("backing file name"));
    }
    let mut name = vec![0; len as usize];
    if file.read_some(&mut [IoSliceMut::new(&mut name)], offset)? < u64::from(len) {
        return Err(Error::corrupt("cut off by the end of the file").at("backing file name"));
    }
    file_name(name)
        .map(Some)
        .map_err(|error| error.at("backing file name"))
}

fn file_name(bytes: Vec<u8>) -> Result<String> {
    match String::from_utf8(bytes) {
        Ok(name) if !name.contains('\0') && !name.is_empty() => Ok(name),
        _ => Err(Error::corrupt("not text")),
    }
}

fn data_file_name(name: Option<Vec<u8>>, is_raw: bool) -> Result<DataFileName> {
    let Some(name) = name else {
        return Err(Error::unsupported("an external data file without a name").at("header"));
    };
    let name = file_name(name).map_err(|error| error.at("data file name"))?;
    Ok(DataFileName { name, is_raw })
}

/// The header extensions that a device needs.
#[derive(Default)]
struct KnownExtensions {
    backing_format: Option<String>,
    backing_version: Option<String>,
    data_file: Option<Vec<u8>>,
    /// Bit and name of incompatible features, as the image names them.
    incompatible_names: Vec<(u8, String)>,
}

impl KnownExtensions {
    fn read(file: &dyn ImageFile, raw: &RawHeader, cluster_bytes: u64) -> Result<Self> {
        let name = raw.backing_name_offset.get();
        if name != 0 && (name < raw.header_bytes() || name > cluster_bytes) {
            return Err(Error::corrupt(format!("at {name:#x}")).at("backing file name"));
        }
        let mut this = Self::default();
        for extension in extensions::read(file, raw)? {
            this.take(extension);
        }
        Ok(this)
    }

    fn take(&mut self, extension: Extension) {
        let bytes = extension.bytes;
        match extension.kind {
            extensions::BACKING_FORMAT => {
                self.backing_format = Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            extensions::BACKING_VERSION => {
                self.backing_version = Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            extensions::DATA_FILE => self.data_file = Some(bytes),
            extensions::FEATURE_NAMES => {
                // The last entry may be shorter.
                let entries = bytes.chunks(FEATURE_NAME_BYTES);
                let is_named = |entry: &&[u8]| entry.len() > 2 && entry[0] == KIND_INCOMPATIBLE;
                for entry in entries.filter(is_named) {
                    let name = entry[2..].split(|&byte| byte == 0).next();
                    let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
                    self.incompatible_names.push((entry[1], name));
                }
            }
            _ => {}
        }
    }

    /// Names incompatible features as the image does; those without a name by their bits.
    fn feature_names(&self, mut features: u64) -> String {
        let mut names = Vec::new();
        for (bit, name) in &self.incompatible_names {
            let bit = 1u64.checked_shl((*bit).into()).unwrap_or(0);
            if features & bit != 0 {
                names.push(name.clone());
                features &= !bit;
            }
        }
        if features != 0 {
            names.push(format!("unknown incompatible feature: {features:x}"));
        }
        names.join(", ")
    }
}
