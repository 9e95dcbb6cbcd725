//! Content: a volume reads as a plain disk, before and after reopening, and costs what it says.

use crate::model::{ModelStore, memory_place, place};
use crate::support::rounds;
use folio::Errno;
use folio::block::{Allocation, Device, MemoryDevice};
use folio_volume::{RetryPolicy, Takeover, Volume, VolumeReader, check, info};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 48 << 20;

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

fn same(volume: &dyn Device, model: &dyn Device, what: &str) {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..SIZE).step_by(1 << 20) {
        volume.read_at(&mut a, at).unwrap();
        model.read_at(&mut b, at).unwrap();
        assert!(a == b, "{what}: content differs in {at}+1M");
    }
}

#[test]
fn random_changes_read_as_on_plain_disk() {
    let place = memory_place();
    let model = MemoryDevice::new(SIZE);
    let mut volume = Volume::create(&place, SIZE).unwrap();
    let mut seed = 20_u64;
    for step in 0..rounds::cases(600_u64) {
        let len = match random(&mut seed) % 8 {
            0 => random(&mut seed) % (9 << 20) + 1,
            1 => 4096 * (1 + random(&mut seed) % 100),
            _ => random(&mut seed) % 9000 + 1,
        };
        let mut at = random(&mut seed) % (SIZE - len + 1);
        if random(&mut seed).is_multiple_of(2) {
            at = at / 4096 * 4096;
        }
        match random(&mut seed) % 10 {
            0 => {
                volume.write_zeroes(at, len).unwrap();
                model.write_zeroes(at, len).unwrap();
            }
            1 | 2 => volume.flush().unwrap(),
            _ => {
                let byte = step as u8;
                let data: Vec<u8> = (0..len)
                    .map(|n| byte.wrapping_add((n / 512) as u8))
                    .collect();
                volume.write_at(&data, at).unwrap();
                model.write_at(&data, at).unwrap();
            }
        }
        if step % 100 == 50 {
            same(&volume, &model, &format!("step {step}"));
        }
        if step % 150 == 149 {
            volume.close().unwrap();
            let reader = VolumeReader::open(&place, None).unwrap();
            same(&reader, &model, &format!("reader at step {step}"));
            volume = Volume::open(&place, Takeover::Refuse).unwrap();
            same(&volume, &model, &format!("reopened at step {step}"));
        }
    }
    volume.close().unwrap();
    let report = check(&place, true, &mut |_| ()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.read_blocks > 0 && report.read_blocks == report.blocks);
}

#[test]
fn small_flush_is_one_request_and_idle_is_none() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let volume = Volume::create(&place(store.clone(), "vol"), 1 << 30).unwrap();
    let mut before = store.writes();
    for n in 0..17 {
        volume
            .write_at(&vec![n as u8 + 1; 256 << 10], n << 20)
            .unwrap();
        volume.flush().unwrap();
        // The last flush moves 4 MiB of small flushes into a segment.
        let expected = if n == 16 { 2 } else { 1 };
        assert_eq!(store.writes() - before, expected, "flush {n}");
        before = store.writes();
    }
    // slatedb looks at its manifest once after it was opened; a snapshot comes behind that.
    volume.snapshot("s").unwrap();
    let before = store.requests();
    for _ in 0..100 {
        volume.flush().unwrap();
    }
    assert_eq!(store.requests(), before);
}

#[test]
fn block_written_in_parts_is_never_fetched() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let volume = Volume::create(&place(store.clone(), "vol"), 1 << 30).unwrap();
    volume.write_at(&[1; 1024], 1024).unwrap();
    volume.write_at(&vec![2; 4 << 20], 1 << 20).unwrap();
    // The block goes into a segment.
    volume.flush().unwrap();
    volume.snapshot("s").unwrap();
    let before = store.requests();
    volume.write_at(&[3; 512], 2048).unwrap();
    let mut block = [9; 4096];
    volume.read_at(&mut block, 0).unwrap();
    assert_eq!(store.requests(), before);
    let lengths = [(0, 1024), (1, 1024), (3, 512), (0, 1536)];
    let expected = lengths.map(|(byte, count)| vec![byte; count]).concat();
    assert_eq!(block[..], expected);
}

