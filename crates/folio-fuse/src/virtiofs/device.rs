//! The device: FUSE requests from virtio queues. Virtio 1.2, section 5.11.

use super::guest::{GuestReply, Scratch};
use crate::server::{Server, Wait};
use folio_net::vhost_user::{Device, Request, Wait as QueueWait};
use std::cell::RefCell;
use std::sync::Arc;

/// Bytes of a tag in the configuration; shorter tags are padded with zero bytes.
pub(crate) const TAG_LEN: usize = 36;

/// A virtiofs device of one guest.
pub(crate) struct FileSystemDevice {
    server: Arc<Server>,
    request_queues: usize,
    /// Tag and number of request queues: `struct virtio_fs_config`. `None` if the front end has a
    /// configuration of its own.
    config: Option<Vec<u8>>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl FileSystemDevice {
    pub(crate) fn new(server: Server, tag: Option<&str>, request_queues: usize) -> Self {
        let config = tag.map(|tag| {
            let mut config = tag.as_bytes().to_vec();
            config.resize(TAG_LEN, 0);
            config.extend_from_slice(&(request_queues as u32).to_le_bytes());
            config
        });
        let server = Arc::new(server);
        server.accept_notifier();
        Self {
            server,
            request_queues,
            config,
        }
    }
}

impl Drop for FileSystemDevice {
    fn drop(&mut self) {
        self.server.stop_notifier();
    }
}

impl Device for FileSystemDevice {
    fn features(&self) -> u64 {
        0
    }

    fn queues(&self) -> usize {
        // The first is the high-priority queue, which carries `FUSE_FORGET`.
        1 + self.request_queues
    }

    fn config(&self) -> Option<Vec<u8>> {
        self.config.clone()
    }

    fn handle_at_once(&self, request: &Request<'_>) -> Result<u32, QueueWait> {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.gather(request.sent);
            let mut reply = GuestReply::new(request.reply, &mut scratch.data);
            match self.server.handle_at_once(&scratch.request, &mut reply) {
                Ok(_) => Ok(reply.written()),
                Err(Wait::Data) => Err(QueueWait::Short),
                Err(Wait::Long) => Err(QueueWait::Long),
            }
        })
    }

    fn handle(&self, request: &Request<'_>) -> u32 {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.gather(request.sent);
            let mut reply = GuestReply::new(request.reply, &mut scratch.data);
            self.server.handle(&scratch.request, &mut reply);
            reply.written()
        })
    }

    fn end_waits(&self) {
        self.server.end_notifier_wait();
    }

    fn reset(&self) {
        self.server.end();
    }
}
