//! /dev/fuse: requests are read and answered by [`wire`](crate::wire), by several threads. Linux:
//! fs/fuse/dev.c.

use crate::adapter::Adapter;
use crate::sys;
use crate::wire::{self, Message, Outcome, Server};
use folio::Errno;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The kernel's requests and who answers them.
pub(crate) struct Transport {
    server: Server,
    device: Arc<OwnedFd>,
    /// Whether the kernel is told of changes.
    tells: bool,
}

impl Transport {
    /// Answers the kernel behind `device` by `server`; `tells` if it is told of changes as well.
    pub(crate) fn new(server: Server, device: Arc<OwnedFd>, tells: bool) -> Self {
        Self {
            server,
            device,
            tells,
        }
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        self.server.adapter()
    }

    /// Answers the first request, by which both sides agree on what they can do.
    ///
    /// Errors: ENOTCONN if the kernel has unmounted already, else why the server refuses.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; wire::REQUEST_MAX], Message::default());
        let Some(len) = receive(&self.device, &mut request)? else {
            return Err(Errno::NOTCONN.into());
        };
        self.answer(&self.device, &request[..len], &mut reply)?;
        match reply.errno() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Answers requests by `threads` threads until the file system is unmounted and nobody uses it
    /// any more.
    pub(crate) fn run(&self, threads: usize) -> io::Result<()> {
        std::thread::scope(|scope| {
            let spawn = |number| {
                let device = self.another()?;
                let thread = std::thread::Builder::new().name(format!("folio-fuse-{number}"));
                thread.spawn_scoped(scope, move || self.serve(&device))
            };
            // With fewer it goes on as well.
            let others: Vec<_> = (1..threads)
                .map_while(|number| spawn(number).ok())
                .collect();
            let served = self.serve(&self.device);
            others.into_iter().fold(served, |served, other| {
                let other = other.join();
                served.and(other.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            })
        })
    }

    /// One more way to the kernel's requests, with a queue of its own where the kernel allows that.
    fn another(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::open("/dev/fuse", flags, Mode::empty());
        let joined = opened
            .and_then(|opened| sys::join(opened.as_fd(), self.device.as_fd()).map(|()| opened));
        joined.or_else(|_| self.device.try_clone())
    }

    fn serve(&self, device: &OwnedFd) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; wire::REQUEST_MAX], Message::default());
        while let Some(len) = receive(device, &mut request)? {
            self.answer(device, &request[..len], &mut reply)?;
        }
        Ok(())
    }

    fn answer(&self, device: &OwnedFd, request: &[u8], reply: &mut Message) -> io::Result<()> {
        let _telling =
            (self.tells && wire::is_telling(request)).then(|| self.adapter().begin_reply());
        match self.server.handle(request, reply) {
            Outcome::Malformed => Err(io::Error::new(io::ErrorKind::InvalidData, "not a request")),
            Outcome::Silent => Ok(()),
            Outcome::Replied | Outcome::Ended => {
                // One write is one reply. It fails if nobody waits for it any more.
                let _ = rustix::io::write(device, reply.bytes());
                Ok(())
            }
        }
    }
}

/// Reads a request; `None` if there will be no more.
fn receive(device: &OwnedFd, request: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *request) {
            Ok(len) => return Ok(Some(len)),
            // It was given up before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}
