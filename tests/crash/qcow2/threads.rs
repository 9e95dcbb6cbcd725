//! Several writers on one disk, each in a part of its own; the borders lie inside clusters.

use super::disk::{Part, Past};
use super::source::{Origin, Source};
use crate::crash::content::{Content, Effect, fill};
use crate::crash::cut::Replay;
use crate::crash::random::Random;
use crate::crash::world::copy_of;
use folio::block::{Device, Qcow2Device, RecordDevice};
use std::sync::Arc;

/// Makes a new image and lets `count` threads do random operations on it.
pub(crate) fn record(source: Source, count: usize, operations: usize, random: &mut Random) -> Past {
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
    let born = record.recorded_len();
    let before = Replay::new(&before, &record.recorded()).upto(born);
    let own = (len_bytes as usize / count) | 1;
    let seeds: Vec<u64> = (0..count).map(|_| random.next()).collect();
    let work = |index: usize| {
        let start = index * own;
        let len = if index + 1 == count {
            len_bytes as usize - start
        } else {
            own
        };
        let recorded = || record.recorded_len() - born;
        let mut random = Random::new(seeds[index]);
        let mut part = Part {
            content: Content::new(index),
            starts: vec![0],
        };
        part.content.change(0, Effect::Truncate(len as u64));
        part.content.promise(0, 0);
        for step in 1..operations {
            part.starts.push(recorded());
            let most = if random.percent(20) { 60_000 } else { 4000 };
            let at = random.below(len);
            let count = (1 + random.below(most)).min(len - at);
            let (place, range) = ((start + at) as u64, at as u64..(at + count) as u64);
            match random.below(10) {
                0 => {
                    device.flush().unwrap();
                    part.content.promise(step, recorded());
                }
                1 => {
                    device.write_zeroes(place, count as u64).unwrap();
                    part.content.change(step, Effect::Zero(range));
                }
                _ => {
                    let mut bytes = vec![0; count];
                    fill(&mut bytes, index, step, at as u64);
                    device.write_at(&bytes, place).unwrap();
                    part.content.change(step, Effect::Write(range));
                }
            }
        }
        part
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
    let record = record.recorded().split_off(born);
    Past {
        source,
        before,
        record,
        parts,
        snapshots: Vec::new(),
    }
}
