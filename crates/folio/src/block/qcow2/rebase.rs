//! What becomes of an overlay when its backing file is another one, or takes over what the overlay
//! holds.

use super::super::host_file::HostFile;
use super::super::image::{Chain, open_in_chain};
use super::super::image_file::ImageFile;
use super::super::{Device, ImageFormat};
use super::create::BackingName;
use super::data_file::DataFile;
use super::flush::RefcountWrites;
use super::header::Header;
use super::roots::Roots;
use super::{Qcow2Device, backing, backing_name};
use crate::base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The path that the image at `image` means by a backing file's name, if `chain` allows it.
pub(in crate::block) fn backing_path(image: &Path, name: &str, chain: &Chain) -> Result<PathBuf> {
    backing::resolve(image, "backing file", name, chain)
}

/// The backing file that the header in `file` names.
pub(in crate::block) fn backing_of(
    file: &dyn ImageFile,
) -> Result<Option<(String, Option<ImageFormat>)>> {
    let header = Header::read(file)?;
    let Some(name) = header.backing_name else {
        return Ok(None);
    };
    let format = header
        .backing_format
        .as_deref()
        .map(str::parse)
        .transpose()?;
    Ok(Some((name, format)))
}

/// Opens what shall be the backing file of the image at `image`, for reading.
pub(in crate::block) fn open_backing(
    image: &Path,
    name: &BackingName,
    chain: &mut Chain,
) -> Result<Arc<dyn Device>> {
    let path = backing_path(image, &name.name, chain)?;
    open_in_chain(&path, true, name.format, chain).map_err(|error| error.at("new backing file"))
}

/// Changes the name in the header in `file`, and nothing else.
///
/// Errors: EINVAL for names that do not fit, EUCLEAN for a header that leads nowhere.
pub(in crate::block) fn rename_backing(
    file: &dyn ImageFile,
    name: Option<&BackingName>,
) -> Result<()> {
    // What cannot be read is not written.
    Header::read(file)?.check_writable()?;
    backing_name::set(file, name)
}

/// How many internal snapshots there are.
pub(in crate::block) fn snapshot_count(file: &dyn ImageFile) -> Result<usize> {
    Ok(Roots::read(file)?.snapshots.len())
}

impl Qcow2Device {
    /// Opens the image in `file` as if it had no backing file: what it does not hold reads as
    /// zeros.
    pub(in crate::block) fn open_alone(
        file: HostFile,
        path: &Path,
        chain: &mut Chain,
    ) -> Result<Self> {
        let file: Box<dyn ImageFile> = Box::new(file);
        let header = Self::header(&*file)?;
        let data_file = DataFile::open(path, &header, file.is_read_only(), chain)?;
        Self::assemble(file, &header, None, data_file)
    }

    /// From now on, zeros that are written hide what lies below, whether or not anything does yet.
    pub(in crate::block) fn expect_backing(&mut self) {
        self.geometry.has_backing = true;
        self.metadata.get_mut().geometry.has_backing = true;
    }

    /// Makes a range read as zeros over any backing file.
    pub(in crate::block) fn hide(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let (cluster, unit) = (self.cluster_bytes(), self.geometry.unit_bytes());
        let (end, disk_end) = (offset + len_bytes, self.geometry.len_bytes);
        let is_whole = offset.is_multiple_of(unit) && (end.is_multiple_of(unit) || end == disk_end);
        if is_whole && self.geometry.version >= 3 {
            return self.clear_units(offset..end.next_multiple_of(unit), false);
        }
        let zeros = vec![0; len_bytes.min(cluster) as usize];
        let mut at = offset;
        while at < end {
            let count = (end - at).min(cluster);
            self.write_at(&zeros[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// Makes everything durable, then names another backing file.
    pub(in crate::block) fn rebase_to(&self, name: Option<&BackingName>) -> Result<()> {
        self.write_back(RefcountWrites::Now)?;
        backing_name::set(&*self.file, name).map_err(|error| self.place(error))
    }

    /// Lets go of every cluster: all reads as the backing file does.
    pub(in crate::block) fn make_empty(&mut self) -> Result<()> {
        let len_bytes = self.geometry.len_bytes;
        self.begin_write(0, len_bytes)?;
        let clusters = len_bytes.div_ceil(self.cluster_bytes());
        let mut first = 0;
        while first < clusters {
            self.make_room()?;
            first = self
                .metadata
                .get_mut()
                .forget(&*self.file, first..clusters)?;
        }
        self.write_back(RefcountWrites::Now)?;
        match &self.data_file {
            Some(data) => data.clear(0..len_bytes),
            None => Ok(()),
        }
    }

    /// Refuses what a change of the backing file would break: EOPNOTSUPP.
    pub(in crate::block) fn check_rebase(&self) -> Result<()> {
        match snapshot_count(&*self.file)? {
            0 => Ok(()),
            _ => Err(self.place(Error::unsupported(
                "internal snapshots, which would see the new backing file",
            ))),
        }
    }
}
