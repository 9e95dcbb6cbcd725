//! A bitmap of one block group: its blocks or inodes in use.

use std::ops::Range;

/// Bits in memory as 64-bit words; bit 0 of word 0 is the group's first block or inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bitmap {
    words: Box<[u64]>,
    len: u32,
}

impl Bitmap {
    /// Returns `len` clear bits.
    pub(crate) fn new(len: u32) -> Self {
        Self {
            words: vec![0; len.div_ceil(64) as usize].into(),
            len,
        }
    }

    /// Returns the first `len` bits of `bytes`, in the format on disk.
    pub(crate) fn from_bytes(bytes: &[u8], len: u32) -> Self {
        let mut bitmap = Self::new(len);
        for (word, chunk) in bitmap.words.iter_mut().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        let tail = len % 64;
        if tail != 0
            && let Some(last) = bitmap.words.last_mut()
        {
            *last &= (1 << tail) - 1;
        }
        bitmap
    }

    /// Fills `bytes`, a whole block: the bits, then ones to the end, which is the format's padding.
    pub(crate) fn write_to(&self, bytes: &mut [u8]) {
        // The bits past the end are set: there are no blocks.
        bytes.fill(0xFF);
        for (word, chunk) in self.words.iter().zip(bytes.chunks_mut(8)) {
            let raw = word.to_le_bytes();
            chunk.copy_from_slice(&raw[..chunk.len()]);
        }
        let whole = (self.len / 8) as usize;
        if !self.len.is_multiple_of(8) {
            bytes[whole] |= 0xFF << (self.len % 8);
        }
        let padding_from = self.len.div_ceil(8) as usize;
        bytes[padding_from..].fill(0xFF);
    }

    /// Returns the number of bits.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of clear bits.
    pub(crate) fn count_clear(&self) -> u32 {
        self.len - self.words.iter().map(|w| w.count_ones()).sum::<u32>()
    }

    /// Whether `bit` is set.
    pub(crate) fn is_set(&self, bit: u32) -> bool {
        self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Whether every bit in `range` is set.
    pub(crate) fn all_set(&self, range: Range<u32>) -> bool {
        self.next_clear(range.start, range.end).is_none()
    }

    /// Sets every bit in `range`.
    pub(crate) fn set(&mut self, range: Range<u32>) {
        self.for_words(range, |word, mask| *word |= mask);
    }

    /// Clears every bit in `range`.
    pub(crate) fn clear(&mut self, range: Range<u32>) {
        self.for_words(range, |word, mask| *word &= !mask);
    }

    /// Returns the first clear bit in `from..end`.
    pub(crate) fn next_clear(&self, from: u32, end: u32) -> Option<u32> {
        self.next(from, end, |word| !word)
    }

    /// Returns the first set bit in `from..end`.
    pub(crate) fn next_set(&self, from: u32, end: u32) -> Option<u32> {
        self.next(from, end, |word| word)
    }

    /// Returns the first run of clear bits in `from..len`, cut at `max` bits.
    pub(crate) fn next_clear_run(&self, from: u32, max: u32) -> Option<Range<u32>> {
        let start = self.next_clear(from, self.len)?;
        let limit = self.len.min(start.saturating_add(max));
        Some(start..self.next_set(start, limit).unwrap_or(limit))
    }

    /// Returns all runs of set bits.
    pub(crate) fn set_runs(&self) -> impl Iterator<Item = Range<u32>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next_set(at, self.len)?;
            let end = self.next_clear(start, self.len).unwrap_or(self.len);
            at = end;
            Some(start..end)
        })
    }

    fn next(&self, from: u32, end: u32, view: impl Fn(u64) -> u64) -> Option<u32> {
        let end = end.min(self.len);
        if from >= end {
            return None;
        }
        let mut index = (from / 64) as usize;
        let mut word = view(self.words[index]) & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            if index as u64 * 64 >= u64::from(end) {
                return None;
            }
            word = view(self.words[index]);
        }
        let bit = index as u32 * 64 + word.trailing_zeros();
        (bit < end).then_some(bit)
    }

    fn for_words(&mut self, range: Range<u32>, mut act: impl FnMut(&mut u64, u64)) {
        let mut bit = range.start;
        while bit < range.end {
            let in_word = bit % 64;
            let count = (64 - in_word).min(range.end - bit);
            let mask = if count == 64 {
                u64::MAX
            } else {
                ((1 << count) - 1) << in_word
            };
            act(&mut self.words[(bit / 64) as usize], mask);
            bit += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bitmap_padding_is_ones() {
        let mut bitmap = Bitmap::new(12);
        bitmap.set(1..2);
        let mut bytes = [0; 4];
        bitmap.write_to(&mut bytes);
        assert_eq!(bytes, [0x02, 0xF0, 0xFF, 0xFF]);
        assert_eq!(Bitmap::from_bytes(&bytes, 12), bitmap);
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_vector(len in 1_u32..300, edits in prop::collection::vec((any::<bool>(), 0_u32..300, 0_u32..80), 0..30), from in 0_u32..300) {
            let mut bitmap = Bitmap::new(len);
            let mut model = vec![false; len as usize];
            for (set, start, count) in edits {
                let range = start.min(len)..(start + count).min(len);
                if set { bitmap.set(range.clone()) } else { bitmap.clear(range.clone()) }
                for bit in range { model[bit as usize] = set; }
            }
            prop_assert_eq!(bitmap.count_clear() as usize, model.iter().filter(|b| !**b).count());
            let clear = (from..len).find(|bit| !model[*bit as usize]);
            prop_assert_eq!(bitmap.next_clear(from, len), clear);
            prop_assert_eq!(bitmap.next_set(from, len), (from..len).find(|bit| model[*bit as usize]));
        }
    }
}
