//! Garbage collection: what it deletes, what it keeps, and what it costs.

use crate::model::{MIB, ModelStore, assert_filled, fill, memory_place, now, place};
use folio::Errno;
use folio::block::Device;
use folio_volume::{GcOptions, Takeover, Volume, VolumeReader, check, info};
use object_store::memory::InMemory;
use std::sync::Arc;

#[test]
fn garbage_collection_bounds_stored_bytes() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 30).unwrap();
    let mut seed = 5_u64;
    for round in 1..=6 {
        fill(&volume, 0..64, round);
        for _ in 0..300 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let block = (seed >> 33) % (64 * 256);
            volume.write_at(&[round + 100; 4096], block * 4096).unwrap();
            if block.is_multiple_of(4) {
                volume.flush().unwrap();
            }
        }
        volume.flush().unwrap();
    }
    let before = info(&place).unwrap();
    assert!(before.stored_bytes > 3 * before.logical_bytes, "{before:?}");
    let report = volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    assert!(
        report.deleted_segments > 0 && report.waiting_segments == 0,
        "{report:?}"
    );
    let after = info(&place).unwrap();
    assert_eq!(after.logical_bytes, before.logical_bytes);
    assert!(
        after.stored_bytes * 10 <= after.logical_bytes * 13,
        "{after:?}"
    );
    assert_eq!(
        check(&place, true, &mut |_| ()).unwrap().problems,
        Vec::<String>::new()
    );
}

#[test]
fn garbage_of_young_age_stays_for_readers() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 30).unwrap();
    fill(&volume, 0..16, 1);
    volume.flush().unwrap();
    let reader = VolumeReader::open(&place, None).unwrap();
    fill(&volume, 0..16, 2);
    volume.flush().unwrap();
    for _ in 0..2 {
        let report = volume
            .collect_garbage(&GcOptions::default(), &mut |_| ())
            .unwrap();
        assert_eq!((report.deleted_segments, report.waiting_segments), (0, 2));
        assert_filled(&reader, 0..16, 1);
    }
    let report = volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    assert_eq!((report.deleted_segments, report.waiting_segments), (2, 0));
    let mut bytes = [0; 4096];
    assert!(reader.read_at(&mut bytes, 0).is_err());
    assert_filled(&volume, 0..16, 2);
}

#[test]
fn gc_that_lost_its_fence_deletes_nothing() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let store = ModelStore::new(&content, None);
    let healthy = place(content, "vol");
    let first = Volume::create(&place(store.clone(), "vol"), 1 << 30).unwrap();
    for byte in [1, 2] {
        fill(&first, 0..16, byte);
        first.flush().unwrap();
    }
    let taken = healthy.clone();
    store.interrupt_at("gc/condemned", move || {
        let second = Volume::open(&taken, Takeover::Fence).unwrap();
        fill(&second, 16..112, 3);
        second.close().unwrap();
    });
    let failed = first.collect_garbage(&now(), &mut |_| ()).unwrap_err();
    assert_eq!(failed.errno(), Errno::STALE, "{failed}");
    let third = Volume::open(&healthy, Takeover::Refuse).unwrap();
    assert_filled(&third, 0..16, 2);
    assert_filled(&third, 16..112, 3);
    let report = third.collect_garbage(&now(), &mut |_| ()).unwrap();
    assert_eq!(report.deleted_segments, 2);
}

#[test]
fn read_during_gc_finds_moved_blocks() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let place = place(store.clone(), "vol");
    let volume = Arc::new(Volume::create(&place, 1 << 30).unwrap());
    fill(&*volume, 0..8, 1);
    volume.flush().unwrap();
    volume.discard(MIB, 7 * MIB).unwrap();
    volume.flush().unwrap();
    let collector = volume.clone();
    store.interrupt_at("/seg/", move || {
        let report = collector.collect_garbage(&now(), &mut |_| ()).unwrap();
        assert_eq!(report.deleted_segments, 1);
    });
    assert_filled(&*volume, 0..1, 1);
}

#[test]
fn gc_rewrites_by_requests_of_a_mebibyte() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let place = place(store.clone(), "vol");
    let volume = Volume::create(&place, 1 << 30).unwrap();
    fill(&volume, 0..32, 1);
    for block in 0..32 * 128 {
        volume.discard(block * 8192, 4096).unwrap();
    }
    volume.flush().unwrap();
    let before = store.segment_reads();
    let report = volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    assert_eq!(report.rewritten_bytes, 16 * MIB);
    let reads = store.segment_reads() - before;
    assert!(reads <= 32, "{reads} reads");
    let problems = check(&place, true, &mut |_| ()).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn failed_compaction_is_reported() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let place = place(store.clone(), "vol");
    drop(Volume::create(&place, MIB).unwrap());
    for _ in 0..8 {
        drop(Volume::open(&place, Takeover::Refuse).unwrap());
    }
    let volume = Volume::open(&place, Takeover::Refuse).unwrap();
    store.break_writes(Some("map/compactions"));
    assert!(volume.collect_garbage(&now(), &mut |_| ()).is_err());
    store.break_writes(None);
    volume.collect_garbage(&now(), &mut |_| ()).unwrap();
}
