//! The disk below the file system, and the image file that stores it: raw or qcow2. The writes of
//! the file are recorded, those of qcow2's tables, too.

use crate::exit::{Failure, Outcome};
use folio::base::Owner;
use folio::block::qcow2::Qcow2Device;
use folio::block::tools::{CopyOptions, copy, info};
use folio::block::{CreateOptions, Device, ImageFormat, MemoryDevice, OpenOptions, open};
use folio::ext4::{self, FormatOptions};
use folio::testing::PowerCutDisk;
use folio::{Errno, Result};
use std::path::Path;
use std::sync::Arc;

/// Least room for the tables of a qcow2 file, in bytes.
const TABLE_BYTES: u64 = 64 << 20;

/// An image file in memory, as it is before the program.
pub(super) struct DiskFile {
    pub(super) format: ImageFormat,
    content: MemoryDevice,
    /// The end of the file; the rest of the memory is room to grow.
    file_bytes: u64,
}

/// A disk in an image file that records its writes.
pub(super) struct RecordedDisk {
    pub(super) file: Arc<PowerCutDisk>,
    pub(super) device: Arc<dyn Device>,
    /// That of `device`, if the file is one.
    qcow2: Option<Arc<Qcow2Device>>,
}

impl RecordedDisk {
    /// Returns the size in bytes of the image file, of which `file` may have room for more.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        match &self.qcow2 {
            Some(qcow2) => qcow2.file_bytes(),
            None => Ok(self.device.len_bytes()),
        }
    }
}

impl DiskFile {
    /// Creates a disk of `len_bytes` with a new file system.
    pub(super) fn create(format: ImageFormat, len_bytes: u64) -> Outcome<Self> {
        // The programs run as the user.
        let root_owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let options = FormatOptions {
            root_owner,
            ..FormatOptions::default()
        };
        Self::filled(format, len_bytes, |disk| {
            ext4::format(disk, &options).map(drop)
        })
        .map_err(|error| Failure::usage(format!("--size: {error}")))
    }

    /// Copies an image. The default of `format` is its own.
    pub(super) fn copy_of(image: &Path, format: Option<ImageFormat>) -> Outcome<Self> {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let found = info(image, &options).map_err(Failure::image)?.format;
        let format = format.unwrap_or(found);
        if (format, found) == (ImageFormat::Qcow2, ImageFormat::Qcow2)
            && let Some(whole) = Self::copy_of_qcow2(image, &options).map_err(Failure::image)?
        {
            return Ok(whole);
        }
        let source = open(image, &options).map_err(Failure::image)?;
        let fill = |disk: &dyn Device| copy(&*source, disk, &CopyOptions::default()).map(drop);
        Self::filled(format, source.len_bytes(), fill).map_err(Failure::image)
    }

    /// Copies a qcow2 file with all its tables; `None` if it has other files below.
    fn copy_of_qcow2(image: &Path, options: &OpenOptions) -> Result<Option<Self>> {
        let file = OpenOptions {
            format: Some(ImageFormat::Raw),
            ..options.clone()
        };
        let file = open(image, &file)?;
        let file_bytes = file.len_bytes();
        let content = MemoryDevice::new(file_bytes + room(open(image, options)?.len_bytes()));
        copy(&*file, &content, &CopyOptions::default())?;
        let copied = Self {
            format: ImageFormat::Qcow2,
            content,
            file_bytes,
        };
        match open_disk(copied.format, Arc::new(copied.content.snapshot())) {
            Ok(_) => Ok(Some(copied)),
            Err(error) if error.errno() == Errno::PERM => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a disk with the content that `fill` writes.
    fn filled(
        format: ImageFormat,
        len_bytes: u64,
        fill: impl FnOnce(&dyn Device) -> Result<()>,
    ) -> Result<Self> {
        if format == ImageFormat::Raw {
            let content = MemoryDevice::new(len_bytes);
            fill(&content)?;
            return Ok(Self {
                format,
                content,
                file_bytes: len_bytes,
            });
        }
        let file = Arc::new(MemoryDevice::new(room(len_bytes)));
        let disk = Qcow2Device::create_on(file.clone(), len_bytes, &CreateOptions::default())?;
        fill(&disk)?;
        disk.flush()?;
        disk.mark_closed()?;
        Ok(Self {
            format,
            file_bytes: disk.file_bytes()?,
            content: file.snapshot(),
        })
    }

    /// Returns the disk in a copy of the file that records its writes from now on.
    pub(super) fn record(&self) -> Result<RecordedDisk> {
        let file = Arc::new(PowerCutDisk::from_content(self.content.snapshot()));
        if self.format != ImageFormat::Qcow2 {
            return Ok(RecordedDisk {
                device: file.device(),
                qcow2: None,
                file,
            });
        }
        let qcow2 = Arc::new(Qcow2Device::open_growing(file.device(), self.file_bytes)?);
        Ok(RecordedDisk {
            device: qcow2.clone(),
            qcow2: Some(qcow2),
            file,
        })
    }
}

/// Returns the disk in an image file, which is itself on a device.
pub(super) fn open_disk(format: ImageFormat, file: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    match format {
        ImageFormat::Qcow2 => Ok(Arc::new(Qcow2Device::open_on(file)?)),
        _ => Ok(file),
    }
}

/// Returns the largest size of a qcow2 file, with clusters that were freed and not used again.
fn room(len_bytes: u64) -> u64 {
    len_bytes.saturating_mul(2).saturating_add(TABLE_BYTES)
}
