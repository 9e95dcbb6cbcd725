//! New images: the same bytes for the same size and options.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header", "Header extensions", "Feature name table").

use super::super::host_file::HostFile;
use super::super::image::Chain;
use super::super::image_file::ImageFile;
use super::Qcow2Device;
use super::header::{
    Compression, DataFileName, L1_BYTES_MAX, MAGIC, REFCOUNT_TABLE_BYTES_MAX, RawHeader,
};
use crate::base::{Errno, Error, ErrorKind, Result};
use std::io::IoSlice;
use std::path::Path;
use zerocopy::{FromZeros, IntoBytes};

const INCOMPATIBLE_DATA_FILE: u64 = 1 << 2;
const INCOMPATIBLE_COMPRESSION: u64 = 1 << 3;
const INCOMPATIBLE_EXTENDED_L2: u64 = 1 << 4;
const COMPATIBLE_LAZY_REFCOUNTS: u64 = 1 << 0;
const AUTOCLEAR_RAW_DATA_FILE: u64 = 1 << 1;

const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;
const EXTENSION_FEATURE_NAMES: u32 = 0x6803_f857;

/// Kind (incompatible, compatible, autoclear), bit and name.
const FEATURE_NAMES: [(u8, u8, &str); 8] = [
    (0, 0, "dirty bit"),
    (0, 1, "corrupt bit"),
    (0, 2, "external data file"),
    (0, 3, "compression type"),
    (0, 4, "extended L2 entries"),
    (1, 0, "lazy refcounts"),
    (2, 0, "bitmaps"),
    (2, 1, "raw external data"),
];
const FEATURE_NAME_BYTES: usize = 48;
const BACKING_NAME_BYTES_MAX: usize = 1023;

/// Version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Version 2: no zero clusters; for QEMU before 1.1.
    V0_10,
    /// Version 3.
    #[default]
    V1_1,
}

/// How much of a new image's place in the host's file is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// The tables, with a place in the file for every cluster; qcow2 only.
    Metadata,
    /// Space of the host, by fallocate(2).
    Falloc,
    /// Space of the host, by writing zeros.
    Full,
}

/// What a new image is a difference to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingName {
    /// Its name, written as it is: a relative one counts from the image's folder.
    pub name: String,
    /// Its format; without it, it is found by the magic number, which QEMU warns of.
    pub format: Option<super::ImageFormat>,
}

/// What a new image is like.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Bytes in a cluster: a power of two from 512 to 2 MiB.
    pub cluster_bytes: u32,
    /// Version of the format.
    pub compat: Compat,
    /// Bits in a refcount: a power of two from 1 to 64.
    pub refcount_bits: u32,
    /// Refcounts need not be right while the image is in use.
    pub lazy_refcounts: bool,
    /// How compressed clusters are compressed.
    pub compression: Compression,
    /// L2 entries that know of the parts of a cluster.
    pub extended_l2: bool,
    /// What the image is a difference to.
    pub backing: Option<BackingName>,
    /// Where the data lies, if not in the image.
    pub data_file: Option<DataFileName>,
    /// How much is allocated at once; also for raw images.
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

impl CreateOptions {
    /// Refuses what no image can be: EINVAL.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |what: &'static str| Err(Error::new(Errno::INVAL, what));
        if !self.cluster_bytes.is_power_of_two() || !(512..=2 << 20).contains(&self.cluster_bytes) {
            return refuse("a cluster has 512 bytes to 2 MiB, a power of two");
        }
        if !self.refcount_bits.is_power_of_two() || self.refcount_bits > 64 {
            return refuse("a refcount has 1 to 64 bits, a power of two");
        }
        if self.extended_l2 && self.cluster_bytes < 16 << 10 {
            return refuse("extended L2 entries need clusters of 16 KiB at least");
        }
        if self
            .backing
            .as_ref()
            .is_some_and(|backing| backing.name.len() > BACKING_NAME_BYTES_MAX)
        {
            return refuse("the name of a backing file has at most 1023 bytes");
        }
        if self.backing.is_some() && self.data_file.as_ref().is_some_and(|file| file.is_raw) {
            return refuse("a raw data file and a backing file exclude each other");
        }
        if self.backing.is_some() && self.preallocation != Preallocation::Off {
            return refuse("preallocation and a backing file exclude each other");
        }
        if self.compat == Compat::V1_1 {
            return Ok(());
        }
        match () {
            () if self.refcount_bits != 16 => {
                refuse("refcounts of other than 16 bits need compat 1.1")
            }
            () if self.lazy_refcounts => refuse("lazy refcounts need compat 1.1"),
            () if self.compression != Compression::Zlib => refuse("zstd needs compat 1.1"),
            () if self.extended_l2 => refuse("extended L2 entries need compat 1.1"),
            () if self.data_file.is_some() => refuse("an external data file needs compat 1.1"),
            () => Ok(()),
        }
    }
}

