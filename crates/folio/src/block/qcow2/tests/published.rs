//! Clusters whose place is known without the metadata lock, when they lose it.

use crate::block::qcow2::Qcow2Device;
#[cfg(feature = "compress")]
use crate::block::qcow2::{Appender, PackedCluster};
use crate::block::{CreateOptions, Device, MemoryDevice};
use std::sync::Arc;

const CLUSTER: u64 = 64 << 10;
/// The byte value of the backing file.
const BACKING: u8 = 9;

/// Returns an overlay of two clusters, written with ones, whose places are known.
fn overlay() -> Qcow2Device {
    let file = Arc::new(MemoryDevice::new(1 << 20));
    let backing = MemoryDevice::new(2 * CLUSTER);
    let whole = vec![BACKING; 2 * CLUSTER as usize];
    backing.write_at(&whole, 0).unwrap();
    drop(Qcow2Device::create_on(file.clone(), 2 * CLUSTER, &CreateOptions::default()).unwrap());
    let device = Qcow2Device::open_over(file, Arc::new(backing)).unwrap();
    device.write_at(&[1].repeat(whole.len()), 0).unwrap();
    for cluster in [0, 1] {
        assert_byte(&device, cluster, 1);
        assert!(device.known_place(cluster * CLUSTER, CLUSTER).is_some());
    }
    assert!(device.known_place(100, CLUSTER).is_none(), "two clusters");
    device
}

#[track_caller]
fn assert_byte(device: &Qcow2Device, cluster: u64, byte: u8) {
    let mut found = [0; CLUSTER as usize];
    device.read_at(&mut found, cluster * CLUSTER).unwrap();
    assert!(found == [byte; CLUSTER as usize], "{}", found[0]);
}

#[test]
fn zeroed_and_discarded_clusters_are_unknown() {
    let device = overlay();
    device.write_zeroes(0, CLUSTER).unwrap();
    device.discard(CLUSTER, CLUSTER).unwrap();
    for cluster in [0, 1] {
        assert!(device.known_place(cluster * CLUSTER, 1).is_none());
        assert_byte(&device, cluster, 0);
    }
    device.write_at(&[2; CLUSTER as usize], 0).unwrap();
    assert_byte(&device, 0, 2);
}

#[test]
fn released_clusters_are_unknown() {
    let mut device = overlay();
    device.make_empty().unwrap();
    for cluster in [0, 1] {
        assert!(device.known_place(cluster * CLUSTER, 1).is_none());
        assert_byte(&device, cluster, BACKING);
    }
}

#[cfg(feature = "compress")]
#[test]
fn compressed_cluster_takes_the_place_of_a_known_one() {
    let device = overlay();
    let mut packed = [0; CLUSTER as usize];
    let count = device
        .packer()
        .unwrap()
        .pack(&[3; CLUSTER as usize], &mut packed)
        .unwrap();
    let clusters = [PackedCluster {
        cluster: 1,
        bytes: 0..count,
    }];
    let mut appender = Appender::default();
    device
        .write_packed(&mut appender, &clusters, &packed)
        .unwrap();
    device.finish_packed(&mut appender).unwrap();
    assert!(device.known_place(CLUSTER, 1).is_none());
    assert_byte(&device, 1, 3);
    assert_byte(&device, 0, 1);
}
