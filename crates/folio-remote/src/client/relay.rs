//! The relay of requests: reads them from the kernel, keeps them until they are answered, and
//! passes them to the current link.

use super::kernel_cache::{ENTRY_BYTES, KernelCache, listed};
use super::notices::{Notices, RemoteCall};
use crate::frame::Frame;
use crate::handshake::SessionGrant;
use crate::link::Link;
use crate::message::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, op, u32_at, u64_at};
use foldhash::fast::RandomState;
use folio::{Errno, Error, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Longest reply without data, in bytes.
const SMALL_REPLY_BYTES: usize = 256;
/// Bytes that may be under way whatever the server grants, so that requests make progress.
const UNDER_WAY_BYTES_MIN: usize = 4 << 20;
/// Smallest buffer that /dev/fuse reads into (linux/fuse.h, `FUSE_MIN_READ_BUFFER`).
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// The requests of one mount.
pub(super) struct Relay {
    device: Arc<OwnedFd>,
    /// Longest request, in bytes.
    message_bytes_max: usize,
    kernel_cache: Mutex<KernelCache>,
    notices: Notices,
    state: Mutex<RelayState>,
    /// Notified when there is room for requests, or the relay has ended.
    changed: Condvar,
}

struct RelayState {
    link: Option<Arc<Link>>,
    under_way: HashMap<u64, PendingRequest, RandomState>,
    bytes: usize,
    bytes_max: usize,
    /// The error of all requests, while they fail.
    failing: Option<Errno>,
    is_abandoned: bool,
    has_ended: bool,
    /// Whether the thread of the calls that raise events is ready.
    raises_events: bool,
}

struct PendingRequest {
    bytes: Arc<Vec<u8>>,
    /// Bytes of the request and of the longest reply.
    len_bytes: usize,
    /// It was answered with EINTR, or is the relay's own; the server's reply is dropped.
    is_reply_dropped: bool,
}

impl Relay {
    pub(super) fn new(device: Arc<OwnedFd>, grant: &SessionGrant) -> Self {
        Self {
            device,
            message_bytes_max: (grant.message_bytes_max as usize).clamp(BUFFER_BYTES_MIN, 16 << 20),
            kernel_cache: Mutex::default(),
            notices: Notices::default(),
            state: Mutex::new(RelayState {
                link: None,
                under_way: HashMap::default(),
                bytes: 0,
                bytes_max: (grant.under_way_bytes_max as usize).max(UNDER_WAY_BYTES_MIN),
                failing: None,
                is_abandoned: false,
                has_ended: false,
                raises_events: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Reads the kernel's next request; `None` once it has unmounted.
    fn read_request<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(len) if len >= REQUEST_HEADER_BYTES => return Ok(Some(&buffer[..len])),
                // The request was interrupted before it was read, or this call was.
                Ok(_) | Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(Error::io("/dev/fuse", errno.into())),
            }
        }
    }

    /// Reads the kernel's first request, `FUSE_INIT`; `None` if it has unmounted already.
    ///
    /// # Errors
    /// EPROTO for another request, else the host's error.
    pub(super) fn first_request(&self) -> Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; self.message_bytes_max];
        let request = self.read_request(&mut buffer)?.map(<[u8]>::to_vec);
        match &request {
            Some(request) if u32_at(request, 4) != Some(op::INIT) => Err(Error::new(
                Errno::PROTO,
                "the first request of the kernel is not FUSE_INIT",
            )),
            _ => Ok(request),
        }
    }

    /// Forwards the kernel's requests to the server until the kernel has unmounted.
    pub(super) fn read_requests(&self) -> Result<()> {
        let mut buffer = vec![0; self.message_bytes_max];
        loop {
            // Before the read: a request that is read must be kept until its reply.
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
            && !state.has_ended
        {
            self.changed.wait(&mut state);
        }
    }

    fn forward(&self, request: &[u8]) {
        let (Some(opcode), Some(unique)) = (u32_at(request, 4), u64_at(request, 8)) else {
            return;
        };
        match opcode {
            op::INTERRUPT => {
                return self.interrupt(u64_at(request, REQUEST_HEADER_BYTES).unwrap_or(0));
            }
            op::FORGET | op::BATCH_FORGET => self.kernel_cache.lock().record_request(request),
            _ => {}
        }
        self.send(opcode, unique, request.to_vec(), false);
    }

    /// Sends a request. A request of the relay itself (`is_own`) is answered to no program.
    fn send(&self, opcode: u32, unique: u64, request: Vec<u8>, is_own: bool) {
        let bytes = Arc::new(request);
        let mut state = self.state.lock();
        let has_reply = !matches!(opcode, op::FORGET | op::BATCH_FORGET);
        if let Some(errno) = state.failing {
            drop(state);
            if has_reply && !is_own {
                self.fail(unique, errno);
            }
            return;
        }
        if has_reply {
            let len_bytes = bytes.len() + reply_bytes_max(opcode, &bytes);
            state.bytes += len_bytes;
            state.under_way.insert(
                unique,
                PendingRequest {
                    bytes: bytes.clone(),
                    len_bytes,
                    is_reply_dropped: is_own,
                },
            );
        }
        let link = state.link.clone();
        drop(state);
        // After the request is in the list: the reply may come at once.
        if let Some(link) = link {
            // The link has no limit: the bytes under way are limited here.
            let _ = link.push(Frame::shared(bytes));
        }
    }

    /// Handles a signal to a program that waits. With a connection the server answers soon. Without
    /// one the request fails with EINTR, although the server may still run it.
    fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if state.link.as_ref().is_some_and(|link| link.is_attached()) {
            return;
        }
        let Some(request) = state
            .under_way
            .get_mut(&unique)
            .filter(|request| !request.is_reply_dropped)
        else {
            return;
        };
        request.is_reply_dropped = true;
        drop(state);
        self.fail(unique, Errno::INTR);
    }

    /// Passes a reply of the server to the kernel. Returns false if the bytes are not a reply.
    pub(super) fn forward_reply(&self, reply: &[u8]) -> bool {
        let Some(unique) =
            u64_at(reply, 8).filter(|_| u32_at(reply, 0) == u32::try_from(reply.len()).ok())
        else {
            return false;
        };
        let request = {
            let mut state = self.state.lock();
            let request = state.under_way.remove(&unique);
            state.bytes -= request.as_ref().map_or(0, |request| request.len_bytes);
            request
        };
        self.changed.notify_all();
        // Without one, the request has failed here meanwhile.
        let Some(request) = request else { return true };
        if request.is_reply_dropped {
            self.release_unseen(&request.bytes, reply);
            return true;
        }
        self.kernel_cache.lock().record_reply(&request.bytes, reply);
        self.write(reply);
        true
    }

    /// Undoes at the server what a reply that does not reach the kernel has added: counted lookups
    /// of nodes, and an open file.
    fn release_unseen(&self, request: &[u8], reply: &[u8]) {
        let (Some(opcode), Some(node)) = (u32_at(request, 4), u64_at(request, 16)) else {
            return;
        };
        if reply.get(4..8) != Some(&[0; 4]) {
            return;
        }
        let number = |at| u64_at(reply, REPLY_HEADER_BYTES + at).unwrap_or(0);
        let (nodes, owner, file) = match opcode {
            op::LOOKUP | op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK => (vec![number(0)], 0, 0),
            op::CREATE | op::TMPFILE => (vec![number(0)], number(0), number(ENTRY_BYTES)),
            op::READDIRPLUS => (listed(reply).map(|(node, _)| node).collect(), 0, 0),
            op::OPEN | op::OPENDIR => (Vec::new(), node, number(0)),
            _ => return,
        };
        // Files first, as the kernel does.
        if file != 0 {
            // `struct fuse_release_in`.
            let body = [&file.to_ne_bytes()[..], &[0; 16]].concat();
            let is_directory = opcode == op::OPENDIR;
            let release = if is_directory {
                op::RELEASEDIR
            } else {
                op::RELEASE
            };
            self.send_own(request, release, owner, &body);
        }
        for node in nodes.into_iter().filter(|node| *node != 0) {
            self.send_own(request, op::FORGET, node, &1_u64.to_ne_bytes());
        }
    }

    /// Sends a request of the relay itself after the interrupted one `after`.
    fn send_own(&self, after: &[u8], opcode: u32, node: u64, body: &[u8]) {
        // An odd number: those of the kernel's requests are even (`FUSE_REQ_ID_STEP`).
        let unique = u64_at(after, 8).unwrap_or(0) | 1;
        // A request is much shorter than 4 GiB.
        let len = (REQUEST_HEADER_BYTES + body.len()) as u32;
        let mut request = vec![0; REQUEST_HEADER_BYTES];
        request[..4].copy_from_slice(&len.to_ne_bytes());
        request[4..8].copy_from_slice(&opcode.to_ne_bytes());
        request[8..16].copy_from_slice(&unique.to_ne_bytes());
        request[16..24].copy_from_slice(&node.to_ne_bytes());
        request.extend_from_slice(body);
        self.send(opcode, unique, request, true);
    }

    fn fail(&self, unique: u64, errno: Errno) {
        let len = REPLY_HEADER_BYTES as u32;
        let head = [len.to_ne_bytes(), (-errno.raw_os_error()).to_ne_bytes()].concat();
        self.write(&[&head[..], &unique.to_ne_bytes()].concat());
    }

    /// Writes a reply. Ignores errors: the kernel refuses replies to aborted requests and malformed
    /// ones, and waits for neither.
    fn write(&self, message: &[u8]) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.device, message));
    }

    /// Answers `FUSE_INIT`, and forwards requests to `link` from now on.
    pub(super) fn begin(&self, reply: &[u8], link: Arc<Link>) {
        // Before the reply: the kernel's next request may follow it at once.
        self.state.lock().link = Some(link);
        self.write(reply);
    }

    /// Continues with a new session over `link`, and invalidates all that the kernel has cached.
    /// Returns false if the relay has ended.
    pub(super) fn begin_new_session(&self, link: Arc<Link>) -> bool {
        let mut state = self.state.lock();
        if state.has_ended || state.is_abandoned {
            return false;
        }
        state.link = Some(link.clone());
        state.failing = None;
        let raises_events = state.raises_events;
        drop(state);
        // The new server has no record of what the kernel has cached.
        self.notices.drop_everything();
        if raises_events {
            self.notices.add_result(link, Ok(()));
        }
        true
    }

    /// Makes the server send calls that raise events, from now on.
    pub(super) fn begin_events(&self) {
        let mut state = self.state.lock();
        state.raises_events = true;
        if let Some(link) = state.link.clone() {
            self.notices.add_result(link, Ok(()));
        }
    }

    /// Fails all requests under way, and later ones with `errno`.
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
            if !request.is_reply_dropped {
                self.fail(unique, lost_errno(&request.bytes));
            }
        }
    }

    /// Fails all requests from now on, permanently.
    pub(super) fn abandon(&self) {
        self.state.lock().is_abandoned = true;
        self.start_failing(Errno::IO);
    }

    /// Fails all requests from now on, unless there is a connection.
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

    /// Ends the relay after the kernel has unmounted.
    pub(super) fn end(&self) {
        let link = {
            let mut state = self.state.lock();
            state.has_ended = true;
            state.link.take()
        };
        self.changed.notify_all();
        self.notices.end();
        if let Some(link) = link {
            link.send_goodbye("unmounted");
            link.detach();
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.has_ended || state.is_abandoned
    }

    pub(super) fn is_failing(&self) -> bool {
        self.state.lock().failing.is_some()
    }

    /// Waits for `pause`, or until the relay ends.
    pub(super) fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.has_ended && !state.is_abandoned {
            self.changed.wait_for(&mut state, pause);
        }
    }

    pub(super) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Writes notices to the kernel until the relay ends, and passes calls that raise events on.
    pub(super) fn write_notices(&self, calls: &SyncSender<RemoteCall>, report: &dyn Fn(&str)) {
        self.notices
            .write_until_end(&self.device, &self.kernel_cache, calls, report);
    }
}

