//! Snapshots and clones: checkpoints of the map. No data is copied.

use crate::database::{self, admin, map_error};
use crate::format::{Place, VolumeMeta};
use crate::map::VolumeMap;
use crate::place::StorePlace;
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
/// ENOENT if there is no such snapshot; EEXIST if there is a volume at `target`; the store's
/// errors.
pub fn clone_snapshot(place: &StorePlace, name: &str, target: &StorePlace) -> Result<Volume> {
    if place.wait(database::exists(target))?
        && place
            .wait(database::load_read_only(target, None))?
            .is_some()
    {
        return Err(Error::new(Errno::EXIST, "a volume exists there").at(target.name()));
    }
    let snapshot = find(place, name)?;
    let options = CheckpointOptions {
        lifetime: None,
        source: Some(snapshot.id),
        name: Some(format!("{CLONE}{}", target.root)),
    };
    let (checkpoint, map) = place.wait(async {
        let created = admin(place).create_detached_checkpoint(&options).await;
        let checkpoint = created.map_err(|e| map_error(place, "create a checkpoint", e))?;
        let map = database::load_read_only(place, Some(checkpoint.id)).await?;
        Ok::<_, Error>((checkpoint.id, map))
    })?;
    let map = map.ok_or_else(|| Error::corrupt("snapshot without a volume").at(place.name()))?;
    Volume::create_from(target, clone_map(&map, target, checkpoint))
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
        let old = core
            .place
            .wait(database::load_read_only(&core.place, Some(snapshot.id)))?
            .ok_or_else(|| Error::corrupt("snapshot without a volume").at(core.place.name()))?;
        core.replace(&old)
    }
}
