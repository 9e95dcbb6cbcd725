//! The time that large calls take for the bytes of small ones: a buffer saves calls, no copies.

use super::part::Tiny;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a call.
const CALL_BYTES: usize = 64 << 10;
/// Bytes that are written at most; of more the time is in proportion.
const BYTES_MAX: u64 = 32 << 20;
/// The coarsest tick of the clock of a file's times.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// Writes as many bytes by large calls, and once more over them: into an unnamed file beside the
/// file, else in memory. Returns the nanoseconds for all bytes: those of a file that grew since
/// `started` take new pages. `None` if that failed.
pub(crate) fn measure(tiny: &Tiny, may_write: bool, started: SystemTime) -> Option<u64> {
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
    let new_bytes = new_bytes(tiny, started);
    let part = |ns: u64, bytes: u64| ns as f64 * bytes as f64 / written_bytes(tiny.bytes) as f64;
    Some((part(new_ns, new_bytes) + part(again_ns, tiny.bytes - new_bytes)) as u64)
}

/// Returns the bytes that a file has more since `started`; the rest was written over old bytes.
fn new_bytes(tiny: &Tiny, started: SystemTime) -> u64 {
    let Ok(found) = tiny.path.metadata() else {
        return 0;
    };
    let is_since = |created: SystemTime| created + CLOCK_TICK >= started;
    // A file system without times of creation does not report them.
    let is_created = tiny.may_be_created && found.created().map_or(true, is_since);
    let bytes = if is_created {
        tiny.bytes
    } else {
        tiny.new_bytes
    };
    bytes.min(found.len())
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
    use crate::workload::{CommandOutput, Recorder, RunOptions, record};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    /// Writes of this many bytes into a file.
    fn writes(path: &Path, bytes: u64) -> Tiny {
        Tiny {
            path: path.to_owned(),
            mount: 0,
            is_write: true,
            calls: 1,
            bytes,
            new_bytes: bytes,
            may_be_created: false,
            ns: 1,
            large_ns: None,
        }
    }

    #[test]
    fn large_calls_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, [7; 5000]).unwrap();
        let measured = |bytes, is_write, may_write| {
            let tiny = Tiny {
                is_write,
                ..writes(&path, bytes)
            };
            measure(&tiny, may_write, SystemTime::now()).unwrap()
        };
        for (is_write, may_write) in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(measured(200_000, is_write, may_write) > 0);
            assert_eq!(measured(0, is_write, may_write), 0);
            // In proportion, without as many bytes.
            measured(1 << 50, is_write, may_write);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_written_over_has_not_grown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 5000]).unwrap();
        let (before, after) = (SystemTime::UNIX_EPOCH, SystemTime::now() + 2 * CLOCK_TICK);
        let grown = |bytes, new, may_be_created, started| {
            let tiny = Tiny {
                new_bytes: new,
                may_be_created,
                ..writes(&path, bytes)
            };
            new_bytes(&tiny, started)
        };
        assert_eq!(
            grown(9000, 9000, false, before),
            5000,
            "of a rewritten file"
        );
        assert_eq!(grown(4000, 0, false, before), 0);
        assert_eq!(grown(4000, 1000, false, before), 1000);
        assert_eq!(grown(4000, 0, true, before), 4000, "it was made since");
        if path.metadata().unwrap().created().is_ok() {
            assert_eq!(grown(4000, 0, true, after), 0);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(grown(4000, 4000, true, before), 0);
    }

    #[test]
    fn open_shows_which_bytes_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let options = RunOptions {
            output: CommandOutput::Dropped,
            recorder: Recorder::Preload,
            omission: None,
            folder: Some(folder.path().to_owned()),
            may_write: false,
        };
        for (flags, is_new) in [
            ("conv=notrunc", false),
            ("conv=notrunc oflag=append", true),
            ("", true),
        ] {
            std::fs::write(&path, [7; 4000]).unwrap();
            let line = format!("dd if=/dev/zero of=file bs=1 count=4000 status=none {flags}");
            let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
            let found = record(&words, &options, &AtomicBool::new(false)).unwrap();
            let tiny = &found.tiny[0];
            assert!(tiny.is_write && tiny.may_be_created, "{flags}: {tiny:?}");
            let new_bytes = if is_new { tiny.bytes } else { 0 };
            assert_eq!(tiny.new_bytes, new_bytes, "{flags}");
        }
    }
}
