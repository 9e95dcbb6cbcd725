//! The journal of a file system: its place, and its log.

use super::inspector::Ext4Inspector;
use super::mapping::RunKind;
use crate::base::{Error, Result};
use crate::fs::ext4::journal::{self, JournalBlocks, JournalDump};

impl Ext4Inspector {
    /// Reads the log of the journal. debugfs: `logdump`.
    ///
    /// # Errors
    /// EUCLEAN for a damaged journal or none, EOPNOTSUPP for one on another device.
    pub fn journal(&self) -> Result<JournalDump> {
        let blocks = self.journal_blocks().map_err(|e| e.at("journal"))?;
        journal::dump(blocks, self.device.clone())
    }

    /// Returns the place of the journal's superblock on the device, in bytes.
    pub(super) fn journal_offset(&self) -> Result<u64> {
        let blocks = self.journal_blocks().map_err(|e| e.at("journal"))?;
        let (first, _) = blocks.runs[0];
        Ok(first * self.block_size())
    }

    fn journal_blocks(&self) -> Result<JournalBlocks> {
        let raw = &self.superblock.raw;
        let number = raw.journal_inum.get();
        if raw.journal_uuid != [0; 16] {
            self.superblock.check_own_journal()?;
        }
        if number == 0 {
            return Err(Error::corrupt("the file system has none"));
        }
        let mut next = 0;
        let mut runs = Vec::new();
        for run in self.mapping(number)? {
            if run.kind != RunKind::Data {
                continue;
            }
            if run.logical != next {
                break;
            }
            next += run.len;
            // The blocks of an inode have numbers of 32 bits.
            runs.push((run.physical, run.len as u32));
        }
        if runs.is_empty() {
            return Err(Error::corrupt(format!("inode {number} has no blocks")));
        }
        Ok(JournalBlocks {
            block_size: self.superblock.block_size,
            block_count: self.superblock.block_count,
            runs,
        })
    }
}
