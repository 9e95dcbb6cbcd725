//! A volume open for writing: the device, its uploads and its flush.
//!
//! A flush of at most 1 MiB goes into the map's log: one PUT. Larger changes go into segments
//! first, up to eight uploads at a time, and into the map after the last of them is stored.
//!
//! Lock order: `gate`, then `flush_turn`, then `state`. No request is made under `state`.
//!
//! Invariants:
//! 1. A segment is stored before the map names it.
//! 2. One flush is one batch of the map: all of it is visible, or nothing.
//! 3. After a failed flush or upload, every change and every flush fails.
//! 4. A volume without changes makes no request.

use crate::changes::{Changes, difference};
use crate::database;
use crate::database::Database;
use crate::format::{
    BLOCK_BYTES, BlockRef, FORMAT_VERSION, META_KEY, SEGMENT_BLOCKS, SIZES, VolumeMeta, WRITER_KEY,
    WriterRecord, group_key, inline_key,
};
use crate::layer::{Layer, Outgoing, Source, State, block_range};
use crate::map::{MapState, VolumeMap};
use crate::place::StorePlace;
use crate::read::{check_range, lost, origin_paths, read_bytes, read_sources};
use crate::read_cache::ReadCache;
use crate::segment::{SegmentNames, upload};
use crate::vacancy::{has_deletion_mark, refuse_occupied};
use bytes::Bytes;
use folio::block::{Allocation, Device};
use folio::{Errno, Error, Result};
use object_store::path::Path;
use parking_lot::{Condvar, Mutex, RwLock};
use slatedb::WriteBatch;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// Segments on their way to the store.
const UPLOADS_IN_FLIGHT: usize = 8;
/// Blocks of the largest flush that goes into the map's log: 1 MiB.
const INLINE_FLUSH_BLOCKS: usize = 256;
/// Blocks of a write in one piece of memory, which is released after the last of them.
const PIECE_BLOCKS: usize = 16;
/// Blocks in the map after which a flush moves them into a segment: 4 MiB.
const INLINE_BLOCKS_MAX: usize = 1024;

/// A volume on object storage, open for writing. Any thread may make any call at any time.
///
/// After a crash, or after another writer took over, the volume is the state of one flush: the last
/// acknowledged one, or a later one. A writer that was taken over fails its next flush with ESTALE.
pub struct Volume {
    core: Arc<Core>,
}

pub(crate) struct Core {
    pub(crate) place: StorePlace,
    pub(crate) database: Database,
    meta: VolumeMeta,
    origins: Vec<Path>,
    names: SegmentNames,
    cache: ReadCache,
    pub(crate) state: Mutex<State>,
    uploaded: Condvar,
    /// Shared by writers of whole blocks; exclusive for a write that keeps part of a block.
    gate: RwLock<()>,
    flush_turn: Mutex<()>,
    uploads: Arc<Semaphore>,
    is_closed: AtomicBool,
}

/// The handling of a volume that its last writer has not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Takeover {
    /// Fail with EBUSY: the writer may be alive.
    Refuse,
    /// Open the volume; the earlier writer, if it is alive, fails from its next flush on.
    #[default]
    Fence,
}

impl Volume {
    /// Creates a volume of `size_bytes` bytes of zeros and opens it.
    ///
    /// # Errors
    ///
    /// EEXIST if there is a volume, EINVAL for an invalid size, and the store's errors.
    pub fn create(place: &StorePlace, size_bytes: u64) -> Result<Self> {
        let meta = VolumeMeta {
            format: FORMAT_VERSION,
            id: uuid::Uuid::new_v4(),
            size_bytes,
            origins: vec![place.root.to_string()],
            parent_checkpoint: None,
        };
        Self::create_from(place, VolumeMap::empty(meta))
    }

    /// Creates a volume whose content is `map`.
    pub(crate) fn create_from(place: &StorePlace, map: VolumeMap) -> Result<Self> {
        let size_bytes = map.meta.size_bytes;
        check_size(place, size_bytes)?;
        let database = place.wait(async {
            refuse_occupied(place).await?;
            let database = Database::open(place).await?;
            match database.load().await? {
                MapState::Volume(_) => return Err(place.occupied()),
                MapState::Deleted => return Err(place.half_deleted()),
                MapState::Empty => {}
            }
            let mut batch = WriteBatch::new();
            batch.put(META_KEY, map.meta.to_json()?);
            for (number, value) in map.groups() {
                batch.put(group_key(*number), value);
            }
            for (block, bytes) in map.inline_blocks() {
                batch.put(inline_key(*block), bytes);
            }
            database.commit(batch).await?;
            Ok(database)
        })?;
        Self::announced(place, database, map)
    }

