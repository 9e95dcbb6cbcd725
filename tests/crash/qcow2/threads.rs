//! Several writers on one disk, each in its own part; the borders are inside clusters.

use super::disk::{Recording, Snapshot, Start, WriterLog, discarded};
use super::source::Source;
use crate::crash::content::{ContentModel, Effect, Step, fill};
use crate::crash::random::Random;
use folio::block::Device;
use folio::block::qcow2::Qcow2Device;
use std::ops::Range;
use std::sync::Arc;

/// A writer on its part of the disk.
struct Writer<'a> {
    device: &'a Qcow2Device,
    /// Offset of the part on the disk.
    start: u64,
    index: usize,
    log: WriterLog,
}

impl<'a> Writer<'a> {
    /// Returns the writer of a part that contains `bytes`.
    fn new(device: &'a Qcow2Device, index: usize, start: usize, bytes: &[u8]) -> Self {
        let mut content = ContentModel::new(index);
        content.change(0, Effect::Truncate(bytes.len() as u64));
        content.change(0, Effect::Restore(Arc::new(bytes.to_vec())));
        content.promise(0, 0);
        Self {
            device,
            start: start as u64,
            index,
            log: WriterLog {
                content,
                starts: vec![0],
            },
        }
    }

    /// Makes one random operation in the part.
    fn operate(&mut self, step: Step, random: &mut Random, recorded: impl Fn() -> usize) {
        let len = self.log.content.now().len();
        let most = if random.percent(20) { 60_000 } else { 4000 };
        let at = random.below(len);
        let count = (1 + random.below(most)).min(len - at);
        let (offset, range) = (self.start + at as u64, at as u64..(at + count) as u64);
        let content = &mut self.log.content;
        match random.below(40) {
            0..4 => {
                self.device.flush().unwrap();
                content.promise(step, recorded());
            }
            4 => self.device.mark_closed().unwrap(),
            5..9 => {
                self.device.write_zeroes(offset, count as u64).unwrap();
                content.change(step, Effect::Zero(range));
            }
            9..11 => {
                let zero = Device::write_allocated_zeroes;
                zero(self.device, offset, count as u64).unwrap();
                content.change(step, Effect::Zero(range));
            }
            11..15 => {
                self.device.discard(offset, count as u64).unwrap();
                let mut found = vec![0xaa; count];
                self.device.read_at(&mut found, offset).unwrap();
                discarded(content, step, self.start, at as u64, &found);
            }
            15..18 => self.compare(range),
            _ => {
                let mut bytes = vec![0; count];
                fill(&mut bytes, self.index, step, at as u64);
                self.device.write_at(&bytes, offset).unwrap();
                content.change(step, Effect::Write(range));
            }
        }
    }

    /// Asserts that a range of the part reads as the model.
    fn compare(&self, range: Range<u64>) {
        let mut found = vec![0xaa; (range.end - range.start) as usize];
        self.device
            .read_at(&mut found, self.start + range.start)
            .unwrap();
        let want = &self.log.content.now()[range.start as usize..range.end as usize];
        assert!(found == want, "part {}, bytes {range:?}", self.index);
    }
}

/// Runs random operations on an image in `count` threads.
pub(crate) fn record(
    mut source: Source,
    count: usize,
    operations: usize,
    random: &mut Random,
) -> Recording {
    let start = Start::new(&source);
    let (before, _) = source.take_content();
    let snapshots = Snapshot::take_from(&mut source);
    let before = before.now();
    let own = (before.len() / count) | 1;
    let seeds: Vec<u64> = (0..count).map(|_| random.next()).collect();
    let work = |index: usize| {
        let from = index * own;
        let end = if index + 1 == count {
            before.len()
        } else {
            from + own
        };
        let mut writer = Writer::new(&start.device, index, from, &before[from..end]);
        let mut random = Random::new(seeds[index]);
        let recorded = || start.record.recorded_len() - start.creation_len;
        for step in 1..operations {
            writer.log.starts.push(recorded());
            writer.operate(step, &mut random, recorded);
        }
        writer.compare(0..(end - from) as u64);
        writer.log
    };
    let parts = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || work(index)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let Start {
        device,
        record,
        creation_len,
        before,
    } = start;
    drop(device);
    Recording {
        source,
        before,
        record: record.recorded().split_off(creation_len),
        parts,
        snapshots,
    }
}
