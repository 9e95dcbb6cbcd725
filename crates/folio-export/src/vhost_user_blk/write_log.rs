//! A log of writes that the disk still holds in this process, such as the tables of a qcow2 image
//! that no flush has written. It is in memory of the front end, so that a server that is started
//! anew, after one that was killed, repeats them: a guest that goes on must not lose what was
//! acknowledged.
//!
//! ```text
//!   header    magic, disk, and for each of two halves: number, bytes in use
//!   half      entry, entry, ...        entry: kind u32, len u32, offset u64, the bytes of a write
//!   half
//! ```
//!
//! A flush begins the other half; the older one is empty once the disk has flushed. A half that is
//! full makes the writer flush.
//!
//! Locks: one flush at a time, then the halves.

use folio::block::Device;
use folio::{Error, Result};
use folio_net::vhost_user::{DeviceRecord, OutOfMemory};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a half. Each page is used only once a guest has written so much between two flushes.
const HALF_LEN: u64 = 32 << 20;
const HEADER_LEN: u64 = 4096;
/// Bytes of the whole record.
pub(super) const RECORD_LEN: u64 = HEADER_LEN + 2 * HALF_LEN;
/// "FolioLog" and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"FolioLg1");
/// Whether the driver has turned the write cache off: 0 or 1.
const WRITE_THROUGH_AT: u64 = 8;
/// The end of the disk's name, and its length.
const NAME_LEN_AT: u64 = 1024;
const NAME_AT: u64 = 1032;
const NAME_LEN_MAX: usize = 3000;
/// Offsets of a half's number and of its length.
const NUMBER_AT: [u64; 2] = [64, 128];
const LEN_AT: [u64; 2] = [72, 136];
const ENTRY_LEN: u64 = 16;
/// Bytes of a write that are repeated at a time; no entry is longer.
pub(super) const WRITE_LEN_MAX: usize = 1 << 20;

/// A change of the disk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    Write { offset: u64, bytes: &'a [u8] },
    Zeroes { offset: u64, len_bytes: u64 },
}

const WRITE: u32 = 1;
/// Zeros; the bytes of the entry are the length.
const ZEROES: u32 = 2;

/// The state of the halves.
struct Halves {
    /// The one that is written.
    active: usize,
    number: u64,
    len: [u64; 2],
}

/// A log in use.
pub(super) struct WriteLog {
    record: DeviceRecord,
    flushing: Mutex<()>,
    halves: Mutex<Halves>,
    /// Whether a half has changes, for writers without the lock.
    has_changes: AtomicBool,
}

fn lost(_: OutOfMemory) -> Error {
    Error::new(folio::Errno::IO, "the log of writes is damaged")
}

impl WriteLog {
    /// Repeats the changes in the log of an earlier server, and empties it. `name` distinguishes
    /// disks.
    ///
    /// # Errors
    /// EINVAL for a log with changes of another disk; EIO if it is damaged; else the disk's.
    pub(super) fn resume(record: DeviceRecord, name: &str, device: &dyn Device) -> Result<Self> {
        let this = Self {
            record,
            flushing: Mutex::default(),
            halves: Mutex::new(Halves {
                active: 0,
                number: 1,
                len: [0; 2],
            }),
            has_changes: AtomicBool::new(false),
        };
        let name = &name.as_bytes()[name.len().saturating_sub(NAME_LEN_MAX)..];
        let is_log = this.load(0)? == MAGIC;
        let is_empty = this.load(LEN_AT[0])? == 0 && this.load(LEN_AT[1])? == 0;
        let is_same = is_log && this.name()? == name;
        if is_log && !is_same && !is_empty {
            let why = "the log of writes is one of another disk";
            return Err(Error::new(folio::Errno::INVAL, why));
        }
        if is_same {
            let mut order = [0, 1];
            if this.load(NUMBER_AT[0])? > this.load(NUMBER_AT[1])? {
                order.reverse();
            }
            let mut has_changes = false;
            for half in order {
                has_changes |= this.repeat(half, device)?;
            }
            if has_changes {
                device.flush()?;
            }
        }
        for half in [0, 1] {
            this.record.store(0, LEN_AT[half]).map_err(lost)?;
            this.record.store(0, NUMBER_AT[half]).map_err(lost)?;
        }
        this.record.store(1, NUMBER_AT[0]).map_err(lost)?;
        if !is_same {
            this.record.store(0, WRITE_THROUGH_AT).map_err(lost)?;
            let len = name.len() as u64;
            this.record.store(len, NAME_LEN_AT).map_err(lost)?;
            this.record.write_at(name, NAME_AT).map_err(lost)?;
        }
        this.record.store(MAGIC, 0).map_err(lost)?;
        Ok(this)
    }

    /// Returns whether the driver has turned the write cache off.
    pub(super) fn is_write_through(&self) -> Result<bool> {
        Ok(self.load(WRITE_THROUGH_AT)? == 1)
    }

