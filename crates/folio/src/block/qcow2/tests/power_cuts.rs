//! Power cuts and kills at every write: of a change of all tables, and of an open device.

use crate::base::Timespec;
use crate::block::file::{DeviceFile, HostFile, ImageFile};
use crate::block::qcow2::Qcow2Device;
use crate::block::qcow2::layout::features::DIRTY;
use crate::block::qcow2::layout::raw_header::{INCOMPATIBLE_FIELD, SNAPSHOTS_FIELD};
use crate::block::qcow2::offline::change::TableChange;
use crate::block::qcow2::offline::check_image::discard_excess;
use crate::block::qcow2::offline::resize::shrink;
use crate::block::qcow2::{
    Repair, apply_snapshot, check_image, create_snapshot, delete_snapshot, list_snapshots,
};
use crate::block::wrappers::{RecordDevice, Recorded};
use crate::block::{CreateOptions, Device, MemoryDevice, OverlayDevice};
use std::ops::Range;
use std::sync::Arc;

const FILE_BYTES: u64 = 8 << 20;
const DISK_BYTES: usize = 1 << 20;

type Work = fn(&dyn ImageFile) -> crate::base::Result<()>;

fn write(device: &Arc<dyn Device>, value: u8, range: Range<usize>) {
    let image = Qcow2Device::open_on(device.clone()).unwrap();
    image
        .write_at(&vec![value; range.len()], range.start as u64)
        .unwrap();
    image.flush().unwrap();
}

pub(super) fn content(device: &Arc<dyn Device>) -> Vec<u8> {
    // Read-only, because an open for writing repairs a dirty image.
    let image =
        Qcow2Device::open_on(Arc::new(OverlayDevice::new(device.clone()).sealed())).unwrap();
    let mut bytes = vec![0; image.len_bytes() as usize];
    image.read_at(&mut bytes, 0).unwrap();
    bytes
}

pub(super) fn is_dirty(device: &dyn Device) -> bool {
    let mut features = [0; 8];
    device.read_at(&mut features, INCOMPATIBLE_FIELD).unwrap();
    u64::from_be_bytes(features) & DIRTY != 0
}

pub(super) fn copy_of(device: &dyn Device) -> Arc<dyn Device> {
    let copy = MemoryDevice::new(FILE_BYTES);
    let mut bytes = vec![0; FILE_BYTES as usize];
    device.read_at(&mut bytes, 0).unwrap();
    copy.write_at(&bytes, 0).unwrap();
    Arc::new(copy)
}

/// An image of 4 KiB clusters after `writes`, with a snapshot after each of the first
/// `snapshot_count`.
pub(super) fn prepared(writes: &[(u8, Range<usize>)], snapshot_count: usize) -> Arc<dyn Device> {
    let base: Arc<dyn Device> = Arc::new(MemoryDevice::new(FILE_BYTES));
    let options = CreateOptions {
        cluster_bytes: 4096,
        ..CreateOptions::default()
    };
    drop(Qcow2Device::create_on(base.clone(), DISK_BYTES as u64, &options).unwrap());
    for (index, (value, range)) in writes.iter().enumerate() {
        write(&base, *value, range.clone());
        if index < snapshot_count {
            let name = format!("s{index}");
            create_snapshot(&file(&base), &name, Timespec::new(1, 0)).unwrap();
        }
    }
    base
}

pub(super) fn file(device: &Arc<dyn Device>) -> DeviceFile {
    DeviceFile::open(device.clone())
}

pub(super) fn snapshot_count(device: &Arc<dyn Device>) -> usize {
    list_snapshots(&file(device)).unwrap().len()
}

