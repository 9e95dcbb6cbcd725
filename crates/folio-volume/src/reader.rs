//! A volume open for reading: one flush point, moved forward on request.

use crate::database;
use crate::format::{BLOCK_BYTES, VolumeMeta};
use crate::layer::{Source, map_source};
use crate::map::VolumeMap;
use crate::place::StorePlace;
use crate::read::{check_range, lost, origin_paths, read_bytes, read_sources};
use crate::read_cache::ReadCache;
use crate::snapshot;
use crate::volume::allocation;
use folio::block::{Allocation, Device};
use folio::{Errno, Error, Result};
use object_store::path::Path;
use parking_lot::{Mutex, RwLock};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loads of a map that garbage collection may disturb.
const LOAD_ATTEMPTS: u32 = 3;

/// A volume on object storage, open for reading. It makes no request while it is not read, and
/// writes nothing to the store.
pub struct VolumeReader {
    place: StorePlace,
    cache: ReadCache,
    origins: Vec<Path>,
    view: RwLock<Arc<VolumeMap>>,
    /// Follow the writer at most this far behind; none: stay at one flush point.
    poll: Option<Duration>,
    /// When the view was known to be the newest; held during a refresh.
    refreshed: Mutex<Instant>,
}

impl VolumeReader {
    /// Opens a volume at its last flush. With `poll`, a read sees every flush that was acknowledged
    /// more than `poll` before it; without, the content never changes.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no volume; EUCLEAN for a damaged map; the store's errors.
    pub fn open(place: &StorePlace, poll: Option<Duration>) -> Result<Self> {
        let started = Instant::now();
        Ok(Self::with(place, load(place)?, poll, started))
    }

    /// Opens a snapshot of a volume.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no such volume or snapshot; the store's errors.
    pub fn open_snapshot(place: &StorePlace, name: &str) -> Result<Self> {
        let snapshot = snapshot::find(place, name)?;
        let map = place.wait(database::load_read_only(place, Some(snapshot.id)))?;
        Ok(Self::with(place, map.volume(place)?, None, Instant::now()))
    }

    /// Returns the volume at the state of `map`, which was the newest at `started`.
    pub(crate) fn with(
        place: &StorePlace,
        map: VolumeMap,
        poll: Option<Duration>,
        started: Instant,
    ) -> Self {
        Self {
            place: place.clone(),
            cache: ReadCache::default(),
            origins: origin_paths(&map.meta),
            view: RwLock::new(Arc::new(map)),
            poll,
            refreshed: Mutex::new(started),
        }
    }

    /// Returns the volume's description.
    pub fn meta(&self) -> VolumeMeta {
        self.view.read().meta.clone()
    }

    /// Returns the number of the flush that the reader sees.
    pub fn flush_number(&self) -> u64 {
        self.view.read().flush
    }

    pub(crate) fn view(&self) -> Arc<VolumeMap> {
        Arc::clone(&self.view.read())
    }

    /// Moves to the last flush. Reads that began before see the earlier one to their end.
    ///
    /// # Errors
    ///
    /// ESTALE if another volume took the place; those of [`VolumeReader::open`].
    pub fn refresh(&self) -> Result<()> {
        self.refresh_at(&mut self.refreshed.lock())
    }

    fn refresh_at(&self, refreshed: &mut Instant) -> Result<()> {
        // Before the load: the view is at least as new as this time.
        let started = Instant::now();
        let map = load(&self.place)?;
        let mut view = self.view.write();
        if map.meta.id != view.meta.id {
            let reason = "the volume was deleted and created again (open it again)";
            return Err(Error::new(Errno::STALE, reason).at(self.place.name()));
        }
        // Another thread may have loaded a later flush meanwhile.
        if map.flush > view.flush {
            *view = Arc::new(map);
        }
        *refreshed = started;
        Ok(())
    }

    /// Returns the view for one read.
    fn current(&self) -> Result<Arc<VolumeMap>> {
        if let Some(poll) = self.poll {
            let mut refreshed = self.refreshed.lock();
            if refreshed.elapsed() >= poll {
                self.refresh_at(&mut refreshed)?;
            }
        }
        Ok(self.view())
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_range(self.len_bytes(), offset, len_bytes).map_err(|e| e.at(self.place.name()))
    }

    fn read_only(&self) -> Error {
        Error::new(Errno::ROFS, "the volume is open for reading").at(self.place.name())
    }
}

fn load(place: &StorePlace) -> Result<VolumeMap> {
    if !place.wait(database::exists(place))? {
        return Err(place.missing());
    }
    let mut attempt = 1;
    loop {
        match place.wait(database::load_read_only(place, None)) {
            Ok(map) => return map.volume(place),
            Err(_) if attempt < LOAD_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Returns the sources of `count` blocks of a view.
pub(crate) fn view_sources(view: &VolumeMap, first: u64, count: u64) -> Vec<Source> {
    (first..)
        .zip(view.blocks(first, count))
        .map(|(block, stored)| map_source(view, block, stored))
        .collect()
}

impl Device for VolumeReader {
    fn len_bytes(&self) -> u64 {
        self.view.read().meta.size_bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn version(&self) -> Option<String> {
        let view = self.view.read();
        Some(format!("{} flush {}", view.meta.id, view.flush))
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        let view = self.current()?;
        read_bytes(bufs, offset, |first, count, out| {
            let sources = view_sources(&view, first, count);
            read_sources(&self.place, &self.cache, &self.origins, sources, out)
                .map_err(|error| lost(&self.place, error))
        })
    }

    fn write_vectored_at(&self, _bufs: &[IoSlice<'_>], _offset: u64) -> Result<()> {
        Err(self.read_only())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(self.read_only())
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(self.read_only())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check(offset, len_bytes)?;
        let view = self.view();
        let is_stored = |block| view.blocks(block, 1)[0].is_some();
        Ok(allocation(offset, len_bytes, is_stored, |block| {
            let blocks_per_group = crate::format::GROUP_BLOCKS;
            let group = view.next_group(block / blocks_per_group)?;
            Some((group * blocks_per_group).max(block))
        }))
    }
}

const _: () = assert!(BLOCK_BYTES == folio::base::PAGE_SIZE);
