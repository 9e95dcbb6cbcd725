//! The opens that remain: a server that is asked for no name and no attribute is still asked to
//! open the file.

use super::part::Part;
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Opens that are timed at most.
const OPENS: usize = 15;
/// Time from which on no further call is timed.
const CALLS_MAX: Duration = Duration::from_millis(50);

/// Opens the file that waited longest again by its descriptor, so without its name. Returns the
/// nanoseconds of one open, less those of a call for its attributes; `None` if no file of this
/// kind was opened, or if it cannot be opened.
pub(super) fn measure(part: Part, opens: u64, path: &Path) -> Option<u64> {
    if part != Part::OpenAndLookup || opens == 0 {
        return None;
    }
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&file).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    if !kind.is_file() && !kind.is_dir() {
        return None;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened_ns = median_ns(|| open(&path, flags, Mode::empty()).map(drop))?;
    // The kernel asks for the attributes to check the permissions; the cure saves that.
    let attributes_ns = median_ns(|| rustix::fs::fstat(&file).map(drop))?;
    Some(opened_ns.saturating_sub(attributes_ns))
}

/// Returns the median time of a call; `None` if it fails.
fn median_ns(mut call: impl FnMut() -> rustix::io::Result<()>) -> Option<u64> {
    let first = Instant::now();
    let mut times = Vec::with_capacity(OPENS);
    while times.len() < OPENS && first.elapsed() < CALLS_MAX {
        let start = Instant::now();
        call().ok()?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_and_directories_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe] = ["file", "pipe"].map(|name| folder.path().join(name));
        std::fs::write(&file, "").unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let measured = |part, path: PathBuf| measure(part, 1, &path).is_some();
        assert!(measured(Part::OpenAndLookup, file.clone()));
        assert!(measured(Part::OpenAndLookup, folder.path().to_owned()));
        assert!(!measured(Part::OpenAndLookup, pipe), "an open would wait");
        assert!(!measured(Part::OpenAndLookup, folder.path().join("none")));
        assert!(!measured(Part::Attributes, file));
    }
}