/// Returns the error of a request whose server was lost and may have run it. ESTALE makes the
/// kernel look the path up and retry (`retry_estale`), which is correct for requests that change
/// nothing.
fn lost_errno(request: &[u8]) -> Errno {
    const READ_ONLY: [u32; 13] = [
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
    match u32_at(request, 4) {
        Some(opcode) if READ_ONLY.contains(&opcode) || opcode == op::LSEEK => Errno::STALE,
        _ => Errno::IO,
    }
}

/// Returns the longest reply to a request, in bytes.
fn reply_bytes_max(opcode: u32, request: &[u8]) -> usize {
    let data_bytes = match opcode {
        op::READ | op::READDIR | op::READDIRPLUS => u32_at(request, REQUEST_HEADER_BYTES + 16),
        op::GETXATTR | op::LISTXATTR => u32_at(request, REQUEST_HEADER_BYTES),
        _ => None,
    };
    SMALL_REPLY_BYTES + data_bytes.unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameReader;
    use crate::handshake::SessionId;
    use folio_net::StreamReader;
    use std::os::unix::net::UnixStream;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let head = [
            &((REQUEST_HEADER_BYTES + body.len()) as u32).to_ne_bytes()[..],
            &opcode.to_ne_bytes(),
        ]
        .concat();
        [&head[..], &[0; 32], body].concat()
    }

    #[test]
    fn reply_size_is_derived_from_the_request() {
        let read = [&[0; 16][..], &70_000_u32.to_ne_bytes(), &[0; 20]].concat();
        assert_eq!(
            reply_bytes_max(op::READ, &request(op::READ, &read)),
            SMALL_REPLY_BYTES + 70_000
        );
        assert_eq!(
            reply_bytes_max(op::READ, &request(op::READ, &[])),
            SMALL_REPLY_BYTES
        );
        let list = 500_u32.to_ne_bytes();
        assert_eq!(
            reply_bytes_max(op::LISTXATTR, &request(op::LISTXATTR, &list)),
            SMALL_REPLY_BYTES + 500
        );
    }

    /// A relay whose requests and replies are the test's, and the kernel's end of its device.
    fn relay() -> (Relay, UnixStream) {
        let (device, kernel) = UnixStream::pair().unwrap();
        let grant = SessionGrant {
            is_resumed: false,
            sends_events: false,
            kernel_checks_permissions: true,
            session: SessionId::default(),
            received: 0,
            message_bytes_max: 1 << 20,
            under_way_bytes_max: 1 << 25,
            grace_s: 60,
            share: String::new(),
        };
        (Relay::new(Arc::new(device.into()), &grant), kernel)
    }

    /// Interrupts a request that waits for the connection, and passes the server's late reply.
    /// Returns opcode, node and first number of what the server receives afterwards.
    fn sent_after_interrupt(opcode: u32, reply_body: &[u8]) -> Vec<(u32, u64, u64)> {
        const UNIQUE: u64 = 8;
        let (relay, _kernel) = relay();
        let link = Arc::new(Link::new(usize::MAX));
        relay.begin(&[], link.clone());
        let mut known = vec![0; REPLY_HEADER_BYTES + ENTRY_BYTES];
        known[REPLY_HEADER_BYTES..][..8].copy_from_slice(&5_u64.to_ne_bytes());
        let lookup = request(op::LOOKUP, b"known\0");
        relay.kernel_cache.lock().record_reply(&lookup, &known);
        let mut sent = request(opcode, b"name\0");
        sent[8..16].copy_from_slice(&UNIQUE.to_ne_bytes());
        sent[16..24].copy_from_slice(&3_u64.to_ne_bytes());
        relay.forward(&sent);
        relay.forward(&request(op::INTERRUPT, &UNIQUE.to_ne_bytes()));
        let len = (REPLY_HEADER_BYTES + reply_body.len()) as u32;
        let head = [&len.to_ne_bytes()[..], &[0; 4], &UNIQUE.to_ne_bytes()].concat();
        assert!(relay.forward_reply(&[&head[..], reply_body].concat()));
        let (ours, peer) = UnixStream::pair().unwrap();
        link.attach(Arc::new(ours.into()), 0).unwrap();
        let mut frames = FrameReader::new(StreamReader(Arc::new(peer.into())), 1 << 20);
        assert_eq!(frames.next().unwrap().unwrap().body, sent);
        link.detach();
        let mut received = Vec::new();
        while let Some(frame) = frames.next().unwrap() {
            let number = |at| u64_at(&frame.body, at).unwrap();
            let opcode = u32_at(&frame.body, 4).unwrap();
            received.push((opcode, number(16), number(REQUEST_HEADER_BYTES)));
            // The kernel has no request with this number: the answer is dropped.
            let answer = [&16_u32.to_ne_bytes()[..], &[0; 4], &frame.body[8..16]].concat();
            assert!(relay.forward_reply(&answer));
        }
        assert_eq!(relay.state.lock().bytes, 0);
        // The kernel has not forgotten its own lookup.
        assert!(relay.kernel_cache.lock().entries().0.contains(&5));
        received
    }

    #[test]
    fn interrupted_requests_leave_nothing_at_the_server() {
        let mut entry = vec![0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&5_u64.to_ne_bytes());
        let file = 9_u64.to_ne_bytes();
        let open = [&file[..], &[0; 8]].concat();
        let forgets = [(op::FORGET, 5, 1)];
        assert_eq!(sent_after_interrupt(op::LOOKUP, &entry), forgets);
        assert_eq!(sent_after_interrupt(op::OPEN, &open), [(op::RELEASE, 3, 9)]);
        assert_eq!(
            sent_after_interrupt(op::OPENDIR, &open),
            [(op::RELEASEDIR, 3, 9)]
        );
        let created = [&entry[..], &open].concat();
        assert_eq!(
            sent_after_interrupt(op::CREATE, &created),
            [(op::RELEASE, 5, 9), forgets[0]]
        );
        let dirent = [&[0; 16][..], &4_u32.to_ne_bytes(), &[0; 4], b"name\0\0\0\0"].concat();
        let no_node = [&[0; ENTRY_BYTES][..], &dirent].concat();
        let listing = [no_node, [&entry[..], &dirent].concat()].concat();
        assert_eq!(sent_after_interrupt(op::READDIRPLUS, &listing), forgets);
    }

    #[test]
    fn only_read_only_requests_are_retried() {
        assert_eq!(lost_errno(&request(op::LOOKUP, &[])), Errno::STALE);
        // MKDIR, WRITE, FSYNC.
        for opcode in [9, 16, 20] {
            assert_eq!(lost_errno(&request(opcode, &[])), Errno::IO);
        }
    }
}
