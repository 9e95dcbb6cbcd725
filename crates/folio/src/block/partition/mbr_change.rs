//! An MBR, to be changed: single entries, and new boot records of logical partitions. No other byte
//! of the disk is written.

use super::mbr::{self, ENTRIES, MbrEntry, MbrTable, SECTOR_BYTES, Slot};
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::Device;
use std::ops::Range;

/// Distance in sectors between the boot record of a logical partition and the partition, where
/// there is room.
const RECORD_DISTANCE: u64 = 2048;
/// Type of the entries that lead from one boot record to the next.
const LINK: u8 = 0x05;

/// Bytes to write at an offset.
type Patch = (u64, Vec<u8>);

/// An MBR that was read to be changed.
pub(super) struct MbrChange {
    table: MbrTable,
    disk_sectors: u64,
    /// In the order in which they are written, with a flush between.
    patches: Vec<Patch>,
}

impl MbrChange {
    pub(super) fn read(disk: &dyn Device) -> Result<Self> {
        Ok(Self {
            table: MbrTable::read(disk)?,
            // An MBR cannot name sectors beyond.
            disk_sectors: (disk.len_bytes() / SECTOR_BYTES).min(u64::from(u32::MAX)),
            patches: Vec::new(),
        })
    }

    fn primaries(&self) -> impl Iterator<Item = &MbrEntry> {
        self.table
            .entries
            .iter()
            .filter(|entry| !entry.is_logical())
    }

    /// Returns number and sectors of each used entry, among them extended partitions.
    pub(super) fn used(&self) -> Vec<(u32, Range<u64>)> {
        let used = self.table.entries.iter();
        used.map(|entry| (entry.number, entry.sectors.clone()))
            .collect()
    }

    /// Returns the primary numbers without use.
    fn free_number(&self) -> Option<u32> {
        (1..=ENTRIES as u32).find(|number| self.primaries().all(|entry| entry.number != *number))
    }

    /// Returns the last extended partition: a partition added to an earlier one would change the
    /// numbers of those in later ones.
    fn extended(&self) -> Option<&MbrEntry> {
        self.primaries().filter(|entry| entry.is_extended()).last()
    }

    /// Returns the sectors that a primary partition may use.
    fn free_primary(&self) -> Vec<Range<u64>> {
        if self.free_number().is_none() {
            return Vec::new();
        }
        let used = self.primaries().map(|entry| entry.sectors.clone());
        gaps(1..self.disk_sectors, used.collect())
    }

    /// Returns the sectors within the last extended partition that are free, each with one sector
    /// for a boot record in front.
    fn free_logical(&self) -> Vec<Range<u64>> {
        let Some(extended) = self.extended() else {
            return Vec::new();
        };
        let whole = extended.sectors.start..extended.sectors.end.min(self.disk_sectors);
        let found = gaps(whole, self.used_in(extended));
        found
            .into_iter()
            .filter(|gap| gap.end - gap.start > 1)
            .collect()
    }

    /// Returns the sectors in use within an extended partition: boot records and partitions.
    fn used_in(&self, extended: &MbrEntry) -> Vec<Range<u64>> {
        let records = self
            .table
            .chain
            .iter()
            .map(|record| record.sector..record.sector + 1);
        let logical = self.table.entries.iter().filter(|entry| entry.is_logical());
        let used = records.chain(logical.map(|entry| entry.sectors.clone()));
        used.filter(|used| extended.sectors.contains(&used.start))
            .collect()
    }

    /// Returns the sectors that an added partition may use, as a primary one first.
    pub(super) fn free(&self) -> Vec<Range<u64>> {
        let mut free = self.free_primary();
        free.extend(
            self.free_logical()
                .into_iter()
                .map(|gap| gap.start + 1..gap.end),
        );
        free
    }

