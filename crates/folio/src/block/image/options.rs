//! Options of opening an image.

use super::format::ImageFormat;
use std::path::PathBuf;

/// Which files an image may name as its backing file or its external data file. The name is part of
/// the image, so it is as hostile as the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BackingPolicy {
    /// None: an image with a backing file is rejected with EPERM.
    Refuse,
    /// Files in the image's own folder or below it.
    #[default]
    Beside,
    /// Files in this folder or below it.
    Within(PathBuf),
    /// Any file.
    Anywhere,
}

/// An internal snapshot, as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotSelector {
    /// The snapshot with this ID, or else the first one with this name.
    IdOrName(String),
    /// The first snapshot with these properties.
    Exact {
        /// Its ID; any if not given.
        id: Option<String>,
        /// Its name; any if not given.
        name: Option<String>,
    },
}

/// Options of [`crate::block::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Writes fail with EROFS, and other readers may open the image.
    pub read_only: bool,
    /// The format; detected by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// Which backing files and external data files are opened.
    pub backing: BackingPolicy,
    /// A flush does not wait for the disk: for an image that is created again after a failure of
    /// the machine (`qemu-img convert -t unsafe`).
    pub is_volatile: bool,
    /// With `read_only`: takes no lock, even while another process writes the image. Reads may then
    /// return a mix of old and new tables (`qemu-img -U`).
    pub is_shared: bool,
    /// With `read_only`: opens an internal snapshot of the image in place of its present content
    /// (`qemu-img convert -l`).
    pub snapshot: Option<SnapshotSelector>,
}
