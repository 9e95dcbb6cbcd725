//! Creates images: the same size and options give the same bytes.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header", "Header extensions", "Feature name table").

use crate::base::{Detail, Errno, Error, ErrorKind, Result};
use crate::block::Device;
use crate::block::file::{DeviceFile, HostFile, ImageFile};
use crate::block::image::{
    BackingPolicy, Chain, Compat, Compression, CreateOptions, Preallocation,
};
use crate::block::qcow2::disk::Qcow2Device;
use crate::block::qcow2::layout::extensions;
use crate::block::qcow2::layout::features::{self, FEATURE_NAME_BYTES, FEATURE_NAMES};
use crate::block::qcow2::layout::raw_header::{
    L1_BYTES_MAX, MAGIC, REFCOUNT_TABLE_BYTES_MAX, RawHeader,
};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The parts of a new image in the order of the file, with their sizes in clusters.
struct Layout {
    bits: u32,
    refcount_order: u32,
    l1_entries: u64,
    table_clusters: u64,
    blocks: u64,
    l1_clusters: u64,
}

/// Returns the error for a size that clusters of this size cannot map: EFBIG.
pub(super) fn too_large() -> Error {
    Error::new(Errno::FBIG, "too large for clusters of this size")
        .about(Detail::TooLargeForClusters)
}

impl Layout {
    fn new(len_bytes: u64, options: &CreateOptions) -> Result<Self> {
        let cluster = u64::from(options.cluster_bytes);
        let bits = cluster.trailing_zeros();
        let refcount_order = options.refcount_bits.trailing_zeros();
        let l2_entry_bits = if options.extended_l2 { 4 } else { 3 };
        let l1_entries = len_bytes.div_ceil(1 << (2 * bits - l2_entry_bits));
        if l1_entries * 8 > L1_BYTES_MAX {
            return Err(too_large());
        }
        let l1_clusters = (l1_entries * 8).div_ceil(cluster);
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

    /// Returns the end of the refcount structures, where the L1 table starts.
    fn l1_offset(&self) -> u64 {
        (1 + self.table_clusters + self.blocks) << self.bits
    }

    /// Encodes the refcount table and its blocks: every cluster up to the end of the L1 table has
    /// one reference.
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

/// What happens to an external data file that exists already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OldDataFile {
    /// The creation fails with EEXIST.
    Refuse,
    /// It is emptied, once the new image is written.
    Replace,
}

/// Creates an empty image at `path`, and its external data file if it has one. If the creation
/// fails, the files that it created are removed.
///
/// # Errors
///
/// EEXIST if a file exists, EINVAL for options that contradict each other, EFBIG for a size that
/// clusters of this size cannot map, else the host's errors.
pub(crate) fn create(
    path: &Path,
    len_bytes: u64,
    options: &CreateOptions,
    old_data: OldDataFile,
) -> Result<()> {
    check(path, len_bytes, options)?;
    let created = create_in(HostFile::create(path)?, path, len_bytes, options, old_data);
    if created.is_err() {
        // This call created the file, so its removal loses nothing.
        let _ = std::fs::remove_file(path);
    }
    created
}

/// Creates an empty image in an open file, whose content is lost, as [`create`] does.
///
/// # Errors
///
/// Those of [`create`]; ENOSPC for a block device that is too small.
pub(crate) fn create_in(
    file: HostFile,
    path: &Path,
    len_bytes: u64,
    options: &CreateOptions,
    old_data: OldDataFile,
) -> Result<()> {
    check(path, len_bytes, options)?;
    fill(file, path, len_bytes, options, old_data).map_err(|error| match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(path.display().to_string()),
    })
}

/// Rejects what cannot be created, before any file is changed.
fn check(path: &Path, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    options
        .check()
        .and_then(|()| Layout::new(len_bytes, options))
        .and_then(|layout| header_cluster(&layout, len_bytes, options))
        .map(drop)
        .map_err(|error| error.at(path.display().to_string()))
}

