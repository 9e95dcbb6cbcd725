//! Opens an image: reads its header and tables, and opens the files that it names.

use super::autoclear::Autoclear;
use super::backing;
use super::compressed::Decompressor;
use super::data_file::DataFile;
use super::device::Qcow2Device;
use super::lazy::DirtyBit;
use super::reserve::SpaceReserve;
use crate::base::sync::{Condvar, Mutex, RwLock};
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::block::file::{DeviceFile, ImageFile};
use crate::block::image::{Chain, ImageFormat, SnapshotSelector};
use crate::block::qcow2::check;
use crate::block::qcow2::layout::backing_name;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::roots::Roots;
use crate::block::qcow2::layout::snapshot_table::SnapshotEntry;
use crate::block::qcow2::metadata::Metadata;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Returns the entry of a snapshot.
fn find_snapshot(file: &dyn ImageFile, which: &SnapshotSelector) -> Result<SnapshotEntry> {
    let entries = Roots::read(file)?.snapshots;
    let is_equal = |wanted: &Option<String>, found: &[u8]| {
        wanted
            .as_ref()
            .is_none_or(|wanted| wanted.as_bytes() == found)
    };
    let found = match which {
        SnapshotSelector::IdOrName(text) => {
            let by_id = entries.iter().find(|entry| entry.id == text.as_bytes());
            by_id.or_else(|| entries.iter().find(|entry| entry.name == text.as_bytes()))
        }
        SnapshotSelector::Exact { id, name } => entries
            .iter()
            .find(|entry| is_equal(id, &entry.id) && is_equal(name, &entry.name)),
    };
    found
        .cloned()
        .ok_or_else(|| Error::new(Errno::NOENT, "no such snapshot"))
}

/// Compares the version of the backing file with the one for which the image was written, and
/// records it if nothing is recorded yet, before the image is written.
///
/// # Errors
///
/// ESTALE for another version.
fn check_version(file: &dyn ImageFile, header: &Header, backing: &dyn Device) -> Result<()> {
    backing::check_version(header.backing_version.as_deref(), backing)?;
    match backing.version() {
        Some(found) if header.backing_version.is_none() && !file.is_read_only() => {
            backing_name::set_version(file, Some(&found))
        }
        _ => Ok(()),
    }
}

impl Qcow2Device {
    /// Opens the image stored on a device.
    ///
    /// # Errors
    ///
    /// EPERM for an image with a backing file or an external data file, because its name has no
    /// folder to start at; EUCLEAN and EOPNOTSUPP as in [`crate::block::open`].
    pub fn open_on(device: Arc<dyn Device>) -> Result<Self> {
        Self::open(
            Arc::new(DeviceFile::open(device)),
            Path::new(""),
            &mut Chain::closed(),
        )
    }

    /// Opens the image stored in the first `file_bytes` of a device. Like a file of the host it
    /// grows when clusters are appended, up to the device's size.
    ///
    /// # Errors
    ///
    /// Those of [`Qcow2Device::open_on`].
    pub fn open_growing(device: Arc<dyn Device>, file_bytes: u64) -> Result<Self> {
        Self::open(
            Arc::new(DeviceFile::open_growing(device, file_bytes)),
            Path::new(""),
            &mut Chain::closed(),
        )
    }

    /// Opens the image stored on a device with `backing` as its backing file. The name of a backing
    /// file in the image is ignored.
    ///
    /// # Errors
    ///
    /// Those of [`Qcow2Device::open_on`].
    pub fn open_over(device: Arc<dyn Device>, backing: Arc<dyn Device>) -> Result<Self> {
        let file: Arc<dyn ImageFile> = Arc::new(DeviceFile::open(device));
        let header = Self::header(&*file)?;
        let chain = &mut Chain::closed();
        let data_file = DataFile::open(Path::new(""), &header, file.is_read_only(), chain)?;
        Self::assemble(file, &header, Some(backing), data_file)
    }

