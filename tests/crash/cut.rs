//! The states in which a power cut may leave a device, from the record of its writes.
//!
//! ```text
//!   record:   W W F W W W F W W W | W W ...        F flush
//!                         ^       ^ the cut
//!             all of this survives | of this some: each sector holds one of its writes, or none
//! ```

use crate::crash::program::copy_of;
use crate::crash::random::Random;
use folio::block::{Device, MemoryDevice, OverlayDevice};
use folio::testing::Recorded;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The fate of the writes between the last flush and the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// All writes survive.
    Nothing,
    /// Each write survives with this probability in percent.
    Some(usize),
    /// One write is lost.
    One,
    /// All writes but one are lost.
    AllButOne,
    /// Each sector of this many bytes holds one of its writes, or none.
    Torn(usize),
}

/// One power cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Number of record entries before the cut.
    pub(crate) recorded: usize,
    pub(crate) loss: Loss,
    /// Seed of the choice of lost writes.
    pub(crate) seed: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "cut after entry {}, lost {:?}, cut seed {}",
            self.recorded, self.loss, self.seed
        )
    }
}

/// Rebuilds the device as of a position in the record; positions only grow.
pub(crate) struct Replay<'r> {
    record: &'r [Recorded],
    device: Arc<MemoryDevice>,
    done: usize,
}

/// The byte that a discarded range reads as, different from the old contents.
const DISCARDED: u8 = 0xdd;

fn apply(entry: &Recorded, onto: &dyn Device) {
    match entry {
        Recorded::Discard { offset, len_bytes } => {
            onto.write_at(&vec![DISCARDED; *len_bytes as usize], *offset)
                .unwrap();
        }
        other => other.replay(onto).unwrap(),
    }
}

impl<'r> Replay<'r> {
    /// Creates a replay at the start of the record.
    pub(crate) fn new(before: &MemoryDevice, record: &'r [Recorded]) -> Self {
        Self {
            record,
            device: copy_of(before),
            done: 0,
        }
    }

    fn advance(&mut self, to: usize) -> Arc<dyn Device> {
        assert!(self.done <= to, "positions only grow");
        self.record[self.done..to]
            .iter()
            .for_each(|entry| apply(entry, &*self.device));
        self.done = to;
        self.device.clone()
    }

    /// Returns the device as of a position in the record.
    pub(crate) fn upto(mut self, to: usize) -> Arc<MemoryDevice> {
        self.advance(to);
        self.device
    }

    /// Returns the device after a cut, with an overlay for later writes.
    pub(crate) fn device(&mut self, cut: Cut) -> Arc<dyn Device> {
        let flushed = match cut.loss {
            Loss::Nothing => cut.recorded,
            _ => last_flush(self.record, cut.recorded),
        };
        let device = Arc::new(OverlayDevice::new(self.advance(flushed)));
        let volatile: Vec<&Recorded> = self.record[flushed..cut.recorded]
            .iter()
            .filter(|entry| entry.range().is_some())
            .collect();
        let mut random = Random::new(cut.seed);
        if !volatile.is_empty() {
            match cut.loss {
                Loss::Nothing => {}
                Loss::Torn(sector) => tear(&volatile, &*device, sector as u64, &mut random),
                Loss::Some(percent) => {
                    let kept = volatile.iter().filter(|_| random.percent(percent));
                    kept.for_each(|entry| apply(entry, &*device));
                }
                Loss::One | Loss::AllButOne => {
                    let one = random.below(volatile.len());
                    let is_kept = |index: usize| (index == one) == (cut.loss == Loss::AllButOne);
                    let kept = volatile
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| is_kept(*index));
                    kept.for_each(|(_, entry)| apply(entry, &*device));
                }
            }
        }
        device
    }
}

/// Returns the position after the last flush before `recorded`.
pub(crate) fn last_flush(record: &[Recorded], recorded: usize) -> usize {
    record[..recorded]
        .iter()
        .rposition(|entry| *entry == Recorded::Flush)
        .map_or(0, |at| at + 1)
}

/// Applies the writes of each sector up to a random one.
fn tear(volatile: &[&Recorded], device: &dyn Device, sector: u64, random: &mut Random) {
    let sectors = |entry: &Recorded| {
        let range = entry.range().unwrap_or_default();
        let (offset, len_bytes) = (range.start, range.end - range.start);
        offset / sector..(offset + len_bytes).div_ceil(sector)
    };
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for entry in volatile {
        sectors(entry).for_each(|number| *counts.entry(number).or_default() += 1);
    }
    // Sorted, so that the choice depends on the seed alone.
    let mut all: Vec<_> = counts.into_iter().collect();
    all.sort_unstable();
    let mut left: HashMap<u64, usize> = all
        .into_iter()
        .map(|(number, count)| (number, random.below(count + 1)))
        .collect();
    for entry in volatile {
        let range = entry.range().unwrap_or_default();
        let (offset, len_bytes) = (range.start, range.end - range.start);
        for number in sectors(entry) {
            let Some(count) = left.get_mut(&number).filter(|count| **count > 0) else {
                continue;
            };
            *count -= 1;
            let from = offset.max(number * sector);
            let to = (offset + len_bytes).min((number + 1) * sector);
            match entry {
                Recorded::Write { bytes, .. } => {
                    device
                        .write_at(
                            &bytes[(from - offset) as usize..(to - offset) as usize],
                            from,
                        )
                        .unwrap();
                }
                Recorded::WriteZeroes { .. } => device.write_zeroes(from, to - from).unwrap(),
                _ => device
                    .write_at(&vec![DISCARDED; (to - from) as usize], from)
                    .unwrap(),
            }
        }
    }
}

