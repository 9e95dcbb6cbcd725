//! Reads of cached bytes, without a lock. Linux: `filemap_read` (mm/filemap.c).

use super::counters;
use super::folio::{Frame, LARGE_FOLIO_BYTES, LARGE_FOLIO_PAGES, PAGE};
use super::index::Word;
use super::mapping::{AddressSpace, Mapping};
use crate::base::Result;
use crate::base::rcu::{self, Pin};
use crate::base::sync::atomic::Ordering;

/// Most bytes copied under one pin, so that the pin delays the reuse of frames only briefly.
pub(crate) const PINNED_MAX: usize = 1 << 20;

impl Mapping {
    /// Copies bytes from `offset` into `buf`, up to the end of the file, if all of them are in
    /// memory; else returns `None`. Takes no lock and never waits. Returns the number of bytes
    /// copied. Linux: `filemap_read` with `IOCB_NOWAIT`.
    #[inline(always)]
    pub(crate) fn read_cached(&self, offset: u64, buf: &mut [u8], pin: &Pin) -> Option<usize> {
        let inner = &*self.0;
        let len = inner.clip(offset, buf.len());
        if len > PINNED_MAX {
            return None;
        }
        if inner.copy_out(offset, &mut buf[..len], pin) < len {
            return None;
        }
        counters::count_hits(inner.number, pages_of(offset, len));
        // Clipped again: a truncation during the copy may have dropped some of the bytes.
        Some(len.min(inner.clip(offset, len)))
    }

    /// Starts to load cached bytes from `offset` on into the processor's caches: at most `len`, and
    /// at most a page. For a read that follows soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64, len: usize, pin: &Pin) {
        let inner = &*self.0;
        let Some(slot) = inner.index.find(offset / PAGE, pin) else {
            return;
        };
        let (frame, start, rest) = match slot.large().frame() {
            Some(first) => (
                Some(first),
                offset % LARGE_FOLIO_BYTES,
                LARGE_FOLIO_BYTES - offset % LARGE_FOLIO_BYTES,
            ),
            None => (slot.word().frame(), offset % PAGE, PAGE - offset % PAGE),
        };
        if let Some(frame) = frame {
            let len = (len as u64).min(rest).min(PAGE) as usize;
            inner.pool.prefetch(frame, start as usize, len);
        }
    }

    /// Copies bytes from `offset` into `buf`, up to the end of the file; reads ahead where access
    /// is sequential. Returns the number of bytes copied; 0 at or past the end of the file. During
    /// a concurrent write, each byte is an old or a new one, as in Linux.
    ///
    /// # Errors
    /// The store's, or ENOMEM, if not a single byte was copied. Linux: `filemap_read`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inner = &self.0;
        let len = inner.clip(offset, buf.len());
        let mut done = 0;
        let mut missed = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let chunk = (len - done).min(PINNED_MAX);
            let copied = inner.copy_out(
                offset + done as u64,
                &mut buf[done..done + chunk],
                &rcu::pin(),
            );
            done += copied;
            if copied < chunk {
                let at = offset + done as u64;
                let index = at / PAGE;
                if inner.is_hole(index) {
                    done += zeroes(&mut buf[done..len], at);
                    continue;
                }
                let wanted = (offset + len as u64).div_ceil(PAGE) - index;
                result = inner.fault(index, wanted).map(|count| missed += count);
            }
        }
        counters::count_hits(inner.number, pages_of(offset, done).saturating_sub(missed));
        match result {
            Err(error) if done == 0 => Err(error),
            // The file may have been truncated meanwhile.
            _ => Ok(done.min(inner.clip(offset, len))),
        }
    }

    /// Returns the byte offset of the first page at or after byte `offset`; `None` if there is none
    /// before the end of the file. For files without a store, this is SEEK_DATA. Linux:
    /// `mapping_seek_hole_data`.
    pub fn next_cached(&self, offset: u64) -> Option<u64> {
        let from = offset / PAGE;
        let (index, _) = self.0.index.next(from, false, &rcu::pin())?;
        let at = (index * PAGE).max(offset);
        (at < self.size_bytes()).then_some(at)
    }

    /// Returns the first byte at or after `offset` that has no page. For files without a store,
    /// this is SEEK_HOLE. Linux: `mapping_seek_hole_data`.
    pub fn next_absent(&self, offset: u64) -> u64 {
        let mut index = offset / PAGE;
        while !self.0.is_absent(index) {
            index += 1;
        }
        (index * PAGE).max(offset)
    }
}