    /// Opens a volume for writing and fences its last writer.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no volume; EBUSY if its writer has not closed it and `takeover` refuses
    /// that; EUCLEAN for a damaged map; the store's errors.
    pub fn open(place: &StorePlace, takeover: Takeover) -> Result<Self> {
        let (database, map) = place.wait(async {
            let looks = (has_deletion_mark(place), database::exists(place));
            let (is_half_deleted, exists) =
                futures_util::future::try_join(looks.0, looks.1).await?;
            if is_half_deleted {
                return Err(place.half_deleted());
            }
            if !exists {
                return Err(place.missing());
            }
            // First: the open below fences the writer, alive or not.
            if takeover == Takeover::Refuse {
                let map = database::load_read_only(place, None).await?;
                refuse_open(place, map.volume(place)?.writer)?;
            }
            let database = Database::open(place).await?;
            let map = database.load().await?.volume(place)?;
            Ok::<_, Error>((database, map))
        })?;
        Self::announced(place, database, map)
    }

    /// Returns an open volume, and records its writer: another one is refused from now on.
    fn announced(place: &StorePlace, database: Database, map: VolumeMap) -> Result<Self> {
        let this = Self::new(place, database, map);
        let announcement = this.core.announcement()?;
        // Before the first use: a program that opens the volume next must see this writer.
        place.wait(this.core.database.commit(announcement))?;
        this.core.state.lock().is_recorded = true;
        Ok(this)
    }

