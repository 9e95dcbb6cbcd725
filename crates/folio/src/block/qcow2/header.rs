//! The header: what an image is, and what it asks of whoever opens it.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header", "Header extensions", "Feature name table").

use super::super::image_file::ImageFile;
use crate::base::{Error, Result};
use std::io::IoSliceMut;
use std::mem::offset_of;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "QFI" and 0xfb.
pub(super) const MAGIC: u32 = 0x5146_49fb;
/// Length of a version 2 header, and of the version 3 header that we write.
const V2_BYTES: usize = 72;
const V3_BYTES_MIN: usize = 104;
/// Limits, the same as QEMU's (block/qcow2.h).
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Subclusters have at least 512 bytes.
const EXTENDED_L2_CLUSTER_BITS_MIN: u32 = 14;
const REFCOUNT_ORDER_MAX: u32 = 6;
/// Most bytes in an L1 table.
pub(super) const L1_BYTES_MAX: u64 = 32 << 20;
/// Most bytes in a refcount table.
pub(super) const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
const BACKING_NAME_BYTES_MAX: u32 = 1023;
/// Host offsets fit in this many bits.
const OFFSET_BITS: u32 = 56;

/// Incompatible features by bit.
pub(super) const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
const INCOMPATIBLE_NAMES: [&str; 5] = [
    "dirty bit",
    "corrupt bit",
    "external data file",
    "compression type",
    "extended L2 entries",
];

/// Compatible features by bit.
const LAZY_REFCOUNTS: u64 = 1 << 0;
/// Autoclear features by bit.
const BITMAPS: u64 = 1 << 0;
const RAW_DATA_FILE: u64 = 1 << 1;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;
const EXTENSION_FEATURE_NAMES: u32 = 0x6803_f857;
const EXTENSIONS_MAX: usize = 64;

/// The bytes, exactly.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: U32,
    pub(super) version: U32,
    pub(super) backing_name_offset: U64,
    pub(super) backing_name_len: U32,
    pub(super) cluster_bits: U32,
    pub(super) len_bytes: U64,
    pub(super) crypt_method: U32,
    pub(super) l1_entries: U32,
    pub(super) l1_offset: U64,
    pub(super) refcount_table_offset: U64,
    pub(super) refcount_table_clusters: U32,
    pub(super) snapshots: U32,
    pub(super) snapshots_offset: U64,
    pub(super) incompatible: U64,
    pub(super) compatible: U64,
    pub(super) autoclear: U64,
    pub(super) refcount_order: U32,
    pub(super) header_len: U32,
    pub(super) compression_type: u8,
    pub(super) padding: [u8; 7],
}

const _: () = assert!(size_of::<RawHeader>() == 112);
const _: () = assert!(offset_of!(RawHeader, incompatible) == V2_BYTES);
const _: () = assert!(offset_of!(RawHeader, compression_type) == V3_BYTES_MIN);

/// Where the refcount table's place stands in the header: offset and clusters, 12 bytes in one
/// sector.
pub(super) const REFCOUNT_TABLE_FIELD: u64 = offset_of!(RawHeader, refcount_table_offset) as u64;
/// Where the disk's size, the encryption method and the number of L1 entries stand: 16 bytes in one
/// sector.
pub(super) const SIZE_FIELD: u64 = offset_of!(RawHeader, len_bytes) as u64;
/// Where the incompatible features stand in the header.
pub(super) const INCOMPATIBLE_FIELD: u64 = offset_of!(RawHeader, incompatible) as u64;
/// Where the autoclear features stand in the header.
pub(super) const AUTOCLEAR_FIELD: u64 = offset_of!(RawHeader, autoclear) as u64;

/// How compressed clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Deflate without a zlib header, as QEMU calls it.
    Zlib,
    /// Zstandard.
    Zstd,
}

/// Where the guest's data lies, if not in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFileName {
    /// Its name, as it is written in the image: a relative one counts from the image's folder.
    pub name: String,
    /// Its bytes are the disk's bytes, at the same offsets.
    pub is_raw: bool,
}

