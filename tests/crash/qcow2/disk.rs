//! A qcow2 image on a recording device, and notes of all that was done to the disk in it.

use super::source::{Origin, Source};
use crate::crash::content::{Content, Effect, Step, fill};
use crate::crash::cut::Replay;
use crate::crash::random::Random;
use crate::crash::world::copy_of;
use folio::base::Timespec;
use folio::block::{
    Device, MemoryDevice, Qcow2Device, RecordDevice, Recorded, apply_snapshot_on,
    create_snapshot_on, delete_snapshot_on,
};
use std::sync::Arc;

/// Bytes that are there or not together.
const SECTOR: usize = 512;

/// An internal snapshot. Places are lengths of the record.
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) bytes: Arc<Vec<u8>>,
    /// From here on it is there.
    pub(crate) made: usize,
    /// From here on it may be gone.
    pub(crate) given_up: Option<usize>,
}

impl Snapshot {
    /// Whether it has to be there when the record had so many entries.
    pub(crate) fn is_due(&self, recorded: usize) -> bool {
        self.made <= recorded && self.given_up.is_none_or(|place| recorded <= place)
    }
}

/// Snapshots at a time.
const SNAPSHOTS_MAX: usize = 3;

/// A disk at work.
pub(crate) struct Disk {
    device: Option<Qcow2Device>,
    record: Arc<RecordDevice>,
    /// The record before this is the making of the image.
    born: usize,
    before: Arc<MemoryDevice>,
    source: Source,
    content: Content,
    snapshots: Vec<Snapshot>,
    /// How long the record was when each step began.
    starts: Vec<usize>,
}

/// What came of it: all that the cuts need.
pub(crate) struct Past {
    pub(crate) source: Source,
    /// The file before the first write.
    pub(crate) before: Arc<MemoryDevice>,
    pub(crate) record: Vec<Recorded>,
    /// Who worked on the disk, each in a part of it, one after the other.
    pub(crate) parts: Vec<Part>,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// Notes of one who works on the disk, or on a part of it.
pub(crate) struct Part {
    pub(crate) content: Content,
    /// How long the record was when each step began.
    pub(crate) starts: Vec<usize>,
}

impl Part {
    /// The last operation that may have left something in the first `recorded` entries of the
    /// record.
    pub(crate) fn begun(&self, recorded: usize) -> Step {
        self.starts
            .partition_point(|start| *start < recorded)
            .saturating_sub(1)
    }
}

/// What is done how often, in so many of a thousand operations; the rest are writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) operations: usize,
    pub(crate) write_bytes_max: usize,
    pub(crate) flush_permille: usize,
    pub(crate) zero_permille: usize,
    pub(crate) discard_permille: usize,
    pub(crate) reopen_permille: usize,
    pub(crate) snapshot_permille: usize,
}

impl Default for Shape {
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

impl Disk {
    /// Opens the image, or makes it; what happens from here on is recorded.
    pub(crate) fn new(mut source: Source) -> Self {
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
        let born = record.recorded_len();
        let made = record.recorded();
        let (before, content) = (
            Replay::new(&before, &made).upto(born),
            source.take_content(),
        );
        let starts = vec![0; content.1 + 1];
        let of_source = |(name, bytes)| Snapshot {
            name,
            bytes: Arc::new(bytes),
            made: 0,
            given_up: None,
        };
        let snapshots = std::mem::take(&mut source.snapshots)
            .into_iter()
            .map(of_source)
            .collect();
        let (device, (content, made)) = (Some(device), content);
        let mut disk = Self {
            device,
            record,
            born,
            before,
            source,
            content,
            snapshots,
            starts,
        };
        disk.content.promise(made, 0);
        disk
    }

    /// The device, which is open between operations.
    fn device(&self) -> &Qcow2Device {
        self.device.as_ref().expect("open")
    }

    fn recorded(&self) -> usize {
        self.record.recorded_len() - self.born
    }

    fn begin(&mut self) -> Step {
        self.starts.push(self.recorded());
        self.starts.len() - 1
    }

