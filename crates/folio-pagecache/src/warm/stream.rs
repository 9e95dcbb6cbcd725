//! Streams: large parts of files, read in sequence by several threads, each in its own segment.
//!
//! The kernel reads ahead of a sequential reader, in folios that grow with its window. It does so
//! beyond the end of a part as well. A part that does not reach the end of its file is therefore
//! read exactly where its last windows are.

use super::{Missing, Run, WarmContext, Warmed, lock, read};
use crate::open::Source;
use crate::residency::{cached_ranges, page_bytes, resident_in};
use crate::scan::reason;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The least part that is worth a stream: the kernel reads smaller files in single pages, too.
const STREAM_MIN: u64 = 256 << 10;
/// Bytes of one read.
const PIECE: u64 = 128 << 10;
/// Segments of a file, in windows of readahead; and their limits in bytes.
const SEGMENT_WINDOWS: u64 = 16;
const SEGMENT_MIN: u64 = 16 << 20;
const SEGMENT_MAX: u64 = 128 << 20;
/// Windows of readahead that the kernel may be ahead of a reader, with one to spare.
const WINDOWS_AHEAD: u64 = 3;

/// A stream at work.
struct Stream<'a> {
    source: &'a Source,
    /// The first byte that was not read, and the end of what was charged for readahead.
    at: u64,
    charged: u64,
}

