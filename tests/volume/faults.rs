//! Faults at every request of a workload: the volume stays the state of one flush, not older than
//! the last acknowledged one.
//!
//! A case is a workload, a request of it and a fault. Every case runs.

use crate::model::{FAULTS, Fault, ModelStore, each_case, now, place};
use crate::support::rounds;
use folio::block::{Allocation, Device};
use folio_volume::{Takeover, Volume, VolumeReader, check};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the volume.
const SIZE: u64 = 12 << 20;
const BLOCKS: usize = (SIZE / 4096) as usize;
/// The issue of volumes asks for this many.
const CASES_MIN: usize = 5000;

/// What a workload may do between two flushes.
#[derive(Debug, Clone, Copy)]
enum Workload {
    /// Flushes of a few blocks.
    Small,
    /// Flushes of several segments.
    Large,
    /// Small and large flushes, discards, overwrites of one place.
    Mixed,
    /// A snapshot, a rollback and garbage collection between flushes.
    Snapshots,
    /// Two openings after each other.
    Reopened,
    /// Many flushes, until a small flush moves what the map holds into a segment.
    Folded,
    /// Many flushes, until tables replace the log and the log is collected.
    Collected,
}

const WORKLOADS: [Workload; 7] = [
    Workload::Small,
    Workload::Large,
    Workload::Mixed,
    Workload::Snapshots,
    Workload::Reopened,
    Workload::Folded,
    Workload::Collected,
];

/// The states that flushes made, and which of them was acknowledged last.
struct History {
    /// The checksum of the content that flush `n` makes.
    states: Vec<u64>,
    acknowledged: usize,
    content: Content,
}

/// The byte of each block, and the sum over all blocks.
#[derive(Clone)]
struct Content {
    bytes: Vec<u8>,
    sum: u64,
}

impl Content {
    fn new() -> Self {
        Self {
            bytes: vec![0; BLOCKS],
            sum: 0,
        }
    }

    fn set(&mut self, block: u64, byte: u8) {
        let old = std::mem::replace(&mut self.bytes[block as usize], byte);
        self.sum ^= term(block, old) ^ term(block, byte);
    }
}

