//! Block maps of ext2 and ext3: 12 direct blocks, then one, two and three levels of pointers.
//! Linux: fs/ext4/indirect.c.

use super::Checker;
use super::blocks::BlockOwner;

/// Direct data pointers in the inode (`EXT4_NDIR_BLOCKS`).
const DIRECT: usize = 12;

/// A run of pointers to contiguous blocks, not yet claimed.
#[derive(Default)]
struct PointerRun {
    logical: u64,
    start: u64,
    len: u64,
}

impl Checker<'_> {
    /// Walks the map in an inode's `i_block` and claims its blocks.
    pub(super) fn check_block_map(&mut self, owner: &mut BlockOwner, i_block: &[u8; 60]) {
        let (mut logical, mut run) = (0, PointerRun::default());
        for pointer in pointers(&i_block[..4 * DIRECT]) {
            self.map_data(owner, &mut run, logical, pointer);
            logical += 1;
        }
        for (pointer, depth) in pointers(&i_block[4 * DIRECT..]).zip(1..) {
            self.map_branch(owner, &mut run, &mut logical, pointer, depth);
        }
        self.claim_run(owner, &mut run);
    }

    fn map_data(
        &mut self,
        owner: &mut BlockOwner,
        run: &mut PointerRun,
        logical: u64,
        pointer: u32,
    ) {
        let block = u64::from(pointer);
        if run.len > 0 && run.logical + run.len == logical && run.start + run.len == block {
            run.len += 1;
            return;
        }
        self.claim_run(owner, run);
        if block != 0 {
            *run = PointerRun {
                logical,
                start: block,
                len: 1,
            };
        }
    }

    fn claim_run(&mut self, owner: &mut BlockOwner, run: &mut PointerRun) {
        let PointerRun {
            logical,
            start,
            len,
        } = std::mem::take(run);
        if len == 0 {
            return;
        }
        let range = start..start + len;
        if self.is_inside(&range) {
            self.claim_data(owner, logical, range, true);
        } else {
            owner.is_damaged = true;
            let what =
                format_args!("file block {logical} at block {start}, outside the file system");
            self.report.error(owner.structure, owner.location(), what);
        }
    }

    fn map_branch(
        &mut self,
        owner: &mut BlockOwner,
        run: &mut PointerRun,
        logical: &mut u64,
        pointer: u32,
        depth: u32,
    ) {
        let per_block = self.sb.block_size as u64 / 4;
        if pointer == 0 {
            *logical += per_block.pow(depth);
            return;
        }
        let block = u64::from(pointer);
        let mut bytes = Vec::new();
        let is_read = self.claim_metadata(owner, block)
            && self.read_block(block, &mut bytes, owner.structure, owner.location());
        if !is_read {
            owner.is_damaged = true;
            *logical += per_block.pow(depth);
            return;
        }
        for pointer in pointers(&bytes) {
            match depth {
                1 => {
                    self.map_data(owner, run, *logical, pointer);
                    *logical += 1;
                }
                _ => self.map_branch(owner, run, logical, pointer, depth - 1),
            }
        }
    }
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
