//! The transport of /dev/fuse: several threads read requests and write replies. Linux:
//! fs/fuse/dev.c.

use crate::local::ioctl;
use crate::server::{Outcome, Server, replies_with_attributes};
use crate::wire::{Message, REQUEST_MAX};
use folio::Errno;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

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

    /// Serves requests with `threads` threads until the file system is unmounted and unused.
    pub(super) fn run(&self, threads: usize) -> io::Result<()> {
        std::thread::scope(|scope| {
            let spawn = |number| {
                let device = self.clone_device()?;
                let thread = std::thread::Builder::new().name(format!("folio-fuse-{number}"));
                thread.spawn_scoped(scope, move || self.serve(&device))
            };
            // Fewer threads suffice.
            let threads: Vec<_> = (1..threads)
                .map_while(|number| spawn(number).ok())
                .collect();
            let served = self.serve(&self.device);
            threads.into_iter().fold(served, |served, thread| {
                let thread = thread.join();
                served.and(thread.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
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

    fn serve(&self, device: &OwnedFd) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; REQUEST_MAX], Message::default());
        while let Some(len) = receive(device, &mut request)? {
            self.answer(device, &request[..len], &mut reply)?;
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

/// Reads a request; `None` after the unmount.
fn receive(device: &OwnedFd, request: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *request) {
            Ok(len) => return Ok(Some(len)),
            // The request was interrupted before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}
