//! Multiple mount protection (feature `mmp`): keeps two hosts from writing a shared device at once.
//! Linux: fs/ext4/mmp.c.
//!
//! ```text
//!   mount     clean: go on        e2fsck: fail        else: wait; fail if the number changed
//!             write a number, wait, fail if another host wrote one
//!   mounted   write the next number after each interval, stop writing if another host wrote one
//!   unmount   write "clean"
//! ```
//!
//! The block is never in the cache. Locks of image files protect within one host; this block does
//! where hosts have no common locks.

use super::journal::thread::PeriodicThread;
use super::layout::checksum::crc32c;
use super::layout::features::Incompat;
use super::layout::superblock::Superblock;
use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// First word of the block.
pub(crate) const MAGIC: u32 = 0x004D_4D50;
/// The sequence number while no host has the file system mounted.
pub(crate) const CLEAN: u32 = 0xFF4D_4D50;
/// The sequence number while e2fsck runs. Linux refuses to mount then (`EXT4_MMP_SEQ_FSCK`).
pub(crate) const FSCK: u32 = 0xE24D_4D50;
/// Offset of the checksum, which covers the bytes before it.
pub(crate) const CHECKSUM_AT: usize = 1020;
/// The largest sequence number of a mount.
const SEQUENCE_MAX: u32 = FSCK - 1;
/// The shortest interval in seconds within which another host must have written.
const CHECK_INTERVAL_MIN_S: u16 = 5;
/// Offsets of the fields.
const SEQUENCE_AT: usize = 4;
const TIME_AT: usize = 8;
const NODE: std::ops::Range<usize> = 16..80;
const DEVICE: std::ops::Range<usize> = 80..112;
const INTERVAL_AT: usize = 112;

/// The claim of a mounted file system to its device, until [`MountProtection::release`].
pub(super) struct MountProtection {
    block: Arc<MmpBlock>,
    /// Writes the next number after each interval.
    thread: PeriodicThread,
}

/// The block, and what this mount wrote there last.
struct MmpBlock {
    device: Arc<dyn Device>,
    offset: u64,
    checksum_seed: Option<u32>,
    clock: Clock,
    update_interval_s: u16,
    written: Mutex<Option<Vec<u8>>>,
}

impl MountProtection {
    /// Claims the file system on `device` for writing, if it has the feature. Waits for some
    /// seconds, as the protocol demands.
    ///
    /// # Errors
    /// EBUSY if another host or e2fsck uses it; EUCLEAN for a damaged block.
    pub(super) fn claim(
        device: &Arc<dyn Device>,
        superblock: &Superblock,
        clock: Clock,
    ) -> Result<Option<Self>> {
        if !superblock.features.incompat.contains(Incompat::MMP) {
            return Ok(None);
        }
        let block = MmpBlock::open(device, superblock, clock)?;
        block
            .claim()
            .map_err(|e| e.at("multiple mount protection"))?;
        Ok(Some(Self {
            block: Arc::new(block),
            thread: PeriodicThread::default(),
        }))
    }

    /// Starts to renew the claim; calls `lost` once if another host has taken the file system.
    pub(super) fn start_renewing(&self, lost: impl Fn(Error) + Send + 'static) {
        let block = self.block.clone();
        let pause = Duration::from_secs(block.update_interval_s.into());
        self.thread.start("folio-mmp", move || match block.renew() {
            Ok(()) => ControlFlow::Continue(pause),
            Err(error) => {
                lost(error);
                ControlFlow::Break(())
            }
        });
    }

    /// Marks the file system as free for other hosts.
    ///
    /// # Errors
    /// EBUSY if another host has taken it.
    pub(super) fn release(self) -> Result<()> {
        let Self { block, thread } = self;
        // The thread would write its next number over the mark.
        drop(thread);
        block.check_own()?;
        block.write(CLEAN)
    }
}

impl MmpBlock {
    fn open(device: &Arc<dyn Device>, superblock: &Superblock, clock: Clock) -> Result<Self> {
        let number = superblock.raw.mmp_block.get();
        if number < superblock.first_data_block.max(1) || number >= superblock.block_count {
            let what = format!("block {number} is outside the file system");
            return Err(Error::corrupt(what).at("multiple mount protection"));
        }
        Ok(Self {
            device: device.clone(),
            offset: number * superblock.block_size as u64,
            checksum_seed: superblock.checksum_seed,
            clock,
            update_interval_s: superblock.raw.mmp_interval.get().max(1),
            written: Mutex::new(None),
        })
    }

