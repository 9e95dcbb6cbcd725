//! The table of one launch: files, pages by (file, index), and the ring of misses, as the device
//! sees them. The layout is that of device/folio_device.h.

use std::collections::BTreeSet;
use std::ops::Range;

/// A page of a launch: place of the file in the list, and index of the page.
pub(crate) type PageKey = (u32, u64);

/// A page that a launch did not find in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Miss {
    pub(crate) page: PageKey,
    /// Whether the kernel was to write it.
    pub(crate) is_write: bool,
}

/// The largest index of a page: 40 bits.
pub(crate) const INDEX_MAX: u64 = (1 << 40) - 1;
/// The address of a page that is a hole.
pub(crate) const HOLE: u64 = 1;
/// `FOLIO_READ` and `FOLIO_WRITE`.
const READ: u64 = 1;
const WRITE: u64 = 2;
/// Words of `struct folio_dev`.
const HEADER_WORDS: usize = 9;
/// The word of `struct folio_dev` that counts misses.
const MISSED: usize = 5;
/// Words of `struct folio_dev_file`, `folio_dev_entry` and `folio_dev_miss`.
const FILE_WORDS: usize = 4;
const ENTRY_WORDS: usize = 2;
const MISS_WORDS: usize = 2;
/// The multiplier of the hash.
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// One file of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFile {
    pub(crate) size_bytes: u64,
    /// Whether a kernel wrote to the file.
    pub(crate) is_written: bool,
    /// Whether a page that is absent is missed when it is read; else it is a hole.
    pub(crate) is_absent_missed: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
}

/// The contents of a table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) epoch: u64,
    pub(crate) page_shift: u32,
    pub(crate) files: Vec<TableFile>,
    /// Each page with the address of its frame, or [`HOLE`].
    pub(crate) pages: Vec<(PageKey, u64)>,
    pub(crate) ring_capacity: usize,
}

/// What a launch left in its table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) files: Vec<TableFile>,
    /// The number of misses; a page counts once for each call that missed it.
    pub(crate) missed: u64,
}

impl Table {
    /// Returns the number of places for pages: at least twice their number, so that a search ends
    /// soon, and a power of two.
    fn places(&self) -> usize {
        (self.pages.len() * 2).next_power_of_two().max(2)
    }

    /// Returns the length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        let words = HEADER_WORDS
            + self.files.len() * FILE_WORDS
            + self.places() * ENTRY_WORDS
            + self.ring_capacity * MISS_WORDS;
        words as u64 * 8
    }

    /// Returns the bytes for the device, to be stored at `address`. The ring, which is last, has no
    /// content before the launch.
    pub(crate) fn encode(&self, address: u64) -> Vec<u8> {
        let places = self.places();
        let shift = 64 - places.trailing_zeros();
        let files_at = address + HEADER_WORDS as u64 * 8;
        let table_at = files_at + (self.files.len() * FILE_WORDS * 8) as u64;
        let ring_at = table_at + (places * ENTRY_WORDS * 8) as u64;
        let mut words = vec![
            self.epoch,
            self.page_shift.into(),
            self.files.len() as u64,
            shift.into(),
            self.ring_capacity as u64,
            0,
            files_at,
            table_at,
            ring_at,
        ];
        for file in &self.files {
            words.extend([
                file.size_bytes,
                file.is_written.into(),
                file.is_absent_missed.into(),
                u64::from(file.is_readable) * READ + u64::from(file.is_writable) * WRITE,
            ]);
        }
        let first = words.len();
        words.resize(first + places * ENTRY_WORDS, 0);
        let table = &mut words[first..];
        for (page, frame) in &self.pages {
            let key = key_of(*page);
            let mut place = (key.wrapping_mul(HASH) >> shift) as usize;
            while table[place * ENTRY_WORDS] != 0 {
                place = (place + 1) % places;
            }
            table[place * ENTRY_WORDS..][..ENTRY_WORDS].copy_from_slice(&[key, *frame]);
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Returns the length of the part that [`Table::decode`] needs: the header with the files.
    pub(crate) fn head_bytes(&self) -> usize {
        (HEADER_WORDS + self.files.len() * FILE_WORDS) * 8
    }

    /// Reads what a launch left in the files. `None` if a kernel overwrote the table.
    pub(crate) fn decode(&self, head: &[u8]) -> Option<Outcome> {
        let head = words(head);
        let files = head.get(HEADER_WORDS..)?.chunks_exact(FILE_WORDS);
        let files: Vec<_> = files
            .map(|words| TableFile {
                size_bytes: words[0],
                is_written: words[1] != 0,
                is_absent_missed: words[2] != 0,
                is_readable: words[3] & READ != 0,
                is_writable: words[3] & WRITE != 0,
            })
            .collect();
        let is_intact = head.first() == Some(&self.epoch) && files.len() == self.files.len();
        is_intact.then_some(Outcome {
            files,
            missed: *head.get(MISSED)?,
        })
    }

    /// Returns where the entries of the ring are, relative to the table, after this many misses.
    pub(crate) fn ring(&self, missed: u64) -> Range<u64> {
        let start = self.len_bytes() - (self.ring_capacity * MISS_WORDS) as u64 * 8;
        let count = missed.min(self.ring_capacity as u64);
        start..start + count * (MISS_WORDS * 8) as u64
    }

    /// Reads entries of the ring. `None` if a kernel overwrote them.
    pub(crate) fn decode_ring(&self, ring: &[u8]) -> Option<BTreeSet<Miss>> {
        let words = words(ring);
        let misses = words.chunks_exact(MISS_WORDS).map(|words| {
            let file = u32::try_from((words[0] >> 40).checked_sub(1)?).ok()?;
            let is_known = (file as usize) < self.files.len();
            is_known.then_some(Miss {
                page: (file, words[0] & INDEX_MAX),
                is_write: words[1] != 0,
            })
        });
        misses.collect()
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

fn key_of((file, index): PageKey) -> u64 {
    (u64::from(file) + 1) << 40 | index
}
