//! A directory: an index of its names in memory, made by one scan, and its slots on the disk.

use super::chain::Chain;
use super::entry::{DELETED, Entry};
use super::layout::{ENTRY_BYTES, RootPlace, damaged};
use super::names::{LongName, ShortName, decode_short, fold, long_slots, numbered, short_basis};
use super::table::Disk;
use crate::base::{Errno, Result};
use std::collections::{BTreeMap, HashMap};

/// Most slots of a directory.
const SLOTS_MAX: u32 = 1 << 16;
/// Slots that are read at once.
const SCAN_SLOTS: u32 = 16;

/// A name in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    /// The long name; of an entry without one the short name.
    pub(crate) text: String,
    /// Slots of the long name before the entry itself.
    long_count: u32,
    short: ShortName,
    pub(crate) is_directory: bool,
}

impl Name {
    /// Returns the folded forms of the long and the short name.
    fn keys(&self) -> [String; 2] {
        [fold(&self.text), fold(&decode_short(&self.short, 0))]
    }
}

/// The bytes of a new name.
pub(crate) struct NewName {
    text: String,
    pub(crate) short: ShortName,
    long: Vec<[u8; ENTRY_BYTES]>,
}

impl NewName {
    /// Returns the number of slots that name and entry need.
    pub(crate) fn slot_count(&self) -> u32 {
        self.long.len() as u32 + 1
    }
}

/// The names of a directory.
pub(crate) struct Directory {
    /// Where the slots are, if not in a chain of clusters.
    fixed: Option<(u64, u32)>,
    /// By the slot of the entry.
    names: BTreeMap<u32, Name>,
    /// The slots of long and short names in their folded form.
    slots: HashMap<String, u32>,
    /// The last number given to short names that begin alike.
    numbers: HashMap<ShortName, u32>,
    /// Whether slots are in use, up to the directory's end mark.
    used: Vec<bool>,
    /// All slots before are in use.
    first_unused: usize,
}

impl Directory {
    /// Reads a directory. `is_root` selects the root of FAT12 and FAT16.
    ///
    /// # Errors
    ///
    /// EUCLEAN if its chain is damaged or has too many slots.
    pub(crate) fn read(disk: &mut Disk, chain: &mut Chain, is_root: bool) -> Result<Self> {
        let fixed = match disk.geometry.root {
            RootPlace::Fixed { offset, slots } if is_root => Some((offset, slots)),
            _ => None,
        };
        let mut directory = Self {
            fixed,
            names: BTreeMap::new(),
            slots: HashMap::new(),
            numbers: HashMap::new(),
            used: Vec::new(),
            first_unused: 0,
        };
        let mut long = LongName::default();
        let mut bytes = [0; SCAN_SLOTS as usize * ENTRY_BYTES];
        for first in (0..).step_by(SCAN_SLOTS as usize) {
            let Some(offset) = directory.slot_offset(disk, chain, first)? else {
                break;
            };
            if first >= SLOTS_MAX {
                return Err(damaged("a directory has too many entries"));
            }
            disk.cache.read(offset, &mut bytes)?;
            let in_root = fixed.map_or(SCAN_SLOTS, |(_, slots)| slots - first);
            let slots = bytes.chunks_exact(ENTRY_BYTES).take(in_root as usize);
            for (slot, number) in slots.zip(first..) {
                let mut entry = Entry([0; ENTRY_BYTES]);
                entry.0.copy_from_slice(slot);
                if entry.0[0] == 0 {
                    return Ok(directory);
                }
                directory.scan(number, &entry, &mut long);
            }
        }
        Ok(directory)
    }