/// Cuts the power at every write of `work`: the disk is as before or as after, and a repair leaves
/// a clean image.
fn cut_everywhere(name: &str, writes: &[(u8, Range<usize>)], snapshots: usize, work: Work) {
    let base = prepared(writes, snapshots);
    let start = copy_of(&*base);
    let record = Arc::new(RecordDevice::new(copy_of(&*base)));
    work(&DeviceFile::open(record.clone())).unwrap();
    let end: Arc<dyn Device> = record.clone();
    let contents = [content(&start), content(&end)];
    let counts = [snapshot_count(&start), snapshot_count(&end)];
    let steps = record.recorded();
    assert!(steps.len() > 5, "{name}");
    for cut in 0..=steps.len() {
        let name = format!("{name}: cut at {cut}");
        let device = after_cut(&start, &steps[..cut]);
        let now = content(&device);
        assert!(contents.contains(&now), "{name}");
        check_cut(&name, &device, &counts);
        assert!(
            content(&device) == now,
            "{name}: the repair changed the disk"
        );
        let device = after_cut(&start, &steps[..cut]);
        check_write_after_cut(&name, &device, now.len());
    }
}

/// The device that a power cut after `steps` leaves.
pub(super) fn after_cut(start: &Arc<dyn Device>, steps: &[Recorded]) -> Arc<dyn Device> {
    let device = copy_of(&**start);
    steps
        .iter()
        .try_for_each(|step| step.replay(&*device))
        .unwrap();
    device
}

/// The image has only leaks, its snapshots are listed, and a repair leaves it clean.
pub(super) fn check_cut(name: &str, device: &Arc<dyn Device>, counts: &[usize]) {
    let found = check_image(&file(device), Repair::Nothing, &mut |finding| {
        // In a dirty image, flags may disagree with their refcounts as well.
        let text = finding.to_string();
        assert!(
            text.starts_with("Leaked") || (text.contains("OFLAG_COPIED") && is_dirty(&**device)),
            "{name}: {text}"
        );
    });
    assert_eq!(found.unwrap().check_errors, 0);
    assert!(counts.contains(&snapshot_count(device)), "{name}");
    let left = check_image(&file(device), Repair::All, &mut |_| {}).unwrap();
    assert_eq!((left.leaks, left.corruptions), (0, 0), "{name}");
}

/// A write without a repair before it does not reach the snapshots.
fn check_write_after_cut(name: &str, device: &Arc<dyn Device>, disk_bytes: usize) {
    write(device, 0xee, 0..DISK_BYTES.min(disk_bytes));
    let listed = list_snapshots(&file(device)).unwrap();
    check_image(&file(device), Repair::All, &mut |_| {}).unwrap();
    for snapshot in listed {
        apply_snapshot(&file(device), &snapshot.id).unwrap();
        assert!(
            !content(device).starts_with(&[0xee; 64]),
            "{name}: a snapshot was written"
        );
    }
}

const WRITES: [(u8, Range<usize>); 3] =
    [(1, 0..700_000), (2, 4096..300_000), (3, 200_000..1_000_000)];

#[test]
fn snapshot_create_survives_power_cuts() {
    let work: Work = |file| create_snapshot(file, "new", Timespec::new(1, 0));
    cut_everywhere("first", &WRITES, 0, work);
    cut_everywhere("third", &WRITES, 2, work);
}

#[test]
fn snapshot_apply_survives_power_cuts() {
    cut_everywhere("apply", &WRITES, 2, |file| apply_snapshot(file, "s0"));
    cut_everywhere("apply the same", &WRITES, 3, |file| {
        apply_snapshot(file, "s2")
    });
}

#[test]
fn snapshot_delete_survives_power_cuts() {
    cut_everywhere("delete", &WRITES, 2, |file| delete_snapshot(file, "s1"));
    cut_everywhere("delete the last", &WRITES, 1, |file| {
        delete_snapshot(file, "s0")
    });
}

#[test]
fn shrink_survives_power_cuts() {
    // Within a cluster with data, which is the disk's alone.
    cut_everywhere("within a cluster", &WRITES, 0, |file| shrink(file, 500_001));
    cut_everywhere("with a snapshot", &WRITES, 1, |file| shrink(file, 250_000));
}

