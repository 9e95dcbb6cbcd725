//! What is known of the disk below a file: whether it seeks, and how much one request for readahead
//! brings in.

use rustix::fs::{major, minor};
use std::collections::HashMap;
use std::path::PathBuf;

/// Readahead stops silently at what the device reads at a time, if that is all that is known.
const PIECE_BYTES: u64 = 1 << 20;
/// Larger pieces gain nothing, and keep others waiting.
const PIECE_BYTES_MAX: u64 = 8 << 20;

/// The disk below a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Whether heads move: then the order of requests decides everything.
    pub(crate) seeks: bool,
    /// Bytes that one posix_fadvise(2) with WILLNEED brings in at most.
    pub(crate) piece_bytes: u64,
}

/// Disks by device number, as sysfs tells of them.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    known: HashMap<u64, Disk>,
}

impl Disks {
    /// The disk that `device` (`st_dev`) is, or is a partition of.
    pub(crate) fn of(&mut self, device: u64) -> Disk {
        *self.known.entry(device).or_insert_with(|| look(device))
    }
}

fn look(device: u64) -> Disk {
    let block = PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        major(device),
        minor(device)
    ));
    // A partition has its queue one folder up.
    let queues = [block.join("queue"), block.join("../queue")];
    let number = |name: &str| {
        let text = queues
            .iter()
            .find_map(|queue| std::fs::read_to_string(queue.join(name)).ok())?;
        text.trim().parse::<u64>().ok()
    };
    let kib = number("read_ahead_kb")
        .into_iter()
        .chain(number("max_sectors_kb"))
        .max();
    let piece_bytes = kib.map_or(PIECE_BYTES, |kib| {
        (kib << 10).clamp(PIECE_BYTES / 8, PIECE_BYTES_MAX)
    });
    // A virtual disk says that it seeks unless its host says otherwise, which few do; in the order
    // of inodes it is read well either way.
    let is_virtual = block
        .canonicalize()
        .is_ok_and(|path| path.to_string_lossy().contains("/virtio"));
    Disk {
        seeks: number("rotational") == Some(1) && !is_virtual,
        piece_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_sysfs_does_not_know_is_taken_for_one_without_heads() {
        let disk = Disks::default().of(rustix::fs::makedev(0, 4095));
        assert_eq!(
            disk,
            Disk {
                seeks: false,
                piece_bytes: PIECE_BYTES
            }
        );
    }
}