    fn scan(&mut self, slot: u32, entry: &Entry, long: &mut LongName) {
        self.used.push(entry.0[0] != DELETED);
        if entry.0[0] == DELETED {
            *long = LongName::default();
        } else if entry.is_long() {
            long.push(&entry.0);
        } else {
            let long = std::mem::take(long);
            let short = entry.short();
            let found = long.finish(&short);
            let name = Name {
                long_count: found.as_ref().map_or(0, |_| long.slot_count()),
                text: found.unwrap_or_else(|| decode_short(&short, entry.0[12])),
                short,
                is_directory: entry.is_directory(),
            };
            if !entry.is_special() && !fold(&name.text).is_empty() {
                for key in name.keys() {
                    self.slots.entry(key).or_insert(slot);
                }
                self.names.insert(slot, name);
            }
        }
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the slot of a long or short name.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.slots.get(&fold(name)).copied()
    }

    /// Returns the name in a slot.
    pub(crate) fn name(&self, slot: u32) -> Option<&Name> {
        self.names.get(&slot)
    }

    /// Returns the number of slots of a name and its entry.
    pub(crate) fn slot_count(&self, slot: u32) -> u32 {
        self.names.get(&slot).map_or(0, |name| name.long_count + 1)
    }

    /// Returns the names from a slot on.
    pub(crate) fn names_from(&self, slot: u32) -> impl Iterator<Item = (u32, &Name)> {
        self.names.range(slot..).map(|(slot, name)| (*slot, name))
    }

    /// Returns the place of a slot on the device; none behind the last one.
    pub(crate) fn slot_offset(
        &self,
        disk: &mut Disk,
        chain: &mut Chain,
        slot: u32,
    ) -> Result<Option<u64>> {
        if let Some((offset, slots)) = self.fixed {
            let within = u64::from(slot) * ENTRY_BYTES as u64;
            return Ok((slot < slots).then_some(offset + within));
        }
        let at = u64::from(slot) * ENTRY_BYTES as u64;
        let index = (at / disk.geometry.cluster_bytes) as u32;
        disk.follow(chain, index + 1)?;
        let run = chain.find(index);
        let within = at % disk.geometry.cluster_bytes;
        Ok(run.map(|run| disk.geometry.cluster_offset(run.cluster) + within))
    }

    fn write_slot(
        &self,
        disk: &mut Disk,
        chain: &mut Chain,
        slot: u32,
        bytes: &[u8],
    ) -> Result<()> {
        let offset = self.slot_offset(disk, chain, slot)?;
        let offset = offset.ok_or_else(|| damaged("a directory ends before its entries"))?;
        disk.cache.write(offset, bytes)
    }

    /// Chooses the short name and the slots of a new name. `renamed` is the slot of the entry that
    /// gets the name.
    ///
    /// # Errors
    ///
    /// ENOSPC if all short names are in use.
    pub(crate) fn new_name(&mut self, text: &str, renamed: Option<u32>) -> Result<NewName> {
        let is_taken = |short: &ShortName| {
            let slot = self.find(&decode_short(short, 0));
            slot.is_some_and(|slot| Some(slot) != renamed)
        };
        let (basis, is_exact) = short_basis(text);
        let short = if is_exact && !is_taken(&basis) {
            basis
        } else {
            let mut alike = basis;
            alike[6..8].fill(b' ');
            let from = self.numbers.get(&alike).map_or(1, |number| number + 1);
            let found = numbered(&basis, from, is_taken);
            let found = found.or_else(|| numbered(&basis, 1, is_taken));
            let (short, number) = found.ok_or(Errno::NOSPC)?;
            self.numbers.insert(alike, number);
            short
        };
        let is_long = decode_short(&short, 0) != text;
        Ok(NewName {
            text: text.to_owned(),
            long: if is_long {
                long_slots(text, &short)
            } else {
                Vec::new()
            },
            short,
        })
    }

    /// Returns the first of `count` slots that follow each other and are unused.
    fn unused_run(&mut self, count: u32) -> u32 {
        let unused = self.used[self.first_unused..].iter().position(|used| !used);
        self.first_unused = unused.map_or(self.used.len(), |at| self.first_unused + at);
        let mut start = self.first_unused;
        for (at, used) in self.used.iter().enumerate().skip(start) {
            if *used {
                start = at + 1;
            } else if at + 1 - start == count as usize {
                break;
            }
        }
        start as u32
    }

