//! Opens image files, whatever their format: the only opener that knows every format.

use crate::base::{Error, Result};
use crate::block::file::{HostFile, ImageFile, RemoteFile, remote};
use crate::block::image::{Chain, ImageFormat, OpenOptions, Opener, detect};
use crate::block::{Device, RawDevice};
#[cfg(feature = "qcow2")]
use crate::block::{
    image::CreateOptions,
    qcow2::{self, OldDataFile, Qcow2Device},
};
use std::path::Path;
use std::sync::Arc;

/// Opens the image at `path`, with its backing files.
///
/// # Errors
///
/// - EBUSY if another process's lock on the file forbids it.
/// - EUCLEAN if the image's bytes contradict its format.
/// - EOPNOTSUPP if the image uses a feature that Folio does not support.
/// - EPERM for a backing file or data file that `options` do not allow.
/// - ENOENT if the image has no such snapshot.
/// - ELOOP if the image is its own backing file, or the chain is too long.
/// - Else the host's errors.
pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    open_in(&mut chain(options), path.as_ref(), options)
}

/// Opens the image at `path` as the first of a chain.
pub(in crate::block) fn open_in(
    chain: &mut Chain,
    path: &Path,
    options: &OpenOptions,
) -> Result<Arc<dyn Device>> {
    AnyFormat.open_image(path, options.read_only, options.format, chain)
}

/// Opens the file of an image as the first of a chain.
pub(super) fn open_file(path: &Path, options: &OpenOptions) -> Result<(HostFile, Chain)> {
    let mut chain = chain(options);
    let file = chain.open_file(path, options.read_only)?;
    Ok((file, chain))
}

/// Returns an empty chain whose images may have any format.
pub(in crate::block) fn chain(options: &OpenOptions) -> Chain {
    Chain::new(options, &AnyFormat)
}

/// Opens images of every format.
struct AnyFormat;

impl Opener for AnyFormat {
    fn open_image(
        &self,
        path: &Path,
        read_only: bool,
        format: Option<ImageFormat>,
        chain: &mut Chain,
    ) -> Result<Arc<dyn Device>> {
        if let Some(found) = remote(path) {
            return open_remote_image(&found, read_only, format, chain);
        }
        let (image, _) = open_host_image(path, read_only, format, chain)?;
        Ok(image.into_device())
    }
}

/// An open image in a file of the host.
#[derive(Clone)]
pub(in crate::block) enum HostImage {
    Raw(Arc<RawDevice>),
    #[cfg(feature = "qcow2")]
    Qcow2(Arc<Qcow2Device>),
}

impl HostImage {
    fn into_device(self) -> Arc<dyn Device> {
        match self {
            Self::Raw(device) => device,
            #[cfg(feature = "qcow2")]
            Self::Qcow2(device) => device,
        }
    }
}

/// Opens an image in a file of the host as the next one of a chain; returns it and the file.
pub(in crate::block) fn open_host_image(
    path: &Path,
    read_only: bool,
    format: Option<ImageFormat>,
    chain: &mut Chain,
) -> Result<(HostImage, Arc<HostFile>)> {
    let file = Arc::new(chain.open_file(path, read_only)?);
    let format = match format {
        Some(format) => format,
        None => detect(&*file)?,
    };
    chain.record(path, format);
    // Before its backing files are.
    tracing::info!(file = %path.display(), %format, read_only, depth = chain.depth() - 1, "image file opened");
    match format {
        ImageFormat::Raw if chain.take_snapshot().is_some() => {
            Err(Error::unsupported("the raw format has no snapshots")
                .at(path.display().to_string()))
        }
        ImageFormat::Raw => {
            let device = RawDevice::from_file(file.clone())?;
            Ok((HostImage::Raw(Arc::new(device)), file))
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => {
            let device = Qcow2Device::open(file.clone(), path, chain)?;
            Ok((HostImage::Qcow2(Arc::new(device)), file))
        }
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(path)),
    }
}

/// Opens a remote image as the next one of a chain.
fn open_remote_image(
    remote: &RemoteFile<'_>,
    read_only: bool,
    format: Option<ImageFormat>,
    chain: &mut Chain,
) -> Result<Arc<dyn Device>> {
    let name = remote.name;
    chain.add_remote(name)?;
    let file = remote.open(read_only)?;
    let format = match format {
        Some(format) => format,
        None => detect(&file)?,
    };
    chain.record(Path::new(name), format);
    tracing::info!(file = name, %format, depth = chain.depth() - 1, "remote image opened");
    match format {
        ImageFormat::Raw if chain.take_snapshot().is_some() => {
            Err(Error::unsupported("the raw format has no snapshots").at(name.to_owned()))
        }
        // The device itself: nothing is between it and the reader.
        ImageFormat::Raw => file
            .device()
            .ok_or_else(|| Error::unsupported("no device").at(name.to_owned())),
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => Ok(Arc::new(Qcow2Device::open(
            Arc::new(file),
            Path::new(name),
            chain,
        )?)),
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(Path::new(name))),
    }
}

#[cfg(feature = "qcow2")]
impl Qcow2Device {
    /// Creates an image of `len_bytes` bytes that reads as zeros, and opens it for writing.
    ///
    /// # Errors
    ///
    /// EEXIST if the file exists, EINVAL for options that contradict each other, else those of
    /// [`open`].
    pub fn create(path: impl AsRef<Path>, len_bytes: u64, options: &CreateOptions) -> Result<Self> {
        let path = path.as_ref();
        qcow2::create(path, len_bytes, options, OldDataFile::Refuse)?;
        Self::open_at(path, &OpenOptions::default())
    }

    /// Opens the qcow2 image at `path`, with its backing files.
    ///
    /// # Errors
    ///
    /// Those of [`open`].
    pub fn open_at(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let (file, mut chain) = open_file(path.as_ref(), options)?;
        Self::open(Arc::new(file), path.as_ref(), &mut chain)
    }
}