/// A checked header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) len_bytes: u64,
    pub(super) l1_offset: u64,
    /// Entries of the L1 table that the size needs; the file may have more.
    pub(super) l1_entries: usize,
    pub(super) refcount_table_offset: u64,
    pub(super) refcount_table_clusters: u64,
    pub(super) refcount_order: u32,
    pub(super) incompatible: u64,
    /// Refcounts in the file may be stale while the image is open.
    pub(super) has_lazy_refcounts: bool,
    pub(super) autoclear: u64,
    /// Those autoclear features that stay when the disk changes.
    pub(super) kept_autoclear: u64,
    pub(super) compression: Compression,
    pub(super) data_file: Option<DataFileName>,
    pub(super) backing_name: Option<String>,
    pub(super) backing_format: Option<String>,
    has_snapshots: bool,
}

impl Header {
    /// Reads and checks the header, its extensions and the name of the backing file.
    pub(super) fn read(file: &dyn ImageFile) -> Result<Self> {
        let raw = read_raw(file)?;
        let file_bytes = file.len_bytes()?;
        let bad = |what: String| Err(Error::corrupt(what).at("header"));
        let cluster_bits = raw.cluster_bits.get();
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return bad(format!("cluster_bits {cluster_bits} is not in 9 to 21"));
        }
        let cluster_bytes = 1u64 << cluster_bits;
        let header_len = header_len(&raw)?;
        let extensions = Extensions::read(file, &raw, header_len, cluster_bytes)?;
        let incompatible = raw.incompatible.get();
        check_features(incompatible, raw.crypt_method.get(), &extensions)?;
        let refcount_order = raw.refcount_order.get();
        if refcount_order > REFCOUNT_ORDER_MAX {
            return bad(format!("refcount_order {refcount_order} is above 6"));
        }
        let backing_name = read_backing_name(file, &raw, cluster_bytes)?;
        let autoclear = raw.autoclear.get();
        let data_file = match incompatible & DATA_FILE != 0 {
            true => Some(DataFileName::new(
                extensions.data_file,
                autoclear & RAW_DATA_FILE != 0,
            )?),
            false => None,
        };
        let is_raw = data_file.as_ref().is_some_and(|file| file.is_raw);
        if is_raw && backing_name.is_some() {
            return bad("a raw external data file and a backing file".to_owned());
        }
        let len_bytes = raw.len_bytes.get();
        if incompatible & EXTENDED_L2 != 0 && cluster_bits < EXTENDED_L2_CLUSTER_BITS_MIN {
            return bad(format!(
                "extended L2 entries with cluster_bits {cluster_bits}"
            ));
        }
        let l1_entries = l1_entries(len_bytes, l2_covers_bits(cluster_bits, incompatible));
        if l1_entries > u64::from(raw.l1_entries.get()) {
            return bad(format!(
                "{} L1 entries, the size needs {l1_entries}",
                raw.l1_entries
            ));
        }
        if l1_entries * 8 > L1_BYTES_MAX {
            return bad(format!("an L1 table of {l1_entries} entries"));
        }
        let l1_offset = raw.l1_offset.get();
        if l1_entries > 0 {
            check_table(
                "L1 table",
                l1_offset,
                l1_entries * 8,
                cluster_bytes,
                file_bytes,
            )?;
        }
        let compression = Compression::read(&raw)?;
        let refcount_table_offset = raw.refcount_table_offset.get();
        let refcount_table_clusters = u64::from(raw.refcount_table_clusters.get());
        let refcount_bytes = refcount_table_clusters << cluster_bits;
        if refcount_table_clusters == 0 || refcount_bytes > REFCOUNT_TABLE_BYTES_MAX {
            return bad(format!(
                "a refcount table of {refcount_table_clusters} clusters"
            ));
        }
        check_table(
            "refcount table",
            refcount_table_offset,
            refcount_bytes,
            cluster_bytes,
            file_bytes,
        )?;
        Ok(Self {
            version: raw.version.get(),
            cluster_bits,
            len_bytes,
            l1_offset,
            l1_entries: l1_entries as usize,
            refcount_table_offset,
            refcount_table_clusters,
            refcount_order,
            incompatible,
            has_lazy_refcounts: raw.compatible.get() & LAZY_REFCOUNTS != 0,
            autoclear,
            kept_autoclear: autoclear & (BITMAPS | if is_raw { RAW_DATA_FILE } else { 0 }),
            compression,
            data_file,
            backing_name,
            backing_format: extensions.backing_format,
            has_snapshots: raw.snapshots.get() != 0,
        })
    }

    /// L2 entries tell the subclusters of a cluster apart.
    pub(super) fn has_extended_l2(&self) -> bool {
        self.incompatible & EXTENDED_L2 != 0
    }

    /// The refcounts in the file are stale.
    pub(super) fn is_dirty(&self) -> bool {
        self.incompatible & DIRTY != 0
    }

    /// Refuses to write an image whose metadata cannot be trusted.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.incompatible & CORRUPT != 0 {
            return Err(Error::corrupt(
                "the image is marked corrupt; `folio image check --repair all` may mend it",
            ));
        }
        if self.has_snapshots && self.data_file.is_some() {
            // Their clusters have no refcounts, so nobody knows which are shared.
            return Err(Error::unsupported(
                "writing with snapshots in an external data file",
            ));
        }
        Ok(())
    }
}

