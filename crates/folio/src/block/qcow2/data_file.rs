//! External data file: guest data in a file of its own, each cluster at its guest offset; the image
//! keeps the tables.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("External data file name string", "Raw external data
//! bit"). QEMU looks for a relative name in the folder that it runs in, we in the image's, as for
//! backing files.

use super::super::Allocation;
use super::super::image::Chain;
use super::super::image_file::ImageFile;
use super::backing;
use super::header::Header;
use crate::base::Result;
use std::ops::Range;
use std::path::Path;

/// The file that holds the data of an image.
pub(super) struct DataFile {
    pub(super) file: Box<dyn ImageFile>,
    /// The file is the disk byte for byte, whatever the tables say.
    is_raw: bool,
}

impl DataFile {
    /// Opens the data file of the image at `image`, if it has one, as far as `chain` allows it.
    ///
    /// Errors: those of a backing file; EBUSY if another process uses it in a way that forbids
    /// this.
    pub(super) fn open(
        image: &Path,
        header: &Header,
        read_only: bool,
        chain: &mut Chain,
    ) -> Result<Option<Self>> {
        let Some(name) = &header.data_file else {
            return Ok(None);
        };
        let path = backing::resolve(image, "data file", &name.name, chain)?;
        let file = chain
            .open_file(&path, read_only)
            .map_err(|error| error.at("data file"))?;
        Ok(Some(Self {
            file: Box::new(file),
            is_raw: name.is_raw,
        }))
    }

    /// Whether nothing is stored in a range, which then reads as zeros.
    pub(super) fn is_hole(&self, range: Range<u64>) -> Result<bool> {
        let len_bytes = range.end - range.start;
        Ok(self.file.allocation(range.start, len_bytes)? == (Allocation::Hole, len_bytes))
    }

    /// Gives back what whole clusters held; in a raw file they read as zeros from now on.
    pub(super) fn clear(&self, range: Range<u64>) -> Result<()> {
        let len_bytes = range.end - range.start;
        match self.is_raw {
            true => self.file.write_zeroes(range.start, len_bytes),
            false => self.file.punch_hole(range.start, len_bytes).map(drop),
        }
    }
}
