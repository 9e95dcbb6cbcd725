//! The opens that remain: a server that is asked for no name and no attribute is still asked to
//! open the file.

use super::part::{Cost, Part};
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;

/// Opens that are timed.
const OPENS: usize = 15;

/// Opens the file that waited longest again by its descriptor, so without its name. Returns the
/// nanoseconds of one open, less those of a call for its attributes; `None` if no file of this
/// kind was opened, or if it cannot be opened.
pub(super) fn measure(cost: &Cost) -> Option<u64> {
    if cost.part != Part::OpenAndLookup || cost.opens == 0 {
        return None;
    }
    let file = open(
        cost.example.as_ref()?,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let found = rustix::fs::fstat(&file).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    if !kind.is_file() && !kind.is_dir() {
        return None;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened_ns = median_ns(|| open(&path, flags, Mode::empty()).map(drop))?;
    // The kernel asks for the attributes to check the permissions; the cure saves that.
    let attributes_ns = median_ns(|| rustix::fs::fstat(&file).map(drop))?;
    Some(opened_ns.saturating_sub(attributes_ns))
}

/// Returns the median time of a call; `None` if it fails.
fn median_ns(mut call: impl FnMut() -> rustix::io::Result<()>) -> Option<u64> {
    let mut times = [0; OPENS];
    for time_ns in &mut times {
        let start = Instant::now();
        call().ok()?;
        *time_ns = start.elapsed().as_nanos() as u64;
    }
    times.sort_unstable();
    Some(times[OPENS / 2])
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
        let measured = |part, path: PathBuf| {
            let mut cost = Cost::new(part, 0);
            (cost.opens, cost.example) = (1, Some(path));
            measure(&cost).is_some()
        };
        assert!(measured(Part::OpenAndLookup, file.clone()));
        assert!(measured(Part::OpenAndLookup, folder.path().to_owned()));
        assert!(!measured(Part::OpenAndLookup, pipe), "an open would wait");
        assert!(!measured(Part::OpenAndLookup, folder.path().join("none")));
        assert!(!measured(Part::Attributes, file));
    }
}
