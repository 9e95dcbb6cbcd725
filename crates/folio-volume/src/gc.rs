//! Garbage collection: deletes what no flush point in use names, and rewrites sparse segments.
//!
//! A segment is deleted in two steps. The first collection that finds it unused records that in
//! `gc/condemned`; a later one deletes it, if it is still unused and at least the minimum age has
//! passed since. A reader that opened the volume before can thus read for the minimum age.

use crate::database::{self, Database};
use crate::format::{
    BLOCK_BYTES, BlockRef, GROUP_BLOCKS, META_KEY, Place, SegmentId, VolumeMeta, crc32c,
};
use crate::layer::block_range;
use crate::map::{MapState, VolumeMap};
use crate::place::StorePlace;
use crate::progress::{Report, WorkProgress};
use crate::snapshot;
use crate::vacancy::deletion_mark;
use crate::volume::{Core, Takeover, Volume};
use bytes::Bytes;
use folio::{Errno, Error, Result};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A segment is rewritten if less than this share of it is in use, in percent.
const USED_PERCENT_MIN: u64 = 80;
/// Requests in flight.
const IN_FLIGHT: usize = 16;
/// Blocks of the largest request of a rewrite: 1 MiB.
const REQUEST_BLOCKS: u32 = 256;

/// The choices of a garbage collection.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct GcOptions {
    /// How long an unused object is kept: longer than any reader stays at one flush point, and
    /// longer than any writer is paused.
    pub min_age: Duration,
    /// Rewrite segments of which little is in use.
    pub rewrites: bool,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            min_age: Duration::from_secs(24 * 3600),
            rewrites: true,
        }
    }
}

/// The result of a garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Segments deleted.
    pub deleted_segments: u64,
    /// Bytes of the deleted segments.
    pub deleted_bytes: u64,
    /// Unused segments that are not old enough.
    pub waiting_segments: u64,
    /// Bytes copied out of sparse segments.
    pub rewritten_bytes: u64,
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Condemned {
    /// Seconds since 1970 at which each path was first found unused.
    since: BTreeMap<String, u64>,
}

impl Condemned {
    /// Parses the stored list. A damaged one is empty: its segments then wait anew.
    pub(crate) fn parse(stored: &[u8]) -> Self {
        serde_json::from_slice(stored).unwrap_or_default()
    }
}

impl Volume {
    /// Collects the volume's garbage.
    ///
    /// # Errors
    ///
    /// The store's; ESTALE after another writer took over.
    pub fn collect_garbage(
        &self,
        options: &GcOptions,
        progress: &mut dyn FnMut(WorkProgress),
    ) -> Result<GcReport> {
        let core = self.core();
        core.flush()?;
        let mut report = GcReport::default();
        if options.rewrites {
            report.rewritten_bytes = rewrite_sparse(core, progress)?;
        }
        // No upload is under way while this lasts, so that each segment is in the map or garbage.
        core.exclusive(|map| {
            core.place.wait(async {
                core.database.write_table().await?;
                core.database.compact().await?;
                // Before segments are counted: a clone that does not exist needs none.
                snapshot::drop_abandoned(&core.place, options.min_age).await?;
                delete_unused(core, map, options.min_age, &mut report).await?;
                database::collect(&core.place, options.min_age).await;
                Ok(())
            })
        })?;
        Ok(report)
    }
}

/// A used block of a sparse segment.
struct UsedBlock {
    segment: SegmentId,
    index: u32,
    block: u64,
    stored: BlockRef,
}

/// Copies the used blocks of sparse segments into new ones, and returns the number of bytes.
fn rewrite_sparse(core: &Arc<Core>, progress: Report<'_>) -> Result<u64> {
    let sizes = core.place.wait(segment_sizes(&core.place))?;
    let map = core.state.lock().map.clone();
    let used = sparse_blocks(&map, &sizes);
    let expected = used.len() as u64 * BLOCK_BYTES as u64;
    progress(WorkProgress::Expected(expected));
    // A request reads neighbors of a segment, with the unused blocks between them.
    let is_near = |a: &UsedBlock, b: &UsedBlock| {
        (a.segment, a.index / REQUEST_BLOCKS) == (b.segment, b.index / REQUEST_BLOCKS)
    };
    let runs: Vec<&[UsedBlock]> = used.chunk_by(is_near).collect();
    for batch in runs.chunks(IN_FLIGHT) {
        let reads = batch.iter().map(|run| read_run(&core.place, run));
        let reads = futures_util::future::try_join_all(reads);
        for (run, bytes) in batch.iter().zip(core.place.wait(reads)?) {
            for used in *run {
                let start = (used.index - run[0].index) as usize;
                let found = bytes.get(block_range(start)).unwrap_or_default();
                let bytes = if crc32c(found) == used.stored.crc {
                    // A slice would keep the whole run in memory.
                    Bytes::copy_from_slice(found)
                } else {
                    let mut bytes = vec![0; BLOCK_BYTES];
                    core.read_blocks(used.block, 1, &mut bytes)?;
                    bytes.into()
                };
                core.rewrite(used.block, used.stored, bytes);
            }
            progress(WorkProgress::Done((run.len() * BLOCK_BYTES) as u64));
        }
    }
    // The map must name the new segments before the caller counts the old ones as unused.
    core.flush()?;
    Ok(expected)
}

