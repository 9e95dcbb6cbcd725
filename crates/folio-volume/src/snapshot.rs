//! Snapshots and clones: checkpoints of the map. No data is copied.

use crate::database::{self, admin, map_error};
use crate::format::{Place, VolumeMeta};
use crate::map::{MapState, VolumeMap};
use crate::place::StorePlace;
use crate::vacancy::{has_deletion_mark, refuse_occupied};
use crate::volume::Volume;
use folio::{Errno, Error, Result};
use slatedb::config::CheckpointOptions;
use std::time::{Duration, SystemTime};

const SNAPSHOT: &str = "snapshot:";
const CLONE: &str = "clone:";

/// A checkpoint of a volume's map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The checkpoint's id.
    pub id: uuid::Uuid,
    /// The name given by the user, or the root of the clone.
    pub name: String,
    /// The checkpoint keeps what a clone shares.
    pub is_clone: bool,
    /// Time of creation, in seconds since 1970.
    pub created_s: u64,
}

/// Returns the snapshots of a volume, and the checkpoints of its clones, oldest first.
///
/// # Errors
///
/// ENOENT if there is no volume; the store's errors.
pub fn snapshots(place: &StorePlace) -> Result<Vec<Snapshot>> {
    place.wait(list(place))
}

pub(crate) async fn list(place: &StorePlace) -> Result<Vec<Snapshot>> {
    let manifest = database::manifest(place, "list snapshots")
        .await?
        .ok_or_else(|| Error::new(Errno::NOENT, "no volume").at(place.name()))?;
    let mut found: Vec<Snapshot> = manifest
        .checkpoints()
        .iter()
        .filter_map(|checkpoint| {
            let full = checkpoint.name.as_deref()?;
            let (name, is_clone) = match full.strip_prefix(SNAPSHOT) {
                Some(name) => (name, false),
                None => (full.strip_prefix(CLONE)?, true),
            };
            let created = SystemTime::from(checkpoint.create_time);
            let since = created.duration_since(SystemTime::UNIX_EPOCH);
            Some(Snapshot {
                id: checkpoint.id,
                name: name.to_owned(),
                is_clone,
                created_s: since.unwrap_or(Duration::ZERO).as_secs(),
            })
        })
        .collect();
    found.sort_by(|a, b| (a.created_s, &a.name).cmp(&(b.created_s, &b.name)));
    Ok(found)
}

/// Returns the snapshot with a name.
///
/// # Errors
///
/// ENOENT if there is none.
pub(crate) fn find(place: &StorePlace, name: &str) -> Result<Snapshot> {
    snapshots(place)?
        .into_iter()
        .find(|snapshot| !snapshot.is_clone && snapshot.name == name)
        .ok_or_else(|| Error::new(Errno::NOENT, format!("no snapshot {name:?}")).at(place.name()))
}

/// Deletes a snapshot. What it alone kept is freed by the next garbage collection.
///
/// # Errors
///
/// ENOENT if there is none; the store's errors.
pub fn delete_snapshot(place: &StorePlace, name: &str) -> Result<()> {
    let snapshot = find(place, name)?;
    delete_checkpoint(place, snapshot.id)
}

/// Deletes a checkpoint of a map.
pub(crate) fn delete_checkpoint(place: &StorePlace, id: uuid::Uuid) -> Result<()> {
    let deleted = place.wait(admin(place).delete_checkpoint(id));
    deleted.map_err(|e| map_error(place, "delete a checkpoint", e))
}

/// Creates a volume at `target` with the content of a snapshot, without copying data.
///
/// # Errors
///
/// ENOENT if there is no such snapshot; EEXIST if there is a volume at `target`; EINVAL if other
/// objects are below it or a volume is above it; the store's errors.
pub fn clone_snapshot(place: &StorePlace, name: &str, target: &StorePlace) -> Result<Volume> {
    // First: a refusal must not leave a checkpoint.
    place.wait(refuse_occupied(target))?;
    let snapshot = find(place, name)?;
    let options = CheckpointOptions {
        lifetime: None,
        source: Some(snapshot.id),
        name: Some(format!("{CLONE}{}", target.root)),
    };
    // Before the clone: from its first moment on its segments must not be collected.
    let created = place.wait(admin(place).create_detached_checkpoint(&options));
    let id = created
        .map_err(|e| map_error(place, "create a checkpoint", e))?
        .id;
    let cloned = create_clone(place, id, target);
    // A creation whose answer got lost may have succeeded: that clone keeps its checkpoint.
    if cloned.is_err() && matches!(place.wait(has_clone(target, id)), Ok(false)) {
        delete_checkpoint(place, id)?;
    }
    cloned
}

