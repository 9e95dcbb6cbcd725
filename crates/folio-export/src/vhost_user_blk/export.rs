//! The disk, as all its virtual machines share it.

use super::config::SECTOR_LEN;
use super::counts::QueueCounters;
use folio::block;
use std::sync::Arc;

/// A disk, and how virtual machines see it.
pub struct Disk {
    /// The disk. A rest behind its last whole sector of 512 bytes is not visible.
    pub device: Arc<dyn block::Device>,
    /// A name that distinguishes the disk's content from another one. A server that takes the place
    /// of one that was killed repeats what it finds in the log of a disk of this name.
    pub name: String,
    /// The serial number, at most [`SERIAL_LEN_MAX`] bytes. Linux: /dev/disk/by-id/virtio-SERIAL.
    pub serial: String,
    /// Whether changes fail. They always do if the device is read-only.
    pub read_only: bool,
}

/// Sends a message to the operator.
type Report = Box<dyn Fn(&str) + Send + Sync>;

/// A disk, with what all its virtual machines share.
pub(super) struct Export {
    pub(super) disk: Disk,
    /// One for each queue.
    pub(super) counters: Vec<QueueCounters>,
    pub(super) report: Report,
}

impl Export {
    pub(super) fn is_read_only(&self) -> bool {
        self.disk.read_only || self.disk.device.is_read_only()
    }

    /// Returns the bytes of the disk that virtual machines see.
    pub(super) fn len_bytes(&self) -> u64 {
        self.disk.device.len_bytes() / SECTOR_LEN * SECTOR_LEN
    }
}