/// Where the parts of a new image lie, in clusters.
struct Layout {
    bits: u32,
    refcount_order: u32,
    l1_entries: u64,
    table_clusters: u64,
    blocks: u64,
    l1_clusters: u64,
}

impl Layout {
    fn new(len_bytes: u64, options: &CreateOptions) -> Result<Self> {
        let too_large = || Error::new(Errno::FBIG, "too large for clusters of this size");
        let cluster = u64::from(options.cluster_bytes);
        let bits = cluster.trailing_zeros();
        let refcount_order = options.refcount_bits.trailing_zeros();
        let l2_entry_bits = if options.extended_l2 { 4 } else { 3 };
        let l1_entries = len_bytes.div_ceil(1 << (2 * bits - l2_entry_bits));
        if l1_entries * 8 > L1_BYTES_MAX {
            return Err(too_large());
        }
        let l1_clusters = (l1_entries * 8).div_ceil(cluster).max(1);
        // One cluster of refcount table at least; it grows when the file does.
        let per_block = (cluster * 8) >> refcount_order;
        let (mut table_clusters, mut blocks) = (1, 1);
        while 1 + table_clusters + blocks + l1_clusters > blocks * per_block {
            blocks += 1;
            table_clusters = (blocks * 8).div_ceil(cluster);
            if table_clusters * cluster > REFCOUNT_TABLE_BYTES_MAX {
                return Err(too_large());
            }
        }
        Ok(Self {
            bits,
            refcount_order,
            l1_entries,
            table_clusters,
            blocks,
            l1_clusters,
        })
    }

    fn l1_offset(&self) -> u64 {
        (1 + self.table_clusters + self.blocks) << self.bits
    }

    /// The refcount table and its blocks: every cluster up to the end of the L1 table is used once.
    fn refcounts(&self) -> (Vec<u8>, Vec<u8>) {
        let mut table = vec![0; (self.table_clusters << self.bits) as usize];
        for (index, slot) in table
            .chunks_exact_mut(8)
            .take(self.blocks as usize)
            .enumerate()
        {
            slot.copy_from_slice(
                &((1 + self.table_clusters + index as u64) << self.bits).to_be_bytes(),
            );
        }
        let used = (1 + self.table_clusters + self.blocks + self.l1_clusters) as usize;
        let mut counts = vec![0; (self.blocks << self.bits) as usize];
        match self.refcount_order {
            order @ 0..=2 => {
                let per_byte = 8 >> order;
                for index in 0..used {
                    counts[index / per_byte] |= 1 << ((index % per_byte) << order);
                }
            }
            order => {
                let width = 1 << (order - 3);
                counts
                    .chunks_exact_mut(width)
                    .take(used)
                    .for_each(|count| count[width - 1] = 1);
            }
        }
        (table, counts)
    }
}

/// Makes the file, and its data file if it is to have one, and writes a new, empty image; EEXIST if
/// there is one. A file that could not be finished is removed.
pub(in crate::block) fn create(path: &Path, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    options
        .check()
        .map_err(|error| error.at(path.display().to_string()))?;
    let file = HostFile::create(path)?;
    let made = make(file, path, len_bytes, options);
    if made.is_err() {
        // The file is ours and new: nothing is lost with it.
        let _ = std::fs::remove_file(path);
    }
    made.map_err(|error| match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(path.display().to_string()),
    })
}