/// Returns the blocks that `map` has in sparse segments, segment by segment.
fn sparse_blocks(map: &VolumeMap, sizes: &HashMap<SegmentId, ObjectMeta>) -> Vec<UsedBlock> {
    let is_sparse = |(id, blocks): &(SegmentId, u32)| {
        let stored = sizes.get(id).map_or(0, |meta| meta.size);
        u64::from(*blocks) * BLOCK_BYTES as u64 * 100 < stored * USED_PERCENT_MIN
    };
    let sparse: HashMap<SegmentId, u32> = map.segment_use().into_iter().filter(is_sparse).collect();
    let mut used = Vec::new();
    for &number in map.groups().keys() {
        for (block, stored) in (number * GROUP_BLOCKS..).zip(map.group(number)) {
            if let Some(stored) = stored
                && let Place::Segment { segment, index } = stored.place
                && sparse.contains_key(&segment)
            {
                used.push(UsedBlock {
                    segment,
                    index,
                    block,
                    stored,
                });
            }
        }
    }
    used.sort_unstable_by_key(|used| (used.segment, used.index));
    used
}

/// Reads a segment from the first block of a run to the last one.
async fn read_run(place: &StorePlace, run: &[UsedBlock]) -> Result<Bytes> {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let path = first.segment.path(&place.root);
    let byte_at = |index: u32| u64::from(index) * BLOCK_BYTES as u64;
    let range = byte_at(first.index)..byte_at(last.index + 1);
    let read = place.store.get_range(&path, range).await;
    read.map_err(|e| place.error(&format!("read {path}"), e))
}

/// Deletes a volume with all its snapshots and segments.
///
/// # Errors
///
/// EBUSY if a clone shares its segments, or if its writer has not closed it and `takeover` refuses
/// that; ENOENT if there is no volume; the store's errors.
pub fn delete_volume(place: &StorePlace, takeover: Takeover) -> Result<u64> {
    let meta = match place.wait(read_mark(place))? {
        Some(mark) => parse_mark(&mark),
        None => begin_deletion(place, takeover)?,
    };
    let deleted = place.wait(delete_all(place))?;
    // The parent's checkpoint goes last: a deletion that is cut short must not leave a clone
    // whose segments can be collected.
    if let Some(VolumeMeta {
        parent_checkpoint: Some(id),
        origins,
        ..
    }) = meta
        && let Some(parent) = origins.get(1)
    {
        snapshot::delete_checkpoint(&place.sibling(parent), id)?;
    }
    Ok(deleted)
}

/// Makes a volume one that no program can open, marks it, and returns its description. An
/// interrupted creation has none, nor has a deletion that was interrupted before its mark.
fn begin_deletion(place: &StorePlace, takeover: Takeover) -> Result<Option<VolumeMeta>> {
    if !place.wait(database::exists(place))? {
        return Err(place.missing());
    }
    // A younger record may be that of a clone under creation.
    place.wait(snapshot::drop_abandoned(place, place.map_garbage_age))?;
    if let Some(clone) = snapshot::snapshots(place)?.into_iter().find(|s| s.is_clone) {
        let reason = format!("{} is a clone of it (delete the clone first)", clone.name);
        return Err(Error::new(Errno::BUSY, reason).at(place.name()));
    }
    let meta = if let MapState::Volume(_) = place.wait(database::load_read_only(place, None))? {
        let volume = Volume::open(place, takeover)?;
        let mut batch = slatedb::WriteBatch::new();
        // Before any object is deleted: no program may open the rest of a volume.
        batch.delete(META_KEY);
        place.wait(volume.core().database.commit(batch))?;
        Some(volume.meta().clone())
    } else {
        // A creation under way is fenced.
        place.wait(Database::open(place))?;
        None
    };
    let mark = serde_json::to_vec(&meta)
        .map_err(|e| Error::new(Errno::INVAL, "describe the volume").caused_by(e))?;
    let path = deletion_mark(place);
    // Durable before the first object is deleted: a later call then finishes the deletion.
    let marked = place.wait(place.store.put(&path, PutPayload::from(mark)));
    marked.map_err(|e| place.error("mark the volume as deleted", e))?;
    Ok(meta)
}

/// Parses the mark of a volume whose deletion has begun. One without a description, or a damaged
/// one, names no parent.
pub(crate) fn parse_mark(mark: &[u8]) -> Option<VolumeMeta> {
    serde_json::from_slice(mark).ok()
}

