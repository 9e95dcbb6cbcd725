//! A qcow2 image on a recording device, and a log of all operations on its disk.

use super::source::{Origin, Source};
use crate::crash::content::{ContentModel, Effect, Step, fill};
use crate::crash::cut::Replay;
use crate::crash::program::copy_of;
use crate::crash::random::Random;
use folio::base::Timespec;
use folio::block::qcow2::Qcow2Device;
use folio::block::tools::{apply_snapshot_on, create_snapshot_on, delete_snapshot_on};
use folio::block::{Device, MemoryDevice};
use folio::testing::{RecordDevice, Recorded};
use std::sync::Arc;

/// Unit of atomic writes, in bytes.
const SECTOR: usize = 512;

/// An internal snapshot. Positions are lengths of the record.
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Position from which on the snapshot must exist.
    pub(crate) created: usize,
    /// Position from which on the snapshot may be deleted.
    pub(crate) deleted: Option<usize>,
}

impl Snapshot {
    /// Takes the snapshots that an image has at the start.
    pub(crate) fn take_from(source: &mut Source) -> Vec<Self> {
        std::mem::take(&mut source.snapshots)
            .into_iter()
            .map(|(name, bytes)| Self {
                name,
                bytes: Arc::new(bytes),
                created: 0,
                deleted: None,
            })
            .collect()
    }

    /// Returns whether the snapshot must exist after a cut at `recorded` entries.
    pub(crate) fn is_due(&self, recorded: usize) -> bool {
        self.created <= recorded && self.deleted.is_none_or(|position| recorded <= position)
    }
}

/// Maximum number of snapshots at a time.
const SNAPSHOTS_MAX: usize = 3;

/// A disk with a recorded workload.
pub(crate) struct Disk {
    device: Option<Qcow2Device>,
    record: Arc<RecordDevice>,
    /// Entries of the record that created the image.
    creation_len: usize,
    before: Arc<MemoryDevice>,
    source: Source,
    content: ContentModel,
    snapshots: Vec<Snapshot>,
    /// Length of the record at the start of each step.
    starts: Vec<usize>,
}

/// A recorded workload, the input of the cuts.
pub(crate) struct Recording {
    pub(crate) source: Source,
    /// The file before the first write.
    pub(crate) before: Arc<MemoryDevice>,
    pub(crate) record: Vec<Recorded>,
    /// The log of each writer, in the order of their parts of the disk.
    pub(crate) parts: Vec<WriterLog>,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// The log of a writer on the disk or on a part of it.
pub(crate) struct WriterLog {
    pub(crate) content: ContentModel,
    /// Length of the record at the start of each step.
    pub(crate) starts: Vec<usize>,
}

impl WriterLog {
    /// Returns the last operation that may have written one of the first `recorded` entries.
    pub(crate) fn begun(&self, recorded: usize) -> Step {
        self.starts
            .partition_point(|start| *start < recorded)
            .saturating_sub(1)
    }
}

/// Rates of operations per 1000; the rest are writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadShape {
    pub(crate) operations: usize,
    pub(crate) write_bytes_max: usize,
    pub(crate) flush_permille: usize,
    pub(crate) zero_permille: usize,
    pub(crate) discard_permille: usize,
    pub(crate) reopen_permille: usize,
    pub(crate) snapshot_permille: usize,
}

impl Default for WorkloadShape {
    fn default() -> Self {
        Self {
            operations: 300,
            write_bytes_max: 40_000,
            flush_permille: 80,
            zero_permille: 120,
            discard_permille: 120,
            reopen_permille: 10,
            snapshot_permille: 0,
        }
    }
}

/// An open image whose later writes are recorded.
pub(crate) struct Start {
    pub(crate) device: Qcow2Device,
    pub(crate) record: Arc<RecordDevice>,
    /// Entries of the record that created the image.
    pub(crate) creation_len: usize,
    /// The file before the first write.
    pub(crate) before: Arc<MemoryDevice>,
}