fn create_clone(place: &StorePlace, id: uuid::Uuid, target: &StorePlace) -> Result<Volume> {
    let map = place.wait(database::load_read_only(place, Some(id)))?;
    let map = map.volume(place)?;
    Volume::create_from(target, clone_map(&map, target, id))
}

/// Returns whether there is a clone at `target` that needs the checkpoint `id` of its parent.
async fn has_clone(target: &StorePlace, id: uuid::Uuid) -> Result<bool> {
    if has_deletion_mark(target).await? || !database::exists(target).await? {
        return Ok(false);
    }
    let map = database::load_read_only(target, None).await?;
    Ok(matches!(map, MapState::Volume(map) if map.meta.parent_checkpoint == Some(id)))
}

/// Deletes the checkpoints of clones that do not exist, if they are at least `min_age` old: a clone
/// whose creation crashed left them.
pub(crate) async fn drop_abandoned(place: &StorePlace, min_age: Duration) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = now.unwrap_or(Duration::ZERO).as_secs();
    for clone in list(place).await? {
        let is_old = now_s.saturating_sub(clone.created_s) >= min_age.as_secs();
        if clone.is_clone && is_old && !has_clone(&place.sibling(&clone.name), clone.id).await? {
            let deleted = admin(place).delete_checkpoint(clone.id).await;
            deleted.map_err(|e| map_error(place, "delete a checkpoint", e))?;
        }
    }
    Ok(())
}

/// Returns the map of a clone: the same places, seen from another volume.
fn clone_map(map: &VolumeMap, target: &StorePlace, checkpoint: uuid::Uuid) -> VolumeMap {
    let mut origins = vec![target.root.to_string()];
    origins.extend(map.meta.origins.iter().cloned());
    let mut cloned = VolumeMap::empty(VolumeMeta {
        format: map.meta.format,
        id: uuid::Uuid::new_v4(),
        size_bytes: map.meta.size_bytes,
        origins,
        parent_checkpoint: Some(checkpoint),
    });
    for &number in map.groups().keys() {
        let mut group = map.group(number);
        for block in group.iter_mut().flatten() {
            if let Place::Segment { segment, .. } = &mut block.place {
                segment.origin += 1;
            }
        }
        cloned.set_group(number, &group);
    }
    for (block, bytes) in map.inline_blocks() {
        cloned.set_inline(*block, Some(bytes.clone()));
    }
    cloned
}

impl Volume {
    /// Flushes and creates a snapshot of the volume.
    ///
    /// # Errors
    ///
    /// EEXIST if there is a snapshot of that name; those of a flush.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let place = &self.core().place;
        if name.is_empty() || name.len() > 200 {
            let reason = format!("invalid snapshot name {name:?}: expected 1 to 200 bytes");
            return Err(Error::new(Errno::INVAL, reason).at(place.name()));
        }
        if find(place, name).is_ok() {
            let reason = format!("snapshot {name:?} exists");
            return Err(Error::new(Errno::EXIST, reason).at(place.name()));
        }
        self.core().checkpoint(&format!("{SNAPSHOT}{name}"))?;
        Ok(())
    }

    /// Returns the volume to the content of a snapshot, as one flush. The snapshot stays.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no such snapshot; those of a flush.
    pub fn rollback(&self, name: &str) -> Result<()> {
        let core = self.core();
        let snapshot = find(&core.place, name)?;
        let old = database::load_read_only(&core.place, Some(snapshot.id));
        core.replace(&core.place.wait(old)?.volume(&core.place)?)
    }
}
