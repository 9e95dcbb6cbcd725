//! The time that large calls take for the bytes of small ones: a buffer saves calls, no copies.

use super::part::Tiny;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Bytes of a call.
const CALL_BYTES: usize = 64 << 10;
/// Bytes that are written at most; of more the time is in proportion.
const BYTES_MAX: u64 = 32 << 20;

/// Writes as many bytes by large calls, and once more over them: into an unnamed file beside the
/// file, else in memory. Returns the nanoseconds for all bytes: those of a file that grew take new
/// pages. `None` if that failed.
pub(crate) fn measure(tiny: &Tiny, may_write: bool) -> Option<u64> {
    let times = || -> io::Result<[u64; 2]> {
        let file = match tiny.path.parent().filter(|_| may_write && tiny.is_write) {
            Some(folder) => tempfile::tempfile_in(folder)?,
            None => File::from(memfd_create("folio-doctor", MemfdFlags::CLOEXEC)?),
        };
        Ok([
            written_ns(&file, tiny.bytes)?,
            written_ns(&file, tiny.bytes)?,
        ])
    };
    let [new_ns, again_ns] = times().ok()?;
    let size_bytes = tiny.path.metadata().map_or(0, |found| found.len());
    let new_bytes = if tiny.is_write {
        size_bytes.min(tiny.bytes)
    } else {
        0
    };
    let part = |ns: u64, bytes: u64| ns as f64 * bytes as f64 / written_bytes(tiny.bytes) as f64;
    Some((part(new_ns, new_bytes) + part(again_ns, tiny.bytes - new_bytes)) as u64)
}

fn written_bytes(bytes: u64) -> u64 {
    bytes.clamp(1, BYTES_MAX)
}

/// Writes this many bytes from the start of a file on; returns the nanoseconds.
fn written_ns(file: &File, bytes: u64) -> io::Result<u64> {
    let data = vec![0x5a; CALL_BYTES];
    let bytes = written_bytes(bytes);
    let start = Instant::now();
    for at in (0..bytes).step_by(CALL_BYTES) {
        let left = usize::try_from(bytes - at).unwrap_or(CALL_BYTES);
        file.write_all_at(&data[..left.min(CALL_BYTES)], at)?;
    }
    Ok(start.elapsed().as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_calls_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, [7; 5000]).unwrap();
        let measured = |bytes, is_write, may_write| {
            let tiny = Tiny {
                path: path.clone(),
                is_write,
                calls: 1,
                bytes,
                ns: 1,
                large_ns: None,
            };
            measure(&tiny, may_write).unwrap()
        };
        for (is_write, may_write) in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(measured(200_000, is_write, may_write) > 0);
            assert_eq!(measured(0, is_write, may_write), 0);
            // In proportion, without as many bytes.
            measured(1 << 50, is_write, may_write);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
