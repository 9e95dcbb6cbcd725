//! Data and tree against a root hash.

use super::input::{HashInput, HashOptions};
use super::layout::TreeLayout;
use super::superblock::VeritySuperblock;
use super::{DIGEST_BYTES, RootHash};
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::collections::BTreeSet;

/// Most mismatches that a report names.
const NAMED_MAX: usize = 1000;

/// A part of a verified device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum VerityArea {
    /// The top block, whose digest is the root hash.
    Root,
    /// The hash tree below its top block.
    Tree,
    /// The data.
    Data,
}

/// A block whose digest is not the one that the level above has, or not the root hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerityMismatch {
    /// What it is a block of.
    pub area: VerityArea,
    /// Offset of the block on its device, in bytes.
    pub offset_bytes: u64,
    /// Size of the block, in bytes.
    pub block_bytes: u64,
}

/// The result of [`verify()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityReport {
    /// The parameters of the tree.
    pub superblock: VeritySuperblock,
    /// Number of blocks of the tree.
    pub tree_blocks: u64,
    /// Number of blocks with another digest.
    pub mismatch_count: u64,
    /// The first of them, at most 1000.
    pub mismatches: BTreeSet<VerityMismatch>,
}

impl HashInput<'_> {
    fn mismatch(&self, area: VerityArea, block: u64) -> VerityMismatch {
        VerityMismatch {
            area,
            offset_bytes: self.offset(block),
            block_bytes: self.block_bytes,
        }
    }
}

impl VerityReport {
    /// Whether all blocks have the digests that the root hash vouches for.
    pub fn is_clean(&self) -> bool {
        self.mismatch_count == 0
    }

    fn add(&mut self, mismatch: VerityMismatch) {
        self.mismatch_count += 1;
        self.mismatches.insert(mismatch);
        if self.mismatches.len() > NAMED_MAX {
            self.mismatches.pop_last();
        }
    }
}

