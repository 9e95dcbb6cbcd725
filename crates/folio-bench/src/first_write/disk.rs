//! The jobs on a model of a disk with seeks: what an image format adds to the moves of the head.

use super::job::Job;
use crate::measure::Cost;
use crate::report::{Row, Table, Unit};
use folio::block::{
    Allocation, CreateOptions, Device, DiskModel, MemoryDevice, Qcow2Device, SlowDevice,
};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A fresh qcow2 and a raw image, each alone on the disk, in modeled seconds.
pub(super) fn table(job: Job, size_mib: u64, tiny: bool) -> Result<Table, String> {
    let to_text = |error: folio::Error| error.to_string();
    let size_bytes = size_mib << 20;
    // Room for the format's own tables.
    let disk = || {
        let memory = Arc::new(MemoryDevice::new(
            size_bytes + (size_bytes >> 6) + (64 << 20),
        ));
        Arc::new(SlowDevice::new(memory, DiskModel::default()))
    };
    let cost = |disk: &SlowDevice, before_ns: u64| Cost {
        seconds: (disk.counters().busy_ns - before_ns) as f64 / 1e9,
        ..Cost::default()
    };
    let raw_disk = disk();
    let raw: Arc<dyn Device> = raw_disk.clone();
    let raw = folio::block::PartitionDevice::new(raw, 0, size_bytes).map_err(to_text)?;
    job.write(&(Arc::new(raw) as Arc<dyn Device>), tiny)
        .map_err(to_text)?;
    let raw_cost = cost(&raw_disk, 0);

    let qcow2_disk = disk();
    let image = Qcow2Device::create_on(qcow2_disk.clone(), size_bytes, &CreateOptions::default())
        .map_err(to_text)?;
    image.flush().map_err(to_text)?;
    let before_ns = qcow2_disk.counters().busy_ns;
    let image: Arc<dyn Device> = Arc::new(image);
    job.write(&image, tiny).map_err(to_text)?;
    drop(image);
    let qcow2_cost = cost(&qcow2_disk, before_ns);

    let title = format!(
        "{}: first write, modeled SATA disk (seconds of the model)",
        job.words()
    );
    let rows = vec![
        Row::of_costs(&title, "fresh qcow2, folio", &[qcow2_cost]),
        Row::of_costs(&title, "raw, folio", &[raw_cost]),
    ];
    Ok(Table::new(title, Unit::Seconds, Some("raw, folio"), rows))
}

/// Returns the writes of Folio's mkfs, as commands of qemu-io.
pub(super) fn mkfs_as_qemu_io(size_bytes: u64) -> Result<String, String> {
    let list = Arc::new(WriteList {
        len_bytes: size_bytes,
        lines: Mutex::default(),
    });
    Job::Mkfs
        .write(&(list.clone() as Arc<dyn Device>), false)
        .map_err(|error| error.to_string())?;
    Ok(std::mem::take(
        &mut list.lines.lock().unwrap_or_else(PoisonError::into_inner),
    ))
}

/// A disk that records its requests and keeps no data.
struct WriteList {
    len_bytes: u64,
    lines: Mutex<String>,
}

impl WriteList {
    fn add(&self, line: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn discard(&self, _offset: u64, _len_bytes: u64) -> folio::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> folio::Result<()> {
        self.add(&format!("write -q -P 0 {offset} {len_bytes}"));
        Ok(())
    }

    fn allocation(&self, _offset: u64, len_bytes: u64) -> folio::Result<(Allocation, u64)> {
        Ok((Allocation::Data, len_bytes))
    }
}