    fn new(place: &StorePlace, database: Database, map: VolumeMap) -> Self {
        let names = SegmentNames::new(map.meta.id, database.epoch());
        Self {
            core: Arc::new(Core {
                place: place.clone(),
                database,
                meta: map.meta.clone(),
                origins: origin_paths(&map.meta),
                names,
                cache: ReadCache::default(),
                state: Mutex::new(State::new(map)),
                uploaded: Condvar::new(),
                gate: RwLock::new(()),
                flush_turn: Mutex::new(()),
                uploads: Arc::new(Semaphore::new(UPLOADS_IN_FLIGHT)),
                is_closed: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the volume's description.
    pub fn meta(&self) -> &VolumeMeta {
        &self.core.meta
    }

    /// Returns the number of the last flush.
    pub fn flush_number(&self) -> u64 {
        self.core.state.lock().map.flush
    }

    /// Returns whether a flush or an upload failed. From then on every change and flush fails.
    pub fn has_failed(&self) -> bool {
        self.core.state.lock().check().is_err()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Flushes, marks the volume closed and shuts the map down. A second call does nothing; a later
    /// change fails.
    ///
    /// # Errors
    ///
    /// Those of [`Device::flush`]; what the failed flush held is lost.
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }
}

/// Rejects a size that no volume has.
pub(crate) fn check_size(place: &StorePlace, size_bytes: u64) -> Result<()> {
    if SIZES.contains(&size_bytes) {
        return Ok(());
    }
    let reason = format!("invalid size of {size_bytes} bytes: expected 1 byte to 1 EiB");
    Err(Error::new(Errno::INVAL, reason).at(place.name()))
}

fn refuse_open(place: &StorePlace, writer: Option<WriterRecord>) -> Result<()> {
    match writer {
        Some(writer) if writer.is_open => Err(Error::new(
            Errno::BUSY,
            format!(
                "process {} on {} has the volume open, or crashed (take over with --takeover if it \
                 has ended; a writer that is alive then fails at its next flush)",
                writer.process_id, writer.host
            ),
        )
        .at(place.name())),
        _ => Ok(()),
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // On a thread of a runtime nothing can wait; the next writer then replays the log.
        if !self.core.is_closed.load(Ordering::Acquire)
            && tokio::runtime::Handle::try_current().is_err()
            && let Err(error) = self.core.close()
        {
            tracing::error!("{error}");
        }
    }
}

impl Core {
    fn block_count(&self) -> u64 {
        self.meta.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Reads whole blocks.
    pub(crate) fn read_blocks(&self, first: u64, count: u64, out: &mut [u8]) -> Result<()> {
        let sources = {
            let state = self.state.lock();
            let sources = state.sources(first, count);
            if sources
                .iter()
                .any(|source| matches!(source, Source::Stored(_)))
            {
                state.check_answering()?;
            }
            sources
        };
        match read_sources(&self.place, &self.cache, &self.origins, sources, out) {
            // Garbage collection in this process may have moved the blocks meanwhile.
            Err(e) if e.errno() == Errno::NOENT => {
                let sources = self.state.lock().sources(first, count);
                read_sources(&self.place, &self.cache, &self.origins, sources, out)
                    .map_err(|error| lost(&self.place, error))
            }
            result => result,
        }
    }

    /// Writes a part of one block.
    fn write_part(self: &Arc<Self>, block: u64, start: usize, bytes: &[u8]) -> Result<()> {
        // Exclusive from the read to the change: a write of another part of the block would be
        // lost.
        let alone = self.gate.write();
        let mut whole = vec![0; BLOCK_BYTES];
        self.read_blocks(block, 1, &mut whole)?;
        whole[start..start + bytes.len()].copy_from_slice(bytes);
        let outgoing = {
            let mut state = self.state.lock();
            state.check()?;
            state.set(block, whole.into());
            state.note_partial(block);
            state.full_segment()
        };
        // Before `send`, which waits while the uploads are slow.
        drop(alone);
        self.send(outgoing);
        Ok(())
    }

    /// Writes whole blocks.
    fn write_blocks(self: &Arc<Self>, first: u64, blocks: Vec<Bytes>) -> Result<()> {
        let shared = self.gate.read();
        let outgoing = {
            let mut state = self.state.lock();
            state.check()?;
            for (block, bytes) in (first..).zip(blocks) {
                state.set(block, bytes);
            }
            state.full_segment()
        };
        drop(shared);
        self.send(outgoing);
        Ok(())
    }

    /// Uploads blocks as one segment, after a wait while too many uploads are under way.
    fn send(self: &Arc<Self>, outgoing: Option<(u64, Vec<Outgoing>)>) {
        let Some((generation, blocks)) = outgoing else {
            return;
        };
        // The only limit of memory: a writer faster than the store waits here.
        let permit = self.place.wait(self.uploads.clone().acquire_owned());
        let core = Arc::clone(self);
        self.place.runtime.spawn(async move {
            let bytes: Vec<Bytes> = blocks.iter().map(|b| b.bytes.clone()).collect();
            let versions: Vec<(u64, u64)> = blocks.iter().map(|b| (b.block, b.version)).collect();
            drop(blocks);
            // An upload behind a failed one must not take the I/O timeout once more.
            let failed = core.state.lock().check();
            let result = match failed {
                Ok(()) if bytes.is_empty() => Ok(Vec::new()),
                Ok(()) => upload(&core.place, &core.names, &bytes).await,
                Err(error) => Err(error),
            };
            let mut state = core.state.lock();
            if let Ok(stored) = &result {
                // The next write to a part of such a block reads the block.
                let is_kept = versions.iter().map(|(block, _)| state.is_partial(*block));
                core.cache.keep(stored, &bytes, is_kept);
            }
            state.end_upload(generation, &versions, result);
            core.uploaded.notify_all();
            drop(permit);
        });
    }

    /// Makes every change that returned before this call durable.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<()> {
        let _turn = self.flush_turn.lock();
        let (generation, mut rest) = {
            let mut state = self.state.lock();
            state.check()?;
            // Under the turn an earlier flush has ended, so nothing pending means that all is
            // durable.
            if state.pending.is_empty() {
                return Ok(());
            }
            let generation = state.generation;
            (generation, state.begin_flush())
        };
        let mut is_small = rest.len() <= INLINE_FLUSH_BLOCKS;
        {
            let mut state = self.state.lock();
            if is_small && state.map.inline_blocks().len() + rest.len() > INLINE_BLOCKS_MAX {
                state.fold_inline(&mut rest);
                is_small = false;
            }
        }
        if !is_small {
            self.send_all(generation, rest);
        }
        let changes = {
            let mut state = self.state.lock();
            while state.is_uploading(generation) {
                // The map must not name a segment before it is stored (invariant 1).
                self.uploaded.wait(&mut state);
            }
            state.check()?;
            Changes::of(&state.map, &state.flushing)
        };
        let committed = self.commit(&changes);
        let mut state = self.state.lock();
        if let Err(error) = committed {
            state.fail(&error);
            return Err(error);
        }
        // Not before: reads find these blocks in the flushing layer until then.
        changes.apply(&mut state.map);
        state.flushing = Layer::new();
        state.is_recorded = true;
        Ok(())
    }

    fn send_all(self: &Arc<Self>, generation: u64, mut rest: Vec<Outgoing>) {
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(SEGMENT_BLOCKS));
            self.state.lock().begin_upload(generation);
            self.send(Some((generation, std::mem::replace(&mut rest, later))));
        }
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        let mut batch = WriteBatch::new();
        changes.write(&mut batch);
        if !self.state.lock().is_recorded {
            batch.put(WRITER_KEY, self.record(true)?);
        }
        self.place.wait(self.database.commit(batch))
    }

    /// Returns this writer's epoch: later than that of every writer before.
    pub(crate) fn epoch(&self) -> u64 {
        self.names.epoch
    }

    /// Returns a batch that says that this writer has the volume open. Its commit fails after a
    /// takeover.
    pub(crate) fn announcement(&self) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        batch.put(WRITER_KEY, self.record(true)?);
        Ok(batch)
    }

    fn record(&self, is_open: bool) -> Result<Vec<u8>> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let record = WriterRecord {
            is_open,
            epoch: self.names.epoch,
            host: host.trim_end().to_owned(),
            process_id: std::process::id(),
        };
        serde_json::to_vec(&record)
            .map_err(|e| Error::new(Errno::INVAL, "describe the writer").caused_by(e))
    }

