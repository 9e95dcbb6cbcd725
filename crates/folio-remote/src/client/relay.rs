//! Requests on their way: read from the kernel, kept until they are answered, given to whatever
//! stream there is.

use super::known::Known;
use super::notices::Notices;
use crate::frame::Frame;
use crate::handshake::Grant;
use crate::link::Link;
use crate::message::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, number32, number64, op};
use foldhash::fast::RandomState;
use folio::{Errno, Error, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What a reply without data costs at most.
const SMALL_REPLY_BYTES: usize = 256;
/// Bytes that may be under way whatever the server says, so that something always is.
const UNDER_WAY_BYTES_MIN: usize = 4 << 20;
/// The kernel reads nothing into less (linux/fuse.h, `FUSE_MIN_READ_BUFFER`).
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// The requests of one mount.
pub(super) struct Relay {
    device: Arc<OwnedFd>,
    /// Longest request.
    message_bytes_max: usize,
    known: Mutex<Known>,
    notices: Notices,
    state: Mutex<State>,
    /// Told when there is room for requests, or all is over.
    changed: Condvar,
}

struct State {
    link: Option<Arc<Link>>,
    under_way: HashMap<u64, Request, RandomState>,
    bytes: usize,
    bytes_max: usize,
    /// Why requests fail now.
    failing: Option<Errno>,
    is_abandoned: bool,
    is_over: bool,
}

struct Request {
    bytes: Arc<Vec<u8>>,
    weight: usize,
    /// The kernel has been told that it was interrupted.
    is_given_up: bool,
}

impl Relay {
    pub(super) fn new(device: Arc<OwnedFd>, limits: &Grant) -> Self {
        Self {
            device,
            message_bytes_max: (limits.message_bytes_max as usize)
                .clamp(BUFFER_BYTES_MIN, 16 << 20),
            known: Mutex::default(),
            notices: Notices::default(),
            state: Mutex::new(State {
                link: None,
                under_way: HashMap::default(),
                bytes: 0,
                bytes_max: (limits.under_way_bytes_max as usize).max(UNDER_WAY_BYTES_MIN),
                failing: None,
                is_abandoned: false,
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The kernel's next request; `None` when it has unmounted.
    fn read_request<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(len) if len >= REQUEST_HEADER_BYTES => return Ok(Some(&buffer[..len])),
                // It was interrupted before it was read, or this call was.
                Ok(_) | Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(Error::io("/dev/fuse", errno.into())),
            }
        }
    }

    /// `FUSE_INIT`, by which the kernel begins; `None` if it has unmounted already.
    pub(super) fn first_request(&self) -> Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; self.message_bytes_max];
        let request = self.read_request(&mut buffer)?.map(<[u8]>::to_vec);
        match &request {
            Some(request) if number32(request, 4) != Some(op::INIT) => Err(Error::new(
                Errno::PROTO,
                "the kernel does not begin with FUSE_INIT",
            )),
            _ => Ok(request),
        }
    }

    /// Gives the kernel's requests to the server until it has unmounted.
    pub(super) fn read_requests(&self) -> Result<()> {
        let mut buffer = vec![0; self.message_bytes_max];
        loop {
            self.wait_for_room();
            let Some(request) = self.read_request(&mut buffer)? else {
                return Ok(());
            };
            self.forward(request);
        }
    }

    fn wait_for_room(&self) {
        let mut state = self.state.lock();
        while state.bytes >= state.bytes_max - UNDER_WAY_BYTES_MIN / 2
            && state.failing.is_none()
            && !state.is_over
        {
            self.changed.wait(&mut state);
        }
    }

    fn forward(&self, request: &[u8]) {
        let (Some(opcode), Some(unique)) = (number32(request, 4), number64(request, 8)) else {
            return;
        };
        match opcode {
            op::INTERRUPT => {
                return self.interrupt(number64(request, REQUEST_HEADER_BYTES).unwrap_or(0));
            }
            op::FORGET | op::BATCH_FORGET => self.known.lock().requested(request),
            _ => {}
        }
        let bytes = Arc::new(request.to_vec());
        let mut state = self.state.lock();
        let has_reply = !matches!(opcode, op::FORGET | op::BATCH_FORGET);
        if let Some(errno) = state.failing {
            drop(state);
            if has_reply {
                self.fail(unique, errno);
            }
            return;
        }
        if has_reply {
            let weight = request.len() + reply_bytes(opcode, request);
            state.bytes += weight;
            state.under_way.insert(
                unique,
                Request {
                    bytes: bytes.clone(),
                    weight,
                    is_given_up: false,
                },
            );
        }
        let link = state.link.clone();
        drop(state);
        if let Some(link) = link {
            // A link without bounds: what waits is bounded here.
            let _ = link.push(Frame::shared(bytes));
        }
    }

    /// A program that waits was sent a signal. While the server can be reached it answers soon;
    /// else the program is let go, and whether its request is still done does not matter to it.
    fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if state.link.as_ref().is_some_and(|link| link.is_attached()) {
            return;
        }
        let Some(request) = state
            .under_way
            .get_mut(&unique)
            .filter(|request| !request.is_given_up)
        else {
            return;
        };
        request.is_given_up = true;
        drop(state);
        self.fail(unique, Errno::INTR);
    }

    /// A reply of the server; false if it is none.
    pub(super) fn reply(&self, reply: &[u8]) -> bool {
        let Some(unique) =
            number64(reply, 8).filter(|_| number32(reply, 0) == u32::try_from(reply.len()).ok())
        else {
            return false;
        };
        let request = {
            let mut state = self.state.lock();
            let request = state.under_way.remove(&unique);
            state.bytes -= request.as_ref().map_or(0, |request| request.weight);
            request
        };
        self.changed.notify_all();
        // It may be one that has failed here meanwhile.
        let Some(request) = request else { return true };
        if request.is_given_up {
            self.take_back(&request.bytes, reply);
            return true;
        }
        self.known.lock().replied(&request.bytes, reply);
        self.write(reply);
        true
    }

    /// The kernel does not hear of a node that it was to be told, so the server forgets it.
    fn take_back(&self, request: &[u8], reply: &[u8]) {
        /// LOOKUP, SYMLINK, MKNOD, MKDIR, LINK, CREATE, TMPFILE.
        const TELLING: [u32; 7] = [1, 6, 8, 9, 13, 35, 51];
        let node = number64(reply, REPLY_HEADER_BYTES).unwrap_or(0);
        let is_telling = number32(request, 4).is_some_and(|opcode| TELLING.contains(&opcode));
        if is_telling && node != 0 && reply.get(4..8) == Some(&[0; 4]) {
            let mut forget = vec![0; REQUEST_HEADER_BYTES + 8];
            forget[..4].copy_from_slice(&(REQUEST_HEADER_BYTES as u32 + 8).to_ne_bytes());
            forget[4..8].copy_from_slice(&op::FORGET.to_ne_bytes());
            forget[16..24].copy_from_slice(&node.to_ne_bytes());
            forget[REQUEST_HEADER_BYTES..].copy_from_slice(&1_u64.to_ne_bytes());
            self.forward(&forget);
        }
    }

    fn fail(&self, unique: u64, errno: Errno) {
        let len = REPLY_HEADER_BYTES as u32;
        let head = [len.to_ne_bytes(), (-errno.raw_os_error()).to_ne_bytes()].concat();
        self.write(&[&head[..], &unique.to_ne_bytes()].concat());
    }

    /// The kernel refuses what it has given up waiting for, and what makes no sense; either way it
    /// waits no longer.
    fn write(&self, message: &[u8]) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.device, message));
    }

    /// Answers `FUSE_INIT`, and begins.
    pub(super) fn begin(&self, reply: &[u8], link: Arc<Link>) {
        self.state.lock().link = Some(link);
        self.write(reply);
    }

    /// Goes on with a server that knows nothing of what was before: what the kernel has cached is
    /// forgotten. False if all is over.
    pub(super) fn begin_anew(&self, link: Arc<Link>) -> bool {
        let mut state = self.state.lock();
        if state.is_over || state.is_abandoned {
            return false;
        }
        state.link = Some(link);
        state.failing = None;
        drop(state);
        self.notices.drop_everything();
        true
    }

    /// Everything that is under way fails, and what comes too.
    pub(super) fn start_failing(&self, errno: Errno) {
        let requests = {
            let mut state = self.state.lock();
            state.failing = Some(errno);
            state.link = None;
            state.bytes = 0;
            std::mem::take(&mut state.under_way)
        };
        self.changed.notify_all();
        for (unique, request) in requests {
            if !request.is_given_up {
                self.fail(unique, lost_errno(&request.bytes));
            }
        }
    }

    /// Calls fail from now on, for ever.
    pub(super) fn abandon(&self) {
        self.state.lock().is_abandoned = true;
        self.start_failing(Errno::IO);
    }

    /// The same, but not while the server can be reached.
    pub(super) fn abandon_if_lost(&self) {
        let is_lost = !self
            .state
            .lock()
            .link
            .as_ref()
            .is_some_and(|link| link.is_attached());
        if is_lost {
            self.abandon();
        }
    }

    /// The kernel has unmounted.
    pub(super) fn end(&self) {
        let link = {
            let mut state = self.state.lock();
            state.is_over = true;
            state.link.take()
        };
        self.changed.notify_all();
        self.notices.end();
        if let Some(link) = link {
            link.goodbye("unmounted");
            link.detach();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_over || state.is_abandoned
    }

    pub(super) fn is_failing(&self) -> bool {
        self.state.lock().failing.is_some()
    }

    /// Waits, but not if all is over.
    pub(super) fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.is_over && !state.is_abandoned {
            self.changed.wait_for(&mut state, pause);
        }
    }

    pub(super) fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(super) fn tell_notices(&self) {
        self.notices.tell(&self.device, &self.known);
    }
}

