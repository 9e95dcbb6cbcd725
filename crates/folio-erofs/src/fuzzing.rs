//! Entry of the fuzz target: the check of an image. Not public API.

use crate::check;
use crate::format::{MAGIC, SUPERBLOCK_OFFSET};
use folio::block::{Device, MemoryDevice};
use std::sync::Arc;

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// The size of the device is a multiple of this: stored inputs lack the zeros at the end.
const BLOCK_BYTES: u64 = 4096;

/// Checks `data` as an image. A bad checksum of the superblock does not end the check.
pub fn erofs_check(data: &[u8]) {
    let data = &data[..data.len().min(INPUT_BYTES_MAX)];
    let len = (data.len() as u64).next_multiple_of(BLOCK_BYTES);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(len));
    // Damage of the magic number is not of interest.
    let written = device
        .write_at(data, 0)
        .and_then(|()| device.write_at(&MAGIC.to_le_bytes(), SUPERBLOCK_OFFSET as u64));
    if written.is_err() {
        return;
    }
    let mut findings = Vec::new();
    if let Ok(report) = check::check(&device, usize::MAX, &mut findings) {
        assert_eq!(report.errors + report.warnings, findings.len() as u64);
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erofs_check_inputs_do_not_panic() {
        replay::run("erofs_check", erofs_check);
    }
}