impl Start {
    /// Opens or creates the image.
    pub(crate) fn new(source: &Source) -> Self {
        let before = copy_of(&*source.image);
        let record = Arc::new(RecordDevice::new(source.image.clone()));
        let device = match source.origin {
            Origin::New {
                len_bytes,
                ref options,
            } => Qcow2Device::create_on(record.clone(), len_bytes, options).unwrap(),
            Origin::Image => source.open(record.clone()).unwrap(),
        };
        device.flush().unwrap();
        let creation_len = record.recorded_len();
        let before = Replay::new(&before, &record.recorded()).upto(creation_len);
        Self {
            device,
            record,
            creation_len,
            before,
        }
    }
}

/// Records a discard of the part of the disk that starts at `part_start`, after which `found` was
/// read at `offset` of the part: each sector of the disk as before, or zeros.
pub(crate) fn discarded(
    content: &mut ContentModel,
    step: Step,
    part_start: u64,
    offset: u64,
    found: &[u8],
) {
    let mut at = 0;
    while at < found.len() {
        let start = offset as usize + at;
        let in_sector = (part_start as usize + start) % SECTOR;
        let count = (SECTOR - in_sector).min(found.len() - at);
        if found[at..at + count] != content.now()[start..start + count] {
            assert!(
                found[at..at + count].iter().all(|byte| *byte == 0),
                "discarded, at {start}"
            );
            content.change(step, Effect::Zero(start as u64..(start + count) as u64));
        }
        at += count;
    }
}

impl Disk {
    /// Opens or creates the image; records all later writes.
    pub(crate) fn new(mut source: Source) -> Self {
        let Start {
            device,
            record,
            creation_len,
            before,
        } = Start::new(&source);
        let (content, made) = source.take_content();
        let snapshots = Snapshot::take_from(&mut source);
        let mut disk = Self {
            device: Some(device),
            record,
            creation_len,
            before,
            source,
            content,
            snapshots,
            starts: vec![0; made + 1],
        };
        disk.content.promise(made, 0);
        disk
    }

    /// Returns the device, which is open between operations.
    fn device(&self) -> &Qcow2Device {
        self.device.as_ref().expect("open")
    }

    fn recorded(&self) -> usize {
        self.record.recorded_len() - self.creation_len
    }

    fn begin(&mut self) -> Step {
        self.starts.push(self.recorded());
        self.starts.len() - 1
    }

    /// Writes pattern bytes.
    pub(crate) fn write(&mut self, offset: u64, len_bytes: usize) {
        let step = self.begin();
        let mut bytes = vec![0; len_bytes];
        fill(&mut bytes, 0, step, offset);
        self.device().write_at(&bytes, offset).unwrap();
        self.content
            .change(step, Effect::Write(offset..offset + len_bytes as u64));
    }

    /// Zeroes a range.
    pub(crate) fn zero(&mut self, offset: u64, len_bytes: u64) {
        let step = self.begin();
        self.device().write_zeroes(offset, len_bytes).unwrap();
        self.content
            .change(step, Effect::Zero(offset..offset + len_bytes));
    }

    /// Discards a range; its sectors then read as before, or as zeros.
    pub(crate) fn discard(&mut self, offset: u64, len_bytes: u64) {
        let step = self.begin();
        let device = self.device.as_ref().expect("open");
        device.discard(offset, len_bytes).unwrap();
        let mut found = vec![0xaa; len_bytes as usize];
        device.read_at(&mut found, offset).unwrap();
        discarded(&mut self.content, step, 0, offset, &found);
    }

    /// A flush that returned: what is there now has to stay.
    pub(crate) fn flush(&mut self) {
        let step = self.begin();
        self.device().flush().unwrap();
        self.content.promise(step, self.recorded());
    }

    /// Closes the image and opens it again: caches are empty, and space is searched for from the
    /// start.
    pub(crate) fn reopen(&mut self) {
        self.begin();
        drop(self.device.take());
        self.device = Some(self.source.open(self.record.clone()).unwrap());
        self.compare();
    }