    fn close(self: &Arc<Self>) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let flushed = self.flush();
        let is_recorded = self.state.lock().is_recorded;
        // After a failed flush the record stays open: the next user must notice the loss.
        if flushed.is_ok() && is_recorded {
            let mut batch = WriteBatch::new();
            batch.put(WRITER_KEY, self.record(false)?);
            self.place.wait(self.database.commit(batch))?;
        }
        let closed = if flushed.is_ok() {
            self.place.wait(self.database.close(true))
        } else {
            // The map may not answer either, and nothing that it still writes is needed.
            let database = self.database.clone();
            let closing = async move { database.close(false).await };
            self.place.runtime.spawn(closing);
            Ok(())
        };
        let reason = Error::new(Errno::BADF, "the volume is closed").at(self.place.name());
        // Last: a flush refuses to run after a failure.
        self.state.lock().fail(&reason);
        flushed.and(closed)
    }

    /// Flushes and returns a checkpoint of the map after it.
    pub(crate) fn checkpoint(self: &Arc<Self>, name: &str) -> Result<uuid::Uuid> {
        self.flush()?;
        let _turn = self.flush_turn.lock();
        self.place.wait(self.database.checkpoint(name))
    }

    /// Sets a block to bytes that it has in the map, unless it has changed since.
    pub(crate) fn rewrite(self: &Arc<Self>, block: u64, seen: BlockRef, bytes: Bytes) {
        let outgoing = {
            let mut state = self.state.lock();
            // Under the same lock as the change: a write between them would be lost.
            let is_changed = state.pending.contains_key(&block)
                || state.flushing.contains_key(&block)
                || state.map.blocks(block, 1)[0] != Some(seen);
            if is_changed || state.check().is_err() {
                return;
            }
            state.set(block, bytes);
            state.full_segment()
        };
        self.send(outgoing);
    }

    /// Makes the content that of `old`, as one flush.
    pub(crate) fn replace(self: &Arc<Self>, old: &VolumeMap) -> Result<()> {
        self.flush()?;
        // What was written since that flush is discarded: it came before the replacement.
        let _alone = self.gate.write();
        let _turn = self.flush_turn.lock();
        let mut batch = WriteBatch::new();
        let flush = {
            let state = self.state.lock();
            state.check()?;
            difference(&state.map, old, &mut batch);
            state.map.flush + 1
        };
        batch.put(WRITER_KEY, self.record(true)?);
        let committed = self.place.wait(self.database.commit(batch));
        let mut state = self.state.lock();
        if let Err(error) = committed {
            state.fail(&error);
            return Err(error);
        }
        let mut map = old.clone();
        map.meta = self.meta.clone();
        map.flush = flush;
        state.replace(map);
        Ok(())
    }

    /// Calls `work` with the map of the last flush while no change is made.
    pub(crate) fn exclusive<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&VolumeMap) -> Result<T>,
    ) -> Result<T> {
        // Before the flush: no change may come between it and the work.
        let _alone = self.gate.write();
        self.flush()?;
        let map = self.state.lock().map.clone();
        work(&map)
    }
}

/// The bytes of a write that are not taken yet.
struct Rest<'a> {
    bufs: &'a [IoSlice<'a>],
    /// Bytes of the first buffer that are taken.
    taken: usize,
}

