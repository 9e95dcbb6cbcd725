//! External data file: stores the guest data, each cluster at its guest offset; the image stores
//! the tables.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("External data file name string", "Raw external data
//! bit"). QEMU starts a relative name at its working folder, Folio at the image's folder, as for
//! backing files.

use super::backing;
use crate::base::Result;
use crate::block::Allocation;
use crate::block::file::ImageFile;
use crate::block::image::Chain;
use crate::block::qcow2::layout::header::Header;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The file that stores the data of an image.
#[derive(Clone)]
pub(crate) struct DataFile {
    pub(crate) file: Arc<dyn ImageFile>,
    /// The file is the disk byte for byte, whatever the tables say (raw external data bit).
    is_raw: bool,
}

impl DataFile {
    /// Opens the data file of the image at `image`, if it has one and `chain` allows it.
    ///
    /// # Errors
    ///
    /// Those of a backing file; EBUSY if another process's lock forbids it.
    pub(crate) fn open(
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
            file: Arc::new(file),
            is_raw: name.is_raw,
        }))
    }

    /// Whether a range is a hole, which reads as zeros.
    pub(crate) fn is_hole(&self, range: Range<u64>) -> Result<bool> {
        let len_bytes = range.end - range.start;
        Ok(self.file.allocation(range.start, len_bytes)? == (Allocation::Hole, len_bytes))
    }

    /// Releases the space of whole clusters; in a raw file they then read as zeros.
    pub(crate) fn clear(&self, range: Range<u64>) -> Result<()> {
        let len_bytes = range.end - range.start;
        if self.is_raw {
            self.file.write_zeroes(range.start, len_bytes)
        } else {
            self.file.punch_hole(range.start, len_bytes).map(drop)
        }
    }
}
