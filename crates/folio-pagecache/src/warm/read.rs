//! Reads of files into the page cache, with read(2).
//!
//! The bytes themselves are discarded. sendfile(2) to /dev/null copies none, but gains nothing in a
//! virtual machine: there the first access of a processor to a page may cost more than its copy,
//! and the next reader would wait for it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of one read(2); they stay in the cache of the processor.
const BUFFER_BYTES: usize = 64 << 10;

/// The target of copies, at a page boundary: to addresses a little after one, some processors copy
/// at a third of the speed.
#[repr(align(4096))]
struct Buffer([u8; BUFFER_BYTES]);

thread_local! {
    static BUFFER: RefCell<Box<Buffer>> = RefCell::new(Box::new(Buffer([0; BUFFER_BYTES])));
}

/// Brings up to `len_bytes` bytes from `at` on into memory, and waits for them. Returns how many; 0
/// at the end of the file.
///
/// # Errors
///
/// Those of read(2).
pub(super) fn read(file: &File, at: u64, len_bytes: u64) -> io::Result<u64> {
    let len = len_bytes.min(BUFFER_BYTES as u64) as usize;
    BUFFER.with_borrow_mut(|buffer| Ok(file.read_at(&mut buffer.0[..len], at)? as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ends_at_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 70_000], 0).unwrap();
        let read = |at| read(&file, at, 80_000).unwrap();
        assert_eq!([read(0), read(65_536), read(70_000)], [65_536, 4464, 0]);
    }
}