    fn claim(&self) -> Result<()> {
        let bytes = self.read()?;
        let interval = self.update_interval_s.max(CHECK_INTERVAL_MIN_S);
        let interval = u64::from(interval.max(u16_at(&bytes, INTERVAL_AT)));
        let pause = Duration::from_secs((2 * interval + 1).min(interval + 60));
        let busy = |bytes: &[u8]| {
            let (node, device) = (text(&bytes[NODE]), text(&bytes[DEVICE]));
            let what = format!("in use by host {node:?}, device {device:?}; unmount it there");
            Error::new(Errno::BUSY, what)
        };
        match u32_at(&bytes, SEQUENCE_AT) {
            CLEAN => {}
            FSCK => {
                let why = "e2fsck runs on a host, or was interrupted; if it does not run, use \
                           tune2fs -f -E clear_mmp";
                return Err(Error::new(Errno::BUSY, why));
            }
            number => {
                tracing::info!(seconds = pause.as_secs(), "ext4: does another host use it?");
                // A host that has it mounted writes at least once within this time.
                wait(pause);
                let now = self.read()?;
                if u32_at(&now, SEQUENCE_AT) != number {
                    return Err(busy(&now));
                }
            }
        }
        self.write(random_sequence()?)?;
        // Two hosts may have read the old number at once: the one that wrote last stays.
        wait(pause);
        let now = self.read()?;
        if self.written.lock().as_ref() != Some(&now) {
            return Err(busy(&now));
        }
        Ok(())
    }

    /// Writes the next number.
    fn renew(&self) -> Result<()> {
        self.check_own()?;
        let last = self.written.lock().as_ref().map(|b| u32_at(b, SEQUENCE_AT));
        let next = last.unwrap_or(0) + 1;
        self.write(if next > SEQUENCE_MAX { 1 } else { next })
    }

    /// Checks that the block is as this mount wrote it.
    fn check_own(&self) -> Result<()> {
        let now = self.read()?;
        if self.written.lock().as_ref() == Some(&now) {
            return Ok(());
        }
        let node = text(&now[NODE]);
        let what = format!("host {node:?} has mounted the file system, too");
        Err(Error::new(Errno::BUSY, what).at("multiple mount protection"))
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; CHECKSUM_AT + 4];
        self.device.read_at(&mut bytes, self.offset)?;
        let is_sealed = self
            .checksum_seed
            .is_none_or(|seed| u32_at(&bytes, CHECKSUM_AT) == crc32c(seed, &bytes[..CHECKSUM_AT]));
        if u32_at(&bytes, 0) == MAGIC && is_sealed {
            Ok(bytes)
        } else {
            Err(Error::corrupt("bad magic or checksum").at("multiple mount protection"))
        }
    }

    /// Writes `sequence`, with this host's name; durable when this returns.
    fn write(&self, sequence: u32) -> Result<()> {
        let mut bytes = self.read()?;
        bytes[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence.to_le_bytes());
        bytes[TIME_AT..TIME_AT + 8].copy_from_slice(&self.clock.now().secs.to_le_bytes());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        fill_text(&mut bytes[NODE], host.trim());
        fill_text(&mut bytes[DEVICE], "folio");
        let interval = self
            .update_interval_s
            .saturating_mul(2)
            .max(CHECK_INTERVAL_MIN_S);
        bytes[INTERVAL_AT..INTERVAL_AT + 2].copy_from_slice(&interval.to_le_bytes());
        if let Some(seed) = self.checksum_seed {
            let checksum = crc32c(seed, &bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        }
        self.device.write_at(&bytes, self.offset)?;
        self.device.flush()?;
        *self.written.lock() = Some(bytes);
        Ok(())
    }
}

/// Returns a sequence number that another host is unlikely to choose.
fn random_sequence() -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|_| Error::new(Errno::IO, "no random number from the system"))?;
    Ok(u32::from_ne_bytes(bytes) % SEQUENCE_MAX + 1)
}

fn wait(pause: Duration) {
    let (lock, wake) = (Mutex::new(()), Condvar::new());
    // Nothing wakes it.
    wake.wait_for(&mut lock.lock(), pause);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the text in a field that zeros fill.
fn text(field: &[u8]) -> String {
    let len = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    String::from_utf8_lossy(&field[..len]).into_owned()
}

fn fill_text(field: &mut [u8], text: &str) {
    field.fill(0);
    let len = text.len().min(field.len() - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}