fn make(file: HostFile, path: &Path, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    let mut data_file = None;
    if let Some(name) = &options.data_file {
        let path = path.parent().unwrap_or(Path::new("")).join(&name.name);
        HostFile::create(&path)?.set_len(len_bytes)?;
        data_file = Some(path);
    }
    let written = write(&file, len_bytes, options).and_then(|()| match options.preallocation {
        Preallocation::Off => Ok(()),
        // Nothing can be lost of a new image: it is made again.
        how => Qcow2Device::open(Box::new(file.unsynced()), path, &mut Chain::default())?
            .preallocate(how, 0),
    });
    if let (Err(_), Some(path)) = (&written, data_file) {
        // Made above, and as empty as then.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Writes a new, empty image into an empty file: header, refcount table, refcount blocks, L1 table.
pub(super) fn write(file: &dyn ImageFile, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    options.check()?;
    let layout = Layout::new(len_bytes, options)?;
    let head = header_cluster(&layout, len_bytes, options)?;
    let (table, counts) = layout.refcounts();
    file.write(
        &[IoSlice::new(&table), IoSlice::new(&counts)],
        1 << layout.bits,
    )?;
    file.set_len(layout.l1_offset() + (layout.l1_clusters << layout.bits))?;
    file.write(&[IoSlice::new(&head)], 0)
}

/// The header, its extensions and the backing file's name; zeros follow, which are the end of the
/// extensions.
fn header_cluster(layout: &Layout, len_bytes: u64, options: &CreateOptions) -> Result<Vec<u8>> {
    let mut raw = header(layout, len_bytes, options);
    let header_len = if options.compat == Compat::V0_10 {
        72
    } else {
        size_of::<RawHeader>()
    };
    let mut tail = Vec::new();
    if let Some(format) = options.backing.as_ref().and_then(|backing| backing.format) {
        extension(
            &mut tail,
            EXTENSION_BACKING_FORMAT,
            format.name().as_bytes(),
        );
    }
    if let Some(data_file) = &options.data_file {
        extension(&mut tail, EXTENSION_DATA_FILE, data_file.name.as_bytes());
    }
    let name = options
        .backing
        .as_ref()
        .map_or(&[][..], |backing| backing.name.as_bytes());
    let names_bytes = 8 + FEATURE_NAMES.len() * FEATURE_NAME_BYTES;
    let cluster = options.cluster_bytes as usize;
    // It only explains; in a small cluster the rest comes first.
    if options.compat == Compat::V1_1
        && header_len + tail.len() + names_bytes + 8 + name.len() <= cluster
    {
        extension(&mut tail, EXTENSION_FEATURE_NAMES, &feature_names());
    }
    tail.extend([0; 8]);
    if !name.is_empty() {
        raw.backing_name_offset = ((header_len + tail.len()) as u64).into();
        // At most 1023.
        raw.backing_name_len = (name.len() as u32).into();
        tail.extend(name);
    }
    if header_len + tail.len() > cluster {
        return Err(Error::new(
            Errno::INVAL,
            "the names do not fit into the header's cluster",
        ));
    }
    let mut head = raw.as_bytes()[..header_len].to_vec();
    head.extend(tail);
    Ok(head)
}

fn header(layout: &Layout, len_bytes: u64, options: &CreateOptions) -> RawHeader {
    let mut raw = RawHeader::new_zeroed();
    raw.magic = MAGIC.into();
    raw.version = if options.compat == Compat::V0_10 {
        2
    } else {
        3
    }
    .into();
    raw.cluster_bits = layout.bits.into();
    raw.len_bytes = len_bytes.into();
    // Both are below 2^22 by the limits on their tables.
    raw.l1_entries = (layout.l1_entries as u32).into();
    raw.refcount_table_clusters = (layout.table_clusters as u32).into();
    raw.l1_offset = layout.l1_offset().into();
    raw.refcount_table_offset = (1u64 << layout.bits).into();
    raw.refcount_order = layout.refcount_order.into();
    raw.header_len = (size_of::<RawHeader>() as u32).into();
    let mut incompatible = 0;
    if options.compression == Compression::Zstd {
        incompatible |= INCOMPATIBLE_COMPRESSION;
        raw.compression_type = 1;
    }
    if options.extended_l2 {
        incompatible |= INCOMPATIBLE_EXTENDED_L2;
    }
    if let Some(data_file) = &options.data_file {
        incompatible |= INCOMPATIBLE_DATA_FILE;
        raw.autoclear = if data_file.is_raw {
            AUTOCLEAR_RAW_DATA_FILE
        } else {
            0
        }
        .into();
    }
    raw.incompatible = incompatible.into();
    raw.compatible = if options.lazy_refcounts {
        COMPATIBLE_LAZY_REFCOUNTS
    } else {
        0
    }
    .into();
    raw
}

fn extension(tail: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    tail.extend(kind.to_be_bytes());
    // Names and tables of this file, all shorter than a cluster or refused with it.
    tail.extend((bytes.len() as u32).to_be_bytes());
    tail.extend(bytes);
    tail.resize(tail.len().next_multiple_of(8), 0);
}

fn feature_names() -> Vec<u8> {
    let mut table = Vec::new();
    for (kind, bit, name) in FEATURE_NAMES {
        let start = table.len();
        table.extend([kind, bit]);
        table.extend(name.as_bytes());
        table.resize(start + FEATURE_NAME_BYTES, 0);
    }
    table
}