    /// Writes bytes that tell where they are from.
    pub(crate) fn write(&mut self, offset: u64, len_bytes: usize) {
        let step = self.begin();
        let mut bytes = vec![0; len_bytes];
        fill(&mut bytes, 0, step, offset);
        self.device().write_at(&bytes, offset).unwrap();
        self.content
            .change(step, Effect::Write(offset..offset + len_bytes as u64));
    }

    /// Makes a range zero.
    pub(crate) fn zero(&mut self, offset: u64, len_bytes: u64) {
        let step = self.begin();
        self.device().write_zeroes(offset, len_bytes).unwrap();
        self.content
            .change(step, Effect::Zero(offset..offset + len_bytes));
    }

    /// Gives a range up: sectors of it read as before, or as zeros.
    pub(crate) fn discard(&mut self, offset: u64, len_bytes: u64) {
        let step = self.begin();
        self.device().discard(offset, len_bytes).unwrap();
        let mut found = vec![0xaa; len_bytes as usize];
        self.device().read_at(&mut found, offset).unwrap();
        let mut at = 0;
        while at < found.len() {
            let start = offset as usize + at;
            let count = (SECTOR - start % SECTOR).min(found.len() - at);
            if found[at..at + count] != self.content.now()[start..start + count] {
                assert!(
                    found[at..at + count].iter().all(|byte| *byte == 0),
                    "discarded, at {start}"
                );
                self.content
                    .change(step, Effect::Zero(start as u64..(start + count) as u64));
            }
            at += count;
        }
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

    /// Closes the image, makes, applies or deletes a snapshot, and opens it again. All of that is
    /// durable at the end.
    pub(crate) fn snapshot(&mut self, random: &mut Random) {
        self.begin();
        drop(self.device.take());
        let step = self.begin();
        let alive: Vec<usize> = (0..self.snapshots.len())
            .filter(|index| self.snapshots[*index].given_up.is_none())
            .collect();
        let choice = if alive.is_empty() { 0 } else { random.below(3) };
        let place = self.recorded();
        match choice {
            0 if alive.len() < SNAPSHOTS_MAX => {
                let (name, bytes) = (format!("s{step}"), Arc::new(self.content.now().to_vec()));
                create_snapshot_on(self.record.clone(), &name, Timespec::new(1, 0)).unwrap();
                self.snapshots.push(Snapshot {
                    name,
                    bytes,
                    made: self.recorded(),
                    given_up: None,
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
                chosen.given_up = Some(place);
                delete_snapshot_on(self.record.clone(), &chosen.name).unwrap();
            }
        }
        self.content.promise(step, self.recorded());
        self.device = Some(self.source.open(self.record.clone()).unwrap());
        self.compare();
    }

    /// What is read is what was noted.
    fn compare(&self) {
        let mut found = vec![0xaa; self.content.now().len()];
        assert_eq!(self.device().len_bytes(), found.len() as u64);
        self.device().read_at(&mut found, 0).unwrap();
        if let Some(at) = (0..found.len()).find(|at| found[*at] != self.content.now()[*at]) {
            panic!("without any cut the disk reads wrong at {at}");
        }
    }

    /// Random operations.
    pub(crate) fn mix(&mut self, random: &mut Random, shape: Shape) {
        let len = self.content.now().len();
        for _ in 0..shape.operations {
            let most = if random.percent(20) {
                shape.write_bytes_max
            } else {
                shape.write_bytes_max / 8
            };
            let count = (1 + random.below(most)).min(len);
            // Half of all goes to the first part of the disk, so that things meet.
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
    pub(crate) fn end(mut self) -> Past {
        self.compare();
        self.begin();
        drop(self.device.take());
        let record = self.record.recorded().split_off(self.born);
        let Self {
            source,
            before,
            content,
            snapshots,
            starts,
            ..
        } = self;
        Past {
            source,
            before,
            record,
            parts: vec![Part { content, starts }],
            snapshots,
        }
    }
}