    /// Adds a partition in free sectors; returns its number. It is a logical one inside an extended
    /// partition.
    ///
    /// # Errors
    ///
    /// ENOSPC if no entry is free.
    pub(super) fn add(&mut self, sectors: Range<u64>, code: u8, is_bootable: bool) -> Result<u32> {
        let full = || Error::new(Errno::NOSPC, "the partition table is full");
        let len = sectors.end - sectors.start;
        let gap = self
            .free_logical()
            .into_iter()
            .find(|gap| gap.start < sectors.start && sectors.end <= gap.end);
        let Some(gap) = gap else {
            let number = self.free_number().ok_or_else(full)?;
            let slot = Slot {
                record: 0,
                index: number as usize - 1,
            };
            let entry = mbr::encode_entry(is_bootable, code, sectors.start, len);
            if matches!(code, 0x05 | 0x0f | 0x85) {
                // Without partitions, its first record is empty.
                let record = mbr::new_record([0; 4], &[]);
                self.patches
                    .push((sectors.start * SECTOR_BYTES, record.to_vec()));
            }
            self.patches.push((slot.offset(), entry.to_vec()));
            return Ok(number);
        };
        let number = self.table.next_logical();
        let extended = self.extended().ok_or_else(full)?;
        let last = self
            .table
            .chain
            .iter()
            .rfind(|record| record.extended == extended.number);
        let Some(last) = last else {
            // The first record is at the start, which no partition uses.
            let first = extended.sectors.start;
            let entry = mbr::encode_entry(is_bootable, code, sectors.start - first, len);
            let record = mbr::new_record([0; 4], &[entry]);
            self.patches.push((first * SECTOR_BYTES, record.to_vec()));
            return Ok(number);
        };
        let free = *last.free.first().ok_or_else(full)?;
        let slot = Slot {
            record: last.sector,
            index: free,
        };
        if !last.has_partition && last.sector < sectors.start {
            let entry = mbr::encode_entry(is_bootable, code, sectors.start - last.sector, len);
            self.patches.push((slot.offset(), entry.to_vec()));
            return Ok(number);
        }
        let at = gap.start.max(sectors.start.saturating_sub(RECORD_DISTANCE));
        let entry = mbr::encode_entry(is_bootable, code, sectors.start - at, len);
        let record = mbr::new_record([0; 4], &[entry]);
        let base = extended.sectors.start;
        let link = mbr::encode_entry(false, LINK, at - base, sectors.end - at);
        self.patches.push((at * SECTOR_BYTES, record.to_vec()));
        self.patches.push((slot.offset(), link.to_vec()));
        Ok(number)
    }

    /// Enlarges a partition to whole pages; returns its new sectors. A logical one takes free space
    /// behind its extended partition too, which grows with it.
    pub(super) fn grow(&mut self, number: u32) -> Option<Range<u64>> {
        let entry = self
            .table
            .entries
            .iter()
            .find(|entry| entry.number == number)?
            .clone();
        let inside =
            |outer: &&MbrEntry| outer.is_extended() && outer.sectors.contains(&entry.slot.record);
        let extended = self
            .primaries()
            .find(inside)
            .filter(|_| entry.is_logical())
            .cloned();
        let old = entry.sectors.clone();
        let Some(extended) = extended else {
            let end = whole_pages(self.primary_limit(&old));
            if end > old.end {
                self.set_len(entry.slot, end - old.start);
            }
            return Some(old.start..end.max(old.end));
        };
        let used = self.used_in(&extended);
        let next = used
            .iter()
            .map(|used| used.start)
            .filter(|start| *start >= old.end)
            .min();
        let limit = next.unwrap_or_else(|| self.primary_limit(&extended.sectors));
        let end = whole_pages(limit.min(self.disk_sectors));
        if end <= old.end {
            return Some(old);
        }
        if end > extended.sectors.end {
            self.set_len(extended.slot, end - extended.sectors.start);
        }
        self.set_len(entry.slot, end - old.start);
        let record = self
            .table
            .chain
            .iter()
            .find(|record| record.sector == entry.slot.record);
        if let Some(link) = record.and_then(|record| record.link) {
            self.set_len(link, end - entry.slot.record);
        }
        Some(old.start..end)
    }

    /// Returns the sector up to which a primary partition may grow.
    fn primary_limit(&self, sectors: &Range<u64>) -> u64 {
        let starts = self.primaries().map(|other| other.sectors.start);
        let next = starts.filter(|start| *start >= sectors.end).min();
        next.unwrap_or(self.disk_sectors).min(self.disk_sectors)
    }

    fn set_len(&mut self, slot: Slot, sectors: u64) {
        // Below 2^32: the disk's sectors end there.
        let bytes = (sectors as u32).to_le_bytes();
        self.patches.push((slot.offset() + 12, bytes.to_vec()));
    }

    /// Writes what was changed.
    pub(super) fn write(&mut self, disk: &dyn Device) -> Result<()> {
        for (offset, bytes) in self.patches.drain(..) {
            disk.write_at(&bytes, offset)?;
            disk.flush()?;
        }
        Ok(())
    }
}

/// Rounds a sector down to a whole page, as file systems have.
fn whole_pages(sector: u64) -> u64 {
    let page = PAGE_SIZE as u64 / SECTOR_BYTES;
    sector / page * page
}

/// Returns what `used` leaves of `whole`, in order.
pub(super) fn gaps(whole: Range<u64>, mut used: Vec<Range<u64>>) -> Vec<Range<u64>> {
    used.sort_unstable_by_key(|range| range.start);
    used.push(whole.end..whole.end);
    let (mut at, mut gaps) = (whole.start, Vec::new());
    for range in used {
        let end = range.start.min(whole.end);
        if at < end {
            gaps.push(at..end);
        }
        at = at.max(range.end);
    }
    gaps
}