    /// Closes the image, creates, applies or deletes a snapshot, and opens the image again. The
    /// change is durable afterwards.
    pub(crate) fn snapshot(&mut self, random: &mut Random) {
        self.begin();
        drop(self.device.take());
        let step = self.begin();
        let alive: Vec<usize> = (0..self.snapshots.len())
            .filter(|index| self.snapshots[*index].deleted.is_none())
            .collect();
        let choice = if alive.is_empty() { 0 } else { random.below(3) };
        let position = self.recorded();
        match choice {
            0 if alive.len() < SNAPSHOTS_MAX => {
                let (name, bytes) = (format!("s{step}"), Arc::new(self.content.now().to_vec()));
                create_snapshot_on(self.record.clone(), &name, Timespec::new(1, 0)).unwrap();
                self.snapshots.push(Snapshot {
                    name,
                    bytes,
                    created: self.recorded(),
                    deleted: None,
                });
            }
            1 => {
                let chosen = &self.snapshots[random.pick(&alive)];
                apply_snapshot_on(self.record.clone(), &chosen.name).unwrap();
                let bytes = chosen.bytes.clone();
                self.content.change(step, Effect::Restore(bytes));
            }
            _ => {
                let chosen = &mut self.snapshots[random.pick(&alive)];
                chosen.deleted = Some(position);
                delete_snapshot_on(self.record.clone(), &chosen.name).unwrap();
            }
        }
        self.content.promise(step, self.recorded());
        self.device = Some(self.source.open(self.record.clone()).unwrap());
        self.compare();
    }

    /// Asserts that the disk equals the model.
    fn compare(&self) {
        let mut found = vec![0xaa; self.content.now().len()];
        assert_eq!(self.device().len_bytes(), found.len() as u64);
        self.device().read_at(&mut found, 0).unwrap();
        if let Some(at) = (0..found.len()).find(|at| found[*at] != self.content.now()[*at]) {
            panic!("without a cut the disk differs from the model at {at}");
        }
    }

    /// Random operations.
    pub(crate) fn mix(&mut self, random: &mut Random, shape: WorkloadShape) {
        let len = self.content.now().len();
        for _ in 0..shape.operations {
            let most = if random.percent(20) {
                shape.write_bytes_max
            } else {
                shape.write_bytes_max / 8
            };
            let count = (1 + random.below(most)).min(len);
            // Half of the operations are in the first eighth of the disk, so that they overlap.
            let places = if random.percent(50) { len / 8 } else { len };
            let offset = random.below(places).min(len - count);
            let (offset, count) = match random.below(3) {
                0 => (offset & !4095, count.next_multiple_of(4096)),
                1 => (offset & !511, count.next_multiple_of(512)),
                _ => (offset, count),
            };
            let count = count.min(len - offset);
            let mut number = random.below(1000);
            let mut is = |permille: usize| {
                let is = number < permille;
                number = number.wrapping_sub(permille);
                is
            };
            if is(shape.flush_permille) {
                self.flush();
            } else if is(shape.zero_permille) {
                self.zero(offset as u64, count as u64);
            } else if is(shape.discard_permille) {
                self.discard(offset as u64, count as u64);
            } else if is(shape.reopen_permille) {
                self.reopen();
            } else if is(shape.snapshot_permille) {
                self.snapshot(random);
            } else {
                self.write(offset as u64, count);
            }
        }
    }

    /// Closes the image.
    pub(crate) fn end(mut self) -> Recording {
        self.compare();
        self.begin();
        drop(self.device.take());
        let record = self.record.recorded().split_off(self.creation_len);
        let Self {
            source,
            before,
            content,
            snapshots,
            starts,
            ..
        } = self;
        Recording {
            source,
            before,
            record,
            parts: vec![WriterLog { content, starts }],
            snapshots,
        }
    }
}
