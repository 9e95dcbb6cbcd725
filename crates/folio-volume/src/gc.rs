//! Garbage collection: deletes what no flush point in use names, and rewrites sparse segments.
//!
//! A segment is deleted in two steps. The first collection that finds it unused records that in
//! `gc/condemned`; a later one deletes it, if it is still unused and at least the minimum age has
//! passed since. A reader that opened the volume before can thus read for the minimum age.

use crate::database::{self, admin, map_error};
use crate::format::{BLOCK_BYTES, META_KEY, Place, SegmentId};
use crate::map::VolumeMap;
use crate::place::StorePlace;
use crate::progress::{Report, WorkProgress};
use crate::snapshot;
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

/// The choices of a garbage collection.
#[derive(Debug, Clone, Copy)]
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
struct Condemned {
    /// Seconds since 1970 at which each path was first found unused.
    since: BTreeMap<String, u64>,
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
                snapshot::drop_abandoned(&core.place, options.min_age).await?;
                delete_unused(&core.place, map, options.min_age, &mut report).await?;
                database::collect(&core.place, options.min_age).await;
                Ok(())
            })
        })?;
        Ok(report)
    }
}

/// Copies the used blocks of sparse segments into new ones, and returns the number of bytes.
fn rewrite_sparse(core: &Arc<Core>, progress: Report<'_>) -> Result<u64> {
    let sizes = core.place.wait(segment_sizes(&core.place))?;
    let (map, used) = {
        let state = core.state.lock();
        (state.map.clone(), state.map.segment_use())
    };
    let sparse: HashMap<SegmentId, u32> = used
        .into_iter()
        .filter(|(id, blocks)| {
            let stored = sizes.get(id).map_or(0, |meta| meta.size);
            u64::from(*blocks) * BLOCK_BYTES as u64 * 100 < stored * USED_PERCENT_MIN
        })
        .collect();
    let expected: u64 = sparse.values().map(|blocks| u64::from(*blocks)).sum();
    progress(WorkProgress::Expected(expected * BLOCK_BYTES as u64));
    let mut copied = 0;
    for &number in map.groups().keys() {
        for (n, stored) in map.group(number).into_iter().enumerate() {
            let Some(stored) = stored else { continue };
            let block = number * crate::format::GROUP_BLOCKS + n as u64;
            if matches!(stored.place, Place::Segment { segment, .. } if sparse.contains_key(&segment))
            {
                let mut bytes = vec![0; BLOCK_BYTES];
                core.read_blocks(block, 1, &mut bytes)?;
                core.rewrite(block, stored, Bytes::from(bytes));
                copied += BLOCK_BYTES as u64;
                progress(WorkProgress::Done(BLOCK_BYTES as u64));
            }
        }
    }
    core.flush()?;
    Ok(copied)
}

/// Deletes a volume with all its snapshots and segments.
///
/// # Errors
///
/// EBUSY if a clone shares its segments, or if its writer has not closed it and `takeover` refuses
/// that; ENOENT if there is no volume; the store's errors.
pub fn delete_volume(place: &StorePlace, takeover: Takeover) -> Result<u64> {
    // A younger record may be that of a clone under creation.
    place.wait(snapshot::drop_abandoned(place, place.map_garbage_age))?;
    if let Some(clone) = snapshot::snapshots(place)?.into_iter().find(|s| s.is_clone) {
        let reason = format!("{} is a clone of it (delete the clone first)", clone.name);
        return Err(Error::new(Errno::BUSY, reason).at(place.name()));
    }
    let volume = Volume::open(place, takeover)?;
    let meta = volume.meta().clone();
    // The parent's checkpoint goes last: a deletion that is cut short must not leave a clone
    // whose segments can be collected.
    let core = volume.core();
    let mut batch = slatedb::WriteBatch::new();
    batch.delete(META_KEY);
    place.wait(core.database.commit(batch))?;
    drop(volume);
    let deleted = place.wait(delete_all(place))?;
    if let (Some(id), Some(parent)) = (meta.parent_checkpoint, meta.origins.get(1)) {
        let parent = place.sibling(parent);
        snapshot::delete_checkpoint(&parent, id)?;
    }
    Ok(deleted)
}

async fn delete_unused(
    place: &StorePlace,
    map: &VolumeMap,
    min_age: Duration,
    report: &mut GcReport,
) -> Result<()> {
    let mut used: HashSet<SegmentId> = map.segment_use().into_keys().collect();
    for snapshot in snapshot::list(place).await? {
        if let Some(map) = database::load_read_only(place, Some(snapshot.id)).await? {
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
        if used.contains(&id) {
            continue;
        }
        let key = meta.location.to_string();
        let since = known.since.remove(&key).unwrap_or(now);
        if now.saturating_sub(since) >= min_age.as_secs() {
            old.push(meta);
        } else {
            waiting.since.insert(key, since);
        }
    }
    report.waiting_segments = waiting.since.len() as u64;
    report.deleted_segments = old.len() as u64;
    report.deleted_bytes = old.iter().map(|meta| meta.size).sum();
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
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
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

/// Deletes every object of a volume, the map last, and returns their number.
async fn delete_all(place: &StorePlace) -> Result<u64> {
    let mut count = 0;
    // Other objects below the volume's URL are not the volume's.
    for folder in place.folders() {
        let listed = place.store.list(Some(&folder)).try_collect();
        let objects: Vec<ObjectMeta> = listed
            .await
            .map_err(|e| place.error("list the volume's objects", e))?;
        count += objects.len() as u64;
        if folder == place.map_path() {
            let deleted = admin(place).delete_db(true).await;
            deleted.map_err(|e| map_error(place, "delete the map", e))?;
        } else {
            delete_objects(place, objects.into_iter().map(|meta| meta.location)).await?;
        }
    }
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
