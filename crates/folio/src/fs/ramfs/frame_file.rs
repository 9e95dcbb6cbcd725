//! The data of one regular file in device memory: the counterpart of a mapping.

use super::frame_memory::{FrameRead, FrameWrite};
use super::frame_slab::{Frame, FrameSlab};
use crate::base::lock::RwLock;
use crate::base::{Errno, Result};
use crate::cache::WriteSource;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The data of one regular file. Callers that change it hold the inode lock; readers take none.
///
/// Copies run without the lock of the state: a reader has references of the frames it copies from.
pub(super) struct FrameFile {
    slab: Arc<FrameSlab>,
    state: RwLock<FileState>,
}

/// The pages of one file at one moment.
pub struct FramePages {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Index and frame of each page that exists, in order; the rest reads as zeros. A frame is
    /// not reused while this value has it.
    pub pages: Vec<(u64, Arc<Frame>)>,
}

impl FramePages {
    /// Returns whether the file has the page `index`.
    pub fn has(&self, index: u64) -> bool {
        self.frame(index).is_some()
    }

    /// Returns the frame of the page `index`.
    pub fn frame(&self, index: u64) -> Option<&Arc<Frame>> {
        let place = self.pages.binary_search_by_key(&index, |(at, _)| *at);
        Some(&self.pages[place.ok()?].1)
    }
}

/// Bytes of pages past the end of the file are zeros.
#[derive(Default)]
struct FileState {
    size_bytes: u64,
    pages: BTreeMap<u64, Arc<Frame>>,
}

impl FrameFile {
    pub(super) fn new(slab: Arc<FrameSlab>) -> Self {
        Self {
            slab,
            state: RwLock::default(),
        }
    }

    /// Returns whether the pages are frames of `slab`.
    pub(super) fn is_in(&self, slab: &Arc<FrameSlab>) -> bool {
        Arc::ptr_eq(&self.slab, slab)
    }

    fn page_bytes(&self) -> u64 {
        self.slab.page_bytes()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.state.read().size_bytes
    }