/// How a request ends whose server is gone, and may or may not have done it. ESTALE makes the
/// kernel look the path up and ask again (`retry_estale`), which is right for what changes nothing.
fn lost_errno(request: &[u8]) -> Errno {
    const CHANGES_NOTHING: [u32; 13] = [
        op::LOOKUP,
        op::GETATTR,
        op::READLINK,
        op::OPEN,
        op::READ,
        op::STATFS,
        op::GETXATTR,
        op::LISTXATTR,
        op::OPENDIR,
        op::READDIR,
        op::ACCESS,
        op::READDIRPLUS,
        op::STATX,
    ];
    match number32(request, 4) {
        Some(opcode) if CHANGES_NOTHING.contains(&opcode) || opcode == op::LSEEK => Errno::STALE,
        _ => Errno::IO,
    }
}

/// Bytes of the reply that a request asks for, at most.
fn reply_bytes(opcode: u32, request: &[u8]) -> usize {
    let asked = match opcode {
        op::READ | op::READDIR | op::READDIRPLUS => number32(request, REQUEST_HEADER_BYTES + 16),
        op::GETXATTR | op::LISTXATTR => number32(request, REQUEST_HEADER_BYTES),
        _ => None,
    };
    SMALL_REPLY_BYTES + asked.unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let head = [
            &((REQUEST_HEADER_BYTES + body.len()) as u32).to_ne_bytes()[..],
            &opcode.to_ne_bytes(),
        ]
        .concat();
        [&head[..], &[0; 32], body].concat()
    }

    #[test]
    fn replies_are_counted_before_they_come() {
        let read = [&[0; 16][..], &70_000_u32.to_ne_bytes(), &[0; 20]].concat();
        assert_eq!(
            reply_bytes(op::READ, &request(op::READ, &read)),
            SMALL_REPLY_BYTES + 70_000
        );
        assert_eq!(
            reply_bytes(op::READ, &request(op::READ, &[])),
            SMALL_REPLY_BYTES
        );
        let list = 500_u32.to_ne_bytes();
        assert_eq!(
            reply_bytes(op::LISTXATTR, &request(op::LISTXATTR, &list)),
            SMALL_REPLY_BYTES + 500
        );
    }

    #[test]
    fn only_what_changes_nothing_is_asked_again() {
        assert_eq!(lost_errno(&request(op::LOOKUP, &[])), Errno::STALE);
        // MKDIR, WRITE, FSYNC.
        for opcode in [9, 16, 20] {
            assert_eq!(lost_errno(&request(opcode, &[])), Errno::IO);
        }
    }
}
