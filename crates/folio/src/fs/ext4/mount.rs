//! Mount and unmount: replays the journal, opens it, frees orphans, and finds the root.
//!
//! ```text
//!   superblock -> needs recovery? -> replay the journal, then fast commits
//!       |                               (read-only mounts: in memory, over the device)
//!       v
//!   attach: the file system in memory -> open the journal -> free orphans -> root
//!                                          (drops transactions that nothing asked to replay)
//! ```
//!
//! Linux: fs/ext4/super.c.

use super::inode::{Ext4, Ext4Inode};
use super::journal::{self, JournalBlocks};
use super::layout::disk::{ROOT_INODE, RawSuperblock};
use super::layout::features::{Compat, Incompat};
use super::layout::superblock::Superblock;
use super::mmp::MountProtection;
use super::options::Ext4Options;
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, InodeNumber, Result};
use crate::block::{self, Device, DeviceClaim};
use crate::cache::PageCache;
use crate::vfs::{FileSystem, FileSystemStatistics, FileType, Inode, MountOptions};
use std::ops::Range;
use std::sync::Arc;

impl Ext4 {
    /// Mounts the ext4 on `device`.
    ///
    /// # Errors
    /// EROFS for a writable mount of a read-only device; EOPNOTSUPP, naming the feature, for
    /// features that Folio does not read or write; EINVAL for bad options; EUCLEAN for damage.
    pub(crate) fn mount(
        device: Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let mounted = Self::open(device, cache, options).map_err(|e| e.at("ext4"))?;
        Ok(Arc::new(mounted))
    }

