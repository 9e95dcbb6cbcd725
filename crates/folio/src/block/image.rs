//! Opens and makes image files, whatever their format.

use super::host_file::HostFile;
use super::image_file::ImageFile;
use super::qcow2::{CreateOptions, Preallocation, Qcow2Device};
use super::{Device, RawDevice};
use crate::base::{Errno, Error, Result};
use std::fmt;
use std::io::IoSliceMut;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A format of image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// The disk's bytes as they are.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
}

impl ImageFormat {
    /// All formats, for lists and help texts.
    pub const ALL: [Self; 2] = [Self::Raw, Self::Qcow2];

    /// The name, as qemu-img spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ImageFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| {
                Error::new(
                    Errno::INVAL,
                    format!("no image format {name:?}: raw or qcow2"),
                )
            })
    }
}

/// Which files an image may name as its backing file or its external data file. The name stands in
/// the image, so it is as hostile as the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BackingPolicy {
    /// None: an image with a backing file is refused with EPERM.
    Refuse,
    /// Files in the image's own folder or below it.
    #[default]
    Beside,
    /// Files in this folder or below it.
    Within(PathBuf),
    /// Any file.
    Anywhere,
}

/// How an image is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Writes are refused with EROFS, and other readers are let in.
    pub read_only: bool,
    /// The format; found by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// Which backing files and external data files are opened.
    pub backing: BackingPolicy,
    /// A flush does not wait for the disk: for an image that is made again if the machine fails
    /// meanwhile.
    pub is_volatile: bool,
    /// Opened for reading, whoever else writes it, and without a lock: what is read may be torn.
    pub is_shared: bool,
}

/// Opens the image at `path`.
///
/// Errors: EBUSY if another process uses it in a way that forbids this, EUCLEAN if its bytes
/// contradict its format, EOPNOTSUPP if it asks for something that is not done here, EPERM for a
/// backing file that `options` do not allow, else the host's.
pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    open_in_chain(
        path.as_ref(),
        options.read_only,
        options.format,
        &mut Chain::new(options),
    )
}

/// Opens the file of an image as the first of a chain.
pub(super) fn open_file(path: &Path, options: &OpenOptions) -> Result<(HostFile, Chain)> {
    let mut chain = Chain::new(options);
    let file = chain.open_file(path, options.read_only)?;
    Ok((file, chain))
}

/// The images opened so far, from the top one down to its last backing file.
#[derive(Default)]
pub(super) struct Chain {
    policy: BackingPolicy,
    is_volatile: bool,
    is_shared: bool,
    /// Device and inode number of each.
    opened: Vec<(u64, u64)>,
}

impl Chain {
    /// A chain whose first image is still to be opened.
    pub(super) fn new(options: &OpenOptions) -> Self {
        Self {
            policy: options.backing.clone(),
            is_volatile: options.is_volatile,
            is_shared: options.is_shared && options.read_only,
            opened: Vec::new(),
        }
    }

    /// A chain of one.
    pub(super) fn closed() -> Self {
        Self {
            policy: BackingPolicy::Refuse,
            ..Self::default()
        }
    }

    /// Opens the next file; ELOOP if it is already part of the chain.
    pub(super) fn open_file(&mut self, path: &Path, read_only: bool) -> Result<HostFile> {
        let metadata = std::fs::metadata(path);
        let metadata =
            metadata.map_err(|error| Error::io("open", error).at(path.display().to_string()))?;
        let identity = (metadata.dev(), metadata.ino());
        if self.opened.contains(&identity) {
            let why = "the image is its own backing file";
            return Err(Error::new(Errno::LOOP, why).at(path.display().to_string()));
        }
        self.opened.push(identity);
        let file = match self.is_shared {
            true => HostFile::open_unlocked(path)?,
            false => HostFile::open(path, read_only)?,
        };
        Ok(if self.is_volatile {
            file.unsynced()
        } else {
            file
        })
    }

    /// Which backing files may be opened.
    pub(super) fn policy(&self) -> &BackingPolicy {
        &self.policy
    }

    /// Whether flushes wait for the disk.
    pub(super) fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// How many images there are.
    pub(super) fn depth(&self) -> usize {
        self.opened.len()
    }
}

/// Opens an image as the next one of a chain; ELOOP if it is already part of it.
pub(super) fn open_in_chain(
    path: &Path,
    read_only: bool,
    format: Option<ImageFormat>,
    chain: &mut Chain,
) -> Result<Arc<dyn Device>> {
    let file = chain.open_file(path, read_only)?;
    let format = match format {
        Some(format) => format,
        None => detect(&file)?,
    };
    // Before its backing files are.
    tracing::info!(file = %path.display(), %format, read_only, depth = chain.depth() - 1, "image file opened");
    match format {
        ImageFormat::Raw => Ok(Arc::new(RawDevice::from_file(file)?)),
        ImageFormat::Qcow2 => Ok(Arc::new(Qcow2Device::open(Box::new(file), path, chain)?)),
    }
}

/// Makes a new image of `len_bytes` that reads as zeros, and opens it for writing; EEXIST if the
/// file exists.
pub fn create(
    path: impl AsRef<Path>,
    format: ImageFormat,
    len_bytes: u64,
) -> Result<Arc<dyn Device>> {
    match format {
        ImageFormat::Raw => Ok(Arc::new(RawDevice::create(path, len_bytes)?)),
        ImageFormat::Qcow2 => Ok(Arc::new(Qcow2Device::create(
            path,
            len_bytes,
            &CreateOptions::default(),
        )?)),
    }
}

