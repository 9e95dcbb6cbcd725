//! Both copies of a GPT, to be changed. Every field that a change does not name keeps its value,
//! and no other sector of the disk is written.

use super::gpt::{self, GptCopy};
use super::mbr;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::ops::Range;

/// A GPT that was read to be changed.
pub(super) struct GptPair {
    primary: GptCopy,
    backup: GptCopy,
    /// The last sector of the table before the disk was enlarged, if the backup moves to its end.
    moved_from: Option<u64>,
}

impl GptPair {
    /// Reads both copies. A damaged copy is replaced by the other one, if its place is certain. The
    /// backup moves to the end of a disk that was enlarged, if the space there is empty.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a table without an intact copy, for one that ends beyond the disk, and for a
    /// damaged copy without a certain place; else the device's errors.
    pub(super) fn read(disk: &dyn Device) -> Result<Self> {
        let is_protective = mbr::is_protective(disk)?;
        let Some(found) = gpt::open(disk, is_protective)? else {
            return Err(Error::new(Errno::NXIO, "the disk has no partition table"));
        };
        let (primary, backup) = if found.own_lba() == 1 {
            let backup = find_backup(disk, &found)?;
            (found, backup)
        } else {
            (find_primary(disk, &found)?, found)
        };
        let mut pair = Self {
            primary,
            backup,
            moved_from: None,
        };
        pair.check(disk)?;
        pair.follow_end(disk)?;
        Ok(pair)
    }

    /// Refuses tables whose parts overlap, so that writing the one would destroy the other.
    fn check(&self, disk: &dyn Device) -> Result<()> {
        let sectors = disk.len_bytes() / self.sector_bytes();
        let (usable, array) = (self.primary.usable(), self.backup.array_sectors());
        let last = self.backup.own_lba();
        let is_ordered = usable.start < usable.end
            && usable.end <= array.start
            && array.end <= last
            && self.primary.array_sectors().end <= usable.start;
        if !is_ordered {
            let what = format!(
                "partitions in sectors {} to {}, and the backup of the table from sector {} on",
                usable.start,
                usable.end.saturating_sub(1),
                array.start
            );
            return Err(Error::corrupt(what));
        }
        if last >= sectors {
            let what = format!(
                "the table ends in sector {last}, but the disk has {sectors}: enlarge it first"
            );
            return Err(Error::corrupt(what));
        }
        Ok(())
    }

    /// Moves the backup to the end of the disk, unless something is there.
    fn follow_end(&mut self, disk: &dyn Device) -> Result<()> {
        let (sector, old) = (self.sector_bytes(), self.backup.own_lba());
        let last = disk.len_bytes() / sector - 1;
        let by = last - old;
        let new_array = self.backup.array_lba() + by;
        let from = new_array.max(old + 1);
        if by == 0 || !reads_as_zeros(disk, from * sector..(last + 1) * sector)? {
            return Ok(());
        }
        self.primary.move_end(by);
        self.backup.move_end(by);
        self.moved_from = Some(old);
        Ok(())
    }

    pub(super) fn sector_bytes(&self) -> u64 {
        self.primary.sector_bytes()
    }

    /// Whether the backup has to be written before its old place is used.
    pub(super) fn is_moved(&self) -> bool {
        self.moved_from.is_some()
    }

    /// Returns the table.
    pub(super) fn table(&self) -> &GptCopy {
        &self.primary
    }

    /// Changes the table in both copies.
    pub(super) fn change(&mut self, change: impl Fn(&mut GptCopy)) {
        change(&mut self.primary);
        change(&mut self.backup);
    }

    /// Writes the backup, then the primary copy: one of them is intact at any moment.
    pub(super) fn write(&mut self, disk: &dyn Device) -> Result<()> {
        self.backup.write(disk)?;
        disk.flush()?;
        self.primary.write(disk)?;
        if let Some(old) = self.moved_from.take() {
            mbr::enlarge_protective(disk, old, self.backup.own_lba())?;
        }
        Ok(())
    }
}

/// Returns the backup, with the primary copy's content: the one that the primary header names, else
/// one in front of its header's place.
fn find_backup(disk: &dyn Device, primary: &GptCopy) -> Result<GptCopy> {
    let read = GptCopy::read(disk, primary.sector_bytes(), primary.other_lba());
    if let Ok(mut backup) = read
        && backup.other_lba() == primary.own_lba()
        && backup.take_content(primary)
    {
        return Ok(backup);
    }
    let array = primary.array_sectors();
    let array_lba = primary.other_lba().checked_sub(array.end - array.start);
    let array_lba = array_lba.ok_or_else(|| Error::corrupt("no room for the backup"))?;
    Ok(primary.mirrored(array_lba))
}

/// Returns the primary copy in place of a damaged one. Its entries are where the damaged header or
/// the usual place has the backup's; a boot loader may be anywhere else.
fn find_primary(disk: &dyn Device, backup: &GptCopy) -> Result<GptCopy> {
    let mut place = [0; 8];
    let header = backup.sector_bytes();
    disk.read_at(&mut place, header + 72)?;
    [u64::from_le_bytes(place), 2]
        .into_iter()
        .find(|lba| *lba > 1 && backup.has_array_at(disk, *lba))
        .map(|lba| backup.mirrored(lba))
        .filter(|primary| primary.own_lba() == 1)
        .ok_or_else(|| {
            Error::corrupt("the primary copy is damaged: repair it first, e.g. with sgdisk -e")
        })
}

fn reads_as_zeros(disk: &dyn Device, range: Range<u64>) -> Result<bool> {
    let mut at = range.start;
    let mut bytes = vec![0; 64 << 10];
    while at < range.end {
        let len = (range.end - at).min(bytes.len() as u64) as usize;
        disk.read_at(&mut bytes[..len], at)?;
        if bytes[..len].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
