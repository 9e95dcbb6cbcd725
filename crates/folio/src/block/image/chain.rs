//! The chain of an image: the images opened so far, from the top one down to its last backing file,
//! and the seam through which a format opens the next one.

use super::format::ImageFormat;
use super::options::{BackingPolicy, OpenOptions, SnapshotSelector};
use crate::base::{Detail, Errno, Error, Result};
use crate::block::Device;
use crate::block::file::{FileLock, HostFile, refuse_remote};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens an image of any format. A format calls it for its backing file; the implementation is
/// above the formats.
pub(crate) trait Opener: Sync {
    /// Opens the image at `path` as the next one of `chain`.
    ///
    /// # Errors
    ///
    /// ELOOP if the file is already part of the chain, else the errors of `block::open`.
    fn open_image(
        &self,
        path: &Path,
        read_only: bool,
        format: Option<ImageFormat>,
        chain: &mut Chain,
    ) -> Result<Arc<dyn Device>>;
}

/// An opened file.
#[derive(PartialEq, Eq)]
enum Identity {
    /// Its device and inode number.
    Host(u64, u64),
    /// Its URL.
    Remote(String),
}

/// An image of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChainImage {
    /// Its path, or its URL.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
}

/// The images opened so far, from the top one down to its last backing file.
pub(crate) struct Chain {
    policy: BackingPolicy,
    is_volatile: bool,
    is_shared: bool,
    /// The snapshot to open of the top image, until it is open.
    snapshot: Option<SnapshotSelector>,
    /// None if backing files are not opened.
    #[cfg(feature = "qcow2")]
    opener: Option<&'static dyn Opener>,
    opened: Vec<Identity>,
    images: Vec<ChainImage>,
}

impl Chain {
    /// An empty chain: its first image is not open yet.
    pub(crate) fn new(options: &OpenOptions, opener: &'static dyn Opener) -> Self {
        // No other format has backing files.
        #[cfg(not(feature = "qcow2"))]
        let _ = opener;
        Self {
            policy: options.backing.clone(),
            is_volatile: options.is_volatile,
            is_shared: options.is_shared && options.read_only,
            snapshot: options.snapshot.clone().filter(|_| options.read_only),
            #[cfg(feature = "qcow2")]
            opener: Some(opener),
            opened: Vec::new(),
            images: Vec::new(),
        }
    }

    /// A chain of one image, which may name no other file.
    #[cfg(feature = "qcow2")]
    pub(crate) fn closed() -> Self {
        Self::without_backing(BackingPolicy::Refuse)
    }

    /// A chain of one image; `policy` decides about its external data file.
    #[cfg(feature = "qcow2")]
    pub(crate) fn without_backing(policy: BackingPolicy) -> Self {
        Self {
            policy,
            is_volatile: false,
            is_shared: false,
            snapshot: None,
            #[cfg(feature = "qcow2")]
            opener: None,
            opened: Vec::new(),
            images: Vec::new(),
        }
    }

    /// Adds a remote file as the next one of the chain.
    ///
    /// # Errors
    ///
    /// ELOOP if it is already part of the chain.
    pub(crate) fn add_remote(&mut self, url: &str) -> Result<()> {
        self.add(Identity::Remote(url.to_owned()), url)
    }

    fn add(&mut self, identity: Identity, name: &str) -> Result<()> {
        if self.opened.contains(&identity) {
            let why = "the image is its own backing file";
            return Err(Error::new(Errno::LOOP, why)
                .about(Detail::BackingLoop)
                .at(name.to_owned()));
        }
        self.opened.push(identity);
        Ok(())
    }

    /// Opens the next file of the chain.
    ///
    /// # Errors
    ///
    /// ELOOP if the file is already part of the chain, EBUSY if another process's lock forbids it,
    /// else the host's errors.
    pub(crate) fn open_file(&mut self, path: &Path, read_only: bool) -> Result<HostFile> {
        refuse_remote(path)?;
        let metadata = std::fs::metadata(path);
        let metadata =
            metadata.map_err(|error| Error::io("open", error).at(path.display().to_string()))?;
        let identity = Identity::Host(metadata.dev(), metadata.ino());
        let is_top = self.opened.is_empty();
        self.add(identity, &path.display().to_string())?;
        let file = match self.policy {
            // The policy has checked the path. Since then another program may have put a link
            // there.
            BackingPolicy::Beside | BackingPolicy::Within(_) if !is_top => {
                let lock = if self.is_shared {
                    FileLock::Unlocked
                } else {
                    FileLock::Locked
                };
                HostFile::open_exactly(path, read_only, lock)?
            }
            _ if self.is_shared => HostFile::open_unlocked(path)?,
            _ => HostFile::open(path, read_only)?,
        };
        Ok(if self.is_volatile {
            file.unsynced()
        } else {
            file
        })
    }

    /// Opens the next image of the chain, with its own backing files.
    ///
    /// # Errors
    ///
    /// EPERM in a chain without backing files, else those of [`Opener::open_image`].
    #[cfg(feature = "qcow2")]
    pub(crate) fn open_image(
        &mut self,
        path: &Path,
        read_only: bool,
        format: Option<ImageFormat>,
    ) -> Result<Arc<dyn Device>> {
        let Some(opener) = self.opener else {
            let why = "backing files are not opened here";
            return Err(Error::new(Errno::PERM, why).at(path.display().to_string()));
        };
        opener.open_image(path, read_only, format, self)
    }

    /// Returns the policy that decides which named files may be opened.
    #[cfg(feature = "qcow2")]
    pub(crate) fn policy(&self) -> &BackingPolicy {
        &self.policy
    }

    /// Takes the snapshot that the top image is opened at. A backing file is opened as it is.
    pub(crate) fn take_snapshot(&mut self) -> Option<SnapshotSelector> {
        self.snapshot.take()
    }

    /// Whether flushes return without waiting for the disk.
    #[cfg(feature = "qcow2")]
    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// Records that the next image of the chain has this format.
    pub(crate) fn record(&mut self, path: &Path, format: ImageFormat) {
        let path = path.to_owned();
        self.images.push(ChainImage { path, format });
    }

    /// Returns the images opened so far.
    #[cfg(feature = "qcow2")]
    pub(crate) fn images(self) -> Vec<ChainImage> {
        self.images
    }

    /// Returns the number of files opened so far.
    pub(crate) fn depth(&self) -> usize {
        self.opened.len()
    }
}
