//! A new hash tree, level by level.

use super::input::HashOptions;
use super::layout::TreeLayout;
use super::superblock::VeritySuperblock;
use super::{DIGEST_BYTES, RootHash};
use crate::base::{Errno, Error, Result};
use crate::block::Device;

/// Writes superblock and hash tree over the first blocks of `data` to `offset` of `hash`, without a
/// flush; returns the root hash. `hash` may be `data` itself, behind its blocks.
///
/// # Errors
///
/// EINVAL if there is no data or it leaves the device, or `offset` is within a hash block; ENOSPC
/// if the tree leaves its device, EINTR if the work was canceled; else the devices' errors. The
/// superblock is written last.
///
/// veritysetup: `format`.
pub fn format(
    data: &dyn Device,
    hash: &dyn Device,
    offset: u64,
    superblock: &VeritySuperblock,
    options: &HashOptions<'_>,
) -> Result<RootHash> {
    if !offset.is_multiple_of(u64::from(superblock.hash_block_bytes)) {
        let what = format!("a hash tree at byte {offset}: it begins at a whole block");
        return Err(Error::new(Errno::INVAL, what));
    }
    let mut input = superblock.data_input(data)?;
    let layout = TreeLayout::new(superblock, offset)?;
    if layout.end_bytes > hash.len_bytes() {
        let what = format!(
            "the hash tree ends at byte {}, the device at {}",
            layout.end_bytes,
            hash.len_bytes()
        );
        return Err(Error::new(Errno::NOSPC, what));
    }
    let block_bytes = superblock.hash_block_bytes;
    let mut is_data = true;
    for level in &layout.levels {
        input.for_each_hash_block(block_bytes, options, |number, range, buf| {
            let mut digests = vec![0; block_bytes as usize];
            let first = range.start;
            let hashed_bytes = (range.end - range.start) * input.block_bytes;
            input.digests(range, buf, |block, digest| {
                let at = (block - first) as usize * DIGEST_BYTES;
                digests[at..at + DIGEST_BYTES].copy_from_slice(&digest);
            })?;
            let offset = level.start_bytes + number * u64::from(block_bytes);
            hash.write_at(&digests, offset)?;
            if is_data {
                (options.progress)(hashed_bytes);
            }
            Ok(())
        })?;
        input = superblock.level_input(hash, level);
        is_data = false;
    }
    let root = input.first_digest()?;
    hash.write_at(&superblock.to_bytes(), offset)?;
    Ok(root)
}