/// Returns the number of pages that `len` bytes from `offset` touch.
#[inline]
fn pages_of(offset: u64, len: usize) -> u64 {
    if len == 0 {
        0
    } else {
        (offset + len as u64 - 1) / PAGE - offset / PAGE + 1
    }
}

impl AddressSpace {
    /// Returns how many of `len` bytes from `offset` are before the end of the file.
    #[inline]
    fn clip(&self, offset: u64, len: usize) -> usize {
        self.size_bytes
            .load(Ordering::Acquire)
            .saturating_sub(offset)
            .min(len as u64) as usize
    }

    /// Copies bytes from `offset` as far as they are in memory; returns their number.
    #[inline]
    fn copy_out(&self, offset: u64, buf: &mut [u8], pin: &Pin) -> usize {
        if let Run::Bytes { frame, start, len } = self.run(offset, pin)
            && buf.len() <= len
        {
            self.pool.copy_out(frame, start, buf, pin);
            return buf.len();
        }
        self.copy_runs(offset, buf, pin)
    }

    /// Copies bytes from `offset` as far as they are in memory, run by run; returns their number.
    #[inline(never)]
    fn copy_runs(&self, offset: u64, buf: &mut [u8], pin: &Pin) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let rest = &mut buf[done..];
            match self.run(at, pin) {
                Run::Bytes { frame, start, len } => {
                    let count = len.min(rest.len());
                    self.pool.copy_out(frame, start, &mut rest[..count], pin);
                    done += count;
                }
                Run::Hole => done += zeroes(rest, at),
                Run::Unknown => break,
            }
        }
        done
    }

    /// Returns the bytes from `at` on that one lookup finds.
    #[inline]
    fn run(&self, at: u64, pin: &Pin) -> Run {
        let Some(slot) = self.index.find(at / PAGE, pin) else {
            return self.absent();
        };
        let large = slot.large();
        if let Some(frame) = large.frame() {
            if !large.has(Word::REFERENCED) {
                let first = at / LARGE_FOLIO_BYTES * LARGE_FOLIO_PAGES;
                self.mark_accessed(large, first, true, pin);
            }
            return Run::bytes(frame, at % LARGE_FOLIO_BYTES, LARGE_FOLIO_BYTES);
        }
        let word = slot.word();
        match word.frame() {
            Some(frame) if !word.has(Word::BUSY | Word::MARK) => {
                if !word.has(Word::REFERENCED) {
                    self.mark_accessed(word, at / PAGE, false, pin);
                }
                Run::bytes(frame, at % PAGE, PAGE)
            }
            None => self.absent(),
            _ => Run::Unknown,
        }
    }

    /// Returns whether the page at `index` is a hole of a mapping without a store.
    pub(super) fn is_hole(&self, index: u64) -> bool {
        self.store.is_none() && self.is_absent(index)
    }

    /// Returns what an absent page is: a hole without a store.
    #[inline]
    fn absent(&self) -> Run {
        if self.store.is_none() {
            Run::Hole
        } else {
            Run::Unknown
        }
    }
}

/// The bytes of a file from some offset on, as one lookup in the index finds them.
enum Run {
    /// In memory: `len` bytes, from byte `start` of `frame` and the frames after it.
    Bytes {
        frame: Frame,
        start: usize,
        len: usize,
    },
    /// Zeros, up to the end of the page.
    Hole,
    /// Not in memory, or not known without waiting.
    Unknown,
}

impl Run {
    /// Returns the rest of a folio of `folio_bytes` from byte `start` on.
    #[inline]
    fn bytes(frame: Frame, start: u64, folio_bytes: u64) -> Self {
        Self::Bytes {
            frame,
            start: start as usize,
            len: (folio_bytes - start) as usize,
        }
    }
}

/// Zeroes the part of `buf` that is in a hole: at most the rest of its page. Returns its length.
fn zeroes(buf: &mut [u8], at: u64) -> usize {
    let count = ((PAGE - at % PAGE) as usize).min(buf.len());
    buf[..count].fill(0);
    count
}
