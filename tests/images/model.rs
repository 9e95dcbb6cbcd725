//! Random operations on a device and on a model in memory, from a seed.

use crate::support::random::Random;
use folio::AlignedBuffer;
use folio::block::Device;
use std::io::{IoSlice, IoSliceMut};

/// Makes `count` random operations on both, and compares every read.
#[track_caller]
pub(crate) fn run(device: &dyn Device, model: &mut [u8], seed: u64, count: usize) {
    let mut random = Random::new(seed);
    let len = model.len() as u64;
    for step in 0..count {
        let most = if random.below(4) == 0 { 300_000 } else { 9000 };
        let offset = random.below(len);
        let size = (1 + random.below(most)).min(len - offset);
        let (offset, size) = if random.below(3) == 0 {
            (offset & !4095, size & !4095)
        } else {
            (offset, size)
        };
        let range = offset as usize..(offset + size) as usize;
        match random.below(13) {
            0..=5 => {
                let data: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                let cut = random.below(size as usize + 1);
                let parts = [IoSlice::new(&data[..cut]), IoSlice::new(&data[cut..])];
                device.write_vectored_at(&parts, offset).unwrap();
                model[range].copy_from_slice(&data);
            }
            6..=8 => {
                let mut back = vec![0xaa; range.len()];
                device.read_at(&mut back, offset).unwrap();
                assert!(
                    back == model[range],
                    "seed {seed}, step {step}: {size} bytes at {offset}"
                );
            }
            9 => {
                device.write_zeroes(offset, size).unwrap();
                model[range].fill(0);
            }
            10 => {
                device.write_allocated_zeroes(offset, size).unwrap();
                model[range].fill(0);
            }
            11 => {
                device.discard(offset, size).unwrap();
                // The content of a discarded range is undefined.
                device.read_at(&mut model[range], offset).unwrap();
            }
            _ => device.flush().unwrap(),
        }
    }
    same(device, model, seed);
}

/// Asserts that the whole device reads as `model`, and that its holes are zeros there.
#[track_caller]
pub(crate) fn same(device: &dyn Device, model: &[u8], seed: u64) {
    assert_eq!(device.len_bytes(), model.len() as u64);
    let mut back = vec![0xaa; model.len()];
    device.read_at(&mut back, 0).unwrap();
    if back != model {
        let at = back.iter().zip(model).position(|(a, b)| a != b);
        panic!("seed {seed}: differs first at {at:?}");
    }
    // Aligned and long: this read goes past the host's page cache where the host has no copy.
    let mut uncached = AlignedBuffer::new(model.len());
    device
        .read_uncached_at(&mut [IoSliceMut::new(&mut uncached)], 0)
        .unwrap();
    assert!(
        uncached[..] == *model,
        "seed {seed}: differs past the cache"
    );
    let mut at = 0;
    while at < model.len() {
        let (kind, count) = device
            .allocation(at as u64, (model.len() - at) as u64)
            .unwrap();
        assert!(count > 0 && at + count as usize <= model.len());
        if kind != folio::block::Allocation::Data {
            assert!(
                model[at..at + count as usize].iter().all(|&byte| byte == 0),
                "seed {seed}: hole at {at}"
            );
        }
        at += count as usize;
    }
}