    /// Does the same as [`Ext4::mount`], for callers within ext4.
    pub(super) fn open(
        device: Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Mounted> {
        let claim = DeviceClaim::take(&device, options.read_only)?;
        let superblock = Superblock::load_for_recovery(&*device)?;
        if !options.read_only {
            if device.is_read_only() {
                return Err(Error::new(Errno::ROFS, "the image is read-only"));
            }
            superblock.features.check_writable()?;
            superblock.check_writable_values()?;
        }
        let protection = if options.read_only {
            None
        } else {
            MountProtection::claim(&device, &superblock, options.clock)?
        };
        let needs_recovery = superblock
            .features
            .incompat
            .contains(Incompat::NEEDS_RECOVERY);
        let loads_journal = Ext4Options::parse(&options.file_system, &superblock)?.load_journal;
        if needs_recovery && !loads_journal && !options.read_only {
            let why = "the journal must be replayed before the file system is written: drop noload or norecovery";
            return Err(Error::new(Errno::INVAL, why));
        }
        let (device, superblock) = if needs_recovery && loads_journal {
            Self::recover(device, superblock, cache, options)?
        } else {
            let superblock = Superblock::load(&*device)?;
            (device, superblock)
        };
        let fs = Self::attach(device, superblock, cache, options)?;
        match fs.start_up() {
            Ok(root) => {
                tracing::info!(
                    block_size = fs.volume.block_size,
                    blocks = fs.volume.geometry.block_count,
                    read_only = fs.volume.is_read_only,
                    journal = fs.volume.journal.get().is_some(),
                    "ext4 mounted"
                );
                tracing::debug!(options = ?fs.volume.options, "ext4 options");
                fs.start_protection(protection.as_ref());
                Ok(Mounted {
                    fs,
                    root,
                    claim: Mutex::new(Some(claim)),
                    protection: Mutex::new(protection),
                })
            }
            Err(error) => {
                fs.discard_changes();
                Err(error)
            }
        }
    }

    /// Makes an attached file system ready for use, and returns its root.
    fn start_up(self: &Arc<Self>) -> Result<Arc<Ext4Inode>> {
        if self.volume.is_writing() {
            // Before the journal opens: the log is empty, so no older superblock replaces this one.
            self.correct_totals()?;
            self.open_journal()?;
            self.open_quotas()?;
            self.find_orphan_file()?;
            // Last: it frees blocks and inodes, which needs journal, quotas and orphan file.
            self.process_orphans()?;
        }
        let root = self.inode(ROOT_INODE.into())?;
        match root.common.file_type {
            FileType::Directory => Ok(root),
            _ => Err(Error::corrupt("not a directory").at("inode 2 (root)")),
        }
    }

    /// Writes the totals of free blocks and inodes if the superblock has other values: a system
    /// that ends without an unmount leaves those of its mount. Linux: fs/ext4/super.c
    /// (`ext4_setup_super`).
    fn correct_totals(&self) -> Result<()> {
        let volume = &self.volume;
        let mut superblock = volume.superblock.lock();
        let totals = |raw: &RawSuperblock| {
            let blocks = (raw.free_blocks_count_hi, raw.free_blocks_count_lo);
            (blocks, raw.free_inodes_count)
        };
        let before = totals(&superblock.raw);
        let mut space = volume.space.lock();
        space.flush(&mut superblock, &volume.metadata, &[])?;
        drop(space);
        if totals(&superblock.raw) == before {
            return Ok(());
        }
        volume.write_superblock(&superblock)
    }

    /// Keeps the claim of `mmp` to the device valid.
    fn start_protection(self: &Arc<Self>, protection: Option<&MountProtection>) {
        let Some(protection) = protection else { return };
        let block = self.volume.geometry.raw.mmp_block.get();
        self.volume.space.lock().protect(&[(block, 1)]);
        if self.has_threads {
            let fs = self.this.clone();
            protection.start_renewing(move |error| {
                if let Some(fs) = fs.upgrade() {
                    fs.volume.fail_shared(&error);
                }
            });
        }
    }

    /// Replays the journal: on the device or, for a read-only mount, in memory over it.
    fn recover(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<(Arc<dyn Device>, Superblock)> {
        superblock.check_own_journal()?;
        let blocks = {
            // The state before recovery, only to find the journal; dropped afterwards.
            let before = Self::attach(
                device.clone(),
                superblock.clone(),
                cache,
                &MountOptions {
                    read_only: true,
                    ..options.clone()
                },
            )?;
            before.journal_blocks()?
        };
        let device = if options.read_only {
            block::overlay(device)
        } else {
            device
        };
        let recovered = journal::recover(blocks, device.clone(), superblock.has_error_mark())?;
        tracing::info!(
            transactions = recovered.transactions,
            fast_commit_changes = recovered.changes.len(),
            in_memory = options.read_only,
            "ext4 journal replayed"
        );
        // Before the log is emptied: an interrupted replay starts again from the same records.
        Self::complete_replay(&device, cache, options, &recovered)?;
        recovered.finish()?;
        // After the log is empty: without the flag, a log that is left would never be replayed.
        Superblock::write_recovery_flag(&*device, false)?;
        device.flush()?;
        let superblock = Superblock::load(&*device)?;
        Ok((device, superblock))
    }

    /// Returns the blocks of the journal's inode.
    pub(super) fn journal_blocks(self: &Arc<Self>) -> Result<JournalBlocks> {
        let number = self
            .volume
            .geometry
            .check_inode_number(self.volume.geometry.raw.journal_inum.get().into())?;
        let inode = Ext4Inode::load(self, number, true).map_err(|e| e.at("journal"))?;
        let state = inode.state.read();
        let runs = state
            .map
            .extents()
            .iter()
            .map(|e| (e.physical, e.len))
            .collect();
        Ok(JournalBlocks {
            block_size: self.volume.block_size,
            block_count: self.volume.geometry.block_count,
            runs,
        })
    }

    /// Sends all further changes through the journal, if there is one and the options load it.
    fn open_journal(self: &Arc<Self>) -> Result<()> {
        let volume = &self.volume;
        let features = &volume.geometry.features;
        if !features.compat.contains(Compat::HAS_JOURNAL) || !volume.options.load_journal {
            return Ok(());
        }
        volume.geometry.check_own_journal()?;
        let blocks = self.journal_blocks()?;
        // `recover` did not replay them, because the superblock did not ask for it. As in Linux.
        if journal::wipe(blocks.clone(), volume.device.clone())? {
            tracing::warn!("ext4: transactions in the journal dropped: needs_recovery is not set");
        }
        volume.use_journal(blocks)
    }
}

/// A mounted ext4 as the VFS holds it: the file system and its root. Inodes refer to the file
/// system, so the file system itself must not keep an inode alive.
pub(super) struct Mounted {
    pub(super) fs: Arc<Ext4>,
    root: Arc<Ext4Inode>,
    /// Held until the unmount: a program that ends leaves the file system in memory.
    claim: Mutex<Option<DeviceClaim>>,
    /// The claim of the feature mmp, until the unmount.
    protection: Mutex<Option<MountProtection>>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.fs.discard_changes();
    }
}

impl FileSystem for Mounted {
    fn kind(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        let geometry = &self.fs.volume.geometry;
        // Linux: `ext4_nfs_get_inode`.
        if number.0 < geometry.first_inode.into() && number != self.root.common().number {
            return Err(Errno::STALE.into());
        }
        match self.fs.inode(number.0) {
            Ok(inode) if inode.state.read().link_count() > 0 => Ok(inode),
            // No name leads to it: the number is the client's, not the image's.
            Err(error) if error.errno() != Errno::UCLEAN => Err(error),
            _ => Err(Errno::STALE.into()),
        }
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(self.fs.volume.statistics())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync_all(false).map_err(|e| e.at("ext4"))
    }

    fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.fs.freeze_while(work)
    }

    fn unmount(&self) -> Result<()> {
        let synced = self.fs.sync_all(true);
        // After the last write: from here on another host may mount the device.
        let released = match self.protection.lock().take() {
            Some(protection) if synced.is_ok() => protection.release(),
            _ => Ok(()),
        };
        // Before `mark_closed`, which allows writers beside it: those of other partitions, too.
        drop(self.claim.lock().take());
        let volume = &self.fs.volume;
        let closed = if synced.is_ok() && !volume.is_read_only {
            volume.device.mark_closed()
        } else {
            Ok(())
        };
        synced.and(released).and(closed).map_err(|e| e.at("ext4"))
    }

    fn trim(&self, range: Range<u64>, len_min: u64) -> Result<u64> {
        self.fs.trim(range, len_min).map_err(|e| e.at("ext4"))
    }

    fn set_option(&self, option: &str) -> Result<()> {
        self.fs.volume.set_option(option)
    }

    fn is_read_only(&self) -> bool {
        self.fs.volume.is_read_only
    }
}
