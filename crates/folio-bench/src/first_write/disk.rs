//! The jobs on a model of a disk with seeks: what an image format adds to the moves of the head.

use super::job::Job;
use crate::outcome::Outcome;
use crate::report::{Row, Table, Unit};
use folio::block::partition::PartitionDevice;
use folio::block::qcow2::Qcow2Device;
use folio::block::{CreateOptions, Device, MemoryDevice};
use folio::testing::{DiskModel, SlowDevice};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A fresh qcow2 and a raw image, each alone on the disk, in modeled seconds.
pub(super) fn table(job: Job, size_mib: u64, tiny: bool) -> Outcome<Table> {
    let size_bytes = size_mib << 20;
    // Room for the format's own tables.
    let disk_bytes = size_bytes + (size_bytes >> 6) + (64 << 20);
    let disk = || {
        let memory = Arc::new(MemoryDevice::new(disk_bytes));
        Arc::new(SlowDevice::new(memory, DiskModel::default()))
    };
    let (raw_disk, qcow2_disk) = (disk(), disk());
    let raw = PartitionDevice::new(raw_disk.clone(), 0, size_bytes)?;
    let qcow2 = Qcow2Device::create_on(qcow2_disk.clone(), size_bytes, &CreateOptions::default())?;
    qcow2.flush()?;
    let title = format!(
        "{}: first write, modeled SATA disk (seconds of the model)",
        job.words()
    );
    let images: [(_, Arc<dyn Device>, _); 2] = [
        ("fresh qcow2, folio", Arc::new(qcow2), qcow2_disk),
        ("raw, folio", Arc::new(raw), raw_disk),
    ];
    let mut rows = Vec::new();
    for (name, image, disk) in images {
        let before_ns = disk.counters().busy_ns;
        job.write(&image, tiny)?;
        drop(image);
        let seconds = (disk.counters().busy_ns - before_ns) as f64 / 1e9;
        rows.push(Row::new(title.clone(), name, vec![seconds]));
    }
    Ok(Table::new(title, Unit::Seconds, Some("raw, folio"), rows))
}

/// Returns the writes of Folio's mkfs, as commands of qemu-io.
pub(super) fn mkfs_as_qemu_io(size_bytes: u64) -> Outcome<String> {
    let list = Arc::new(WriteList {
        len_bytes: size_bytes,
        lines: Mutex::default(),
    });
    Job::Mkfs.write(&(list.clone() as Arc<dyn Device>), false)?;
    Ok(std::mem::take(&mut list.lines.lock()))
}

/// A disk that records its requests and keeps no data.
struct WriteList {
    len_bytes: u64,
    lines: Mutex<String>,
}

impl WriteList {
    fn add(&self, line: &str) {
        let mut lines = self.lines.lock();
        lines.push_str(line);
        lines.push('\n');
    }
}

impl Device for WriteList {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], _offset: u64) -> folio::Result<()> {
        bufs.iter_mut().for_each(|buf| buf.fill(0));
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> folio::Result<()> {
        let len_bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.add(&format!("write -q -P 0 {offset} {len_bytes}"));
        Ok(())
    }

    fn flush(&self) -> folio::Result<()> {
        self.add("flush");
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> folio::Result<()> {
        self.add(&format!("write -q -P 0 {offset} {len_bytes}"));
        Ok(())
    }
}
