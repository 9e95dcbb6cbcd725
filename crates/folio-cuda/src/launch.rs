//! Launches: an epoch with a table for each, misses filled by the host, sizes published afterwards.

use crate::device::Device;
use crate::table::{HOLE, INDEX_MAX, Miss, Outcome, PageKey, Table, TableFile};
use folio::ramfs::{FrameFiles, FramePages, FrameRead, FrameWrite};
use folio::syscall::Fd;
use folio::vfs::{FallocateMode, HeldFile};
use folio::{Errno, Error, Process, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// The default capacity of the ring of misses.
const RING_CAPACITY: usize = 64 << 10;

/// The meaning of a page that a file does not have, for kernels that read it.
pub enum Absent<'a> {
    /// A hole: zeros.
    Zeros,
    /// A page to be filled: the closure writes the range of the file, from another mount for
    /// example, before the kernel is launched again.
    Fill(&'a mut dyn FnMut(&Process, Fd, Range<u64>) -> Result<()>),
}

/// Files of a gpufs for kernels, which know them by their place in the list.
pub struct Launch<'a> {
    process: &'a Process,
    device: &'a dyn Device,
    files: &'a FrameFiles,
    opened: Vec<(Fd, Absent<'a>)>,
    pages_max: usize,
    ring_capacity: usize,
    /// Device memory for tables, address and length: kept from launch to launch.
    buffer: Option<(u64, u64)>,
}

/// The counts of [`Launch::run`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaunchReport {
    /// How often the kernel was launched.
    pub launches: u64,
    /// How many misses all launches had. A page counts once for each call that missed it.
    pub misses: u64,
}

impl<'a> Launch<'a> {
    /// Prepares launches on `device`, the one whose memory `files` was mounted with.
    pub fn new(process: &'a Process, device: &'a dyn Device, files: &'a FrameFiles) -> Self {
        Self {
            process,
            device,
            files,
            opened: Vec::new(),
            pages_max: usize::MAX,
            ring_capacity: RING_CAPACITY,
            buffer: None,
        }
    }

    /// Adds an open file, which kernels know as 0, 1 and so on. Kernels that write it need `fd`
    /// open for writing.
    #[must_use]
    pub fn file(mut self, fd: Fd, absent: Absent<'a>) -> Self {
        self.opened.push((fd, absent));
        self
    }

    /// Limits the table to `pages_max` pages, and the ring to `ring_capacity` misses. A kernel that
    /// needs more pages than the table has in one launch fails with ENOMEM.
    #[must_use]
    pub fn limits(mut self, pages_max: usize, ring_capacity: usize) -> Self {
        self.pages_max = pages_max;
        self.ring_capacity = ring_capacity.max(1);
        self
    }

    /// Calls `kernel` with the address of the table (`struct folio_dev *`) until a launch has no
    /// misses. The closure launches a kernel and waits for its end. Afterwards the sizes and times
    /// of the files are those that the kernel made.
    ///
    /// # Errors
    /// EXDEV if a file is not on this gpufs, ENOSPC if a page that a kernel writes does not fit,
    /// ENOMEM if one launch needs more pages than the table may have, EIO if a page stays absent,
    /// and those of `kernel`.
    pub fn run(&mut self, kernel: &mut dyn FnMut(u64) -> Result<()>) -> Result<LaunchReport> {
        let mut report = LaunchReport::default();
        let mut wanted = BTreeSet::new();
        let held = self.opened.iter().map(|(fd, _)| self.process.hold(*fd));
        let held = held.collect::<Result<Vec<_>>>()?;
        loop {
            report.launches += 1;
            let pages = held.iter().map(|file| self.files.pages(file));
            let pages = pages.collect::<Result<Vec<_>>>()?;
            let table = self.table(report.launches, &held, &pages, &wanted)?;
            let address = self.buffer(table.len_bytes())?;
            let outcome = launch(self.device, address, &table, kernel)
                .and_then(|outcome| self.publish(&held, &table, outcome))
                .inspect_err(|_| self.discard(&held))?;
            report.misses += outcome.missed;
            if outcome.missed == 0 {
                return Ok(report);
            }
            let misses = misses(self.device, address, &table, outcome.missed)?;
            if misses.iter().all(|miss| self.has(*miss, &pages, &wanted)) {
                return Err(Error::new(
                    Errno::IO,
                    "the kernel misses pages that its table has",
                ));
            }
            // The frames were in use until here.
            drop(pages);
            for Miss { page, is_write } in misses {
                let file = held.get(page.0 as usize).ok_or(Errno::IO)?;
                self.provide(file, page, is_write)?;
                wanted.insert(page);
            }
            if wanted.len() > self.pages_max {
                return Err(Error::new(
                    Errno::NOMEM,
                    format!(
                        "one launch needs {} pages or more, the table has {}: raise the limit",
                        wanted.len(),
                        self.pages_max
                    ),
                ));
            }
        }
    }

    /// Returns whether the table of a launch had what this miss needs: a frame, or a hole that was
    /// read. The table has every wanted page.
    fn has(&self, miss: Miss, pages: &[FramePages], wanted: &BTreeSet<PageKey>) -> bool {
        let (place, index) = miss.page;
        let place_at = place as usize;
        let is_hole_enough = !miss.is_write && !self.is_filled(place_at);
        let has_frame = || pages.get(place_at).is_some_and(|file| file.has(index));
        wanted.contains(&miss.page) && (is_hole_enough || has_frame())
    }