#[test]
fn writes_of_many_buffers_read_back() {
    let volume = Volume::create(&memory_place(), 1 << 30).unwrap();
    let bytes: Vec<u8> = (0..300_000).map(|n| (n % 251) as u8 + 1).collect();
    let mut rest = &bytes[..];
    let mut bufs = Vec::new();
    for len in [0, 1, 4095, 4096, 0, 5000, 70_000, 3, 200_000] {
        let (buf, later) = rest.split_at(len);
        bufs.push(IoSlice::new(buf));
        rest = later;
    }
    bufs.push(IoSlice::new(rest));
    for offset in [0, 4096, 1 << 20, (2 << 20) + 17] {
        volume.write_vectored_at(&bufs, offset).unwrap();
        let mut found = vec![0; bytes.len()];
        volume.read_at(&mut found, offset).unwrap();
        assert!(found == bytes, "at {offset}");
    }
}

#[test]
fn reads_fail_after_flush_without_answer() {
    let store = Arc::new(ThrottledStore::new(
        InMemory::new(),
        ThrottleConfig::default(),
    ));
    // Long enough for the requests of the opening, which are answered.
    let policy = RetryPolicy {
        timeout: Duration::from_secs(3),
        ..RetryPolicy::default()
    };
    let patient = place(store.clone(), "vol");
    let volume = Volume::create(&patient, SIZE).unwrap();
    volume.write_at(&vec![1; 4 << 20], 0).unwrap();
    volume.close().unwrap();
    let place = patient.with_retries(policy);
    let volume = Volume::open(&place, Takeover::Refuse).unwrap();
    store.config_mut(|config| {
        config.wait_put_per_call = Duration::from_secs(3600);
        config.wait_get_per_call = Duration::from_secs(3600);
    });
    volume.write_at(&[2; 4096], 0).unwrap();
    let flush = volume.flush().unwrap_err();
    assert_eq!(flush.errno(), Errno::TIMEDOUT, "{flush}");
    // The read makes no request: it fails with the failure of the flush.
    let read = volume.read_at(&mut [0; 4096], 1 << 20).unwrap_err();
    assert_eq!(read.to_string(), flush.to_string());
    // What is in memory is still read.
    volume.read_at(&mut [0; 4096], 0).unwrap();
}

#[test]
fn discard_frees_and_reports_hole() {
    let place = memory_place();
    let volume = Volume::create(&place, 1 << 40).unwrap();
    volume.write_at(&vec![7; 1 << 20], 4 << 20).unwrap();
    assert_eq!(
        volume.allocation(0, 1 << 40).unwrap(),
        (Allocation::Hole, 4 << 20)
    );
    assert_eq!(
        volume.allocation(4 << 20, 1 << 40 >> 1).unwrap(),
        (Allocation::Data, 1 << 20)
    );
    volume.flush().unwrap();
    assert_eq!(info(&place).unwrap().logical_bytes, 1 << 20);
    volume.discard(0, 1 << 40).unwrap();
    volume.flush().unwrap();
    assert_eq!(
        volume.allocation(0, 1 << 40).unwrap(),
        (Allocation::Hole, 1 << 40)
    );
    assert_eq!(info(&place).unwrap().logical_bytes, 0);
}

#[test]
fn range_beyond_end_fails_with_eio() {
    let volume = Volume::create(&memory_place(), 10_000).unwrap();
    volume.write_at(&[3; 1000], 9000).unwrap();
    assert!(volume.write_at(&[3; 1001], 9000).is_err());
    let mut back = [0; 1000];
    volume.read_at(&mut back, 9000).unwrap();
    assert_eq!(back, [3; 1000]);
    volume.write_zeroes(9500, 500).unwrap();
    volume.read_at(&mut back, 9000).unwrap();
    assert_eq!((back[499], back[500]), (3, 0));
}
