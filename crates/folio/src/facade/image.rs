//! The builder from an image file or device to an [`Fs`].

use super::fs::Fs;
use crate::base::{Clock, Result, Timespec};
use crate::block::{self, BackingPolicy, Device, ImageFormat};
use crate::kernel::{FormatOptions, Kernel, KernelOptions, format_ext4};
use crate::vfs::MountOptions;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image file or a device that holds a file system, and how it is mounted: any
/// [`FileSystemKind`](crate::block::FileSystemKind). New ones are ext4.
///
/// Nothing is opened or created before [`Image::mount`], which has the errors of both.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("disk.img");
/// use folio::Image;
///
/// let fs = Image::create(&path, 16 << 20).mount()?;
/// fs.write("/hello", "Hello, image!\n")?;
/// fs.close()?;
///
/// let fs = Image::file(&path).read_only().mount()?;
/// assert_eq!(fs.read_to_string("/hello")?, "Hello, image!\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "an image is opened or created by `mount`"]
pub struct Image {
    source: ImageSource,
    image_format: Option<ImageFormat>,
    backing: BackingPolicy,
    partition: Option<u32>,
    /// A new file system is made with these.
    format_options: Option<FormatOptions>,
    mount_options: MountOptions,
    kernel_options: KernelOptions,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("source", &self.source)
            .field("image_format", &self.image_format)
            .field("partition", &self.partition)
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum ImageSource {
    File(PathBuf),
    NewFile { path: PathBuf, len_bytes: u64 },
    Device(Arc<dyn Device>),
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) | Self::NewFile { path, .. } => fmt::Debug::fmt(path, f),
            Self::Device(_) => f.write_str("Device"),
        }
    }
}

impl Image {
    /// An existing image file, raw or qcow2.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::new(ImageSource::File(path.into()), None)
    }

    /// A new image file of `len_bytes` with an empty ext4 file system: qcow2 if the name ends in
    /// `.qcow2`, else raw and sparse.
    pub fn create(path: impl Into<PathBuf>, len_bytes: u64) -> Self {
        let path = path.into();
        let source = ImageSource::NewFile { path, len_bytes };
        Self::new(source, Some(FormatOptions::default()))
    }

    /// The file system on a device.
    pub fn device(device: Arc<dyn Device>) -> Self {
        Self::new(ImageSource::Device(device), None)
    }

    /// An empty ext4 file system, made over whatever `device` holds.
    pub fn create_on(device: Arc<dyn Device>) -> Self {
        Self::new(ImageSource::Device(device), Some(FormatOptions::default()))
    }

    fn new(source: ImageSource, format_options: Option<FormatOptions>) -> Self {
        Self {
            source,
            image_format: None,
            backing: BackingPolicy::default(),
            partition: None,
            format_options,
            mount_options: MountOptions::default(),
            kernel_options: KernelOptions::default(),
        }
    }

    /// Refuses changes with EROFS, and writes nothing to the image.
    pub fn read_only(mut self) -> Self {
        self.mount_options.read_only = true;
        self
    }

    /// Sets the format of the file, which is otherwise found by its first bytes, or for a new file
    /// by its name. Set it for a raw image whose content is not trusted.
    pub fn image_format(mut self, format: ImageFormat) -> Self {
        self.image_format = Some(format);
        self
    }

    /// Sets which backing files an image may name; by default those in its own directory or below.
    pub fn backing(mut self, policy: BackingPolicy) -> Self {
        self.backing = policy;
        self
    }

    /// Chooses a partition by its number in the GPT or MBR. Without this, the whole disk if a file
    /// system starts there, else the partition that [`block::partition::selected`] finds.
    pub fn partition(mut self, number: u32) -> Self {
        self.partition = Some(number);
        self
    }

    /// Sets label, block size and the like of a new file system; no effect on an existing one.
    pub fn format_options(mut self, options: FormatOptions) -> Self {
        if self.format_options.is_some() {
            self.format_options = Some(options);
        }
        self
    }

    /// Adds mount options as mount(8) writes them: `"noatime,commit=30"`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a malformed option. [`Image::mount`] refuses one that ext4 does not know.
    pub fn options(mut self, options: &str) -> io::Result<Self> {
        self.mount_options.add(options)?;
        Ok(self)
    }

    /// Sets the memory for the page cache, in bytes.
    pub fn cache_bytes(mut self, cache_bytes: u64) -> Self {
        self.kernel_options.cache_bytes = cache_bytes;
        self
    }

    /// Makes `time` every timestamp that is not set explicitly, and the content of the image
    /// independent of timing.
    pub fn fixed_time(mut self, time: Timespec) -> Self {
        let clock = Clock::Fixed(time);
        if let Some(options) = &mut self.format_options {
            options.clock = clock;
        }
        self.mount_options.clock = clock;
        self.kernel_options.clock = clock;
        // Writeback in the background would let chance decide which file gets which blocks.
        self.kernel_options.background_writeback = false;
        self
    }

    /// Makes a new image reproducible: the same calls in the same order make the same bytes. `uuid`
    /// identifies the file system; every timestamp that is not set explicitly is `time`.
    pub fn reproducible(mut self, uuid: [u8; 16], time: Timespec) -> Self {
        if let Some(options) = &mut self.format_options {
            options.uuid = Some(uuid);
        }
        self.fixed_time(time)
    }

    /// Opens or creates the image and mounts its file system.
    ///
    /// # Errors
    ///
    /// `NotFound`, `AlreadyExists` (of a new file), `ResourceBusy` if another program uses the
    /// image, `PermissionDenied` for a backing file that the policy forbids. EUCLEAN for corrupt
    /// and EOPNOTSUPP for unsupported images, with the structure at fault in the message. A new
    /// file that cannot be completed is removed.
    pub fn mount(self) -> io::Result<Fs> {
        match &self.source {
            ImageSource::Device(device) => Ok(self.mount_device(device.clone())?),
            ImageSource::File(path) => {
                let options = block::OpenOptions {
                    read_only: self.mount_options.read_only,
                    format: self.image_format,
                    backing: self.backing.clone(),
                    ..block::OpenOptions::default()
                };
                let device = block::open(path, &options)?;
                Ok(self.mount_device(device).map_err(|error| at(error, path))?)
            }
            ImageSource::NewFile { path, len_bytes } => {
                let format = self
                    .image_format
                    .unwrap_or_else(|| ImageFormat::of_name(path));
                let device = block::create(path, format, *len_bytes)?;
                let mounted = self.mount_device(device);
                if mounted.is_err() {
                    // The file is new and ours: no data is lost with it.
                    let _: io::Result<()> = std::fs::remove_file(path);
                }
                Ok(mounted.map_err(|error| at(error, path))?)
            }
        }
    }

    fn mount_device(&self, device: Arc<dyn Device>) -> Result<Fs> {
        let device = match &self.format_options {
            Some(options) => {
                format_ext4(&*device, options)?;
                device
            }
            None => block::partition::select(device, self.partition)?,
        };
        let kernel = Kernel::new(self.kernel_options.clone());
        kernel.mount_image(device, "/", &self.mount_options)?;
        Ok(Fs::new(kernel))
    }
}

fn at(error: crate::Error, path: &Path) -> crate::Error {
    error.at(path.display().to_string())
}
