//! Changes options of an image: its version, its refcounts, its data file.

use super::change::TableChange;
use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{BackingPolicy, Chain, Compat};
use crate::block::qcow2::check;
use crate::block::qcow2::disk::Qcow2Device;
use crate::block::qcow2::layout::extensions;
use crate::block::qcow2::layout::features::{AUTOCLEAR_RAW_DATA_FILE, DIRTY, LAZY_REFCOUNTS};
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::header_cluster::HeaderCluster;
use crate::block::qcow2::layout::raw_header::RawHeader;
use crate::block::qcow2::layout::roots::Roots;
use crate::block::{Allocation, Device};
use std::path::Path;
use std::sync::Arc;

/// Width of the refcounts of version 2 in bits.
const V2_REFCOUNT_BITS: u32 = 16;
/// Size of a write of zeros in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The options to change; those not given stay.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AmendOptions {
    /// Version of the format.
    pub compat: Option<Compat>,
    /// Refcounts in the file may be stale while the image is in use.
    pub lazy_refcounts: Option<bool>,
    /// Size of a refcount in bits.
    pub refcount_bits: Option<u32>,
    /// Name of the external data file, of an image that has one.
    pub data_file: Option<String>,
    /// The data file is the disk byte for byte. It can be turned off only.
    pub data_file_raw: Option<bool>,
}

/// Rejects changes that the image cannot have, before any is made.
///
/// # Errors
///
/// EINVAL with the option at fault.
pub(crate) fn check_amend(file: &dyn ImageFile, options: &AmendOptions) -> Result<()> {
    let header = Header::read(file)?;
    header.check_writable()?;
    let refuse = |what: &'static str| Err(Error::new(Errno::INVAL, what));
    let old = if header.version == 2 {
        Compat::V0_10
    } else {
        Compat::V1_1
    };
    let compat = options.compat.unwrap_or(old);
    let bits = options.refcount_bits.unwrap_or(1 << header.refcount_order);
    if !bits.is_power_of_two() || bits > 64 {
        return refuse("refcount_bits: expected a power of two from 1 to 64");
    }
    match (&header.data_file, &options.data_file) {
        (None, Some(_)) => return refuse("data_file: the image has no external data file"),
        (_, Some(name)) if name.is_empty() || name.contains('\0') => {
            return refuse("data_file: expected the name of a file");
        }
        _ => {}
    }
    let is_raw = header.data_file.as_ref().is_some_and(|file| file.is_raw);
    if options.data_file_raw == Some(true) && !is_raw {
        return refuse("data_file_raw: cannot be turned on for an existing image");
    }
    if compat == Compat::V1_1 {
        let roots = Roots::read(file)?;
        let is_incomplete = roots
            .snapshots
            .iter()
            .any(|entry| entry.disk_bytes().is_none());
        if old == Compat::V0_10 && is_incomplete {
            return refuse("compat=1.1: a snapshot lacks the size of its disk: delete it first");
        }
        return Ok(());
    }
    if options.lazy_refcounts == Some(true) {
        return refuse("lazy_refcounts needs compat=1.1");
    }
    if bits != V2_REFCOUNT_BITS {
        return refuse("compat=0.10 needs refcount_bits=16");
    }
    if old == Compat::V0_10 {
        return Ok(());
    }
    if header.incompatible & !DIRTY != 0 {
        return refuse(
            "compat=0.10: the image has a data file, extended L2 entries or zstd, which need 1.1",
        );
    }
    let roots = Roots::read(file)?;
    if !roots.snapshots.is_empty() {
        return refuse("compat=0.10: the image has internal snapshots: delete them first");
    }
    if roots.bitmaps.is_some_and(|(_, count)| count > 0) {
        return refuse("compat=0.10: the image has bitmaps: remove them first");
    }
    Ok(())
}

/// Makes the changes except for a lower version.
pub(crate) fn amend(file: &dyn ImageFile, options: &AmendOptions) -> Result<()> {
    // The image has no errors, and its refcounts are not stale.
    let order = TableChange::begin(file)?.roots().refcount_order;
    // First: only the header of version 3 has the width of refcounts.
    if options.compat == Some(Compat::V1_1) {
        let mut header = HeaderCluster::read(file)?;
        if header.raw.version.get() == 2 {
            header.raw.version = 3.into();
            header.raw.header_len = (size_of::<RawHeader>() as u32).into();
            header.write(file)?;
        }
    }
    if let Some(bits) = options.refcount_bits
        && bits.trailing_zeros() != order
    {
        check::set_refcount_order(file, &Roots::read(file)?, bits.trailing_zeros())?;
    }
    // Read again: both changes above write it.
    let mut header = HeaderCluster::read(file)?;
    let before = (header.raw.compatible, header.raw.autoclear);
    // Version 2 has none.
    let no_lazy = (options.compat == Some(Compat::V0_10)).then_some(false);
    if let Some(is_lazy) = no_lazy.or(options.lazy_refcounts)
        && header.raw.version.get() >= 3
    {
        let features = header.raw.compatible.get() & !LAZY_REFCOUNTS;
        header.raw.compatible = (features | if is_lazy { LAZY_REFCOUNTS } else { 0 }).into();
    }
    if options.data_file_raw == Some(false) {
        header.raw.autoclear = (header.raw.autoclear.get() & !AUTOCLEAR_RAW_DATA_FILE).into();
    }
    if let Some(name) = &options.data_file {
        let kind = extensions::DATA_FILE;
        header.extensions.retain(|extension| extension.kind != kind);
        let bytes = name.clone().into_bytes();
        header
            .extensions
            .insert(0, extensions::Extension { kind, bytes });
    }
    let is_changed = before != (header.raw.compatible, header.raw.autoclear);
    if is_changed || options.data_file.is_some() {
        header.write(file)?;
    }
    Ok(())
}

/// Makes the header of an image without zero clusters one of version 2.
pub(crate) fn downgrade(file: &dyn ImageFile) -> Result<()> {
    let mut header = HeaderCluster::read(file)?;
    if header.raw.incompatible.get() != 0 {
        return Err(Error::corrupt("the image was not closed"));
    }
    header.raw.version = 2.into();
    header
        .extensions
        .retain(|extension| extension.kind != extensions::FEATURE_NAMES);
    header.write(file)
}

/// Replaces zero clusters, which version 2 lacks: by clusters that store zeros over a backing file,
/// and else by unallocated ones.
pub(crate) fn expand_zeros(file: HostFile, path: &Path) -> Result<()> {
    let has_backing = Header::read(&file)?.backing_name.is_some();
    let chain = &mut Chain::without_backing(BackingPolicy::Refuse);
    let mut device = Qcow2Device::open_alone(Arc::new(file), path, chain)?;
    let len_bytes = device.len_bytes();
    let zeros = vec![0; PIECE_BYTES as usize];
    let mut at = 0;
    while at < len_bytes {
        let (entry, mut count) = device.map_entry(at, len_bytes - at)?;
        if entry.is_present && entry.kind != Allocation::Data {
            // Version 2 has no zero clusters: only data hides the backing file.
            if has_backing {
                count = count.min(PIECE_BYTES);
                device.write_at(&zeros[..count as usize], at)?;
            } else {
                device.release(at, count)?;
            }
        }
        at += count;
    }
    device.flush()
}