fn fill(
    file: HostFile,
    path: &Path,
    len_bytes: u64,
    options: &CreateOptions,
    old_data: OldDataFile,
) -> Result<()> {
    let data_file = options.data_file.as_ref().map(|name| {
        let path = path.parent().unwrap_or(Path::new("")).join(&name.name);
        NewDataFile::open(path, old_data)
    });
    let data_file = data_file.transpose()?;
    let mut written = write(&file, len_bytes, options);
    let mut created = None;
    if let Some(data_file) = data_file {
        created = data_file.created;
        // Only now: until the image is written, a failure leaves an old data file as it was.
        written = written.and_then(|()| empty(&data_file.file, len_bytes));
        // This closes the data file, which preallocation opens and locks.
    }
    let is_raw = options.data_file.as_ref().is_some_and(|file| file.is_raw);
    if options.preallocation != Preallocation::Off || is_raw {
        written = written.and_then(|()| {
            // A new image stores no data yet, so its writes need not be durable. Clusters under a
            // backing file stay unallocated, so that file is not needed.
            Qcow2Device::open_alone(
                Arc::new(file.unsynced()),
                path,
                &mut Chain::without_backing(BackingPolicy::default()),
            )?
            .preallocate_new(options)
        });
    }
    if let (Err(_), Some(path)) = (&written, created) {
        // Created above, and still empty.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// The external data file of a new image.
struct NewDataFile {
    file: HostFile,
    /// Its path, if it did not exist.
    created: Option<PathBuf>,
}

impl NewDataFile {
    /// Creates the file, or opens and locks an old one, whose content does not change yet.
    fn open(path: PathBuf, old: OldDataFile) -> Result<Self> {
        let is_replaced = old == OldDataFile::Replace
            && std::fs::metadata(&path).is_ok_and(|found| found.is_file());
        if is_replaced {
            let file = HostFile::open(&path, false).map_err(|error| error.at("data file"))?;
            return Ok(Self {
                file,
                created: None,
            });
        }
        let file = HostFile::create(&path).map_err(|error| error.at("data file"))?;
        Ok(Self {
            file,
            created: Some(path),
        })
    }
}

/// Makes a file a hole of `len_bytes` bytes.
fn empty(file: &HostFile, len_bytes: u64) -> Result<()> {
    file.set_len(0)?;
    file.set_len(len_bytes)
}

/// Writes an empty image over the content of a file: header, refcount table, refcount blocks, L1
/// table.
pub(crate) fn write(file: &dyn ImageFile, len_bytes: u64, options: &CreateOptions) -> Result<()> {
    options.check()?;
    let layout = Layout::new(len_bytes, options)?;
    let mut head = header_cluster(&layout, len_bytes, options)?;
    // Without holes: QEMU takes an image whose clusters are holes for a preallocated one.
    head.resize(1 << layout.bits, 0);
    let (table, counts) = layout.refcounts();
    let l1_bytes = layout.l1_entries * 8;
    let end = layout.l1_offset() + l1_bytes;
    file.set_len(0)?;
    file.set_len(end)?;
    file.write(
        &[IoSlice::new(&table), IoSlice::new(&counts)],
        1 << layout.bits,
    )?;
    file.fill_with_zeros(layout.l1_offset(), l1_bytes)?;
    // The header last: without it no program takes the file for an image.
    file.write(&[IoSlice::new(&head)], 0)
}

/// Encodes the header, its extensions and the backing file's name. The zeros that follow mark the
/// end of the extensions.
fn header_cluster(layout: &Layout, len_bytes: u64, options: &CreateOptions) -> Result<Vec<u8>> {
    let mut raw = header(layout, len_bytes, options);
    let header_len = if options.compat == Compat::V0_10 {
        72
    } else {
        size_of::<RawHeader>()
    };
    let mut tail = Vec::new();
    if let Some(format) = options.backing.as_ref().and_then(|backing| backing.format) {
        extensions::push(
            &mut tail,
            extensions::BACKING_FORMAT,
            format.name().as_bytes(),
        );
    }
    if let Some(data_file) = &options.data_file {
        extensions::push(&mut tail, extensions::DATA_FILE, data_file.name.as_bytes());
    }
    let name = options
        .backing
        .as_ref()
        .map_or(&[][..], |backing| backing.name.as_bytes());
    let names_bytes = 8 + FEATURE_NAMES.len() * FEATURE_NAME_BYTES;
    let cluster = options.cluster_bytes as usize;
    // Optional: it serves error messages only, so a small cluster omits it.
    if options.compat == Compat::V1_1
        && header_len + tail.len() + names_bytes + 8 + name.len() <= cluster
    {
        extensions::push(&mut tail, extensions::FEATURE_NAMES, &feature_names());
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
    if layout.l1_entries > 0 {
        raw.l1_offset = layout.l1_offset().into();
    }
    raw.refcount_table_offset = (1u64 << layout.bits).into();
    raw.refcount_order = layout.refcount_order.into();
    raw.header_len = (size_of::<RawHeader>() as u32).into();
    let mut incompatible = 0;
    if options.compression == Compression::Zstd {
        incompatible |= features::COMPRESSION_TYPE;
        raw.compression_type = 1;
    }
    if options.extended_l2 {
        incompatible |= features::EXTENDED_L2;
    }
    if let Some(data_file) = &options.data_file {
        incompatible |= features::DATA_FILE;
        raw.autoclear = if data_file.is_raw {
            features::AUTOCLEAR_RAW_DATA_FILE
        } else {
            0
        }
        .into();
    }
    raw.incompatible = incompatible.into();
    raw.compatible = if options.lazy_refcounts {
        features::LAZY_REFCOUNTS
    } else {
        0
    }
    .into();
    raw
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

impl Qcow2Device {
    /// Creates an image of `len_bytes` bytes on a device, whose content is lost, and opens it.
    ///
    /// # Errors
    ///
    /// EINVAL for options that contradict each other, EFBIG for a size that clusters of this size
    /// cannot map, EPERM for a backing file or data file; ENOSPC, also of later writes, when the
    /// image needs more space than the device has.
    pub fn create_on(
        device: Arc<dyn Device>,
        len_bytes: u64,
        options: &CreateOptions,
    ) -> Result<Self> {
        let file = DeviceFile::create(device)?;
        write(&file, len_bytes, options)?;
        Self::open(Arc::new(file), Path::new(""), &mut Chain::closed())
    }
}
