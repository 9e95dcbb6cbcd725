//! Checks of the place of a new volume: nothing else may be there.

use crate::database;
use crate::map::MapState;
use crate::place::StorePlace;
use folio::{Errno, Error, Result};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

/// Returns the path of the volume, or of one whose creation crashed, that is at a place or above.
///
/// # Errors
///
/// The store's errors.
pub fn volume_around(place: &StorePlace) -> Result<Option<Path>> {
    place.wait(async {
        // Below an object of a directory of the host nothing can be looked for.
        if !object_exists(place, &place.root).await? && database::exists(place).await? {
            return Ok(Some(place.root.clone()));
        }
        volume_above(place).await
    })
}

/// Returns the path of the volume that a place is in.
async fn volume_above(place: &StorePlace) -> Result<Option<Path>> {
    let mut above: Vec<_> = place.root.parts().collect();
    while above.pop().is_some() && !above.is_empty() {
        let root: Path = above.iter().cloned().collect();
        if database::exists(&place.sibling(root.as_ref())).await? {
            return Ok(Some(root));
        }
    }
    Ok(None)
}

async fn object_exists(place: &StorePlace, path: &Path) -> Result<bool> {
    match place.store.head(path).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(place.error("look for an object", error)),
    }
}

/// Fails if a new volume would share its place.
///
/// # Errors
///
/// EEXIST if there is a volume, ENOENT if there is the rest of one, EINVAL if there is something
/// else, and the store's errors.
pub fn check_vacant(place: &StorePlace) -> Result<()> {
    place.wait(refuse_occupied(place))
}

/// Returns the path of the object that marks a volume whose deletion has begun. It goes last.
pub(crate) fn deletion_mark(place: &StorePlace) -> Path {
    Path::from(format!("{}/.deleting", place.map_path()))
}

/// Returns whether the deletion of the volume has begun: some of its map may be missing.
pub(crate) async fn has_deletion_mark(place: &StorePlace) -> Result<bool> {
    object_exists(place, &deletion_mark(place)).await
}

/// Fails if a new volume would share its place: with a volume, with the whole bucket, with other
/// objects, or with a volume above.
pub(crate) async fn refuse_occupied(place: &StorePlace) -> Result<()> {
    let refused = |reason: String| Err(Error::new(Errno::INVAL, reason).at(place.name()));
    if place.root.as_ref().is_empty() {
        return refused("a volume needs a name below the bucket".to_owned());
    }
    // slatedb escapes its paths, and would look for them elsewhere.
    if Path::from(place.root.as_ref()) != place.root {
        let why = "a volume's URL has no letters beyond ASCII and none of #%*?~|<>[]{}^\"\\`";
        return refused(why.to_owned());
    }
    if object_exists(place, &place.root).await? {
        return refused("an object is there: give another URL".to_owned());
    }
    if has_deletion_mark(place).await? {
        return Err(place.half_deleted());
    }
    let has_map = database::exists(place).await?;
    if has_map {
        match database::load_read_only(place, None).await? {
            MapState::Volume(_) => return Err(place.occupied()),
            MapState::Deleted => return Err(place.half_deleted()),
            MapState::Empty => {}
        }
    }
    let own = place.map_path();
    let mut objects = place.store.list(Some(&place.root));
    while let Some(found) = objects.next().await {
        let found = found.map_err(|e| place.error("look for other objects", e))?;
        // A creation that crashed leaves a map, of which the manifest is the first object.
        if !(has_map && found.location.prefix_matches(&own)) {
            return refused(format!(
                "other objects are there, such as {}: give a URL with nothing below it",
                found.location
            ));
        }
    }
    match volume_above(place).await? {
        Some(root) => refused(format!("it is inside the volume {root}")),
        None => Ok(()),
    }
}