impl Rest<'_> {
    /// Takes a copy of the next `len` bytes, or of all that are left.
    fn take(&mut self, len: usize) -> Bytes {
        let mut piece = Vec::with_capacity(len);
        while let Some((first, later)) = self.bufs.split_first() {
            let count = (len - piece.len()).min(first.len() - self.taken);
            piece.extend_from_slice(&first[self.taken..self.taken + count]);
            self.taken += count;
            if self.taken < first.len() {
                break;
            }
            (self.bufs, self.taken) = (later, 0);
        }
        piece.into()
    }

    /// Takes copies of the next `count` blocks.
    fn blocks(&mut self, count: usize) -> Vec<Bytes> {
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            let now = (count - blocks.len()).min(PIECE_BLOCKS);
            let piece = self.take(now * BLOCK_BYTES);
            blocks.extend((0..now).map(|n| piece.slice(block_range(n))));
        }
        blocks
    }
}

impl Volume {
    fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_range(self.core.meta.size_bytes, offset, len_bytes)
            .map_err(|e| e.at(self.core.place.name()))
    }

    fn write_bytes(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let mut rest = Rest { bufs, taken: 0 };
        let mut len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut at = offset;
        while len > 0 {
            let start = (at % block) as usize;
            let whole = len / BLOCK_BYTES;
            let now = if start == 0 && whole > 0 {
                // One segment at a time, so that memory is bounded.
                let blocks = rest.blocks(whole.min(SEGMENT_BLOCKS));
                let now = blocks.len() * BLOCK_BYTES;
                self.core.write_blocks(at / block, blocks)?;
                now
            } else {
                let piece = rest.take(len.min(BLOCK_BYTES - start));
                self.core.write_part(at / block, start, &piece)?;
                piece.len()
            };
            len -= now;
            at += now as u64;
        }
        Ok(())
    }

    fn write_zero_bytes(&self, count: u64, offset: u64) -> Result<()> {
        self.write_bytes(&[IoSlice::new(&vec![0; count as usize])], offset)
    }
}

impl Device for Volume {
    fn len_bytes(&self) -> u64 {
        self.core.meta.size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        read_bytes(bufs, offset, |first, count, out| {
            self.core.read_blocks(first, count, out)
        })
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        self.write_bytes(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    fn has_atomic_flushes(&self) -> bool {
        true
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.write_zeroes(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check(offset, len_bytes)?;
        let block = BLOCK_BYTES as u64;
        let end = offset + len_bytes;
        let is_last = end == self.core.meta.size_bytes;
        let first = offset.div_ceil(block);
        let last = if is_last {
            self.core.block_count()
        } else {
            end / block
        };
        if first > last {
            return self.write_zero_bytes(len_bytes, offset);
        }
        self.write_zero_bytes(first * block - offset, offset)?;
        if !is_last {
            self.write_zero_bytes(end % block, last * block)?;
        }
        let _shared = self.core.gate.read();
        let mut state = self.core.state.lock();
        state.check()?;
        state.clear_range(first, last);
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check(offset, len_bytes)?;
        let state = self.core.state.lock();
        Ok(allocation(
            offset,
            len_bytes,
            |block| state.is_stored(block),
            |block| state.next_known(block),
        ))
    }
}

/// Returns the allocation at `offset` and its length. `next(block)` is the first block at or behind
/// `block` that can be stored.
pub(crate) fn allocation(
    offset: u64,
    len_bytes: u64,
    is_stored: impl Fn(u64) -> bool,
    next: impl Fn(u64) -> Option<u64>,
) -> (Allocation, u64) {
    let end = offset + len_bytes;
    let first = is_stored(offset / BLOCK_BYTES as u64);
    let mut block = offset / BLOCK_BYTES as u64;
    loop {
        block += 1;
        if !first {
            block = next(block).unwrap_or(u64::MAX / BLOCK_BYTES as u64);
        }
        if block * BLOCK_BYTES as u64 >= end || is_stored(block) != first {
            break;
        }
    }
    let kind = if first {
        Allocation::Data
    } else {
        Allocation::Hole
    };
    (kind, end.min(block * BLOCK_BYTES as u64) - offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[test]
    fn parts_of_blocks_do_not_pile_up_in_memory() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let store = Arc::new(InMemory::new());
        let place = StorePlace::new(store, "v".into(), runtime.handle().clone(), "v");
        let volume = Volume::create(&place, 1 << 30).expect("a volume");
        for number in 0..3 * SEGMENT_BLOCKS as u64 {
            let written = volume.write_at(&[1; 2048], number * 4096 + 1024);
            written.expect("a write");
            let fresh = volume.core.state.lock().fresh_blocks();
            assert!(fresh < SEGMENT_BLOCKS, "{fresh} blocks");
        }
        volume.flush().expect("a flush");
        let mut bytes = [0; 2048];
        volume.read_at(&mut bytes, 5 * 4096 + 1024).expect("a read");
        assert_eq!(bytes, [1; 2048]);
    }
}
