//! qcow2: QEMU's copy-on-write image format, versions 2 and 3, read and written.
//!
//! ```text
//!   guest offset                         what a write does
//!        |  L1 table                     plan   (lock)     take clusters      cluster_alloc.rs, refcount.rs
//!        v                               data   (no lock)  one host write     mod.rs
//!   L2 table  ->  Mapping                finish (lock)     enter them in L2   cluster_alloc.rs
//!        |                               flush             in safe order      flush.rs
//!        v
//!   data cluster | zeros | compressed.rs | backing.rs
//! ```
//!
//! Source: QEMU, docs/interop/qcow2.txt. Reasons and invariants: docs/design/qcow2.md.
//!
//! Neighbours: above, `image.rs` opens it; below, `host_file.rs`. Internal snapshots are respected,
//! not used.
//!
//! lazy.rs leaves refcounts to the close. A data cluster lies in `file`, or in the external data
//! file (data_file.rs).
//!
//! Lock order:
//! ```text
//!   flushing          one write-back at a time
//!     io (shared)     held by every transfer, over plan, data and finish; exclusive: wait for all of them
//!       metadata      tables in memory; read from the file under it, never guest data
//! ```
//!
//! Invariants:
//! 1. The file's L2 tables never name a cluster whose data and refcount are not durable.
//! 2. A cluster is used again only after the file's tables have forgotten it and its readers are
//!    done.
//! 3. Bytes of a new cluster that the write does not cover are what the guest cluster read as
//!    before.

mod autoclear;
mod backing;
mod backing_name;
mod bitmaps;
mod change;
mod check;
mod cluster_alloc;
mod compressed;
mod compressed_write;
mod create;
mod data_file;
mod extensions;
mod flush;
mod header;
mod inspect;
mod l2_entry;
mod lazy;
mod preallocate;
pub(super) mod rebase;
mod refcount;
mod reserve;
pub(super) mod resize;
mod roots;
mod snapshot_table;
pub(super) mod snapshots;
mod table;

pub(super) use check::check;
pub use check::{Finding, ImageCheck, Repair};
pub(super) use compressed_write::{Appender, PackedCluster};
pub(super) use create::create;
pub use create::{BackingName, Compat, CreateOptions, Preallocation};
pub use header::{Compression, DataFileName};
pub use inspect::Qcow2Info;
pub(super) use inspect::inspect;
pub use snapshots::Snapshot;

use super::image::{Chain, open_file, open_in_chain};
use super::image_file::{DeviceFile, ImageFile};
use super::{Allocation, Device, Extent, ImageFormat, OpenOptions, iov};
use crate::base::{Errno, Error, ErrorKind, Result};
use autoclear::Autoclear;
use cluster_alloc::{Cleared, Extents, Metadata, NewClusters, Plan};
use compressed::Decompressor;
use data_file::DataFile;
use flush::RefcountWrites;
use header::Header;
use l2_entry::{Geometry, Mapping};
use lazy::DirtyBit;
use parking_lot::{Condvar, Mutex, RwLock};
use reserve::Reserve;
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

/// Zeros for the parts of clusters that cannot be made zero by their L2 entry.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The disk's size, by the header alone.
pub(super) fn disk_bytes(file: &dyn ImageFile) -> Result<u64> {
    Ok(header::read_raw(file)?.len_bytes.get())
}

/// A qcow2 image as a disk. Dropping it writes the tables back; only `flush` says whether that
/// worked.
pub struct Qcow2Device {
    file: Box<dyn ImageFile>,
    geometry: Geometry,
    l1_offset: u64,
    data_file: Option<DataFile>,
    backing: Option<Arc<dyn Device>>,
    compression: Compression,
    decompressor: Decompressor,
    metadata: Mutex<Metadata>,
    /// Told when a write in flight has ended.
    landed: Condvar,
    io: RwLock<()>,
    flushing: Mutex<()>,
    reserve: Reserve,
    dirty_bit: DirtyBit,
    autoclear: Autoclear,
}

impl Qcow2Device {
    /// Makes a new image of `len_bytes` that reads as zeros, and opens it for writing; EEXIST if
    /// the file exists.
    pub fn create(path: impl AsRef<Path>, len_bytes: u64, options: &CreateOptions) -> Result<Self> {
        let path = path.as_ref();
        create::create(path, len_bytes, options)?;
        Self::open_at(path, &OpenOptions::default())
    }