    /// Returns whether absent pages of a file are filled.
    fn is_filled(&self, place: usize) -> bool {
        matches!(self.opened.get(place), Some((_, Absent::Fill(_))))
    }

    /// Returns the address of device memory of at least `len_bytes` bytes.
    fn buffer(&mut self, len_bytes: u64) -> Result<u64> {
        if let Some((address, _)) = self.buffer.filter(|(_, len)| *len >= len_bytes) {
            return Ok(address);
        }
        self.release();
        let len_bytes = len_bytes.next_power_of_two();
        let address = self.device.allocate(len_bytes)?;
        self.buffer = Some((address, len_bytes));
        Ok(address)
    }

    fn release(&mut self) {
        if let Some((address, _)) = self.buffer.take() {
            self.device.release(address);
        }
    }

    /// Makes the table of one launch: the `wanted` pages, then the rest as far as there is room.
    fn table(
        &self,
        epoch: u64,
        held: &[HeldFile],
        pages: &[FramePages],
        wanted: &BTreeSet<PageKey>,
    ) -> Result<Table> {
        let all = pages.iter().zip(0_u32..).flat_map(|(file, place)| {
            let pages = file.pages.iter();
            pages.map(move |(index, frame)| ((place, *index), frame.address()))
        });
        let (mut entries, rest): (Vec<_>, Vec<_>) =
            all.partition(|(page, _)| wanted.contains(page));
        let found: BTreeSet<_> = entries.iter().map(|(page, _)| *page).collect();
        // A page that is to be filled is missed again if the host freed it meanwhile.
        let holes = wanted
            .difference(&found)
            .filter(|(place, _)| !self.is_filled(*place as usize));
        entries.extend(holes.map(|page| (*page, HOLE)));
        entries.extend(rest);
        if entries.iter().any(|((_, index), _)| *index > INDEX_MAX) {
            return Err(Error::new(Errno::FBIG, "a file is too large for a kernel"));
        }
        let is_complete = entries.len() <= self.pages_max;
        entries.truncate(self.pages_max);
        let files = held.iter().zip(pages).enumerate();
        Ok(Table {
            epoch,
            page_shift: self.files.page_bytes().trailing_zeros(),
            files: files
                .map(|(place, (held, pages))| TableFile {
                    size_bytes: pages.size_bytes,
                    is_written: false,
                    is_absent_missed: !is_complete || self.is_filled(place),
                    is_readable: held.is_readable(),
                    is_writable: held.is_writable(),
                })
                .collect(),
            pages: entries,
            ring_capacity: self.ring_capacity,
        })
    }

    /// Sets sizes and times of the files that the kernel wrote.
    fn publish(&self, held: &[HeldFile], table: &Table, outcome: Outcome) -> Result<Outcome> {
        for ((after, before), file) in outcome.files.iter().zip(&table.files).zip(held) {
            if after.is_written {
                let sizes_bytes = before.size_bytes..after.size_bytes;
                self.files.end_launch(file, sizes_bytes)?;
            }
        }
        Ok(outcome)
    }

    /// Waits for the end of a launch that failed, and clears what it wrote past the ends of files.
    /// The launch's error is the one to report; a device that fails here fails later calls, too.
    fn discard(&self, held: &[HeldFile]) {
        let _ = self.device.wait();
        for file in held {
            let _ = self.files.clear_past_end(file);
        }
    }

    /// Makes a page that a kernel missed exist, if it must.
    fn provide(&mut self, file: &HeldFile, page: PageKey, is_write: bool) -> Result<()> {
        let (place, index) = page;
        let Some((fd, absent)) = self.opened.get_mut(place as usize) else {
            return Err(Errno::IO.into());
        };
        if self.files.has_page(file, index)? {
            return Ok(());
        }
        let page_bytes = self.files.page_bytes();
        let start = index * page_bytes;
        if let Absent::Fill(fill) = absent {
            let end = (start + page_bytes).min(self.process.fstat(*fd)?.size_bytes);
            if start < end {
                fill(self.process, *fd, start..end)?;
            }
        }
        if is_write || matches!(absent, Absent::Fill(_)) {
            let keep = FallocateMode::AllocateKeepSize;
            self.process.fallocate(*fd, keep, start, page_bytes)?;
        }
        Ok(())
    }
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// Launches the kernel once, with `table` at `address` in device memory.
fn launch(
    device: &dyn Device,
    address: u64,
    table: &Table,
    kernel: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Outcome> {
    let bytes = table.encode(address);
    let bytes = &bytes[..];
    device.write(&[FrameWrite { address, bytes }])?;
    kernel(address)?;
    let head = read(device, address, table.head_bytes())?;
    table.decode(&head).ok_or_else(overwritten)
}

/// Returns the pages that the launch missed, as far as the ring has them.
fn misses(device: &dyn Device, address: u64, table: &Table, missed: u64) -> Result<BTreeSet<Miss>> {
    let ring = table.ring(missed);
    let len = (ring.end - ring.start) as usize;
    let ring = read(device, address + ring.start, len)?;
    table.decode_ring(&ring).ok_or_else(overwritten)
}

fn read(device: &dyn Device, address: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let buf = &mut bytes[..];
    device.read(&mut [FrameRead { address, buf }])?;
    Ok(bytes)
}

fn overwritten() -> Error {
    Error::new(Errno::IO, "a kernel overwrote the table of its launch")
}