/// L1 entries that an image of this size needs, if an L2 table maps `1 << l2_covers_bits` bytes of
/// the guest.
pub(super) fn l1_entries(len_bytes: u64, l2_covers_bits: u32) -> u64 {
    len_bytes.div_ceil(1 << l2_covers_bits)
}

/// Guest bytes that an L2 table maps, as a power of two: its entries of 8 or 16 bytes fill a
/// cluster.
fn l2_covers_bits(cluster_bits: u32, incompatible: u64) -> u32 {
    2 * cluster_bits
        - if incompatible & EXTENDED_L2 != 0 {
            4
        } else {
            3
        }
}

impl Compression {
    fn read(raw: &RawHeader) -> Result<Self> {
        match (
            raw.incompatible.get() & COMPRESSION_TYPE != 0,
            raw.compression_type,
        ) {
            (_, 0) => Ok(Self::Zlib),
            (true, 1) => Ok(Self::Zstd),
            (true, other) => Err(Error::unsupported(format!("compression type {other}"))),
            (false, _) => {
                Err(Error::corrupt("a compression type without its feature bit").at("header"))
            }
        }
    }
}

/// Bytes of the header itself, inside the first cluster.
fn header_len(raw: &RawHeader) -> Result<u64> {
    match (raw.version.get(), u64::from(raw.header_len.get())) {
        (2, _) => Ok(V2_BYTES as u64),
        (_, len) if len >= V3_BYTES_MIN as u64 && len <= 1 << raw.cluster_bits.get() => Ok(len),
        (_, len) => Err(Error::corrupt(format!("header length {len}")).at("header")),
    }
}

