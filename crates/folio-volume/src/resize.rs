//! Growing a volume.

use crate::format::META_KEY;
use crate::place::StorePlace;
use crate::volume::{Takeover, Volume, check_size};
use folio::{Errno, Error, Result};
use slatedb::WriteBatch;

/// Gives a volume `size_bytes` bytes and returns its size before. What is added reads as zeros.
///
/// # Errors
///
/// EINVAL for a size below the present one; EBUSY if its writer has not closed it and `takeover`
/// refuses that; ENOENT if there is no volume; the store's errors.
pub fn grow_volume(place: &StorePlace, size_bytes: u64, takeover: Takeover) -> Result<u64> {
    check_size(place, size_bytes)?;
    let volume = Volume::open(place, takeover)?;
    let mut meta = volume.meta().clone();
    let before = meta.size_bytes;
    if size_bytes < before {
        let reason = format!(
            "the volume has {before} bytes, and {size_bytes} would cut it: a volume can only grow \
             (copy its files into a new one)"
        );
        return Err(Error::new(Errno::INVAL, reason).at(place.name()));
    }
    meta.size_bytes = size_bytes;
    let mut batch = WriteBatch::new();
    batch.put(META_KEY, meta.to_json()?);
    place.wait(volume.core().database.commit(batch))?;
    volume.close()?;
    Ok(before)
}
