//! Properties of the disk below a file: whether it seeks, and how much one readahead request brings
//! in.

use rustix::fs::{major, minor};
use std::collections::HashMap;
use std::path::PathBuf;

/// Readahead request limit for a device whose limit is unknown: beyond it the kernel silently reads
/// less.
const PIECE_BYTES: u64 = 1 << 20;
/// Assumed window of readahead where the kernel does not report it.
const READAHEAD_BYTES: u64 = 8 << 20;
/// Upper limit of a piece: larger ones gain nothing and delay other requests.
const PIECE_BYTES_MAX: u64 = 8 << 20;

/// The disk below a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Whether the disk has moving heads; the order of requests then decides the speed.
    pub(crate) seeks: bool,
    /// Maximum bytes that one posix_fadvise(2) WILLNEED reads.
    pub(crate) piece_bytes: u64,
    /// The largest window of readahead.
    pub(crate) readahead_bytes: u64,
}

/// Disks by device number, as sysfs describes them.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    known: HashMap<u64, Disk>,
}

impl Disks {
    /// Returns the disk with the device number `device` (`st_dev`), or the disk that holds the
    /// partition with that number.
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
    // The queue of a partition is in the parent folder.
    let queues = [block.join("queue"), block.join("../queue")];
    let number = |name: &str| {
        let text = queues
            .iter()
            .find_map(|queue| std::fs::read_to_string(queue.join(name)).ok())?;
        text.trim().parse::<u64>().ok()
    };
    // A file system without a block device has a limit of its own.
    let own = format!(
        "/sys/class/bdi/{}:{}/read_ahead_kb",
        major(device),
        minor(device)
    );
    let own = || std::fs::read_to_string(own).ok()?.trim().parse().ok();
    let readahead_kib = number("read_ahead_kb").or_else(own);
    let kib = readahead_kib
        .into_iter()
        .chain(number("max_sectors_kb"))
        .max();
    let piece_bytes = kib.map_or(PIECE_BYTES, |kib| {
        (kib << 10).clamp(PIECE_BYTES / 8, PIECE_BYTES_MAX)
    });
    // A virtual disk claims to seek unless its host says otherwise, which few hosts do. The inode
    // order suits both kinds.
    let is_virtual = block
        .canonicalize()
        .is_ok_and(|path| path.to_string_lossy().contains("/virtio"));
    Disk {
        seeks: number("rotational") == Some(1) && !is_virtual,
        piece_bytes,
        readahead_bytes: readahead_kib.map_or(READAHEAD_BYTES, |kib| kib << 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_unknown_to_sysfs_does_not_seek() {
        let disk = Disks::default().of(rustix::fs::makedev(0, 4095));
        assert_eq!(
            disk,
            Disk {
                seeks: false,
                piece_bytes: PIECE_BYTES,
                readahead_bytes: READAHEAD_BYTES,
            }
        );
    }
}
