//! Snapshots, clones, rollback and garbage collection.

use crate::model::{MIB, RUNTIME, assert_filled, fill, memory_place, now, place};
use folio::Errno;
use folio::block::Device;
use folio_volume::{
    GcOptions, Takeover, Volume, VolumeReader, check, clone_snapshot, delete_snapshot,
    delete_volume, info, snapshots,
};
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn snapshot_keeps_content_and_rolls_back() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 30).unwrap();
    fill(&volume, 0..20, 1);
    volume.write_at(&[9; 4096], 100 * MIB).unwrap();
    volume.snapshot("before").unwrap();
    assert_eq!(volume.snapshot("before").unwrap_err().errno(), Errno::EXIST);
    fill(&volume, 5..30, 2);
    volume.write_zeroes(100 * MIB, 4096).unwrap();
    volume.flush().unwrap();
    volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    let old = VolumeReader::open_snapshot(&place, "before").unwrap();
    assert_filled(&old, 0..20, 1);
    assert_filled(&old, 20..30, 0);
    assert_filled(&volume, 5..30, 2);
    volume.rollback("before").unwrap();
    assert_filled(&volume, 0..20, 1);
    assert_filled(&volume, 20..30, 0);
    let mut tail = [0; 4096];
    volume.read_at(&mut tail, 100 * MIB).unwrap();
    assert_eq!(tail, [9; 4096]);
    volume.close().unwrap();
    let volume = Volume::open(&place, Takeover::Refuse).unwrap();
    assert_filled(&volume, 0..20, 1);
    assert_eq!(
        check(&place, true, &mut |_| ()).unwrap().problems,
        Vec::<String>::new()
    );
    assert_eq!(snapshots(&place).unwrap().len(), 1);
    delete_snapshot(&place, "before").unwrap();
    assert_eq!(snapshots(&place).unwrap(), []);
}

#[test]
fn clone_shares_segments_until_deleted() {
    let store: Arc<InMemory> = Arc::new(InMemory::new());
    let (parent, child) = (
        place(store.clone(), "parent"),
        place(store.clone(), "child"),
    );
    let grandchild = place(store, "grandchild");
    let volume = Volume::create(&parent, 1 << 30).unwrap();
    fill(&volume, 0..24, 1);
    volume.snapshot("base").unwrap();
    let clone = clone_snapshot(&parent, "base", &child).unwrap();
    assert_filled(&clone, 0..24, 1);
    fill(&clone, 3..5, 2);
    clone.snapshot("second").unwrap();
    assert!(info(&child).unwrap().stored_bytes < 3 * MIB);
    let second = clone_snapshot(&child, "second", &grandchild).unwrap();
    // The parent loses the content; the clones keep it.
    volume.discard(0, 1 << 30).unwrap();
    volume.flush().unwrap();
    delete_snapshot(&parent, "base").unwrap();
    volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    clone.collect_garbage(&now(), &mut |_| ()).unwrap();
    for device in [&clone, &second] {
        assert_filled(device, 0..3, 1);
        assert_filled(device, 3..5, 2);
        assert_filled(device, 5..24, 1);
    }
    assert_eq!(
        check(&grandchild, true, &mut |_| ()).unwrap().problems,
        Vec::<String>::new()
    );
    drop(volume);
    let busy = delete_volume(&parent, Takeover::Fence).unwrap_err();
    assert_eq!(busy.errno(), Errno::BUSY, "{busy}");
    drop((clone, second));
    delete_volume(&grandchild, Takeover::Refuse).unwrap();
    delete_snapshot(&child, "second").unwrap();
    delete_volume(&child, Takeover::Refuse).unwrap();
    assert_eq!(snapshots(&parent).unwrap(), []);
    delete_volume(&parent, Takeover::Refuse).unwrap();
    assert!(VolumeReader::open(&parent, None).is_err());
    Volume::create(&parent, 1 << 20).unwrap();
}

#[test]
fn refused_clone_leaves_parent_as_it_was() {
    let store: Arc<InMemory> = Arc::new(InMemory::new());
    let parent = place(store.clone(), "parent");
    let volume = Volume::create(&parent, MIB).unwrap();
    volume.snapshot("base").unwrap();
    drop(volume);
    drop(Volume::create(&place(store.clone(), "other/volume"), MIB).unwrap());
    let before = snapshots(&parent).unwrap();
    for target in ["parent/c", "other", "other/volume/c", "", "other/volume"] {
        let target = place(store.clone(), target);
        assert!(clone_snapshot(&parent, "base", &target).is_err());
        assert_eq!(snapshots(&parent).unwrap(), before);
    }
    delete_volume(&parent, Takeover::Refuse).unwrap();
}

#[test]
fn record_of_lost_clone_is_dropped() {
    let store: Arc<InMemory> = Arc::new(InMemory::new());
    let parent = place(store.clone(), "parent").with_map_garbage_age(Duration::ZERO);
    let volume = Volume::create(&parent, MIB).unwrap();
    volume.snapshot("base").unwrap();
    let lose_clone = || {
        drop(clone_snapshot(&parent, "base", &place(store.clone(), "child")).unwrap());
        RUNTIME.block_on(async {
            let below = object_store::path::Path::from("child");
            let objects: Vec<_> = store.list(Some(&below)).collect().await;
            for object in objects {
                store.delete(&object.unwrap().location).await.unwrap();
            }
        });
        assert_eq!(snapshots(&parent).unwrap().len(), 2);
    };
    lose_clone();
    let young = GcOptions::default();
    volume.collect_garbage(&young, &mut |_| ()).unwrap();
    assert_eq!(snapshots(&parent).unwrap().len(), 2);
    volume.collect_garbage(&now(), &mut |_| ()).unwrap();
    assert_eq!(snapshots(&parent).unwrap().len(), 1);
    lose_clone();
    drop(volume);
    delete_volume(&parent, Takeover::Refuse).unwrap();
}
