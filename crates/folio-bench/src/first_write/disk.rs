//! The jobs on a model of a disk with seeks: what an image format adds to the moves of the head.

use super::job::{Job, ZeroesWritten};
use crate::measure::Cost;
use crate::report::{Row, Table};
use folio::block::{
    CreateOptions, Device, DiskModel, MemoryDevice, Qcow2Device, RecordDevice, Recorded, SlowDevice,
};
use folio::kernel::{FormatOptions, format_ext4};
use std::fmt::Write;
use std::sync::Arc;

/// A fresh qcow2 and a raw image, each alone on the disk, in modelled seconds.
pub(super) fn table(job: Job, size_mib: u64, tiny: bool) -> Result<Table, String> {
    let told = |error: folio::Error| error.to_string();
    let size_bytes = size_mib << 20;
    // Room for the format's own tables.
    let disk = || {
        let memory = Arc::new(MemoryDevice::new(size_bytes + (size_bytes >> 6) + (64 << 20)));
        Arc::new(SlowDevice::new(memory, DiskModel::default()))
    };
    let cost = |disk: &SlowDevice, before_ns: u64| Cost {
        seconds: (disk.counters().busy_ns - before_ns) as f64 / 1e9,
        ..Cost::default()
    };
    let raw_disk = disk();
    let raw: Arc<dyn Device> = raw_disk.clone();
    let raw = folio::block::PartitionDevice::new(raw, 0, size_bytes).map_err(told)?;
    job.write(&(Arc::new(raw) as Arc<dyn Device>), tiny).map_err(told)?;
    let raw_cost = cost(&raw_disk, 0);

    let qcow2_disk = disk();
    let image =
        Qcow2Device::create_on(qcow2_disk.clone(), size_bytes, &CreateOptions::default()).map_err(told)?;
    image.flush().map_err(told)?;
    let before_ns = qcow2_disk.counters().busy_ns;
    let image: Arc<dyn Device> = Arc::new(image);
    job.write(&image, tiny).map_err(told)?;
    drop(image);
    let qcow2_cost = cost(&qcow2_disk, before_ns);

    Ok(Table {
        title: format!("{}: first write, modelled SATA disk (seconds of the model)", job.words()),
        rival: "raw, folio".to_owned(),
        rows: vec![
            Row::new("fresh qcow2, folio", &[qcow2_cost], Some(raw_cost.seconds)),
            Row::new("raw, folio", &[raw_cost], Some(raw_cost.seconds)),
        ],
    })
}

/// What Folio's mkfs writes, as commands of qemu-io.
pub(super) fn mkfs_as_qemu_io(size_bytes: u64) -> Result<String, String> {
    let told = |error: folio::Error| error.to_string();
    let recorder = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(size_bytes))));
    let options = FormatOptions { inode_ratio: Some(4096), ..FormatOptions::default() };
    format_ext4(&ZeroesWritten(recorder.clone()), &options).map_err(told)?;
    let mut list = String::new();
    for event in recorder.recorded() {
        let line = match event {
            Recorded::Write { offset, bytes } => writeln!(list, "write -q -P 0 {offset} {}", bytes.len()),
            Recorded::Flush => writeln!(list, "flush"),
            _ => Ok(()),
        };
        line.map_err(|error| error.to_string())?;
    }
    list.push_str("flush\n");
    Ok(list)
}
