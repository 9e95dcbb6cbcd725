//! Many short sessions, such as commands: each opens the volume, writes little and ends.

use crate::model::{ModelStore, place};
use crate::support::rounds;
use folio::block::Device;
use folio_volume::{Takeover, Volume};
use object_store::memory::InMemory;
use std::sync::Arc;

/// Runs a session and returns its requests.
fn session(content: &Arc<InMemory>, number: u64, ends: impl FnOnce(&ModelStore, Volume)) -> u64 {
    let store = ModelStore::new(content, None);
    let place = place(store.clone(), "vol");
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

#[test]
fn short_sessions_leave_few_tables_to_read() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    drop(Volume::create(&place(content.clone(), "vol"), 1 << 30).unwrap());
    let mut most_requests = 0;
    for number in 0..rounds::cases(200) {
        let requests = session(&content, number, |_, volume| volume.close().unwrap());
        most_requests = most_requests.max(requests);
    }
    assert!(most_requests <= 120, "{most_requests} requests");
}

#[test]
fn crashed_sessions_leave_short_log() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    drop(Volume::create(&place(content.clone(), "vol"), 1 << 30).unwrap());
    let mut most_requests = 0;
    for number in 0..rounds::cases(200) {
        let crash = |store: &ModelStore, volume: Volume| {
            store.kill();
            drop(volume);
        };
        most_requests = most_requests.max(session(&content, number, crash));
    }
    assert!(most_requests <= 200, "{most_requests} requests");
}
