//! Block maps of ext2 and ext3: claims every block that the pointers name.

use super::blocks::BlockOwner;
use super::checker::Checker;
use crate::fs::ext4::map::block_map::{BlockMapVisitor, walk};
use std::convert::Infallible;

/// A run of pointers to contiguous blocks, not yet claimed.
#[derive(Default)]
struct PointerRun {
    logical: u64,
    start: u64,
    len: u64,
}

/// Claims the blocks of one map.
struct BlockClaimer<'a, 'b> {
    checker: &'a mut Checker<'b>,
    owner: &'a mut BlockOwner,
    run: PointerRun,
}

impl Checker<'_> {
    /// Follows the map in an inode's `i_block`, and claims every block it names.
    pub(super) fn check_block_map(&mut self, owner: &mut BlockOwner, i_block: &[u8; 60]) {
        let block_size = self.sb.block_size;
        let mut claimer = BlockClaimer {
            checker: self,
            owner,
            run: PointerRun::default(),
        };
        let Ok(()) = walk(i_block, block_size, &mut claimer);
        claimer.claim_run();
    }
}

impl BlockMapVisitor for BlockClaimer<'_, '_> {
    type Error = Infallible;

    fn data(&mut self, logical: u64, pointer: u32) -> Result<(), Infallible> {
        let run = &mut self.run;
        let block = u64::from(pointer);
        if run.len > 0 && run.logical + run.len == logical && run.start + run.len == block {
            run.len += 1;
            return Ok(());
        }
        self.claim_run();
        if block != 0 {
            self.run = PointerRun {
                logical,
                start: block,
                len: 1,
            };
        }
        Ok(())
    }

    fn pointer_block(&mut self, number: u32, _: u8, _: u64) -> Result<Option<Vec<u8>>, Infallible> {
        let block = u64::from(number);
        let (checker, owner) = (&mut *self.checker, &mut *self.owner);
        let mut bytes = Vec::new();
        let is_read = checker.claim_metadata(owner, block)
            && checker.read_block(block, &mut bytes, owner.structure, owner.location());
        if !is_read {
            owner.is_damaged = true;
            return Ok(None);
        }
        Ok(Some(bytes))
    }
}

impl BlockClaimer<'_, '_> {
    fn claim_run(&mut self) {
        let PointerRun {
            logical,
            start,
            len,
        } = std::mem::take(&mut self.run);
        if len == 0 {
            return;
        }
        let range = start..start + len;
        let (checker, owner) = (&mut *self.checker, &mut *self.owner);
        if checker.is_inside(&range) {
            checker.claim_data(owner, logical, range, true);
        } else {
            owner.is_damaged = true;
            let what =
                format_args!("file block {logical} at block {start}, outside the file system");
            checker
                .report
                .error(owner.structure, owner.location(), what);
        }
    }
}