    /// Records whether the driver has turned the write cache off.
    pub(super) fn set_write_through(&self, is_write_through: bool) -> Result<()> {
        self.record
            .store(is_write_through.into(), WRITE_THROUGH_AT)
            .map_err(lost)
    }

    fn name(&self) -> Result<Vec<u8>> {
        let len = self.load(NAME_LEN_AT)?.min(NAME_LEN_MAX as u64);
        let mut name = vec![0; len as usize];
        self.record.read_at(&mut name, NAME_AT).map_err(lost)?;
        Ok(name)
    }

    /// Adds a change that the disk has made, unless it is safe without the log; flushes the disk if
    /// the log is full.
    ///
    /// # Errors
    /// The disk's, if it has to flush.
    pub(super) fn add(&self, change: Change<'_>, device: &dyn Device) -> Result<()> {
        // Behind an older change of the same bytes, which would be repeated, it is not safe.
        if !self.has_changes.load(Ordering::Acquire) && !device.holds_changes() {
            return Ok(());
        }
        while !self.try_add(change)? {
            self.flush(device)?;
        }
        Ok(())
    }

    /// Flushes the disk; then the changes before are not in the log.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn flush(&self, device: &dyn Device) -> Result<()> {
        let _flushing = self.flushing.lock();
        let older = {
            let mut halves = self.halves.lock();
            let other = 1 - halves.active;
            // Not empty if an earlier flush has failed: then both stay in use.
            if halves.len[other] == 0 && halves.len[halves.active] > 0 {
                halves.number += 1;
                let number = halves.number;
                self.record.store(number, NUMBER_AT[other]).map_err(lost)?;
                halves.active = other;
            }
            1 - halves.active
        };
        device.flush()?;
        let mut halves = self.halves.lock();
        if halves.len[older] > 0 {
            halves.len[older] = 0;
            self.record.store(0, LEN_AT[older]).map_err(lost)?;
        }
        if halves.len == [0; 2] {
            self.has_changes.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Adds a change; returns false if there is no room.
    fn try_add(&self, change: Change<'_>) -> Result<bool> {
        let (kind, offset, zeroes_len);
        let bytes = match change {
            Change::Write { offset: at, bytes } => {
                (kind, offset) = (WRITE, at);
                bytes
            }
            Change::Zeroes {
                offset: at,
                len_bytes,
            } => {
                (kind, offset) = (ZEROES, at);
                zeroes_len = len_bytes.to_le_bytes();
                &zeroes_len[..]
            }
        };
        let mut halves = self.halves.lock();
        let half = halves.active;
        let at = halves.len[half];
        let end = at + ENTRY_LEN + (bytes.len() as u64).next_multiple_of(8);
        if end > HALF_LEN {
            return Ok(false);
        }
        let bits = u128::from(kind) | (bytes.len() as u128) << 32 | u128::from(offset) << 64;
        let place = half_at(half) + at;
        let record = &self.record;
        record.write_at(&bits.to_le_bytes(), place).map_err(lost)?;
        record.write_at(bytes, place + ENTRY_LEN).map_err(lost)?;
        // The entry counts from here on.
        record.store(end, LEN_AT[half]).map_err(lost)?;
        halves.len[half] = end;
        self.has_changes.store(true, Ordering::Release);
        Ok(true)
    }

    /// Repeats the changes of a half; returns whether there are any.
    fn repeat(&self, half: usize, device: &dyn Device) -> Result<bool> {
        let len = self.load(LEN_AT[half])?;
        if len > HALF_LEN {
            return Err(lost(OutOfMemory));
        }
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < len {
            let place = half_at(half) + at;
            let mut entry = [0; ENTRY_LEN as usize];
            self.record.read_at(&mut entry, place).map_err(lost)?;
            let bits = u128::from_le_bytes(entry);
            let (kind, count, offset) = (
                bits as u32,
                (bits >> 32) as u32 as usize,
                (bits >> 64) as u64,
            );
            let end = at + ENTRY_LEN + (count as u64).next_multiple_of(8);
            if count > WRITE_LEN_MAX || end > len {
                return Err(lost(OutOfMemory));
            }
            bytes.resize(count, 0);
            self.record
                .read_at(&mut bytes, place + ENTRY_LEN)
                .map_err(lost)?;
            // The disk may have shrunk since.
            let left = device.len_bytes().saturating_sub(offset);
            match (kind, bytes.first_chunk()) {
                (WRITE, _) => {
                    let visible = (count as u64).min(left) as usize;
                    device.write_at(&bytes[..visible], offset)?;
                }
                (ZEROES, Some(len)) => {
                    device.write_zeroes(offset, u64::from_le_bytes(*len).min(left))?;
                }
                _ => return Err(lost(OutOfMemory)),
            }
            at = end;
        }
        Ok(len > 0)
    }

    fn load(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.record.read_at(&mut bytes, offset).map_err(lost)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

fn half_at(half: usize) -> u64 {
    HEADER_LEN + half as u64 * HALF_LEN
}
