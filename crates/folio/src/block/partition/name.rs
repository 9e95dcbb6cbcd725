//! Names of partitions in the names of images: `IMAGE@2`, `IMAGE@root`.

use super::select::list;
use super::table::partitions;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A partition as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionName {
    /// Its number, from 1 on.
    Number(u32),
    /// Its label in a GPT.
    Label(String),
}

impl fmt::Display for PartitionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Label(label) => label.fmt(f),
        }
    }
}

impl PartitionName {
    /// Returns the number of the partition, for [`select`](super::select()).
    ///
    /// # Errors
    ///
    /// ENXIO if no partition has the label, EINVAL if several have; the message lists the
    /// partitions.
    pub fn number(&self, disk: &dyn Device) -> Result<u32> {
        let label = match self {
            Self::Number(number) => return Ok(*number),
            Self::Label(label) => label,
        };
        let found = partitions(disk)?;
        let mut with_label = found.iter().filter(|partition| partition.label == *label);
        match (with_label.next(), with_label.next()) {
            (Some(partition), None) => Ok(partition.number),
            (Some(_), Some(_)) => {
                let what = format!("several partitions with label {label:?}; {}", list(&found));
                Err(Error::new(Errno::INVAL, what))
            }
            (None, _) => {
                let what = format!("no partition with label {label:?}; {}", list(&found));
                Err(Error::new(Errno::NXIO, what))
            }
        }
    }
}

/// Splits off `@N`, or the `@LABEL` of an existing image, unless a file has exactly this name.
pub fn split_partition(image: &OsStr) -> (PathBuf, Option<PartitionName>) {
    let bytes = image.as_bytes();
    let whole = || (image.into(), None);
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else {
        return whole();
    };
    let disk: PathBuf = OsString::from_vec(bytes[..at].to_vec()).into();
    let name = std::str::from_utf8(&bytes[at + 1..]).unwrap_or_default();
    if Path::new(image).exists() {
        return whole();
    }
    match name.parse() {
        Ok(number) => (disk, Some(PartitionName::Number(number))),
        Err(_) if name.is_empty() || name.contains('/') || !is_image(&disk) => whole(),
        Err(_) => (disk, Some(PartitionName::Label(name.to_owned()))),
    }
}

fn is_image(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device())
}
