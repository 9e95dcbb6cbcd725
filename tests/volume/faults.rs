//! Faults at every request of a workload: the volume stays the state of one flush, not older than
//! the last acknowledged one.
//!
//! A case is a workload, a request of it and a fault. `FOLIO_VOLUME_FAULTS=all` runs every case;
//! without, a share of them, another one in each place of the workloads.

use crate::model::{FAULTS, Fault, ModelStore, place};
use folio::block::{Allocation, Device};
use folio_volume::{GcOptions, Takeover, Volume, VolumeReader, check};
use object_store::memory::InMemory;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of the volume.
const SIZE: u64 = 12 << 20;
const WORKERS: usize = 32;
/// Without `FOLIO_VOLUME_FAULTS=all`, one of this many cases runs.
const STRIDE: u64 = 7;

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
}

const WORKLOADS: [Workload; 6] = [
    Workload::Small,
    Workload::Large,
    Workload::Mixed,
    Workload::Snapshots,
    Workload::Reopened,
    Workload::Folded,
];

/// The states that flushes made, and which of them was acknowledged last.
#[derive(Default)]
struct History {
    /// The checksum of the content that flush `n` makes.
    states: Vec<u32>,
    acknowledged: usize,
    content: HashMap<u64, u8>,
}

impl History {
    fn new() -> Self {
        let mut history = Self::default();
        history.states.push(checksum(&history.content));
        history
    }

    /// Flushes, and records the state if that is acknowledged.
    fn flush(&mut self, volume: &Volume) -> bool {
        self.states.push(checksum(&self.content));
        let is_acknowledged = volume.flush().is_ok();
        if is_acknowledged {
            self.acknowledged = self.states.len() - 1;
        }
        is_acknowledged
    }

    fn write(&mut self, volume: &Volume, block: u64, count: u64, byte: u8) -> bool {
        if volume
            .write_at(&vec![byte; count as usize * 4096], block * 4096)
            .is_err()
        {
            return false;
        }
        for block in block..block + count {
            self.content.insert(block, byte);
        }
        true
    }

    fn discard(&mut self, volume: &Volume, block: u64, count: u64) -> bool {
        if volume.discard(block * 4096, count * 4096).is_err() {
            return false;
        }
        self.content
            .retain(|b, _| !(block..block + count).contains(b));
        true
    }
}

fn checksum(content: &HashMap<u64, u8>) -> u32 {
    let mut blocks: Vec<_> = content.iter().filter(|(_, byte)| **byte != 0).collect();
    blocks.sort();
    let mut sum = 1_u32;
    for (block, byte) in blocks {
        sum = sum.rotate_left(5) ^ (*block as u32).wrapping_mul(0x9e37_79b9);
        sum = sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
    }
    sum
}

/// Returns the checksum of a device's content; each block has one byte throughout.
fn device_checksum(device: &dyn Device) -> Result<u32, String> {
    let mut content = HashMap::new();
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
                content.insert(n, block[0]);
            }
        }
        at += len;
    }
    Ok(checksum(&content))
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
            for n in 0..100 {
                ok(history.write(volume, u64::from(n % 40) * 64, 63, salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Large => {
            for n in 0..3 {
                ok(history.write(volume, u64::from(n) * 300, 2100, salt + n))?;
                ok(history.flush(volume))?;
            }
        }
        Workload::Mixed => {
            for n in 0..4 {
                ok(history.write(volume, 10, 40, salt + n))?;
                ok(history.flush(volume))?;
                ok(history.write(volume, 100 * u64::from(n), 2100, salt + 20 + n))?;
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
            let now = GcOptions {
                min_age: Duration::ZERO,
                ..GcOptions::default()
            };
            volume.collect_garbage(&now).ok()?;
            ok(history.write(volume, 5, 3, salt + 2))?;
            ok(history.flush(volume))?;
            history.content = at_snapshot;
            history.states.push(checksum(&history.content));
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
    let faulty = place(store.clone(), "vol");
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
    let problems = check(&healthy, false).map_err(|e| e.to_string())?.problems;
    match (last == [77; 4096], problems.is_empty()) {
        (true, true) => Ok(requests),
        _ => Err(format!("after the takeover: {:?} {problems:?}", last[0])),
    }
}

#[test]
fn fault_at_every_request_keeps_a_flush() {
    let runs_all = std::env::var_os("FOLIO_VOLUME_FAULTS").is_some_and(|v| v == "all");
    let mut cases = Vec::new();
    for workload in WORKLOADS {
        let requests = case(workload, None).unwrap();
        for at in 0..requests + 4 {
            for (n, fault) in FAULTS.into_iter().enumerate() {
                if runs_all || (at * 9 + n as u64).is_multiple_of(STRIDE) {
                    cases.push((workload, at, fault));
                }
            }
        }
    }
    let next = AtomicU64::new(0);
    let failures = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(&(workload, at, fault)) =
                    cases.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    let result = case(workload, Some((at, fault)));
                    if let Err(failure) = result {
                        failures
                            .lock()
                            .push(format!("{workload:?}, request {at}, {fault:?}: {failure}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    eprintln!("{} cases", cases.len());
    assert!(
        failures.is_empty(),
        "{} of {}: {failures:#?}",
        failures.len(),
        cases.len()
    );
}
