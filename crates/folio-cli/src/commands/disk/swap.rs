//! The signature of a swap area, by which swapon(8) and blkid(8) recognize it.
//!
//! Source: Linux, include/linux/swap.h, `union swap_header`; version 1.

use crate::exit::{Failure, Outcome};
use folio::block::Device;

/// The page of most machines. A kernel with larger pages refuses the area.
const PAGE_BYTES: usize = 4096;
/// Linux refuses fewer.
const PAGES_MIN: u64 = 10;
const VERSION: u32 = 1;
const MAGIC: &[u8] = b"SWAPSPACE2";
/// Offsets in the first page.
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const LABEL_BYTES: usize = 16;

/// Refuses a label that is too long, and an area that is too small.
pub(super) fn check(label: &str, len_bytes: u64) -> Outcome {
    if label.len() > LABEL_BYTES {
        return Err(Failure::usage(format!(
            "invalid label {label:?}: a swap area has at most {LABEL_BYTES} bytes"
        )));
    }
    if pages(len_bytes) < PAGES_MIN {
        return Err(Failure::usage(format!(
            "a swap area needs {} KiB",
            PAGES_MIN * PAGE_BYTES as u64 / 1024
        )));
    }
    Ok(())
}

fn pages(len_bytes: u64) -> u64 {
    len_bytes / PAGE_BYTES as u64
}

/// Writes the signature of a swap area that fills the device.
pub(super) fn format(device: &dyn Device, label: &str, uuid: [u8; 16]) -> Outcome {
    check(label, device.len_bytes())?;
    // More pages than the header can count stay unused.
    let last_page = u32::try_from(pages(device.len_bytes()) - 1).unwrap_or(u32::MAX);
    let mut page = vec![0; PAGE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(VERSION_AT, &VERSION.to_le_bytes());
    put(LAST_PAGE_AT, &last_page.to_le_bytes());
    put(UUID_AT, &uuid);
    put(LABEL_AT, label.as_bytes());
    put(PAGE_BYTES - MAGIC.len(), MAGIC);
    let written = device.write_at(&page, 0);
    written.map_err(|error| Failure::new(format!("swap area: {error}")))
}
