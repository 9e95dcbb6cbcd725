//! The use of an image: reads, checks and repairs it, writes to it, creates snapshots, opens it
//! again. Errors are allowed.

use super::base::BaseImage;
use folio::base::Timespec;
use folio::block::qcow2::{Finding, Repair};
use folio::block::tools::{apply_snapshot_on, check_on, create_snapshot_on, delete_snapshot_on};
use folio::block::{Device, OverlayDevice};
use std::sync::Arc;

/// Bytes read from the start of the disk.
const LOOK_BYTES: u64 = 128 << 10;
/// Allocation queries in one walk, at most: a disk may claim to be huge.
const RUNS_MAX: usize = 300;

/// Opens the image on `device` and reads it; then opens it for writing and changes it, with and
/// without a repair. An error of the open must name the format.
pub(super) fn image(base: &BaseImage, device: &Arc<dyn Device>) {
    let sealed: Arc<dyn Device> = Arc::new(OverlayDevice::new(device.clone()).sealed());
    match base.open(sealed) {
        Err(error) => assert!(
            error.to_string().contains("qcow2"),
            "no structure named: {error}"
        ),
        Ok(disk) => read_parts(&disk),
    }
    for repair in [Repair::Nothing, Repair::Leaks, Repair::All] {
        let layer: Arc<dyn Device> = Arc::new(OverlayDevice::new(device.clone()));
        let checked = check_on(layer.clone(), repair, &mut |_| {});
        for round in 1..3 {
            let Ok(disk) = base.open(layer.clone()) else {
                break;
            };
            change(&disk, round);
            read_parts(&disk);
        }
        let date = Timespec::new(1_700_000_000, 0);
        let _ = create_snapshot_on(layer.clone(), "made", date);
        let _ = apply_snapshot_on(layer.clone(), "1");
        let _ = delete_snapshot_on(layer.clone(), "1");
        if let Ok(disk) = base.open(layer.clone()) {
            change(&disk, 3);
        }
        let _ = apply_snapshot_on(layer.clone(), "made");
        // A sound or repaired image must stay sound.
        if checked.is_ok_and(|report| report.corruptions + report.check_errors == 0) {
            let mut findings = Vec::new();
            let after = check_on(layer, Repair::Nothing, &mut |finding| {
                // Of two guest clusters that shared a cluster, the last one owns it alone, but its
                // flag still says "shared".
                let is_flag = finding.to_string().contains("OFLAG_COPIED");
                if !is_flag && !matches!(finding, Finding::Leak(_)) {
                    findings.push(finding.to_string());
                }
            });
            assert!(
                after.is_ok() && findings.is_empty(),
                "{repair:?}: {after:?}: {findings:?}"
            );
        }
    }
}

/// Reads the disk's start and end, and its allocation map.
fn read_parts(disk: &dyn Device) {
    let len = disk.len_bytes();
    let mut buf = vec![0; 16 << 10];
    let starts = (0..len.min(LOOK_BYTES)).step_by(buf.len());
    for at in starts.chain([len / 2, len.saturating_sub(5000)]) {
        let count = (buf.len() as u64).min(len - at) as usize;
        let _ = disk.read_at(&mut buf[..count], at);
    }
    let mut at = 0;
    for _ in 0..RUNS_MAX {
        match disk.allocation(at, len - at) {
            Ok((_, count)) if at < len => {
                assert!(count > 0 && count <= len - at, "{count} of {}", len - at);
                at += count;
            }
            _ => break,
        }
    }
}

fn change(disk: &dyn Device, round: u8) {
    let len = disk.len_bytes();
    let places = [0, 3000, 30_000, 70_000, len / 2, len.saturating_sub(3000)];
    for at in places.into_iter().filter(|at| *at < len) {
        let count = 3000.min(len - at);
        let _ = disk.write_at(&vec![round; count as usize], at);
        let _ = disk.write_zeroes(at / 2, count.min(2000));
    }
    let _ = disk.discard(10_000.min(len), 20_000.min(len - 10_000.min(len)));
    let _ = disk.flush();
    let _ = disk.write_zeroes(0, len.min(40_000));
    let _ = disk.write_at(&[round; 512], 4096.min(len.saturating_sub(512)));
    let _ = disk.flush();
}