    /// Reads the tables of an image that is already open and locked, and opens its backing files.
    pub(in crate::block) fn open(
        file: Arc<dyn ImageFile>,
        path: &Path,
        chain: &mut Chain,
    ) -> Result<Self> {
        let name = file.name().to_owned();
        let at_image = |error: Error| error.at("qcow2").at(name.clone());
        let mut header = Self::header(&*file)?;
        if let Some(which) = chain.take_snapshot() {
            let entry = find_snapshot(&*file, &which).map_err(at_image)?;
            header.select_snapshot(&*file, &entry).map_err(at_image)?;
        }
        let backing = match &header.backing_name {
            None => None,
            Some(name) => {
                let format = header
                    .backing_format
                    .as_deref()
                    .map(str::parse::<ImageFormat>);
                let format = format.transpose().map_err(|_| {
                    let format = header.backing_format.as_deref().unwrap_or_default();
                    at_image(Error::unsupported(format!("backing format {format:?}")))
                })?;
                let path = backing::resolve(path, "backing file", name, chain).map_err(at_image)?;
                let backing = chain
                    .open_image(&path, true, format)
                    .map_err(|error| error.at("backing file"))?;
                check_version(&*file, &header, &*backing).map_err(at_image)?;
                Some(backing)
            }
        };
        let data_file =
            DataFile::open(path, &header, file.is_read_only(), chain).map_err(at_image)?;
        let this = Self::assemble(file, &header, backing, data_file)?;
        if chain.is_volatile() {
            // No flush waits for the host to allocate, and gaps in clusters stay holes.
            this.reserve.disable();
        }
        Ok(this)
    }

    /// Opens the image in `file` as if it had no backing file: unallocated clusters read as zeros.
    pub(in crate::block) fn open_alone(
        file: Arc<dyn ImageFile>,
        path: &Path,
        chain: &mut Chain,
    ) -> Result<Self> {
        let header = Self::header(&*file)?;
        let data_file = DataFile::open(path, &header, file.is_read_only(), chain)?;
        Self::assemble(file, &header, None, data_file)
    }

    /// Reads and checks the header; an image opened for writing must be writable.
    pub(super) fn header(file: &dyn ImageFile) -> Result<Header> {
        let read = || {
            let header = Header::read(file)?;
            if file.is_read_only() {
                Ok(header)
            } else {
                header.check_writable().map(|()| header)
            }
        };
        read().map_err(|error: Error| error.at("qcow2").at(file.name().to_owned()))
    }

    /// Reads the tables. Before the image is written, stale refcounts are repaired.
    pub(super) fn assemble(
        file: Arc<dyn ImageFile>,
        header: &Header,
        backing: Option<Arc<dyn Device>>,
        data_file: Option<DataFile>,
    ) -> Result<Self> {
        let at_image = |error: Error| error.at("qcow2").at(file.name().to_owned());
        let repaired;
        // Before the tables are read: a refcount that is too low would let a write take a used
        // cluster.
        let header = if header.is_dirty() && !file.is_read_only() {
            check::repair_stale_refcounts(&*file).map_err(at_image)?;
            repaired = Header::read(&*file).map_err(at_image)?;
            &repaired
        } else {
            header
        };
        let metadata = Metadata::read(&*file, header, backing.is_some()).map_err(at_image)?;
        let geometry = metadata.geometry;
        Ok(Self {
            geometry,
            l1_offset: header.l1_offset,
            data_file,
            backing,
            compression: header.compression,
            decompressor: Decompressor::new(header.compression, geometry.cluster_bytes()),
            published: Arc::clone(&metadata.published),
            metadata: Mutex::new(metadata),
            write_done: Condvar::new(),
            io: RwLock::new(()),
            flushing: Mutex::new(()),
            reserve: SpaceReserve::new(file.len_bytes()?),
            dirty_bit: DirtyBit::new(header),
            autoclear: Autoclear::new(header),
            is_preallocated: OnceLock::new(),
            file,
        })
    }
}