/// The header's bytes, as a version 3 header has them.
pub(super) fn read_raw(file: &dyn ImageFile) -> Result<RawHeader> {
    let mut raw = RawHeader::new_zeroed();
    let count = file.read_some(&mut [IoSliceMut::new(raw.as_mut_bytes())], 0)? as usize;
    let version = raw.version.get();
    if raw.magic.get() != MAGIC || count < V2_BYTES {
        return Err(Error::corrupt("not a qcow2 header").at("header"));
    }
    match version {
        2 => {
            // What follows is something else; a version 2 header means these values.
            raw.as_mut_bytes()[V2_BYTES..].fill(0);
            raw.refcount_order = 4.into();
        }
        3 if count >= V3_BYTES_MIN => {
            if (raw.header_len.get() as usize) < size_of::<RawHeader>() {
                raw.compression_type = 0;
            }
        }
        3 => return Err(Error::corrupt("the file ends inside the header").at("header")),
        _ => return Err(Error::unsupported(format!("version {version}"))),
    }
    Ok(raw)
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

fn check_features(incompatible: u64, crypt_method: u32, extensions: &Extensions) -> Result<()> {
    let readable = DIRTY | CORRUPT | DATA_FILE | COMPRESSION_TYPE | EXTENDED_L2;
    let unknown: Vec<String> = (0..64)
        .filter(|bit| incompatible & !readable & (1 << bit) != 0)
        .map(|bit| {
            let known = INCOMPATIBLE_NAMES.get(bit).map(|name| (*name).to_owned());
            let told = extensions
                .incompatible_names
                .iter()
                .find(|(of, _)| *of == bit);
            known
                .or_else(|| told.map(|(_, name)| name.clone()))
                .unwrap_or_else(|| format!("bit {bit}"))
        })
        .collect();
    if !unknown.is_empty() {
        return Err(Error::unsupported(format!(
            "incompatible features: {}",
            unknown.join(", ")
        )));
    }
    match crypt_method {
        0 => Ok(()),
        1 => Err(Error::unsupported("AES encryption")),
        2 => Err(Error::unsupported("LUKS encryption")),
        other => Err(Error::unsupported(format!("encryption method {other}"))),
    }
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
    if len > BACKING_NAME_BYTES_MAX
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

impl DataFileName {
    fn new(name: Option<Vec<u8>>, is_raw: bool) -> Result<Self> {
        let Some(name) = name else {
            return Err(Error::unsupported("an external data file without a name").at("header"));
        };
        let name = file_name(name).map_err(|error| error.at("data file name"))?;
        Ok(Self { name, is_raw })
    }
}

/// What the header extensions say that matters here.
#[derive(Default)]
struct Extensions {
    backing_format: Option<String>,
    data_file: Option<Vec<u8>>,
    incompatible_names: Vec<(usize, String)>,
}

impl Extensions {
    fn read(
        file: &dyn ImageFile,
        raw: &RawHeader,
        header_len: u64,
        cluster_bytes: u64,
    ) -> Result<Self> {
        let mut this = Self::default();
        let end = match raw.backing_name_offset.get() {
            0 => cluster_bytes,
            name if name < header_len || name > cluster_bytes => {
                return Err(Error::corrupt(format!("at {name:#x}")).at("backing file name"));
            }
            name => name,
        };
        let mut at = header_len.next_multiple_of(8);
        for _ in 0..EXTENSIONS_MAX {
            let mut head = [U32::ZERO; 2];
            if at + 8 > end || file.read_some(&mut [IoSliceMut::new(head.as_mut_bytes())], at)? < 8
            {
                return Ok(this);
            }
            let (kind, len) = (head[0].get(), u64::from(head[1].get()));
            if kind == EXTENSION_END {
                return Ok(this);
            }
            at += 8;
            if len > end - at {
                let what =
                    format!("extension {kind:#x} of {len} bytes leaves the header's cluster");
                return Err(Error::corrupt(what).at("header"));
            }
            if [
                EXTENSION_BACKING_FORMAT,
                EXTENSION_DATA_FILE,
                EXTENSION_FEATURE_NAMES,
            ]
            .contains(&kind)
            {
                // At most the header's cluster.
                let mut bytes = vec![0; len as usize];
                file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], at)?;
                this.take(kind, bytes);
            }
            at += len.next_multiple_of(8);
        }
        Err(Error::corrupt("too many extensions").at("header"))
    }

    fn take(&mut self, kind: u32, bytes: Vec<u8>) {
        match kind {
            EXTENSION_BACKING_FORMAT => {
                self.backing_format = Some(String::from_utf8_lossy(&bytes).into_owned());
                return;
            }
            EXTENSION_DATA_FILE => {
                self.data_file = Some(bytes);
                return;
            }
            _ => {}
        }
        for entry in bytes.chunks_exact(48).filter(|entry| entry[0] == 0) {
            let name = entry[2..]
                .split(|&byte| byte == 0)
                .next()
                .unwrap_or_default();
            self.incompatible_names
                .push((entry[1].into(), String::from_utf8_lossy(name).into_owned()));
        }
    }
}