impl WarmContext<'_> {
    /// Leaves the large absent parts of a file for the streams. Returns whether none was left.
    pub(super) fn leave_large(&self, file: usize, missing: &mut Missing) -> bool {
        let disk = self.disk(missing.source.device);
        let size_bytes = missing.source.size_bytes;
        let segment = (disk.readahead_bytes * SEGMENT_WINDOWS).clamp(SEGMENT_MIN, SEGMENT_MAX);
        let mut runs: Vec<Run> = Vec::new();
        missing.parts.retain(|(part, lacks)| {
            let readahead_end = if part.end == size_bytes {
                u64::MAX
            } else {
                part.end
            };
            let ahead = disk.readahead_bytes * WINDOWS_AHEAD;
            let end = part.end.min(readahead_end.saturating_sub(ahead));
            if *lacks < STREAM_MIN || end < part.start + STREAM_MIN {
                return true;
            }
            let mut start = part.start;
            while start < part.end {
                let end = part.end.min((start / segment + 1) * segment);
                runs.push(Run {
                    device: missing.source.device,
                    place: 0,
                    file,
                    range: start..end,
                    readahead_end,
                    ends_file: false,
                });
                start = end;
            }
            false
        });
        let Some(last) = runs.last_mut() else {
            return true;
        };
        last.ends_file = true;
        lock(&self.large).append(&mut runs);
        false
    }

    /// Reads the large parts. A disk that seeks serves one stream at a time.
    pub(super) fn stream(&self, seeks: bool) {
        let mut runs = std::mem::take(&mut *lock(&self.large));
        if runs.is_empty() {
            return;
        }
        if self.progress.expected_bytes.load(Ordering::Relaxed) == 0 {
            let left: u64 = runs.iter().map(|run| run.range.end - run.range.start).sum();
            let read = self.progress.read_bytes.load(Ordering::Relaxed);
            self.progress
                .expected_bytes
                .store(read + left, Ordering::Relaxed);
        }
        if lock(&self.total).order == super::Order::Physical {
            runs.iter_mut().for_each(|run| run.place = self.place(run));
        }
        runs.sort_unstable_by_key(|run| (run.device, run.place, run.file, run.range.start));
        let jobs = if seeks { 1 } else { runs.len() };
        self.work(jobs, |context, done| {
            while let Some(number) = context.take(runs.len()) {
                let run = &runs[number];
                if let Err(error) = context.read_run(run, done) {
                    let path = context.files[run.file].path.clone();
                    done.failures.push((path, reason(&error)));
                }
                let counted = &context.progress.files;
                if run.ends_file && lock(&context.total).order == super::Order::Inode {
                    done.files += 1;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// Returns the offset on the disk at which a run starts; 0 if unknown.
    fn place(&self, run: &Run) -> u64 {
        let path = &self.files[run.file].path;
        let extents = Source::open(path)
            .and_then(|source| crate::sys::fiemap(&source.file, super::EXTENTS_MAX))
            .unwrap_or_default();
        let start = run.range.start;
        let covers = |offset: u64, len_bytes: u64| (offset..offset + len_bytes).contains(&start);
        extents
            .iter()
            .find(|extent| covers(extent.offset, extent.len_bytes))
            .map_or(0, |extent| extent.place + (start - extent.offset))
    }

    /// Reads the absent parts of a run, as far as the budget allows.
    fn read_run(&self, run: &Run, done: &mut Warmed) -> io::Result<()> {
        let path = &self.files[run.file].path;
        let source = Source::open(path)?;
        let range = run.range.start..run.range.end.min(source.size_bytes);
        let absent = absent(&source, range)?;
        let ahead = self.disk(run.device).readahead_bytes * WINDOWS_AHEAD;
        let stream_end = |part: &Range<u64>| {
            let end = part.end.min(run.readahead_end.saturating_sub(ahead));
            (end >= part.start.saturating_add(STREAM_MIN)).then_some(end)
        };
        let bytes = |part: &Range<u64>| stream_end(part).map_or(0, |end| end - part.start);
        let streamed: u64 = absent.iter().map(bytes).sum();
        // With less left, other streams may have to stop where this one reads ahead.
        let reserve = ahead.saturating_mul(self.threads() as u64);
        if !self.allow_all(streamed, reserve) {
            let range = run.range.clone();
            return self.exact(path, range, done)?.finish(self, done);
        }
        for part in absent {
            let Some(end) = stream_end(&part) else {
                self.exact(path, part, done)?.finish(self, done)?;
                continue;
            };
            let mut stream = Stream {
                source: &source,
                at: part.start,
                charged: part.start,
            };
            stream.read(self, part.start..end, ahead, done)?;
            if end < part.end {
                self.exact(path, end..part.end, done)?.finish(self, done)?;
            }
        }
        Ok(())
    }
}

impl Stream<'_> {
    /// Reads a range in sequence; stops before memory runs short.
    fn read(
        &mut self,
        context: &WarmContext<'_>,
        range: Range<u64>,
        ahead: u64,
        done: &mut Warmed,
    ) -> io::Result<()> {
        while self.at < range.end {
            let charged = range.end.min(self.at + ahead + PIECE);
            let is_stopped = context.progress.stop.load(Ordering::Relaxed);
            if is_stopped || !context.has_room(charged - self.charged.min(charged)) {
                return self.cut(context, range, done);
            }
            self.charged = charged;
            // A first read of one page makes the second one sequential.
            let len = if self.at == range.start {
                page_bytes()
            } else {
                PIECE - self.at % PIECE
            };
            let len = len.min(range.end - self.at);
            let count = read(&self.source.file, self.at, len)?;
            if count == 0 {
                break;
            }
            self.at += count;
            context.count(count, done);
        }
        Ok(())
    }

    /// Reports what the kernel has read ahead, and leaves out the rest.
    fn cut(
        &self,
        context: &WarmContext<'_>,
        range: Range<u64>,
        done: &mut Warmed,
    ) -> io::Result<()> {
        let ahead = self.at..self.charged.max(self.at);
        let there = resident_in(&self.source.file, &self.source.found, &ahead)?.unwrap_or(0);
        context.count(there, done);
        done.over_budget_bytes += range.end - self.at - there;
        Ok(())
    }
}

impl WarmContext<'_> {
    /// Takes all of `bytes` from the budget if `reserve` remains.
    fn allow_all(&self, bytes: u64, reserve: u64) -> bool {
        let taken = self
            .budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                let rest = left.checked_sub(bytes.next_multiple_of(page_bytes()))?;
                (rest >= reserve).then_some(rest)
            });
        taken.is_ok()
    }

    fn count(&self, bytes: u64, done: &mut Warmed) {
        done.read_bytes += bytes;
        self.progress.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Returns the absent parts of a range; all of it if residency is unknown.
fn absent(source: &Source, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut parts = Vec::new();
    let there = resident_in(&source.file, &source.found, &range)?;
    let mut at = range.start;
    if there.is_some_and(|bytes| bytes > 0) {
        cached_ranges(&source.file, range.clone(), |cached| {
            if at < cached.start {
                parts.push(at..cached.start);
            }
            at = cached.end;
        })?;
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    Ok(parts)
}
