//! The seam to a kind of device: its features and configuration, and one request at a time.

use super::guest_memory::{Buffers, Memory};
use super::inflight::DeviceRecord;
use super::split_ring::Chain;
use std::io;

/// Why a request is not handled at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It waits a short time: the queue's thread waits for it if the queue has no other request.
    Short,
    /// It may wait for long: another thread handles it.
    Long,
}

/// A request of a guest.
pub struct Request<'a> {
    /// The queue that it came from, below [`Device::queues`].
    pub queue: usize,
    /// What the guest sends.
    pub sent: Buffers<'a>,
    /// Room for the reply.
    pub reply: Buffers<'a>,
}

impl<'a> Request<'a> {
    pub(super) fn new(queue: usize, memory: &'a Memory, chain: &'a Chain) -> Self {
        Self {
            queue,
            sent: Buffers::new(memory, &chain.readable),
            reply: Buffers::new(memory, &chain.writable),
        }
    }
}

/// A virtio device, for one front end. Any thread may call it.
pub trait Device: Send + Sync + 'static {
    /// Returns the feature bits of the device's type; those of the queues are added to them.
    fn features(&self) -> u64;

    /// Accepts the driver's selection of the features.
    fn select_features(&self, _features: u64) {}

    /// Returns the number of queues.
    fn queues(&self) -> usize;

    /// Returns the configuration; `None` if the front end has one of its own.
    fn config(&self) -> Option<Vec<u8>>;

    /// Changes a part of the configuration; returns whether the driver may do that.
    fn write_config(&self, _offset: usize, _bytes: &[u8]) -> bool {
        false
    }

    /// Whether a request may be handled again, after a server that was killed has handled it in
    /// part or whole.
    fn can_repeat_requests(&self) -> bool {
        false
    }

    /// Returns the bytes of memory, a multiple of 4096, that the device wants to survive its
    /// server; they are all zeros at first. They come only if [`Device::can_repeat_requests`].
    fn record_len_bytes(&self) -> u64 {
        0
    }

    /// Accepts that memory, before the first request, perhaps from a server that was killed.
    ///
    /// # Errors
    /// The device cannot go on where the earlier server ended.
    fn resume(&self, _record: DeviceRecord) -> io::Result<()> {
        Ok(())
    }

    /// Handles a request in the thread of its queue, if it need not wait; returns the bytes written
    /// to the reply.
    fn handle_at_once(&self, request: &Request<'_>) -> Result<u32, Wait>;

    /// Handles a request; returns the bytes written to the reply.
    fn handle(&self, request: &Request<'_>) -> u32;

    /// Ends the waits of requests in progress for events that may never come, before a queue stops.
    fn end_waits(&self) {}

    /// Returns to the state of a device that no guest has used.
    fn reset(&self) {}
}