#[test]
fn new_refcount_tree_keeps_tables_not_yet_named() {
    let base: Arc<dyn Device> = Arc::new(MemoryDevice::new(FILE_BYTES));
    let options = CreateOptions {
        cluster_bytes: 512,
        ..CreateOptions::default()
    };
    drop(Qcow2Device::create_on(base.clone(), 1 << 16, &options).unwrap());
    let image = file(&base);
    let mut change = TableChange::begin(&image).unwrap();
    let old_tree = change.roots().refcount_table;
    let mut tables = Vec::new();
    for number in 1..=u16::MAX {
        let bytes = number.to_be_bytes().repeat(64);
        tables.push((change.put_table(&bytes).unwrap(), bytes));
        if change.roots().refcount_table != old_tree {
            break;
        }
    }
    assert!(change.roots().refcount_table != old_tree);
    for (at, bytes) in tables {
        let mut now = vec![0; bytes.len()];
        base.read_at(&mut now, at).unwrap();
        assert!(now == bytes, "the table at {at} was overwritten");
    }
}

#[test]
fn discarded_snapshot_data_leaves_no_low_refcount() {
    /// Bytes of the extra data: more than QEMU allows.
    const EXTRA_BYTES: u32 = 2048;
    let start = prepared(&WRITES, 1);
    let mut at = [0; 8];
    start.read_at(&mut at, SNAPSHOTS_FIELD + 4).unwrap();
    let at = u64::from_be_bytes(at);
    let mut entry = vec![0; 40];
    start.read_at(&mut entry, at).unwrap();
    entry[36..].copy_from_slice(&EXTRA_BYTES.to_be_bytes());
    entry.resize(40 + EXTRA_BYTES as usize, 0);
    entry[48..56].copy_from_slice(&(DISK_BYTES as u64).to_be_bytes());
    entry.extend(b"1s0");
    start.write_at(&entry, at).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let mut bytes = vec![0; FILE_BYTES as usize];
    start.read_at(&mut bytes, 0).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let discarded = discard_excess(&HostFile::open(&path, false).unwrap(), &mut |_| {});
    assert_eq!(discarded.unwrap(), 1);
    // The power fails before the check corrects the refcounts.
    let bytes = std::fs::read(&path).unwrap();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(2 * FILE_BYTES));
    device.write_at(&bytes, 0).unwrap();
    assert_eq!(snapshot_count(&device), 1);
    let found = check_image(&file(&device), Repair::Nothing, &mut |_| {}).unwrap();
    assert!(found.corruptions == 0 || is_dirty(&*device));
    write(&device, 0xee, 0..DISK_BYTES);
    let found = check_image(&file(&device), Repair::Nothing, &mut |_| {}).unwrap();
    assert_eq!((found.corruptions, found.check_errors), (0, 0));
    assert_eq!(snapshot_count(&device), 1);
}

/// A program killed at any write leaves an image without leaks, once it is opened for writing and
/// closed again. Its data is that before or after the write.
#[test]
fn killed_writer_leaves_no_leaks_after_reopen() {
    let base = prepared(&WRITES, 1);
    let record = Arc::new(RecordDevice::new(copy_of(&*base)));
    let image = Qcow2Device::open_on(record.clone()).unwrap();
    for round in 0..6_u64 {
        image.write_at(&[9; 40_000], round * 150_000).unwrap();
        image.discard(round * 90_000, 30_000).unwrap();
        image.flush().unwrap();
    }
    drop(image);
    let steps = record.recorded();
    let mut leaks_before = 0;
    for cut in 0..=steps.len() {
        let device = after_cut(&base, &steps[..cut]);
        let before = check_image(&file(&device), Repair::Nothing, &mut |_| {}).unwrap();
        leaks_before += before.leaks;
        let now = content(&device);
        drop(Qcow2Device::open_on(device.clone()).unwrap());
        let left = check_image(&file(&device), Repair::Nothing, &mut |_| {}).unwrap();
        assert_eq!((left.leaks, left.corruptions), (0, 0), "cut at {cut}");
        assert!(
            !is_dirty(&*device) && content(&device) == now,
            "cut at {cut}"
        );
    }
    assert!(leaks_before > 0, "no cut leaks, so that nothing was tested");
    assert!(!is_dirty(&*record));
}