/// Returns `count` cuts of a record, each list in record order. Half of them lose nothing and are
/// spread evenly, after every write if possible; the other cuts are at random positions with
/// losses.
pub(crate) fn plan(record: &[Recorded], count: usize, random: &mut Random) -> (Vec<Cut>, Vec<Cut>) {
    let writes: Vec<usize> = (0..record.len())
        .filter(|at| record[*at].range().is_some())
        .collect();
    let in_order = (count / 2).min(writes.len() + 1);
    let start = random.below(writes.len().max(1));
    let mut plain: Vec<usize> = (0..in_order)
        .map(|n| (start + n * (writes.len() + 1) / in_order.max(1)) % (writes.len() + 1))
        .map(|n| writes.get(n).map_or(record.len(), |at| at + 1))
        .collect();
    plain.sort_unstable();
    plain.dedup();
    let plain: Vec<_> = plain
        .into_iter()
        .map(|recorded| Cut {
            recorded,
            loss: Loss::Nothing,
            seed: 0,
        })
        .collect();
    let mut lossy: Vec<Cut> = (0..count - plain.len())
        .map(|_| {
            let loss = match random.below(8) {
                0 => Loss::Some(50),
                1 => Loss::Some(90),
                2 => Loss::Some(10),
                3 => Loss::One,
                4 => Loss::AllButOne,
                5 => Loss::Torn(4096),
                _ => Loss::Torn(512),
            };
            // Half of the cuts are before a flush, where most writes can be lost.
            let mut recorded = 1 + random.below(record.len());
            if random.percent(50) {
                let flush = record[recorded..]
                    .iter()
                    .position(|entry| *entry == Recorded::Flush);
                recorded = flush.map_or(record.len(), |ahead| recorded + ahead);
            }
            Cut {
                recorded,
                loss,
                seed: random.next(),
            }
        })
        .collect();
    lossy.sort_by_key(|cut| cut.recorded);
    (plain, lossy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::testing::RecordDevice;

    fn record() -> (MemoryDevice, Vec<Recorded>) {
        let device = RecordDevice::new(Arc::new(MemoryDevice::new(1 << 16)));
        device.write_at(&[1; 4096], 0).unwrap();
        device.flush().unwrap();
        device.write_at(&[2; 4096], 0).unwrap();
        device.write_at(&[3; 1024], 512).unwrap();
        device.write_at(&[4; 512], 8192).unwrap();
        (MemoryDevice::new(1 << 16), device.recorded())
    }

    #[test]
    fn flushed_writes_survive_all_losses() {
        let (before, record) = record();
        let mut stops = [false; 4];
        for seed in 0..100 {
            for loss in [Loss::Torn(512), Loss::Some(50), Loss::One, Loss::AllButOne] {
                let device = Replay::new(&before, &record).device(Cut {
                    recorded: 5,
                    loss,
                    seed,
                });
                let mut bytes = [0; 8704];
                device.read_at(&mut bytes, 0).unwrap();
                assert!(
                    bytes[..512]
                        .iter()
                        .all(|byte| *byte == bytes[0] && (1..=2).contains(byte))
                );
                assert!((1..=3).contains(&bytes[512]) && [0, 4].contains(&bytes[8192]));
                stops[usize::from(bytes[512])] |= loss == Loss::Torn(512);
            }
        }
        assert_eq!(
            stops,
            [false, true, true, true],
            "each write of the sector must be the last one at least once"
        );
    }

    #[test]
    fn cut_without_loss_is_a_prefix() {
        let (before, record) = record();
        let mut replay = Replay::new(&before, &record);
        for (recorded, first, second) in [(0, 0, 0), (1, 1, 1), (3, 2, 2), (4, 2, 3), (5, 2, 3)] {
            let device = replay.device(Cut {
                recorded,
                loss: Loss::Nothing,
                seed: 0,
            });
            let mut bytes = [0; 1024];
            device.read_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes[0], bytes[512]), (first, second));
        }
    }

    #[test]
    fn plan_cuts_after_every_write() {
        let (_, record) = record();
        let (plain, lossy) = plan(&record, 40, &mut Random::new(1));
        assert_eq!(
            plain.iter().map(|cut| cut.recorded).collect::<Vec<_>>(),
            [1, 3, 4, 5]
        );
        assert_eq!(plain.len() + lossy.len(), 40);
        assert!(lossy.iter().all(|cut| (1..=5).contains(&cut.recorded)));
    }
}