/// Returns the part of a block in a sum: none for zeros.
fn term(block: u64, byte: u8) -> u64 {
    let product = (block << 8 | u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if byte == 0 {
        0
    } else {
        product ^ product >> 29
    }
}

impl History {
    fn new() -> Self {
        Self {
            states: vec![0],
            acknowledged: 0,
            content: Content::new(),
        }
    }

    /// Flushes, and records the state if that is acknowledged.
    fn flush(&mut self, volume: &Volume) -> bool {
        self.states.push(self.content.sum);
        let is_acknowledged = volume.flush().is_ok();
        if is_acknowledged {
            self.acknowledged = self.states.len() - 1;
        }
        is_acknowledged
    }

    fn write(&mut self, volume: &Volume, block: u64, count: u64, byte: u8) -> bool {
        let bytes = vec![byte; count as usize * 4096];
        let is_written = volume.write_at(&bytes, block * 4096).is_ok();
        if is_written {
            (block..block + count).for_each(|block| self.content.set(block, byte));
        }
        is_written
    }

    fn discard(&mut self, volume: &Volume, block: u64, count: u64) -> bool {
        let is_discarded = volume.discard(block * 4096, count * 4096).is_ok();
        if is_discarded {
            (block..block + count).for_each(|block| self.content.set(block, 0));
        }
        is_discarded
    }
}

/// Returns the checksum of a device's content; each block has one byte throughout.
fn device_checksum(device: &dyn Device) -> Result<u64, String> {
    let mut sum = 0;
    let mut at = 0;
    while at < SIZE {
        let found = device.allocation(at, SIZE - at);
        let (kind, len) = found.map_err(|e| e.to_string())?;
        if kind == Allocation::Data {
            let mut bytes = vec![0; len as usize];
            device.read_at(&mut bytes, at).map_err(|e| e.to_string())?;
            for (n, block) in (at / 4096..).zip(bytes.chunks_exact(4096)) {
                if *block != [block[0]; 4096] {
                    return Err(format!("block {n} is torn"));
                }
                sum ^= term(n, block[0]);
            }
        }
        at += len;
    }
    Ok(sum)
}

/// Runs a workload until its end or its first failure.
fn run(workload: Workload, volume: &Volume, history: &mut History, salt: u8) -> Option<()> {
    let ok = |done: bool| done.then_some(());
    match workload {
        Workload::Small | Workload::Reopened => {
            for n in 0..6 {
                ok(history.write(volume, u64::from(n) * 3, 1 + u64::from(n), salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Folded => {
            for n in 0..20 {
                ok(history.write(volume, u64::from(n) * 64, 63, salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Collected => {
            for n in 0..75 {
                ok(history.write(volume, u64::from(n % 50), 1, salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Large => {
            for n in 0..2 {
                ok(history.write(volume, u64::from(n) * 300, 2100, salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Mixed => {
            for n in 0..4 {
                ok(history.write(volume, 10, 40, salt + n))?;
                ok(history.flush(volume))?;
                ok(history.write(volume, 100 * u64::from(n), 400, salt + 20 + n))?;
                ok(history.discard(volume, 50, 200))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Snapshots => {
            ok(history.write(volume, 0, 300, salt))?;
            ok(history.flush(volume))?;
            volume.snapshot("s").ok()?;
            let at_snapshot = history.content.clone();
            ok(history.write(volume, 100, 300, salt + 1))?;
            ok(history.flush(volume))?;
            volume.collect_garbage(&now(), &mut |_| ()).ok()?;
            ok(history.write(volume, 5, 3, salt + 2))?;
            ok(history.flush(volume))?;
            history.content = at_snapshot;
            history.states.push(history.content.sum);
            volume.rollback("s").ok()?;
            history.acknowledged = history.states.len() - 1;
            ok(history.write(volume, 9, 1, salt + 3))?;
            ok(history.flush(volume))?;
        }
    }
    Some(())
}

/// Runs one case and returns its number of requests.
fn case(workload: Workload, plan: Option<(u64, Fault)>) -> Result<u64, String> {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let store = ModelStore::new(&content, plan);
    let mut faulty = place(store.clone(), "vol");
    if matches!(workload, Workload::Collected) {
        faulty = faulty.with_map_garbage_age(Duration::ZERO);
    }
    let mut history = History::new();
    let created = Volume::create(&faulty, SIZE);
    let is_created = created.is_ok();
    if let Ok(volume) = created {
        let done = run(workload, &volume, &mut history, 1);
        let is_closed = done.is_some() && volume.close().is_ok();
        if is_closed
            && matches!(workload, Workload::Reopened)
            && let Ok(volume) = Volume::open(&faulty, Takeover::Fence)
        {
            let _done = run(workload, &volume, &mut history, 101);
        }
    }
    let requests = store.requests();
    // The machine stops: nothing it still has under way arrives.
    store.kill();
    let healthy = place(content, "vol");
    let volume = match Volume::open(&healthy, Takeover::Fence) {
        Ok(volume) => volume,
        Err(_) if !is_created => {
            // A creation that failed leaves nothing, or a volume; another creation completes it.
            Volume::create(&healthy, SIZE).map_err(|e| format!("create again: {e}"))?
        }
        Err(e) => return Err(format!("takeover: {e}")),
    };
    let found = device_checksum(&volume)?;
    let valid = &history.states[history.acknowledged..];
    if !valid.contains(&found) {
        let at = history.states.iter().position(|state| *state == found);
        return Err(format!(
            "content is that of flush {at:?}, not of {} or later",
            history.acknowledged
        ));
    }
    // The survivor works: it takes a flush, and a reader sees it.
    volume
        .write_at(&[77; 4096], SIZE - 4096)
        .map_err(|e| e.to_string())?;
    volume.close().map_err(|e| format!("close: {e}"))?;
    let reader = VolumeReader::open(&healthy, None).map_err(|e| e.to_string())?;
    let mut last = [0; 4096];
    reader
        .read_at(&mut last, SIZE - 4096)
        .map_err(|e| e.to_string())?;
    let problems = check(&healthy, false, &mut |_| ())
        .map_err(|e| e.to_string())?
        .problems;
    if last == [77; 4096] && problems.is_empty() {
        Ok(requests)
    } else {
        Err(format!("after the takeover: {:?} {problems:?}", last[0]))
    }
}

#[test]
fn fault_at_every_request_keeps_a_flush() {
    let mut cases = Vec::new();
    for workload in WORKLOADS {
        let requests = case(workload, None).unwrap();
        let plans = (0..requests + 4).flat_map(|at| FAULTS.map(|fault| (workload, at, fault)));
        cases.extend(plans);
    }
    assert!(cases.len() >= CASES_MIN, "{} cases", cases.len());
    let cases: Vec<_> = cases.into_iter().step_by(rounds::step(7)).collect();
    each_case(&cases, |&(workload, at, fault)| {
        case(workload, Some((at, fault))).unwrap();
    });
}
