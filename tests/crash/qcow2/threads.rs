//! Several writers on one disk, each in its own part; the borders are inside clusters.

use super::disk::{Recording, WriterLog};
use super::source::{Origin, Source};
use crate::crash::content::{ContentModel, Effect, Step, fill};
use crate::crash::cut::Replay;
use crate::crash::program::copy_of;
use crate::crash::random::Random;
use folio::block::Device;
use folio::block::qcow2::Qcow2Device;
use folio::testing::RecordDevice;
use std::sync::Arc;

/// A writer on its part of the disk.
struct Writer<'a> {
    device: &'a Qcow2Device,
    /// Offset of the part on the disk.
    start: u64,
    index: usize,
    log: WriterLog,
}

impl Writer<'_> {
    /// Makes one random operation in the part of `len` bytes.
    fn operate(
        &mut self,
        step: Step,
        len: usize,
        random: &mut Random,
        recorded: impl Fn() -> usize,
    ) {
        let most = if random.percent(20) { 60_000 } else { 4000 };
        let at = random.below(len);
        let count = (1 + random.below(most)).min(len - at);
        let (offset, range) = (self.start + at as u64, at as u64..(at + count) as u64);
        let content = &mut self.log.content;
        match random.below(10) {
            0 => {
                self.device.flush().unwrap();
                content.promise(step, recorded());
            }
            1 => {
                self.device.write_zeroes(offset, count as u64).unwrap();
                content.change(step, Effect::Zero(range));
            }
            _ => {
                let mut bytes = vec![0; count];
                fill(&mut bytes, self.index, step, at as u64);
                self.device.write_at(&bytes, offset).unwrap();
                content.change(step, Effect::Write(range));
            }
        }
    }
}

/// Creates a new image and runs random operations on it in `count` threads.
pub(crate) fn record(
    source: Source,
    count: usize,
    operations: usize,
    random: &mut Random,
) -> Recording {
    let Origin::New {
        len_bytes,
        ref options,
    } = source.origin
    else {
        panic!("only new images")
    };
    let before = copy_of(&*source.image);
    let record = Arc::new(RecordDevice::new(source.image.clone()));
    let device = Qcow2Device::create_on(record.clone(), len_bytes, options).unwrap();
    device.flush().unwrap();
    let creation_len = record.recorded_len();
    let before = Replay::new(&before, &record.recorded()).upto(creation_len);
    let own = (len_bytes as usize / count) | 1;
    let seeds: Vec<u64> = (0..count).map(|_| random.next()).collect();
    let work = |index: usize| {
        let start = index * own;
        let len = if index + 1 == count {
            len_bytes as usize - start
        } else {
            own
        };
        let mut writer = Writer {
            device: &device,
            start: start as u64,
            index,
            log: WriterLog {
                content: ContentModel::new(index),
                starts: vec![0],
            },
        };
        let content = &mut writer.log.content;
        content.change(0, Effect::Truncate(len as u64));
        content.promise(0, 0);
        let mut random = Random::new(seeds[index]);
        let recorded = || record.recorded_len() - creation_len;
        for step in 1..operations {
            writer.log.starts.push(recorded());
            writer.operate(step, len, &mut random, recorded);
        }
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
    drop(device);
    let record = record.recorded().split_off(creation_len);
    Recording {
        source,
        before,
        record,
        parts,
        snapshots: Vec::new(),
    }
}
