//! An ext4 in a qcow2 file after power cuts of the file's writes: QEMU finds leaks at most, the
//! journal is replayed, and what was synced is there.

use super::judge::{has_dirty_bit, qemu_check};
use crate::crash::judge::dump;
use crate::support::requires;
use folio::Image;
use folio::block::qcow2::Qcow2Device;
use folio::block::{CreateOptions, MemoryDevice};
use folio::testing::PowerCutDisk;
use std::sync::Arc;
use tempfile::TempDir;

const DISK_BYTES: u64 = 32 << 20;
const FILES: usize = 12;
const CUTS: usize = 36;

/// Returns a qcow2 file with an empty ext4, and where the file ends.
fn formatted(cluster_bytes: u32) -> (MemoryDevice, u64) {
    let file = Arc::new(MemoryDevice::new(3 * DISK_BYTES));
    let options = CreateOptions {
        cluster_bytes,
        ..CreateOptions::default()
    };
    let disk = Qcow2Device::create_on(file.clone(), DISK_BYTES, &options).unwrap();
    let disk = Arc::new(disk);
    Image::create_on(disk.clone())
        .mount()
        .unwrap()
        .close()
        .unwrap();
    (file.snapshot(), disk.file_bytes().unwrap())
}

/// Writes files, syncs each one, and removes every second one; returns the moment of each sync.
fn record(disk: &PowerCutDisk, file_bytes: u64) -> Vec<usize> {
    let device = Qcow2Device::open_growing(disk.device(), file_bytes).unwrap();
    let fs = Image::device(Arc::new(device)).mount().unwrap();
    let write = |number: usize| {
        let name = format!("/{number}");
        fs.write(&name, vec![number as u8 + 1; 150_000]).unwrap();
        let file = fs.open_options().write(true).open(&name).unwrap();
        file.sync_all().unwrap();
        if number % 2 == 1 {
            fs.remove_file(format!("/{}", number - 1)).unwrap();
        }
        disk.now()
    };
    let synced = (0..FILES).map(write).collect();
    fs.close().unwrap();
    synced
}

fn check(cluster_bytes: u32) {
    let (before, file_bytes) = formatted(cluster_bytes);
    let disk = PowerCutDisk::from_content(before);
    let synced = record(&disk, file_bytes);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    for number in 0..CUTS {
        let moment = number * disk.now() / (CUTS - 1);
        let Some(cut) = disk.power_cuts_at(moment, 1, number as u64).pop() else {
            panic!("a state at {moment}");
        };
        let device = cut.device();
        dump(&*device, &path);
        // As QEMU does when it opens an image with the dirty bit.
        let repair: &[&str] = if has_dirty_bit(&*device) {
            &["-r", "all"]
        } else {
            &[]
        };
        let checked = qemu_check(&path, repair).and_then(|()| qemu_check(&path, &[]));
        checked.unwrap_or_else(|found| panic!("{cut}: {found}"));
        dump(&*device, &path);
        let fs = Image::file(&path).mount().unwrap();
        let count = synced.partition_point(|synced| *synced <= moment);
        for number in (0..count).filter(|number| number % 2 == 1 || number + 1 == count) {
            // The next file's commit may have removed it.
            let Ok(found) = fs.read(format!("/{number}")) else {
                assert!(number % 2 == 0, "{cut}: file {number} is lost");
                continue;
            };
            assert!(
                found == vec![number as u8 + 1; 150_000],
                "{cut}: file {number}"
            );
        }
        fs.close().unwrap();
        qemu_check(&path, &[]).unwrap_or_else(|found| panic!("{cut}, mounted: {found}"));
    }
}

#[test]
fn ext4_on_qcow2_survives_torn_tables() {
    requires!(tool("qemu-img"));
    check(64 << 10);
    check(4 << 10);
}
