//! The header's cluster as a whole: the header, its extensions and the backing file's name.

use super::extensions::{self, Extension};
use super::raw_header::{BACKING_NAME_BYTES_MAX, RawHeader, read_raw};
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use std::io::{IoSlice, IoSliceMut};
use zerocopy::IntoBytes;

/// Size of a sector in bytes: a disk writes it whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The content of the header's cluster. Unknown extensions and fields of later versions stay.
pub(crate) struct HeaderCluster {
    pub(crate) raw: RawHeader,
    /// The header's fields behind those that Folio knows.
    later: Vec<u8>,
    pub(crate) extensions: Vec<Extension>,
    /// The backing file's name; empty if there is none.
    pub(crate) backing_name: Vec<u8>,
}

impl HeaderCluster {
    /// Reads the cluster.
    ///
    /// # Errors
    ///
    /// EUCLEAN for parts that leave it.
    pub(crate) fn read(file: &dyn ImageFile) -> Result<Self> {
        let raw = read_raw(file)?;
        let extensions = extensions::read(file, &raw)?;
        let known = size_of::<RawHeader>() as u64;
        // The extensions fit into the cluster, so the header does.
        let mut later = vec![0; raw.header_bytes().saturating_sub(known) as usize];
        file.read_or_zeros(&mut [IoSliceMut::new(&mut later)], known)?;
        let mut backing_name = Vec::new();
        if raw.backing_name_offset.get() != 0 {
            let len = raw.backing_name_len.get() as usize;
            if len > BACKING_NAME_BYTES_MAX {
                return Err(Error::corrupt(format!("{len} bytes")).at("backing file name"));
            }
            backing_name.resize(len, 0);
            let at = raw.backing_name_offset.get();
            file.read_or_zeros(&mut [IoSliceMut::new(&mut backing_name)], at)?;
        }
        Ok(Self {
            raw,
            later,
            extensions,
            backing_name,
        })
    }

    /// Returns the offset in the file of the bytes of the first extension of this kind.
    pub(crate) fn extension_at(&self, kind: u32) -> Option<u64> {
        let mut at = self.raw.header_bytes().next_multiple_of(8);
        for extension in &self.extensions {
            if extension.kind == kind {
                return Some(at + 8);
            }
            at = (at + 8 + extension.bytes.len() as u64).next_multiple_of(8);
        }
        None
    }

    /// Writes the cluster.
    ///
    /// Everything after the first sector is durable before the first sector points to it. A new
    /// name is placed after the old one if there is room, so that the old one stays whole until
    /// then.
    ///
    /// # Errors
    ///
    /// EINVAL for a name or extensions that do not fit.
    pub(crate) fn write(mut self, file: &dyn ImageFile) -> Result<()> {
        let cluster_bytes = 1usize << self.raw.cluster_bits.get();
        let name = std::mem::take(&mut self.backing_name);
        let no_room = || {
            let why = "the name of the backing file does not fit into the header";
            Error::new(Errno::INVAL, why)
        };
        if name.len() > BACKING_NAME_BYTES_MAX || name.contains(&0) {
            return Err(no_room());
        }
        let header_len = (self.raw.header_bytes() as usize).next_multiple_of(8);
        let mut tail = extensions::encode(&self.extensions);
        if header_len + tail.len() + name.len() > cluster_bytes {
            // The feature name table is optional: it serves error messages only.
            self.extensions
                .retain(|extension| extension.kind != extensions::FEATURE_NAMES);
            tail = extensions::encode(&self.extensions);
        }
        let end = header_len + tail.len();
        let old_at = self.raw.backing_name_offset.get() as usize;
        let old_end = old_at + self.raw.backing_name_len.get() as usize;
        let name_at = match old_end.max(end) {
            after if old_at != 0 && after + name.len() <= cluster_bytes => after,
            _ => end,
        };
        if name_at + name.len() > cluster_bytes {
            return Err(no_room());
        }
        self.raw.backing_name_offset = if name.is_empty() { 0 } else { name_at as u64 }.into();
        // At most 1023.
        self.raw.backing_name_len = (name.len() as u32).into();
        let mut head = self.raw.as_bytes().to_vec();
        head.extend(&self.later);
        head.resize(header_len, 0);
        head.extend(tail);
        write(file, head, &name, name_at)
    }
}

/// Writes the cluster's bytes: all but the first sector, then the first sector.
fn write(file: &dyn ImageFile, mut head: Vec<u8>, name: &[u8], name_at: usize) -> Result<()> {
    // No reader uses the bytes between the extensions and the name, so they are not written.
    if name_at < SECTOR_BYTES {
        head.resize(name_at, 0);
        head.extend(name);
    } else {
        file.write(&[IoSlice::new(name)], name_at as u64)?;
    }
    let first = head.len().min(SECTOR_BYTES);
    if head.len() > first {
        file.write(&[IoSlice::new(&head[first..])], first as u64)?;
    }
    // What the first sector names is durable before it.
    file.sync_data()?;
    file.write(&[IoSlice::new(&head[..first])], 0)?;
    file.sync_data()
}