/// Makes a new image of `len_bytes`, rounded up to a multiple of 512, that reads as zeros or as its
/// backing file, which is not opened; EEXIST if the file exists. A file that could not be finished
/// is removed.
///
/// Errors: EINVAL for options that the format has not or that contradict each other, else the
/// host's.
pub fn create_with(
    path: impl AsRef<Path>,
    format: ImageFormat,
    len_bytes: u64,
    options: &CreateOptions,
) -> Result<()> {
    let path = path.as_ref();
    let place = |error: Error| error.at(path.display().to_string());
    let Some(len_bytes) = len_bytes.checked_next_multiple_of(512) else {
        return Err(place(Errno::FBIG.into()));
    };
    if format == ImageFormat::Qcow2 {
        return super::qcow2::create(path, len_bytes, options);
    }
    if options.backing.is_some() {
        return Err(place(Error::new(
            Errno::INVAL,
            "a raw image has no backing file",
        )));
    }
    if options.preallocation == Preallocation::Metadata {
        return Err(place(Error::new(
            Errno::INVAL,
            "a raw image has no metadata to allocate",
        )));
    }
    let file = HostFile::create(path)?;
    let made = file
        .set_len(len_bytes)
        .and_then(|()| match options.preallocation {
            Preallocation::Falloc => match file.reserve(0, len_bytes)? {
                true => Ok(()),
                false => Err(Error::unsupported("the host cannot reserve space here")),
            },
            Preallocation::Full => file.fill_with_zeros(0, len_bytes),
            Preallocation::Off | Preallocation::Metadata => Ok(()),
        });
    if made.is_err() {
        // The file is ours and new: nothing is lost with it.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// The format of the image at `path`, by its first bytes; nothing else is read.
///
/// Errors: EOPNOTSUPP for a format that is known and not read here, else the host's.
pub fn format_of(path: impl AsRef<Path>) -> Result<ImageFormat> {
    detect(&HostFile::open_unlocked(path.as_ref())?)
}

/// Formats that are known by their first bytes and not read: where, what, and the name.
const FOREIGN: [(usize, &[u8], &str); 7] = [
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vhd (vpc)"),
    (0x40, b"\x7f\x10\xda\xbe", "vdi"),
    (0, b"QED\0", "qed"),
];

/// The format by the file's first bytes.
///
/// Errors: EOPNOTSUPP for a format that is known and not read.
pub(super) fn detect(file: &HostFile) -> Result<ImageFormat> {
    let mut head = [0; 128];
    let count = file.read_some(&mut [IoSliceMut::new(&mut head)], 0)? as usize;
    let head = &head[..count];
    if head.starts_with(b"QFI\xfb") {
        return Ok(ImageFormat::Qcow2);
    }
    let foreign = FOREIGN
        .iter()
        .find(|(at, magic, _)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    if let Some((_, _, name)) = foreign {
        let why =
            format!("a {name} image is not read; `qemu-img convert -O qcow2` makes one that is");
        return Err(Error::unsupported(why).at(file.name().to_owned()));
    }
    Ok(ImageFormat::Raw)
}

#[cfg(test)]
mod tests {
    use super::super::{ResizeImage, resize};
    use super::*;

    #[test]
    fn images_grow_and_keep_what_they_hold() {
        let folder = tempfile::TempDir::new().unwrap();
        for format in ImageFormat::ALL {
            let path = folder.path().join(format.name());
            let device = create(&path, format, 1 << 20).unwrap();
            device.write_at(b"kept", (1 << 20) - 4).unwrap();
            drop(device);
            // Over the end of the first L1 entry, which is at 512 MiB.
            for len_bytes in [(1 << 20) + 1, 3 << 30, 1 << 40] {
                resize(&path, len_bytes, &ResizeImage::default()).unwrap();
                let device = open(&path, &OpenOptions::default()).unwrap();
                assert_eq!(device.len_bytes(), len_bytes.next_multiple_of(512));
                let mut bytes = [1; 8];
                device.read_at(&mut bytes, (1 << 20) - 4).unwrap();
                assert_eq!(&bytes, b"kept\0\0\0\0");
                device.write_at(b"end", device.len_bytes() - 3).unwrap();
                device.write_zeroes(device.len_bytes() - 3, 3).unwrap();
                let busy = resize(&path, len_bytes * 2, &ResizeImage::default()).unwrap_err();
                assert_eq!(busy.errno(), Errno::BUSY);
            }
            let smaller = resize(&path, 1 << 20, &ResizeImage::default()).unwrap_err();
            assert_eq!(smaller.errno(), Errno::INVAL);
        }
        // The first L1 table serves 4 TiB.
        resize(
            folder.path().join("qcow2"),
            1 << 43,
            &ResizeImage::default(),
        )
        .unwrap();
        let error = resize(
            folder.path().join("qcow2"),
            1 << 60,
            &ResizeImage::default(),
        )
        .unwrap_err();
        assert_eq!(error.errno(), Errno::FBIG);
    }

    #[test]
    fn formats_go_by_their_names() {
        for format in ImageFormat::ALL {
            assert_eq!(format.name().parse::<ImageFormat>().unwrap(), format);
        }
        assert_eq!(
            "vmdk".parse::<ImageFormat>().unwrap_err().errno(),
            Errno::INVAL
        );
    }
}
