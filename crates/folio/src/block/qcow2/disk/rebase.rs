//! Changes of the backing file of an open image.

use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::{Error, Result};
use crate::block::Device;
use crate::block::image::BackingName;
use crate::block::qcow2::layout::backing_name;
use crate::block::qcow2::layout::roots::Roots;

impl Qcow2Device {
    /// Makes later zero writes allocate zero clusters, as over a backing file, even if there is
    /// none yet.
    pub(in crate::block) fn expect_backing(&mut self) {
        self.geometry.has_backing = true;
        self.metadata.get_mut().geometry.has_backing = true;
    }

    /// Makes a range of guest bytes read as zeros over any backing file.
    pub(in crate::block) fn mask_backing(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let (cluster, unit) = (self.cluster_bytes(), self.geometry.unit_bytes());
        let (end, disk_end) = (offset + len_bytes, self.geometry.len_bytes);
        let is_whole = offset.is_multiple_of(unit) && (end.is_multiple_of(unit) || end == disk_end);
        if is_whole && self.geometry.version >= 3 {
            return self.clear_units(offset..end.next_multiple_of(unit), false);
        }
        let zeros = vec![0; len_bytes.min(cluster) as usize];
        let mut at = offset;
        while at < end {
            let count = (end - at).min(cluster);
            self.write_at(&zeros[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// Makes everything durable, then writes the name of another backing file.
    pub(in crate::block) fn rebase_to(&self, name: Option<&BackingName>) -> Result<()> {
        // Copied data is durable before the header names a file that lacks it.
        self.write_back(RefcountWrites::Now)?;
        backing_name::set(&*self.file, name).map_err(|error| self.at_image(error))
    }

    /// Releases every cluster: all bytes then read as the backing file does.
    pub(in crate::block) fn make_empty(&mut self) -> Result<()> {
        let len_bytes = self.geometry.len_bytes;
        self.release(0, len_bytes)?;
        // Tables before space: a table in the file must not name data that was cleared.
        self.write_back(RefcountWrites::Now)?;
        match &self.data_file {
            Some(data) => data.clear(0..len_bytes),
            None => Ok(()),
        }
    }

    /// Releases whole clusters; a range may end at the end of the disk.
    pub(in crate::block::qcow2) fn release(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let bits = self.geometry.cluster_bits;
        let end = (offset + len_bytes).div_ceil(self.cluster_bytes());
        let mut first = offset >> bits;
        while first < end {
            self.make_room()?;
            let metadata = self.metadata.get_mut();
            first = metadata.release_clusters(&*self.file, first..end)?;
        }
        Ok(())
    }

    /// Rejects an image that a change of the backing file would break.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP with internal snapshots.
    pub(in crate::block) fn check_rebase(&self) -> Result<()> {
        if Roots::read(&*self.file)?.snapshots.is_empty() {
            Ok(())
        } else {
            Err(self.at_image(Error::unsupported(
                "internal snapshots, which would read from the new backing file",
            )))
        }
    }
}