/// Verifies the blocks of `data` and the tree at `offset` of `hash` against a root hash. Each block
/// is compared with its digest one level above, also below a block that has a mismatch itself.
///
/// # Errors
///
/// ENODATA without a superblock, EINVAL if the data leaves its device, EUCLEAN if the tree does,
/// EINTR if the work was canceled, those of [`VeritySuperblock::read`]; else the devices' errors.
/// A mismatch is not an error: the report has it.
///
/// veritysetup: `verify`.
pub fn verify(
    data: &dyn Device,
    hash: &dyn Device,
    offset: u64,
    root: &RootHash,
    options: &HashOptions<'_>,
) -> Result<VerityReport> {
    let superblock = VeritySuperblock::read(hash, offset)?
        .ok_or_else(|| Error::new(Errno::NODATA, format!("no hash tree at byte {offset}")))?;
    let layout = TreeLayout::on_device(&superblock, hash, offset)?;
    let data = superblock.data_input(data)?;
    let levels: Vec<_> = layout
        .levels
        .iter()
        .map(|level| superblock.level_input(hash, level))
        .collect();
    let mut report = VerityReport {
        superblock: superblock.clone(),
        tree_blocks: levels.iter().map(|level| level.blocks).sum(),
        mismatch_count: 0,
        mismatches: BTreeSet::new(),
    };
    let top = levels.last().unwrap_or(&data);
    if top.first_digest()? != *root {
        report.add(top.mismatch(VerityArea::Root, 0));
    }
    let report = Mutex::new(report);
    for (index, parent) in levels.iter().enumerate().rev() {
        let (area, child) = match index.checked_sub(1) {
            Some(below) => (VerityArea::Tree, &levels[below]),
            None => (VerityArea::Data, &data),
        };
        let size = superblock.hash_block_bytes;
        child.for_each_hash_block(size, options, |number, range, buf| {
            let mut digests = vec![0; size as usize];
            hash.read_at(&mut digests, parent.offset(number))?;
            let (first, count) = (range.start, range.end - range.start);
            child.digests(range, buf, |block, digest| {
                let at = (block - first) as usize * DIGEST_BYTES;
                if digests[at..at + DIGEST_BYTES] != digest {
                    report.lock().add(child.mismatch(area, block));
                }
            })?;
            // The superblock is not under the root hash: a smaller number of blocks of data would
            // hide digests here.
            if digests[count as usize * DIGEST_BYTES..]
                .iter()
                .any(|byte| *byte != 0)
            {
                report.lock().add(parent.mismatch(VerityArea::Tree, number));
            }
            if area == VerityArea::Data {
                (options.progress)(count * child.block_bytes);
            }
            Ok(())
        })?;
    }
    Ok(report.into_inner())
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_BYTES, format, hash_area_bytes};
    use super::*;
    use crate::block::MemoryDevice;

    /// Returns data of `blocks` blocks with their tree behind them, and the root hash.
    fn verified(blocks: u64) -> (MemoryDevice, RootHash) {
        let data_bytes = blocks * BLOCK_BYTES;
        let device = MemoryDevice::new(data_bytes + hash_area_bytes(blocks));
        for block in (0..blocks).filter(|block| block % 3 != 1) {
            let bytes = [block as u8 | 1; 100];
            device.write_at(&bytes, block * BLOCK_BYTES + 7).unwrap();
        }
        let superblock = VeritySuperblock::new([1; 16], blocks, vec![5; 32]).unwrap();
        let root = format(
            &device,
            &device,
            data_bytes,
            &superblock,
            &HashOptions::default(),
        );
        (device, root.unwrap())
    }

    #[test]
    fn every_flipped_block_is_found() {
        for blocks in [1, 2, 128, 129, 20_000] {
            let (device, root) = verified(blocks);
            let area = blocks * BLOCK_BYTES;
            let verify = |root| verify(&device, &device, area, root, &HashOptions::default());
            let report = verify(&root).unwrap();
            assert!(report.is_clean(), "{blocks}: {report:?}");
            let end = device.len_bytes();
            assert_eq!(report.tree_blocks, (end - area) / BLOCK_BYTES - 1);
            let superblock = &report.superblock;
            let top = superblock.root_hash(&device, area).unwrap();
            assert_eq!(top, (blocks > 1).then_some(root));
            let mut places = vec![0, area / 2, area - 1];
            if blocks > 1 {
                places.extend([area + BLOCK_BYTES, end - 1]);
            }
            for at in places {
                let mut byte = [0];
                device.read_at(&mut byte, at).unwrap();
                device.write_at(&[byte[0] ^ 1], at).unwrap();
                let report = verify(&root).unwrap();
                device.write_at(&byte, at).unwrap();
                let found = report
                    .mismatches
                    .iter()
                    .any(|found| (found.offset_bytes..found.offset_bytes + 4096).contains(&at));
                assert!(found, "{blocks}: byte {at}: {report:?}");
            }
            let report = verify(&[0; 32]).unwrap();
            assert_eq!(report.mismatch_count, 1);
            assert_eq!(report.mismatches.first().unwrap().area, VerityArea::Root);
        }
    }

    #[test]
    fn superblock_with_less_data_is_found() {
        let (device, root) = verified(200);
        let area = 200 * BLOCK_BYTES;
        device.write_at(&132_u64.to_le_bytes(), area + 72).unwrap();
        let report = verify(&device, &device, area, &root, &HashOptions::default()).unwrap();
        let last = VerityMismatch {
            area: VerityArea::Tree,
            offset_bytes: area + 3 * BLOCK_BYTES,
            block_bytes: BLOCK_BYTES,
        };
        assert_eq!(Vec::from_iter(report.mismatches), [last]);
    }

    #[test]
    fn tree_that_leaves_a_device_is_refused() {
        let (device, root) = verified(200);
        let area = 200 * BLOCK_BYTES;
        let options = HashOptions::default();
        let short = MemoryDevice::new(area - 1);
        let error = verify(&short, &device, area, &root, &options).unwrap_err();
        assert_eq!(error.errno(), Errno::INVAL);
        let superblock = VeritySuperblock::new([1; 16], 200, Vec::new()).unwrap();
        let error = format(&device, &short, 0, &superblock, &options);
        assert!(error.is_ok());
        let error = format(&device, &short, area - 4096, &superblock, &options).unwrap_err();
        assert_eq!(error.errno(), Errno::NOSPC);
        let error = verify(&device, &device, 0, &root, &options).unwrap_err();
        assert_eq!(error.errno(), Errno::NODATA);
        // The superblock names more data than its device has.
        device.write_at(&u64::MAX.to_le_bytes(), area + 72).unwrap();
        let error = verify(&device, &device, area, &root, &options).unwrap_err();
        assert_eq!(error.errno(), Errno::UCLEAN);
    }
}
