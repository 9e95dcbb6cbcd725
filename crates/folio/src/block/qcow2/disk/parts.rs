//! The files under an open image: a device gives them to its successor, so that their locks last.

use super::data_file::DataFile;
use super::device::Qcow2Device;
use crate::base::Result;
use crate::block::Device;
use crate::block::file::ImageFile;
use std::sync::Arc;

/// The open files of an image.
#[derive(Clone)]
pub(crate) struct Qcow2Parts {
    /// The image's own file.
    pub(crate) file: Arc<dyn ImageFile>,
    /// The backing file, as the image reads it.
    pub(crate) backing: Option<Arc<dyn Device>>,
    data_file: Option<DataFile>,
    /// Whether the host reserves space for writes.
    has_reserve: bool,
}

impl Qcow2Parts {
    /// Returns the files of a new overlay in `file`, over the image `backing`.
    pub(crate) fn overlay(file: Arc<dyn ImageFile>, backing: &Arc<Qcow2Device>) -> Self {
        Self {
            file,
            backing: Some(backing.clone()),
            data_file: None,
            has_reserve: backing.reserve.is_enabled(),
        }
    }
}

impl Qcow2Device {
    /// Returns the files of this image.
    pub(in crate::block) fn parts(&self) -> Qcow2Parts {
        Qcow2Parts {
            file: self.file.clone(),
            backing: self.backing.clone(),
            data_file: self.data_file.clone(),
            has_reserve: self.reserve.is_enabled(),
        }
    }

    /// Opens an image in files that are open, and that no other device writes.
    ///
    /// # Errors
    ///
    /// Those of [`crate::block::open`], without those of opening files.
    pub(in crate::block) fn from_parts(parts: Qcow2Parts) -> Result<Self> {
        let header = Self::header(&*parts.file)?;
        let this = Self::assemble(parts.file, &header, parts.backing, parts.data_file)?;
        if !parts.has_reserve {
            this.reserve.disable();
        }
        Ok(this)
    }
}