/// Returns the mark of a volume whose deletion has begun: its description.
async fn read_mark(place: &StorePlace) -> Result<Option<Bytes>> {
    let read = async { place.store.get(&deletion_mark(place)).await?.bytes().await };
    match read.await {
        Ok(mark) => Ok(Some(mark)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(place.error("look for an interrupted deletion", e)),
    }
}

/// Deletes the segments that neither `map` nor a snapshot names.
///
/// # Errors
///
/// ESTALE, before any deletion, after another writer took over: it may use other segments.
async fn delete_unused(
    core: &Core,
    map: &VolumeMap,
    min_age: Duration,
    report: &mut GcReport,
) -> Result<()> {
    let place = &core.place;
    let mut used: HashSet<SegmentId> = map.segment_use().into_keys().collect();
    for snapshot in snapshot::list(place).await? {
        if let MapState::Volume(map) = database::load_read_only(place, Some(snapshot.id)).await? {
            used.extend(map.segment_use().into_keys());
        }
    }
    let path = Path::from(format!("{}/gc/condemned", place.root));
    let mut known = read_condemned(place, &path).await?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let mut waiting = Condemned::default();
    let mut old = Vec::new();
    for (id, meta) in segment_sizes(place).await? {
        // This map does not name the segments of a later writer.
        if used.contains(&id) || id.epoch > core.epoch() {
            continue;
        }
        let key = meta.location.to_string();
        let since = known.since.remove(&key).unwrap_or(now);
        if now.saturating_sub(since) >= min_age.as_secs() {
            old.push(meta);
        } else {
            // A reader may still be at a flush that names it.
            waiting.since.insert(key, since);
        }
    }
    // A commit fails after a takeover. A later writer has `map` and these snapshots to start from,
    // so it never names the segments that are deleted below.
    core.database.commit(core.announcement()?).await?;
    report.waiting_segments = waiting.since.len() as u64;
    report.deleted_segments = old.len() as u64;
    report.deleted_bytes = old.iter().map(|meta| meta.size).sum();
    // Before the deletions: an interrupted one must not restart the wait of the rest.
    let json = serde_json::to_vec(&waiting)
        .map_err(|e| Error::corrupt("list of unused segments").caused_by(e))?;
    place
        .store
        .put(&path, PutPayload::from(json))
        .await
        .map_err(|e| place.error("record unused segments", e))?;
    delete_objects(place, old.into_iter().map(|meta| meta.location)).await
}

async fn read_condemned(place: &StorePlace, path: &Path) -> Result<Condemned> {
    let read = async { place.store.get(path).await?.bytes().await };
    match read.await {
        Ok(bytes) => Ok(Condemned::parse(&bytes)),
        Err(object_store::Error::NotFound { .. }) => Ok(Condemned::default()),
        Err(e) => Err(place.error("read the list of unused segments", e)),
    }
}

/// Returns the segments in the store.
pub(crate) async fn segment_sizes(place: &StorePlace) -> Result<HashMap<SegmentId, ObjectMeta>> {
    let prefix = Path::from(format!("{}/seg", place.root));
    let objects: Vec<ObjectMeta> = place
        .store
        .list(Some(&prefix))
        .try_collect()
        .await
        .map_err(|e| place.error("list segments", e))?;
    Ok(objects
        .into_iter()
        .filter_map(|meta| Some((SegmentId::parse(&meta.location)?, meta)))
        .collect())
}

/// Returns the number and bytes of all objects of a volume.
pub(crate) async fn stored_objects(place: &StorePlace) -> Result<(u64, u64)> {
    place
        .store
        .list(Some(&place.root))
        .try_fold((0, 0), |(count, bytes), meta| async move {
            Ok((count + 1, bytes + meta.size))
        })
        .await
        .map_err(|e| place.error("list the volume's objects", e))
}

/// Deletes every object of a volume, the mark of its deletion last, and returns their number.
async fn delete_all(place: &StorePlace) -> Result<u64> {
    let mark = deletion_mark(place);
    let mut count = 0;
    // Other objects below the volume's URL are not the volume's.
    for folder in place.folders() {
        let listed = place.store.list(Some(&folder)).try_collect();
        let objects: Vec<ObjectMeta> = listed
            .await
            .map_err(|e| place.error("list the volume's objects", e))?;
        let paths = objects.into_iter().map(|meta| meta.location);
        let paths: Vec<Path> = paths.filter(|path| *path != mark).collect();
        count += paths.len() as u64;
        delete_objects(place, paths).await?;
    }
    delete_objects(place, [mark]).await?;
    Ok(count)
}

async fn delete_objects(place: &StorePlace, paths: impl IntoIterator<Item = Path>) -> Result<()> {
    let paths: Vec<Path> = paths.into_iter().collect();
    futures_util::stream::iter(paths)
        .map(Ok)
        .try_for_each_concurrent(IN_FLIGHT, |path| async move {
            match place.store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(e) => Err(place.error(&format!("delete {path}"), e)),
            }
        })
        .await
}
