//! Many short sessions, such as commands: each opens the volume, writes little and ends.

use crate::model::{ModelStore, place, wait};
use folio::block::Device;
use folio_volume::{StorePlace, Takeover, Volume};
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::sync::Arc;
use std::time::Duration;

/// The largest fence: a log object without entries.
const FENCE_BYTES_MAX: u64 = 128;

/// Returns the number of objects in a folder of the map, fences left out.
fn objects(store: &InMemory, folder: &str) -> usize {
    let prefix = Path::from(format!("vol/map/{folder}"));
    let listed = wait(store.list(Some(&prefix)).try_collect::<Vec<ObjectMeta>>()).unwrap();
    let is_fence = |meta: &&ObjectMeta| meta.size <= FENCE_BYTES_MAX;
    listed.len() - listed.iter().filter(is_fence).count()
}

/// Runs a session and returns its requests.
fn session(content: &Arc<InMemory>, number: u64, ends: impl FnOnce(&ModelStore, Volume)) -> u64 {
    let store = ModelStore::new(content, None);
    let place = place_of(store.clone());
    let volume = Volume::open(&place, Takeover::Fence).unwrap();
    let mut last = [0; 8];
    volume.read_at(&mut last, 0).unwrap();
    assert_eq!(u64::from_le_bytes(last), number);
    volume.write_at(&(number + 1).to_le_bytes(), 0).unwrap();
    volume.flush().unwrap();
    let requests = store.requests();
    ends(&store, volume);
    requests
}

fn place_of(store: Arc<dyn ObjectStore>) -> StorePlace {
    place(store, "vol").with_map_garbage_age(Duration::ZERO)
}

#[test]
fn short_sessions_leave_few_objects() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    drop(Volume::create(&place_of(content.clone()), 1 << 30).unwrap());
    let mut most_requests = 0;
    for number in 0..200 {
        let requests = session(&content, number, |_, volume| volume.close().unwrap());
        most_requests = most_requests.max(requests);
        // At most 24 are in use; what the last compaction replaced is deleted by the next.
        let tables = objects(&content, "compacted");
        eprintln!(
            "{number}: {tables} tables, {requests} requests, compactions {}, manifests {}, wal {}",
            objects(&content, "compactions"),
            objects(&content, "manifest"),
            objects(&content, "wal")
        );
        assert!(tables <= 100, "{tables} tables after session {number}");
    }
    let log = objects(&content, "wal");
    eprintln!("{log} objects in the log, {most_requests} requests");
    assert!(log <= 150, "{log} objects in the log");
    assert!(most_requests <= 120, "{most_requests} requests");
}

#[test]
fn crashed_sessions_leave_short_log() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    drop(Volume::create(&place_of(content.clone()), 1 << 30).unwrap());
    let mut most_requests = 0;
    for number in 0..200 {
        let crash = |store: &ModelStore, volume: Volume| {
            store.kill();
            drop(volume);
        };
        most_requests = most_requests.max(session(&content, number, crash));
    }
    eprintln!("{most_requests} requests");
    assert!(most_requests <= 200, "{most_requests} requests");
}
