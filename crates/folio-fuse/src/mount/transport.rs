//! The transport of /dev/fuse: several threads read requests and write replies. With io_uring
//! (`uring/`), only what its queues do not carry. Linux: fs/fuse/dev.c.

use super::invalidator::DeviceInvalidator;
use super::uring;
use crate::local::ioctl;
use crate::server::{Outcome, Server, replies_with_attributes};
use crate::wire::{Message, REQUEST_MAX};
use folio::Errno;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

/// A request before which the kernel must write a file back.
struct SeekRequest {
    bytes: Vec<u8>,
    /// The node, and the offset of the first byte concerned.
    flush: (u64, u64),
    /// The descriptor from which it was read, which receives the reply.
    device: Arc<OwnedFd>,
}

/// One session of /dev/fuse.
pub(super) struct DeviceTransport {
    server: Arc<Server>,
    device: Arc<OwnedFd>,
    /// Whether changes are pushed to the kernel.
    has_push: bool,
}

impl DeviceTransport {
    /// Serves the kernel behind `device`; `has_push` if changes are pushed to it.
    pub(super) fn new(server: Arc<Server>, device: Arc<OwnedFd>, has_push: bool) -> Self {
        Self {
            server,
            device,
            has_push,
        }
    }

    /// Replies to the first request, which negotiates the capabilities.
    ///
    /// # Errors
    /// ENOTCONN if the kernel has unmounted already, else the server's refusal.
    pub(super) fn begin(&self) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; REQUEST_MAX], Message::default());
        let Some(len) = receive(&self.device, &mut request)? else {
            return Err(Errno::NOTCONN.into());
        };
        self.answer(&self.device, &request[..len], &mut reply)?;
        match reply.errno() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Serves requests with `threads` threads until the file system is unmounted and unused. Calls
    /// `started` once it needs no further descriptor, ring or thread.
    pub(super) fn run(&self, threads: usize, started: impl FnOnce()) -> io::Result<()> {
        std::thread::scope(|scope| {
            // Fails before the kernel sends a request.
            let queues = if self.server.is_over_uring() {
                uring::start(scope, &self.server, &self.device, self.has_push, threads)?
            } else {
                Vec::new()
            };
            let (seeks, seek_requests) = channel();
            let seek_thread = Builder::new().name("folio-fuse-seek".to_owned());
            let seek_thread =
                seek_thread.spawn_scoped(scope, move || self.serve_seeks(&seek_requests))?;
            let spawn = |number| {
                let (device, seeks) = (Arc::new(self.clone_device()?), seeks.clone());
                let thread = Builder::new().name(format!("folio-fuse-{number}"));
                thread.spawn_scoped(scope, move || self.serve(&device, &seeks))
            };
            // Fewer threads suffice.
            let threads: Vec<_> = (1..threads)
                .map_while(|number| spawn(number).ok())
                .collect();
            started();
            let served = self.serve(&self.device, &seeks);
            // The thread of seeks ends with the last sender.
            drop(seeks);
            threads
                .into_iter()
                .chain(queues)
                .chain([seek_thread])
                .fold(served, |served, thread| {
                    let thread = thread.join();
                    served
                        .and(thread.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
                })
        })
    }

    /// Opens another descriptor of the session, with a queue of its own if the kernel permits it.
    fn clone_device(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::open("/dev/fuse", flags, Mode::empty());
        let joined = opened
            .and_then(|opened| ioctl::join(opened.as_fd(), self.device.as_fd()).map(|()| opened));
        joined.or_else(|_| self.device.try_clone())
    }

    fn serve(&self, device: &Arc<OwnedFd>, seeks: &Sender<SeekRequest>) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; REQUEST_MAX], Message::default());
        while let Some(len) = receive(device, &mut request)? {
            let request = &request[..len];
            if let Some(flush) = self.server.must_be_flushed(request) {
                let sent = seeks.send(SeekRequest {
                    bytes: request.to_vec(),
                    flush,
                    device: Arc::clone(device),
                });
                sent.map_err(|_| io::Error::other("the thread of seeks has ended"))?;
            } else {
                self.answer(device, request, &mut reply)?;
            }
        }
        Ok(())
    }

    /// Answers requests that begin with a writeback by the kernel, which sends requests to the
    /// other threads meanwhile.
    fn serve_seeks(&self, requests: &Receiver<SeekRequest>) -> io::Result<()> {
        let mut reply = Message::default();
        let kernel = DeviceInvalidator::new(self.device.try_clone()?);
        for request in requests {
            let (node, offset) = request.flush;
            kernel.flush(node, offset);
            self.answer(&request.device, &request.bytes, &mut reply)?;
        }
        Ok(())
    }

    fn answer(&self, device: &OwnedFd, request: &[u8], reply: &mut Message) -> io::Result<()> {
        let _guard =
            (self.has_push && replies_with_attributes(request)).then(|| self.server.begin_reply());
        match self.server.handle(request, reply) {
            Outcome::Malformed => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "malformed request from /dev/fuse",
            )),
            Outcome::Silent => Ok(()),
            Outcome::Replied | Outcome::Ended => {
                // One write is one reply. It fails if the request was interrupted.
                let _ = rustix::io::write(device, reply.bytes());
                Ok(())
            }
        }
    }
}

/// Reads a request; `None` after the unmount, or an abort of the connection.
fn receive(device: &OwnedFd, request: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *request) {
            Ok(len) => return Ok(Some(len)),
            // The request was interrupted before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            // Unmounted, or aborted by `umount -f` or through /sys/fs/fuse/connections.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}