    /// Makes room for `count` slots that follow each other, and returns the first.
    ///
    /// # Errors
    ///
    /// ENOSPC; nothing is changed then.
    pub(crate) fn make_room(
        &mut self,
        disk: &mut Disk,
        chain: &mut Chain,
        count: u32,
    ) -> Result<u32> {
        let start = self.unused_run(count);
        let end = start + count;
        let slots_per_cluster = (disk.geometry.cluster_bytes / ENTRY_BYTES as u64) as u32;
        let total = match self.fixed {
            Some((_, slots)) => slots,
            None => {
                disk.follow(chain, SLOTS_MAX / slots_per_cluster + 1)?;
                chain.len().saturating_mul(slots_per_cluster)
            }
        };
        if end <= total {
            return Ok(start);
        }
        if self.fixed.is_some() || end > SLOTS_MAX {
            return Err(Errno::NOSPC.into());
        }
        let had = chain.len();
        disk.extend(chain, (end - total).div_ceil(slots_per_cluster))?;
        for index in had..chain.len() {
            let cluster = chain.find(index).map_or(0, |run| run.cluster);
            let offset = disk.geometry.cluster_offset(cluster);
            if let Err(error) = disk.cache.write_zeros(offset, disk.geometry.cluster_bytes) {
                disk.cut(chain, had)?;
                return Err(error);
            }
        }
        Ok(start)
    }

    /// Writes a name and its entry into slots from `start` on, which are unused; returns the slot
    /// of the entry.
    pub(crate) fn insert(
        &mut self,
        disk: &mut Disk,
        chain: &mut Chain,
        start: u32,
        name: NewName,
        entry: &Entry,
    ) -> Result<u32> {
        let end = start + name.slot_count();
        let is_at_end = end as usize > self.used.len();
        if is_at_end && self.slot_offset(disk, chain, end)?.is_some() {
            // The directory ended before.
            self.write_slot(disk, chain, end, &[0; ENTRY_BYTES])?;
        }
        for (bytes, slot) in name.long.iter().chain([&entry.0]).zip(start..) {
            self.write_slot(disk, chain, slot, bytes)?;
        }
        if is_at_end {
            self.used.resize(end as usize, false);
        }
        self.used[start as usize..end as usize].fill(true);
        let added = Name {
            text: name.text,
            long_count: name.long.len() as u32,
            short: name.short,
            is_directory: entry.is_directory(),
        };
        for key in added.keys() {
            self.slots.insert(key, end - 1);
        }
        self.names.insert(end - 1, added);
        Ok(end - 1)
    }

    /// Removes the name in a slot.
    ///
    /// # Errors
    ///
    /// EUCLEAN if another directory, which shares the cluster, has changed the slot.
    pub(crate) fn remove(&mut self, disk: &mut Disk, chain: &mut Chain, slot: u32) -> Result<()> {
        let name = self.names.get(&slot).ok_or(Errno::NOENT)?;
        let mut short = ShortName::default();
        if let Some(offset) = self.slot_offset(disk, chain, slot)? {
            disk.cache.read(offset, &mut short)?;
        }
        if short != name.short {
            return Err(damaged("two directories share a cluster"));
        }
        let first = slot - name.long_count;
        // The entry first: without it the slots before it name nothing.
        for slot in (first..=slot).rev() {
            self.write_slot(disk, chain, slot, &[DELETED])?;
        }
        for key in name.keys() {
            if self.slots.get(&key) == Some(&slot) {
                self.slots.remove(&key);
            }
        }
        self.names.remove(&slot);
        self.used[first as usize..=slot as usize].fill(false);
        self.first_unused = self.first_unused.min(first as usize);
        Ok(())
    }

    /// Gives the entry in a slot another name, which needs no more slots than the old one.
    pub(crate) fn replace(
        &mut self,
        disk: &mut Disk,
        chain: &mut Chain,
        slot: u32,
        name: NewName,
        entry: &Entry,
    ) -> Result<()> {
        self.remove(disk, chain, slot)?;
        let start = slot + 1 - name.slot_count();
        self.insert(disk, chain, start, name, entry).map(drop)
    }
}
