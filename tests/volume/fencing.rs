//! Two writers: the later one fences the earlier one, whose flushes are never acknowledged again.

use crate::model::{ModelStore, memory_place, place};
use folio::Errno;
use folio::block::Device;
use folio_volume::{Takeover, Volume, VolumeReader};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn number_at(device: &dyn Device, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    device.read_at(&mut bytes, offset).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn fenced_writer_fails_every_flush() {
    let place = memory_place();
    let first = Volume::create(&place, 1 << 30).unwrap();
    first.write_at(&[1; 8192], 0).unwrap();
    first.flush().unwrap();
    let busy = Volume::open(&place, Takeover::Refuse).err().unwrap();
    assert_eq!(busy.errno(), Errno::BUSY, "{busy}");
    let second = Volume::open(&place, Takeover::Fence).unwrap();
    first.write_at(&[2; 8192], 0).unwrap();
    for _ in 0..3 {
        let failed = first.flush().unwrap_err();
        assert_eq!(failed.errno(), Errno::STALE, "{failed}");
    }
    assert_eq!(
        first.write_at(&[2; 1], 0).unwrap_err().errno(),
        Errno::STALE
    );
    assert_eq!(number_at(&second, 0), u64::from_le_bytes([1; 8]));
    second.write_at(&[3; 8192], 0).unwrap();
    second.close().unwrap();
    let third = Volume::open(&place, Takeover::Refuse).unwrap();
    assert_eq!(number_at(&third, 0), u64::from_le_bytes([3; 8]));
}

#[test]
fn fenced_writer_of_large_flush_fails() {
    let place = memory_place();
    let first = Volume::create(&place, 1 << 30).unwrap();
    first.write_at(&vec![1; 20 << 20], 0).unwrap();
    let second = Volume::open(&place, Takeover::Fence).unwrap();
    assert_eq!(first.flush().unwrap_err().errno(), Errno::STALE);
    assert_eq!(number_at(&second, 0), 0);
}

/// Every flush increments one number on the volume. Were two writers acknowledged for one state,
/// the number would be smaller than the count of acknowledged flushes.
#[test]
fn racing_writers_are_never_both_acknowledged() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    Volume::create(&place(content.clone(), "vol"), 1 << 30)
        .unwrap()
        .close()
        .unwrap();
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (content, acknowledged) = (content.clone(), &acknowledged);
            scope.spawn(move || {
                for _ in 0..8 {
                    let place = place(content.clone(), "vol");
                    // A writer that another one fences while it opens fails to open.
                    let Ok(volume) = Volume::open(&place, Takeover::Fence) else {
                        continue;
                    };
                    for _ in 0..20 + writer {
                        let next = number_at(&volume, 0) + 1;
                        volume.write_at(&next.to_le_bytes(), 0).unwrap_or_default();
                        match volume.flush() {
                            Ok(()) => acknowledged.fetch_add(1, Ordering::SeqCst),
                            Err(_) => break,
                        };
                    }
                }
            });
        }
    });
    let reader = VolumeReader::open(&place(content, "vol"), None).unwrap();
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    let number = number_at(&reader, 0);
    // A flush whose failure was reported may still have taken effect.
    assert!(
        acknowledged > 0 && number >= acknowledged,
        "{number} < {acknowledged}"
    );
    assert!(
        number <= acknowledged + 32,
        "{number} > {acknowledged} + 32 takeovers"
    );
}

#[test]
fn reader_sees_one_flush_and_moves_forward() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 30).unwrap();
    volume.write_at(&7_u64.to_le_bytes(), 0).unwrap();
    volume.flush().unwrap();
    let pinned = VolumeReader::open(&place, None).unwrap();
    let following = VolumeReader::open(&place, Some(std::time::Duration::ZERO)).unwrap();
    volume.write_at(&8_u64.to_le_bytes(), 0).unwrap();
    assert_eq!(number_at(&following, 0), 7);
    volume.flush().unwrap();
    assert_eq!((number_at(&pinned, 0), number_at(&following, 0)), (7, 8));
    pinned.refresh().unwrap();
    assert_eq!(number_at(&pinned, 0), 8);
    assert_eq!(pinned.write_at(&[0], 0).unwrap_err().errno(), Errno::ROFS);
}

/// A reader that follows sees two numbers of one flush, and never an earlier flush again.
#[test]
fn follower_never_sees_mixture_of_flushes() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 30).unwrap();
    let far = 512 << 20;
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let reader = VolumeReader::open(&place, None).unwrap();
            let mut last = 0;
            while last < 60 {
                reader.refresh().unwrap();
                let (a, b) = (number_at(&reader, 0), number_at(&reader, far));
                assert_eq!(a, b);
                assert!(a >= last, "{a} after {last}");
                last = a;
            }
        });
        for n in 1..=60_u64 {
            volume.write_at(&n.to_le_bytes(), 0).unwrap();
            volume.write_at(&n.to_le_bytes(), far).unwrap();
            volume.flush().unwrap();
        }
        follower.join().unwrap();
    });
}

/// slatedb asks for several log objects at a time, so there are fewer round trips than requests.
#[test]
fn takeover_takes_at_most_40_requests() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let first = Volume::create(&place(content.clone(), "vol"), 1 << 30).unwrap();
    for n in 0..3_u8 {
        first.write_at(&vec![n + 1; 300 << 10], 0).unwrap();
        first.flush().unwrap();
    }
    let store = ModelStore::new(&content, None);
    let second = Volume::open(&place(store.clone(), "vol"), Takeover::Fence).unwrap();
    let requests = store.requests();
    assert!(requests <= 40, "{requests} requests");
    drop((first, second));
}
