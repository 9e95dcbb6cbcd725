//! A directory entry with a short name: the inode of a FAT.

use super::layout::{ENTRY_BYTES, u16_at, u32_at};
use super::names::{LONG_ATTRIBUTES, ShortName};
use super::time::{FatTime, from_fat, to_fat};
use crate::base::Timespec;

pub(crate) const DELETED: u8 = 0xe5;
pub(crate) const DOT: &ShortName = b".          ";
pub(crate) const DOT_DOT: &ShortName = b"..         ";
const VOLUME_LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;

/// The bytes of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry(pub(crate) [u8; ENTRY_BYTES]);

impl Entry {
    /// Returns the entry of a new file or directory.
    pub(crate) fn new(short: &ShortName, is_directory: bool, cluster: u32, now: Timespec) -> Self {
        let mut entry = Self([0; ENTRY_BYTES]);
        entry.set_short(short);
        entry.0[11] = if is_directory { DIRECTORY } else { ARCHIVE };
        let FatTime {
            date,
            time,
            tens_ms,
        } = to_fat(now);
        entry.0[13] = tens_ms;
        entry.set(14, time);
        entry.set(16, date);
        entry.set(18, date);
        entry.set_modified(now);
        entry.set_cluster(cluster);
        entry
    }

    /// Returns the entry with the volume's label.
    pub(crate) fn label(label: &ShortName) -> Self {
        let mut entry = Self::new(label, false, 0, Timespec::default());
        entry.0[11] = VOLUME_LABEL;
        entry
    }

    fn set(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn short(&self) -> ShortName {
        let mut short = [0; 11];
        short.copy_from_slice(&self.0[..11]);
        short
    }

    /// Sets the short name, all in capitals.
    pub(crate) fn set_short(&mut self, short: &ShortName) {
        self.0[..11].copy_from_slice(short);
        self.0[12] = 0;
    }

    /// Whether the slot has a part of a long name.
    pub(crate) fn is_long(&self) -> bool {
        self.0[11] & 0x3f == LONG_ATTRIBUTES
    }

    /// Whether the slot is a name of the directory itself or of its parent, or the volume's label.
    pub(crate) fn is_special(&self) -> bool {
        self.0.starts_with(DOT) || self.0.starts_with(DOT_DOT) || self.0[11] & VOLUME_LABEL != 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.0[11] & DIRECTORY != 0
    }

    pub(crate) fn cluster(&self) -> u32 {
        u32::from(u16_at(&self.0, 20)) << 16 | u32::from(u16_at(&self.0, 26))
    }

    pub(crate) fn set_cluster(&mut self, cluster: u32) {
        self.set(20, (cluster >> 16) as u16);
        self.set(26, cluster as u16);
    }

    pub(crate) fn len_bytes(&self) -> u32 {
        u32_at(&self.0, 28)
    }

    pub(crate) fn set_len_bytes(&mut self, len_bytes: u32) {
        self.0[28..].copy_from_slice(&len_bytes.to_le_bytes());
    }

    pub(crate) fn modified(&self) -> Timespec {
        self.time(24, 22, 0)
    }

    /// Sets the time of the last change, and marks the file for programs that back it up.
    pub(crate) fn set_modified(&mut self, modified: Timespec) {
        let FatTime { date, time, .. } = to_fat(modified);
        self.set(22, time);
        self.set(24, date);
        if !self.is_directory() {
            self.0[11] |= ARCHIVE;
        }
    }

    pub(crate) fn accessed(&self) -> Timespec {
        from_fat(FatTime {
            date: u16_at(&self.0, 18),
            time: 0,
            tens_ms: 0,
        })
    }

    pub(crate) fn set_accessed(&mut self, accessed: Timespec) {
        self.set(18, to_fat(accessed).date);
    }

    pub(crate) fn created(&self) -> Timespec {
        self.time(16, 14, self.0[13])
    }

    fn time(&self, date_at: usize, time_at: usize, tens_ms: u8) -> Timespec {
        from_fat(FatTime {
            date: u16_at(&self.0, date_at),
            time: u16_at(&self.0, time_at),
            tens_ms,
        })
    }
}
