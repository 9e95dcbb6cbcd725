//! Preallocation: a host cluster for every guest cluster of a new image, or of the new part of one
//! that grows.

use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::{Errno, Error, Result};
use crate::block::image::Preallocation;
use crate::block::qcow2::metadata::WritePlan;

impl Qcow2Device {
    /// Allocates every cluster from guest offset `start` on, where nothing was ever written, and
    /// the host's space for it.
    ///
    /// # Errors
    ///
    /// EINVAL for an image with a backing file, which the allocated clusters would hide; EOPNOTSUPP
    /// for `Falloc` where the host cannot reserve space.
    pub(in crate::block::qcow2) fn preallocate(
        &self,
        how: Preallocation,
        start: u64,
    ) -> Result<()> {
        if how == Preallocation::Off {
            return Ok(());
        }
        if self.backing.is_some() {
            let why = "preallocation and a backing file exclude each other";
            return Err(self.at_image(Error::new(Errno::INVAL, why)));
        }
        let mut at = start;
        while at < self.geometry.len_bytes {
            at += self
                .preallocate_piece(how, at)
                .map_err(|error| self.at_image(error))?;
        }
        let end = self.metadata.lock().refcounts.host_end;
        self.file.set_len(end.max(self.file.len_bytes()?))?;
        self.write_back(RefcountWrites::Now)
            .map_err(|error| self.at_image(error))
    }

    fn preallocate_piece(&self, how: Preallocation, offset: u64) -> Result<u64> {
        self.make_room()?;
        let _io = self.io.read();
        let mut metadata = self.metadata.lock();
        let left = self.geometry.len_bytes - offset;
        let new = match metadata.plan_write(&*self.file, offset, left)? {
            WritePlan::New(new) => new,
            // No other thread writes to the image yet, and its clusters are unallocated.
            WritePlan::InPlace { .. } | WritePlan::Wait => {
                return Err(Error::corrupt("a new image has allocated clusters"));
            }
        };
        let (host, count) = (
            new.clusters.host,
            new.clusters.count << self.geometry.cluster_bits,
        );
        let taken = match how {
            Preallocation::Off | Preallocation::Metadata => Ok(()),
            Preallocation::Falloc => self.data().reserve(host, count).and_then(|is_reserved| {
                if is_reserved {
                    Ok(())
                } else {
                    Err(Error::unsupported("the host cannot reserve space here"))
                }
            }),
            Preallocation::Full => self.data().fill_with_zeros(host, count),
        };
        match taken {
            Ok(()) => metadata.finish(&*self.file, &new)?,
            Err(error) => {
                metadata.abandon(&*self.file, &new)?;
                return Err(error);
            }
        }
        Ok(count.min(left))
    }
}
