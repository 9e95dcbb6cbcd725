//! The reservation of host space.

use crate::block::qcow2::Qcow2Device;
use crate::block::{CreateOptions, Device};
use std::os::unix::fs::MetadataExt;

#[test]
fn drop_releases_space_behind_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let device = Qcow2Device::create(&path, 1 << 30, &CreateOptions::default()).unwrap();
    for cluster in 0..100 {
        device.write_at(&[1; 10], cluster << 20).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let found = std::fs::metadata(&path).unwrap();
    assert!(
        found.blocks() * 512 <= found.len().next_multiple_of(1 << 16),
        "{found:?}"
    );
}