    /// Opens the image at `path`.
    ///
    /// Errors: those of [`super::open`].
    pub fn open_at(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let (file, mut chain) = open_file(path.as_ref(), options)?;
        Self::open(Box::new(file), path.as_ref(), &mut chain)
    }

    /// Makes a new image of `len_bytes` on a device, as on a disk without a file system; what was
    /// there is lost.
    ///
    /// Errors: ENOSPC once the image needs more than the device has.
    pub fn create_on(
        device: Arc<dyn Device>,
        len_bytes: u64,
        options: &CreateOptions,
    ) -> Result<Self> {
        let file = DeviceFile::create(device)?;
        create::write(&file, len_bytes, options)?;
        Self::open(Box::new(file), Path::new(""), &mut Chain::closed())
    }

    /// Opens the image that a device holds; one with a backing file is refused with EPERM, because
    /// nothing says where to look for it.
    pub fn open_on(device: Arc<dyn Device>) -> Result<Self> {
        Self::open(
            Box::new(DeviceFile::open(device)),
            Path::new(""),
            &mut Chain::closed(),
        )
    }

    /// Opens the image that a device holds over `backing`, whatever name of a backing file stands
    /// in the image.
    pub fn open_over(device: Arc<dyn Device>, backing: Arc<dyn Device>) -> Result<Self> {
        let file: Box<dyn ImageFile> = Box::new(DeviceFile::open(device));
        let header = Self::header(&*file)?;
        let chain = &mut Chain::closed();
        let data_file = DataFile::open(Path::new(""), &header, file.is_read_only(), chain)?;
        Self::assemble(file, &header, Some(backing), data_file)
    }

    /// Reads the tables of an image that is already open and locked, and opens its backing files.
    pub(super) fn open(file: Box<dyn ImageFile>, path: &Path, chain: &mut Chain) -> Result<Self> {
        let name = file.name().to_owned();
        let place = |error: Error| error.at("qcow2").at(name.clone());
        let header = Self::header(&*file)?;
        let backing = match &header.backing_name {
            None => None,
            Some(name) => {
                let format = header
                    .backing_format
                    .as_deref()
                    .map(str::parse::<ImageFormat>);
                let format = format.transpose().map_err(|_| {
                    let format = header.backing_format.as_deref().unwrap_or_default();
                    place(Error::unsupported(format!("backing format {format:?}")))
                })?;
                let path = backing::resolve(path, "backing file", name, chain).map_err(place)?;
                Some(
                    open_in_chain(&path, true, format, chain)
                        .map_err(|error| error.at("backing file"))?,
                )
            }
        };
        let data_file = DataFile::open(path, &header, file.is_read_only(), chain).map_err(place)?;
        let this = Self::assemble(file, &header, backing, data_file)?;
        if chain.is_volatile() {
            // No flush waits for the host to find places, and gaps in clusters stay holes.
            this.reserve.disable();
        }
        Ok(this)
    }

    /// The checked header of an image that may be used as its file was opened.
    fn header(file: &dyn ImageFile) -> Result<Header> {
        let read = || {
            let header = Header::read(file)?;
            if file.is_read_only() {
                Ok(header)
            } else {
                header.check_writable().map(|()| header)
            }
        };
        read().map_err(|error: Error| error.at("qcow2").at(file.name().to_owned()))
    }

    /// The device, with its tables read. Stale refcounts of an image that is to be written are made
    /// right first.
    fn assemble(
        file: Box<dyn ImageFile>,
        header: &Header,
        backing: Option<Arc<dyn Device>>,
        data_file: Option<DataFile>,
    ) -> Result<Self> {
        let place = |error: Error| error.at("qcow2").at(file.name().to_owned());
        let mended;
        let header = if header.is_dirty() && !file.is_read_only() {
            check::mend_stale_refcounts(&*file).map_err(place)?;
            mended = Header::read(&*file).map_err(place)?;
            &mended
        } else {
            header
        };
        let metadata = Metadata::read(&*file, header, backing.is_some()).map_err(place)?;
        let geometry = metadata.geometry;
        Ok(Self {
            geometry,
            l1_offset: header.l1_offset,
            data_file,
            backing,
            compression: header.compression,
            decompressor: Decompressor::new(header.compression, geometry.cluster_bytes()),
            metadata: Mutex::new(metadata),
            landed: Condvar::new(),
            io: RwLock::new(()),
            flushing: Mutex::new(()),
            reserve: Reserve::new(file.len_bytes()?),
            dirty_bit: DirtyBit::new(header),
            autoclear: Autoclear::new(header),
            file,
        })
    }