    /// Returns the number of allocated bytes.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.state.read().pages.len() as u64 * self.page_bytes()
    }

    pub(super) fn pages(&self) -> FramePages {
        let state = self.state.read();
        let pages = state.pages.iter();
        FramePages {
            size_bytes: state.size_bytes,
            pages: pages
                .map(|(index, frame)| (*index, frame.clone()))
                .collect(),
        }
    }

    pub(super) fn has_page(&self, index: u64) -> bool {
        self.state.read().pages.contains_key(&index)
    }

    /// Returns the pages that `range` touches: index, and the bytes of the range in the page.
    fn split(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let page_bytes = self.page_bytes();
        let indexes = range.start / page_bytes..range.end.div_ceil(page_bytes);
        indexes.filter_map(move |index| {
            let page = index * page_bytes;
            let start = range.start.max(page) - page;
            let end = (range.end - page).min(page_bytes);
            (start < end).then_some((index, start..end))
        })
    }

    /// Reads bytes at `offset`; returns fewer than the length of `buf` only at the end of the file.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let state = self.state.read();
        let len = state
            .size_bytes
            .saturating_sub(offset)
            .min(buf.len() as u64) as usize;
        let parts: Vec<_> = self.split(offset..offset + len as u64).collect();
        let frames: Vec<_> = parts
            .iter()
            .map(|(index, _)| state.pages.get(index).cloned())
            .collect();
        drop(state);
        let mut runs = Vec::new();
        for ((_, part), frame) in parts.iter().zip(&frames) {
            add(&mut runs, frame.as_deref(), part.clone());
        }
        let mut gather: Vec<FrameRead<'_>> = Vec::new();
        let mut rest = &mut buf[..len];
        for run in runs {
            let (buf, later) = rest.split_at_mut(run.len as usize);
            rest = later;
            if run.chunk.is_none() {
                buf.fill(0);
            } else {
                let address = run.address;
                gather.push(FrameRead { address, buf });
            }
        }
        if !gather.is_empty() {
            self.slab.memory.read(&mut gather)?;
        }
        Ok(len)
    }

    /// Writes bytes at `offset`, and returns their number: fewer if memory is short.
    ///
    /// # Errors
    /// ENOSPC if not one byte has room, and those of the device.
    pub(super) fn write(&self, offset: u64, bytes: &WriteSource<'_>) -> Result<usize> {
        let end = offset + bytes.len() as u64;
        let mut added = BTreeMap::new();
        let mut targets = Vec::new();
        let mut zeros = Vec::new();
        let mut failure = None;
        for (index, part) in self.split(offset..end) {
            let present = self.state.read().pages.get(&index).cloned();
            if let Some(frame) = present {
                add(&mut targets, Some(&frame), part);
                continue;
            }
            let frame = match self.slab.allocate() {
                Ok(frame) => frame,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            add(&mut zeros, Some(&frame), 0..part.start);
            add(&mut zeros, Some(&frame), part.end..self.page_bytes());
            add(&mut targets, Some(&frame), part);
            added.insert(index, frame);
        }
        let count = targets.iter().map(|run| run.len).sum::<u64>() as usize;
        if let (0, Some(error)) = (count, failure) {
            return Err(error);
        }
        self.zero(&zeros)?;
        bytes
            .part(0, count)
            .with_slices(|slices| self.scatter(&targets, slices))?;
        let mut state = self.state.write();
        state.pages.append(&mut added);
        state.size_bytes = state.size_bytes.max(offset + count as u64);
        Ok(count)
    }

    fn zero(&self, runs: &[Run]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let runs = runs.iter().map(|run| (run.address, run.len));
        self.slab.memory.zero(&runs.collect::<Vec<_>>())
    }

    /// Writes `slices` one after the other to `targets`.
    fn scatter(&self, targets: &[Run], slices: &[std::io::IoSlice<'_>]) -> Result<()> {
        let mut parts: Vec<FrameWrite<'_>> = Vec::new();
        let mut slices = slices.iter().map(|slice| &**slice);
        let mut slice: &[u8] = &[];
        for Run { address, len, .. } in targets {
            let len = *len as usize;
            let mut done = 0;
            while done < len {
                if slice.is_empty() {
                    slice = slices.next().ok_or(Errno::IO)?;
                    continue;
                }
                let (bytes, rest) = slice.split_at(slice.len().min(len - done));
                let address = address + done as u64;
                parts.push(FrameWrite { address, bytes });
                done += bytes.len();
                slice = rest;
            }
        }
        self.slab.memory.write(&parts)
    }

    /// Sets the size, and frees the pages past it unless the file grows.
    pub(super) fn set_size(&self, size_bytes: u64) -> Result<()> {
        if size_bytes <= self.size_bytes() {
            self.zero_present(size_bytes..size_bytes.next_multiple_of(self.page_bytes()))?;
        }
        let mut state = self.state.write();
        let is_growth = size_bytes > state.size_bytes;
        state.size_bytes = size_bytes;
        if !is_growth {
            let first = size_bytes.div_ceil(self.page_bytes());
            let freed = state.pages.split_off(&first);
            drop(state);
            drop(freed);
        }
        Ok(())
    }

    /// Takes over what a launch wrote that extended the file from `sizes_bytes.start` to its end.
    /// If the host shortened the file meanwhile, the bytes past its end become zeros.
    pub(super) fn end_launch(&self, sizes_bytes: Range<u64>) -> Result<()> {
        self.zero_present(self.size_bytes()..sizes_bytes.start)?;
        if !sizes_bytes.is_empty() {
            self.grow(sizes_bytes.end);
        }
        Ok(())
    }

    /// Sets the bytes past the end of the file to zero on pages that exist.
    pub(super) fn clear_past_end(&self) -> Result<()> {
        self.zero_present(self.size_bytes()..u64::MAX)
    }

    /// Extends the file to `size_bytes` if it is shorter.
    pub(super) fn grow(&self, size_bytes: u64) {
        let mut state = self.state.write();
        state.size_bytes = state.size_bytes.max(size_bytes);
    }

    /// Sets the bytes of `range` to zero on pages that exist.
    fn zero_present(&self, range: Range<u64>) -> Result<()> {
        let state = self.state.read();
        let first = range.start / self.page_bytes();
        let present = state
            .pages
            .range(first..range.end.div_ceil(self.page_bytes()).max(first));
        let mut frames = Vec::new();
        let mut runs = Vec::new();
        for (index, frame) in present {
            let page = index * self.page_bytes();
            let start = range.start.saturating_sub(page);
            let end = (range.end - page).min(self.page_bytes());
            if start < end {
                add(&mut runs, Some(frame), start..end);
                frames.push(frame.clone());
            }
        }
        drop(state);
        self.zero(&runs)
    }

    /// Makes `range` read as zeros, and frees the pages wholly inside.
    pub(super) fn punch(&self, range: Range<u64>) -> Result<()> {
        let first_whole = range.start.div_ceil(self.page_bytes());
        let last_whole = range.end / self.page_bytes();
        if first_whole < last_whole {
            let mut state = self.state.write();
            let mut freed = state.pages.split_off(&first_whole);
            let mut later = freed.split_off(&last_whole);
            state.pages.append(&mut later);
            drop(state);
            drop(freed);
        }
        self.zero_present(range)
    }

    /// Allocates every page of `range`; ENOSPC if they do not fit, then none is allocated.
    pub(super) fn allocate(&self, range: Range<u64>) -> Result<()> {
        let first = range.start / self.page_bytes();
        let end = range.end.div_ceil(self.page_bytes());
        let absent: Vec<u64> = {
            let state = self.state.read();
            let present = state.pages.range(first..end).count() as u64;
            if end - first - present > self.slab.limit.free() {
                return Err(Errno::NOSPC.into());
            }
            (first..end)
                .filter(|index| !state.pages.contains_key(index))
                .collect()
        };
        let added: Result<BTreeMap<_, _>> = absent
            .into_iter()
            .map(|index| Ok((index, self.slab.allocate()?)))
            .collect();
        let mut added = added?;
        let mut runs = Vec::new();
        for frame in added.values() {
            add(&mut runs, Some(frame), 0..self.page_bytes());
        }
        self.zero(&runs)?;
        self.state.write().pages.append(&mut added);
        Ok(())
    }

    /// Makes `range` read as zeros from allocated pages.
    pub(super) fn zero_range(&self, range: Range<u64>) -> Result<()> {
        self.allocate(range.clone())?;
        self.zero_present(range)
    }

    /// Returns the offset of the first allocated byte at or after `offset`.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let state = self.state.read();
        let (index, _) = state.pages.range(offset / self.page_bytes()..).next()?;
        Some((index * self.page_bytes()).max(offset))
    }

    /// Returns the offset of the first byte at or after `offset` that is not allocated.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let state = self.state.read();
        let first = offset / self.page_bytes();
        let mut next = first;
        for (index, _) in state.pages.range(first..) {
            if *index != next {
                break;
            }
            next += 1;
        }
        (next * self.page_bytes()).max(offset)
    }
}

/// Adjacent bytes of one allocation, for one copy; or a hole.
struct Run {
    /// The chunk that is the allocation; `None` for a hole.
    chunk: Option<u64>,
    address: u64,
    len: u64,
}

/// Adds the bytes `part` of a page to the last run if they follow it, or else as a run of their
/// own. A page without a frame is a hole.
fn add(runs: &mut Vec<Run>, frame: Option<&Frame>, part: Range<u64>) {
    let len = part.end - part.start;
    let chunk = frame.map(|frame| frame.chunk);
    let address = frame.map_or(0, |frame| frame.address() + part.start);
    match runs.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.chunk == chunk && last.address + last.len == address => last.len += len,
        _ => runs.push(Run {
            chunk,
            address,
            len,
        }),
    }
}
