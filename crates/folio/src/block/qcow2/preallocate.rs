//! Preallocation: a place in the file for every cluster of a new image.

use super::cluster_alloc::Plan;
use super::flush::RefcountWrites;
use super::{Preallocation, Qcow2Device};
use crate::base::{Error, Result};

impl Qcow2Device {
    /// Gives every cluster of a new image without a backing file a place, and takes the host's space for it.
    ///
    /// Errors: EOPNOTSUPP for `Falloc` where the host cannot reserve space.
    pub(in crate::block) fn preallocate(&self, how: Preallocation) -> Result<()> {
        if how == Preallocation::Off {
            return Ok(());
        }
        let mut at = 0;
        while at < self.geometry.len_bytes {
            at += self.preallocate_piece(how, at).map_err(|error| self.place(error))?;
        }
        let end = self.metadata.lock().refcounts.host_end;
        self.file.set_len(end.max(self.file.len_bytes()?))?;
        self.write_back(RefcountWrites::Now).map_err(|error| self.place(error))
    }

    fn preallocate_piece(&self, how: Preallocation, offset: u64) -> Result<u64> {
        self.make_room()?;
        let _io = self.io.read();
        let mut metadata = self.metadata.lock();
        let left = self.geometry.len_bytes - offset;
        let new = match metadata.plan_write(&*self.file, offset, left)? {
            Plan::New(new) => new,
            // Nobody else writes to it yet, and nothing is there before its turn.
            Plan::InPlace { .. } | Plan::Wait => return Err(Error::corrupt("a new image has clusters")),
        };
        let (host, count) = (new.clusters.host, new.clusters.count << self.geometry.cluster_bits);
        let taken = match how {
            Preallocation::Off | Preallocation::Metadata => Ok(()),
            Preallocation::Falloc => self.data().reserve(host, count).and_then(|done| match done {
                true => Ok(()),
                false => Err(Error::unsupported("the host cannot reserve space here")),
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