    /// The failure with the image's name before it; the host's own failures have it already.
    fn place(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Io => error,
            _ => error.at("qcow2").at(self.file.name().to_owned()),
        }
    }

    /// The file that data clusters lie in.
    fn data(&self) -> &dyn ImageFile {
        self.data_file
            .as_ref()
            .map_or(&*self.file, |data| &*data.file)
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        iov::check_range(self.geometry.len_bytes, offset, len_bytes)
    }

    /// Before anything is changed: is that allowed, inside the disk, and does the header say so.
    fn begin_write(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.file.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.check(offset, len_bytes)?;
        if self.autoclear.is_due() {
            let _one_at_a_time = self.flushing.lock();
            self.autoclear.tell(&*self.file)?;
        }
        Ok(())
    }

    /// Keeps the tables in memory within their limits.
    fn make_room(&self) -> Result<()> {
        let fits = {
            let mut metadata = self.metadata.lock();
            metadata.shrink()
        };
        if fits || self.file.is_read_only() {
            return Ok(());
        }
        // What is left is dirty: once written it can go.
        self.write_back(RefcountWrites::Now)?;
        self.metadata.lock().shrink();
        Ok(())
    }

    fn read(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len_mut(bufs);
        self.check(offset, len_bytes)?;
        self.make_room()?;
        let _io = self.io.read();
        let mut extents: SmallVec<[(Mapping, u64); 8]> = SmallVec::new();
        {
            let mut metadata = self.metadata.lock();
            let mut done = 0;
            while done < len_bytes {
                let (mapping, count) =
                    metadata.map(&*self.file, offset + done, len_bytes - done)?;
                extents.push((mapping, count));
                done += count;
            }
        }
        if let [(mapping, _)] = extents[..] {
            return self.read_extent(mapping, bufs, offset);
        }
        let mut done = 0;
        for (mapping, count) in extents {
            self.read_extent(
                mapping,
                &mut iov::window_mut(bufs, done, count),
                offset + done,
            )?;
            done += count;
        }
        Ok(())
    }

    /// Fills `bufs` with guest bytes that all lie in one run of `mapping`.
    fn read_extent(
        &self,
        mapping: Mapping,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<()> {
        match mapping {
            Mapping::Data { host, .. } => {
                let in_unit = offset & (self.geometry.unit_bytes() - 1);
                self.data().read_or_zeros(bufs, host + in_unit)
            }
            Mapping::Zero | Mapping::ZeroAllocated { .. } => {
                iov::fill_zeros(bufs);
                Ok(())
            }
            Mapping::Compressed { host, len_bytes } => {
                let in_cluster = offset & (self.geometry.cluster_bytes() - 1);
                self.decompressor
                    .read(&*self.file, (host, len_bytes), bufs, in_cluster as usize)
            }
            Mapping::Unallocated | Mapping::Reserved { .. } => {
                let len_bytes = iov::len_mut(bufs);
                let there = match &self.backing {
                    Some(backing) => {
                        let there = backing.len_bytes().saturating_sub(offset).min(len_bytes);
                        if there > 0 {
                            backing
                                .read_vectored_at(&mut iov::window_mut(bufs, 0, there), offset)?;
                        }
                        there
                    }
                    None => 0,
                };
                iov::fill_zeros(&mut iov::window_mut(bufs, there, len_bytes - there));
                Ok(())
            }
        }
    }

    /// Writes some of `bufs` from `skip` on at `offset`; returns how many bytes.
    fn write_piece(
        &self,
        bufs: &[IoSlice<'_>],
        skip: u64,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        self.make_room()?;
        let _io = self.io.read();
        let plan = {
            let mut metadata = self.metadata.lock();
            loop {
                match metadata.plan_write(&*self.file, offset, len_bytes)? {
                    Plan::Wait => self.landed.wait(&mut metadata),
                    plan => break plan,
                }
            }
        };
        let new = match plan {
            Plan::InPlace { host, len_bytes } => {
                self.data()
                    .write(&iov::window(bufs, skip, len_bytes), host)?;
                return Ok(len_bytes);
            }
            Plan::New(new) => new,
            // The loop above does not end with it.
            Plan::Wait => return Ok(0),
        };
        let written = self.fill_clusters(&new, bufs, skip, offset, len_bytes);
        let mut metadata = self.metadata.lock();
        let finished = match &written {
            Ok(_) => metadata.finish(&*self.file, &new),
            Err(_) => metadata.abandon(&*self.file, &new),
        };
        self.landed.notify_all();
        let count = written?;
        finished.map(|()| count)
    }

    /// One host write for a run of new units: what comes before, the guest's bytes, what comes
    /// after.
    fn fill_clusters(
        &self,
        new: &NewClusters,
        bufs: &[IoSlice<'_>],
        skip: u64,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let bits = self.geometry.cluster_bits;
        let std::ops::Range {
            start,
            end: run_end,
        } = new.range;
        let end = run_end.min(offset + len_bytes);
        let is_fresh = match &self.data_file {
            None => {
                let run_end = new.clusters.host + (new.clusters.count << bits);
                self.reserve.extend_to(&*self.file, run_end)?;
                new.clusters.is_fresh
            }
            Some(data) => (offset == start && end == run_end) || data.is_hole(start..run_end)?,
        };
        let head = self.uncovered(&new.head, start..offset, is_fresh)?;
        let tail = self.uncovered(&new.tail, end..run_end, is_fresh)?;
        let mut pieces = iov::Pieces::new();
        pieces.extend(head.as_deref().map(IoSlice::new));
        pieces.extend(iov::window(bufs, skip, end - offset));
        pieces.extend(tail.as_deref().map(IoSlice::new));
        let written = if head.is_some() { start } else { offset };
        self.data()
            .write(&pieces, new.clusters.host + written - (new.first << bits))?;
        Ok(end - offset)
    }

    /// Whether a run that starts at `offset` reads as zeros, without looking into backing files.
    fn is_zero(&self, mapping: Mapping, offset: u64) -> bool {
        match mapping {
            Mapping::Zero | Mapping::ZeroAllocated { .. } => true,
            Mapping::Unallocated | Mapping::Reserved { .. } => self
                .backing
                .as_ref()
                .is_none_or(|backing| backing.len_bytes() <= offset),
            Mapping::Data { .. } | Mapping::Compressed { .. } => false,
        }
    }

    /// Bytes for the part of new units that the write leaves out; none if it is empty or zero
    /// already.
    fn uncovered(
        &self,
        was: &Extents,
        range: std::ops::Range<u64>,
        is_fresh: bool,
    ) -> Result<Option<Vec<u8>>> {
        let is_zero = was
            .iter()
            .all(|(mapping, _)| self.is_zero(*mapping, range.start));
        if range.is_empty() || (is_zero && is_fresh) {
            return Ok(None);
        }
        // At most a cluster: 2 MiB.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut at = range.start;
        let mut rest = &mut bytes[..];
        for (mapping, count) in was {
            let (piece, behind) = rest.split_at_mut(*count as usize);
            if !self.is_zero(*mapping, at) {
                self.read_extent(*mapping, &mut [IoSliceMut::new(piece)], at)?;
            }
            at += count;
            rest = behind;
        }
        Ok(Some(bytes))
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len(bufs);
        self.begin_write(offset, len_bytes)?;
        let mut done = 0;
        while done < len_bytes {
            done += self.write_piece(bufs, done, offset + done, len_bytes - done)?;
        }
        Ok(())
    }

    /// Zeros for a part of a cluster, unless it reads as zeros anyway.
    fn zero_part(&self, range: std::ops::Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (mapping, count) = self.metadata.lock().map(&*self.file, at, range.end - at)?;
            let is_zero = self.is_zero(mapping, at);
            let count = if is_zero {
                count
            } else {
                count.min(ZEROS.len() as u64)
            };
            if !is_zero {
                self.write(&[IoSlice::new(&ZEROS[..count as usize])], at)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Clears whole units by their L2 entries.
    fn clear_units(&self, range: std::ops::Range<u64>, is_discard: bool) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            self.make_room()?;
            let io = self.io.read();
            let mut metadata = self.metadata.lock();
            match metadata.clear(&*self.file, at..range.end)? {
                Cleared::Upto(end) => {
                    if let Some(data) = &self.data_file {
                        // Still under the lock: nobody writes there anew.
                        data.clear(at..end.min(self.geometry.len_bytes))?;
                    }
                    at = end;
                }
                Cleared::Wait => self.landed.wait(&mut metadata),
                Cleared::Compressed(end) => {
                    drop((metadata, io));
                    if !is_discard {
                        self.zero_part(at..end.min(self.geometry.len_bytes))?;
                    }
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Splits a range into whole units and the parts before and after.
    fn zero(&self, offset: u64, len_bytes: u64, is_discard: bool) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let unit = self.geometry.unit_bytes();
        let end = offset + len_bytes;
        // The last cluster may be cut by the end of the disk and is whole all the same.
        let is_last = end == self.geometry.len_bytes;
        let whole_end = if is_last {
            end.next_multiple_of(self.geometry.cluster_bytes())
        } else {
            end & !(unit - 1)
        };
        let whole = offset.next_multiple_of(unit)..whole_end;
        let has_zero_clusters = self.geometry.version >= 3 || self.backing.is_none();
        if whole.is_empty() || !has_zero_clusters {
            return if is_discard {
                Ok(())
            } else {
                self.zero_part(offset..end)
            };
        }
        self.clear_units(whole.clone(), is_discard)?;
        if is_discard {
            return Ok(());
        }
        self.zero_part(offset..whole.start)?;
        self.zero_part(whole.end.min(end)..end)
    }

    fn kind_at(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        let (mapping, count) = self.metadata.lock().map(&*self.file, offset, len_bytes)?;
        match (mapping, &self.backing) {
            (Mapping::Data { host, .. }, _) if self.data_file.is_some() => self
                .data()
                .allocation(host + (offset & (self.geometry.unit_bytes() - 1)), count),
            (Mapping::Data { .. } | Mapping::Compressed { .. }, _) => Ok((Allocation::Data, count)),
            (Mapping::ZeroAllocated { .. }, _) => Ok((Allocation::Zero, count)),
            (Mapping::Unallocated | Mapping::Reserved { .. }, Some(backing))
                if offset < backing.len_bytes() =>
            {
                backing.allocation(offset, count.min(backing.len_bytes() - offset))
            }
            (Mapping::Unallocated | Mapping::Reserved { .. } | Mapping::Zero, _) => {
                Ok((Allocation::Hole, count))
            }
        }
    }
}

impl Device for Qcow2Device {
    fn len_bytes(&self) -> u64 {
        self.geometry.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.read(bufs, offset).map_err(|error| self.place(error))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.write(bufs, offset).map_err(|error| self.place(error))
    }

    fn flush(&self) -> Result<()> {
        if self.file.is_read_only() {
            return Ok(());
        }
        self.write_back(self.dirty_bit.at_flush())
            .map_err(|error| self.place(error))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero(offset, len_bytes, true)
            .map_err(|error| self.place(error))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero(offset, len_bytes, false)
            .map_err(|error| self.place(error))
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        let find = || {
            self.check(offset, len_bytes)?;
            self.make_room()?;
            let _io = self.io.read();
            let (kind, mut count) = self.kind_at(offset, len_bytes)?;
            while count < len_bytes {
                match self.kind_at(offset + count, len_bytes - count)? {
                    (next, more) if next == kind => count += more,
                    _ => break,
                }
            }
            Ok((kind, count))
        };
        find().map_err(|error| self.place(error))
    }

    fn extent(&self, offset: u64, len_bytes: u64) -> Result<(Extent, u64)> {
        self.extent_at(offset, len_bytes)
            .map_err(|error| self.place(error))
    }
}

impl Drop for Qcow2Device {
    fn drop(&mut self) {
        if !self.file.is_read_only() {
            // Nobody is left to be told; who needs to know flushes first.
            let _ = self.close();
        }
        // Space that stays behind the end is lost to others only, and comes back when the file is
        // copied.
        let _ = self.reserve.give_back(&*self.file);
    }
}
