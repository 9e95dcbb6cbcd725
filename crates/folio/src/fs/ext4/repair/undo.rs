//! Undo files: the bytes that a repair replaced, to restore an image.
//!
//! ```text
//!   magic, format version   device length u64   number of records u64
//!   record: offset u64, length u32, crc32c of the new bytes u32, old bytes
//!   crc32c of all bytes before u32
//! ```
//!
//! All numbers are little-endian. The checksum of the new bytes detects an image that was written
//! after the repair: an undo would damage it.

use super::write::RepairPlan;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::crc32c;
use std::io::{Read, Write};

/// First bytes of an undo file: name, and version of the format.
const MAGIC: [u8; 8] = *b"FOLIUND1";

/// The result of [`undo_repair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoReport {
    /// Bytes restored.
    pub restored_bytes: u64,
}

/// Passes bytes on and counts their checksum.
struct Summed<T> {
    inner: T,
    sum: u32,
}

impl<T: Write> Summed<T> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum = crc32c(self.sum, bytes);
        self.inner.write_all(bytes).map_err(undo_error)
    }
}

impl<T: Read> Summed<T> {
    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_exact(bytes).map_err(undo_error)?;
        self.sum = crc32c(self.sum, bytes);
        Ok(())
    }
}

fn undo_error(error: std::io::Error) -> Error {
    Error::io("undo file", error)
}

impl RepairPlan {
    /// Writes the bytes that the repair replaces to `out`. The caller makes them durable before
    /// [`RepairPlan::write`].
    ///
    /// # Errors
    /// Those of the device and of `out`.
    pub fn save_undo(&self, out: &mut dyn Write) -> Result<()> {
        let mut out = Summed {
            inner: out,
            sum: !0,
        };
        out.put(&MAGIC)?;
        out.put(&self.device.len_bytes().to_le_bytes())?;
        out.put(&(self.pages.len() as u64).to_le_bytes())?;
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for page in &self.pages {
            self.read_page(page, false, &mut old)?;
            self.read_page(page, true, &mut new)?;
            out.put(&page.offset.to_le_bytes())?;
            out.put(&(page.len as u32).to_le_bytes())?;
            out.put(&crc32c(!0, &new).to_le_bytes())?;
            out.put(&old)?;
        }
        let sum = out.sum;
        out.put(&sum.to_le_bytes())
    }
}

/// Restores the bytes that a repair replaced, also after an interrupted repair. Reads `saved`
/// before the first write; memory grows with its length.
///
/// # Errors
/// - EUCLEAN for a damaged undo file, or one of another image.
/// - EBUSY if the image was written after the repair; nothing is restored.
/// - EROFS for a read-only device, and the device's errors.
pub fn undo_repair(device: &dyn Device, saved: &mut dyn Read) -> Result<UndoReport> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the image is read-only"));
    }
    // All records are checked before the first one is written.
    let records = read_records(device, saved)?;
    let mut restored_bytes = 0;
    for (offset, bytes) in &records {
        device.write_at(bytes, *offset)?;
        restored_bytes += bytes.len() as u64;
    }
    device.flush()?;
    Ok(UndoReport { restored_bytes })
}

/// Reads and checks an undo file.
fn read_records(device: &dyn Device, saved: &mut dyn Read) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut saved = Summed {
        inner: saved,
        sum: !0,
    };
    if saved.take::<8>()? != MAGIC {
        return Err(Error::corrupt("not an undo file of folio check --repair"));
    }
    let len_bytes = u64::from_le_bytes(saved.take()?);
    if len_bytes != device.len_bytes() {
        return Err(Error::corrupt(format!(
            "undo file of a device of {len_bytes} bytes, this one has {}",
            device.len_bytes()
        )));
    }
    let count = u64::from_le_bytes(saved.take()?);
    let (mut records, mut now) = (Vec::new(), Vec::new());
    let mut changed = None;
    for _ in 0..count {
        let offset = u64::from_le_bytes(saved.take()?);
        let len = u32::from_le_bytes(saved.take()?) as usize;
        let new_sum = u32::from_le_bytes(saved.take()?);
        let end = offset.checked_add(len as u64);
        if len > PAGE_SIZE || end.is_none_or(|end| end > len_bytes) {
            return Err(Error::corrupt("undo file: record outside the device"));
        }
        let mut old = vec![0; len];
        saved.fill(&mut old)?;
        now.resize(len, 0);
        device.read_at(&mut now, offset)?;
        if now != old && crc32c(!0, &now) != new_sum {
            changed.get_or_insert(offset);
        }
        records.push((offset, old));
    }
    let sum = saved.sum;
    if u32::from_le_bytes(saved.take()?) != sum {
        return Err(Error::corrupt("undo file: bad checksum"));
    }
    match changed {
        Some(offset) => Err(Error::new(
            Errno::BUSY,
            format!("the image was written after the repair, at byte {offset}"),
        )),
        None => Ok(records),
    }
}
