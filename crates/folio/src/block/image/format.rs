//! The image formats, and their detection by a file's first bytes.

use super::foreign::{self, ForeignFormat};
use crate::base::{Errno, Error, Result};
use crate::block::file::{ImageFile, open_for_facts};
use std::fmt;
use std::io::IoSliceMut;
use std::path::Path;
use std::str::FromStr;

/// A format of image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageFormat {
    /// The disk's bytes as they are.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
}

impl ImageFormat {
    /// All formats, for lists and help texts.
    pub const ALL: [Self; 2] = [Self::Raw, Self::Qcow2];

    /// Returns the name, as qemu-img spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// Returns the format of a new image that its name implies: qcow2 for a name that ends in
    /// `.qcow2`, else raw.
    pub fn of_name(path: impl AsRef<Path>) -> Self {
        let extension = path.as_ref().extension();
        if extension.is_some_and(|extension| extension == "qcow2") {
            Self::Qcow2
        } else {
            Self::Raw
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
                    format!("invalid image format {name:?}: expected raw or qcow2"),
                )
            })
    }
}

/// Detects the format of the image at `path` by its first 128 bytes; nothing else is read.
///
/// # Errors
///
/// EOPNOTSUPP for a format that Folio recognizes but does not read, else the host's errors.
pub fn format_of(path: impl AsRef<Path>) -> Result<ImageFormat> {
    detect(&*open_for_facts(path.as_ref(), true)?)
}

/// Detects the format by the file's first bytes.
///
/// # Errors
///
/// EOPNOTSUPP for a format that Folio recognizes but does not read.
pub(crate) fn detect(file: &dyn ImageFile) -> Result<ImageFormat> {
    if file.is_disk() {
        return Ok(ImageFormat::Raw);
    }
    let mut head = [0; 128];
    let count = file.read_some(&mut [IoSliceMut::new(&mut head)], 0)? as usize;
    let head = &head[..count];
    if head.starts_with(b"QFI\xfb") && !head.starts_with(b"QFI\xfb\0\0\0\x01") {
        return Ok(ImageFormat::Qcow2);
    }
    match foreign::detect(head) {
        // Its bytes are those of the encrypted disk.
        None | Some(ForeignFormat::Luks) => Ok(ImageFormat::Raw),
        Some(format) => {
            let name = format.title();
            let why = format!(
                "{name} images are not supported: convert with `qemu-img convert -O qcow2`"
            );
            Err(Error::unsupported(why).at(file.name().to_owned()))
        }
    }
}

/// Returns the error for a qcow2 image in a build without that format.
#[cfg(not(feature = "qcow2"))]
pub(crate) fn without_qcow2(path: &Path) -> Error {
    Error::unsupported("a qcow2 image; this build lacks the Cargo feature `qcow2`")
        .at(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_name_parses_to_its_format() {
        for format in ImageFormat::ALL {
            assert_eq!(format.name().parse::<ImageFormat>().unwrap(), format);
        }
        assert_eq!(
            "vmdk".parse::<ImageFormat>().unwrap_err().errno(),
            Errno::INVAL
        );
    }
}
