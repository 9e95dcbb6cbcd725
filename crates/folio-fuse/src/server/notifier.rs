//! The notifier: a program in a guest that makes the calls of events. The guest's kernel is the
//! client, and the server has no channel to its programs but the replies to their requests.

use super::Server;
use super::call::Call;
use crate::changes::Invalidator;
use crate::events::{
    AskStep, EventCallError, EventCalls, NotifierAsk, NotifierCalls, NotifierService, Place,
};
use crate::nodes::ROOT;
use crate::wire::abi::{IoctlOut, NOTIFY_LEN, NOTIFY_VERSION, NotifyIn, NotifyOut};
use folio::vfs::{FileType, InodeNumber};
use folio::{Errno, Error, Result};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest time after which a notifier makes a call again that has failed.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A client without notices: what it caches expires.
struct NoInvalidator;

impl Invalidator for NoInvalidator {
    fn invalidate_node(&self, _node: u64, _len_bytes: i64) -> io::Result<bool> {
        Ok(true)
    }

    fn invalidate_name(&self, _parent: u64, _name: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn invalidate_all_names(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Server {
    /// Lets a program of the client be a notifier, before the first request.
    #[cfg(feature = "virtiofs")]
    pub(crate) fn accept_notifier(self: &Arc<Self>) {
        let _ = self.notifier.set(NotifierService::new(self));
    }

    /// Ends the wait of a notifier's request, which another request follows.
    #[cfg(feature = "virtiofs")]
    pub(crate) fn end_notifier_wait(&self) {
        if let Some(service) = self.notifier.get() {
            service.calls.end_wait();
        }
    }

    /// Ends the threads that raise events by a notifier.
    #[cfg(feature = "virtiofs")]
    pub(crate) fn stop_notifier(&self) {
        let Some(service) = self.notifier.get() else {
            return;
        };
        self.stop_pushing();
        service.calls.close();
        for thread in service.threads.lock().drain(..) {
            // A panic was reported by its thread.
            let _ = thread.join();
        }
    }

    /// Forgets where an earlier client had its directories, and its notifier.
    pub(super) fn detach_notifier(&self) {
        if let Some(inbox) = self.event_inbox() {
            inbox.clear();
        }
        if let Some(calls) = self.event_calls() {
            calls.places.clear();
        }
        // Last: the sender makes its next call once this one is given up.
        if let Some(service) = self.notifier.get() {
            service.calls.detach();
        }
    }

    /// Returns the next call to a notifier, or none for now; for the superuser.
    ///
    /// # Errors
    /// EOPNOTSUPP if this server makes the calls by itself, ENODATA if the host reports no changes,
    /// EBUSY for a notifier that was replaced, EPROTO for another version, EXDEV for another node
    /// than the root.
    pub(super) fn notify(&self, call: &mut Call<'_>) -> Result<()> {
        let service = self.notifier.get().ok_or(Errno::OPNOTSUPP)?;
        if call.header.uid != 0 {
            return Err(Errno::PERM.into());
        }
        if call.node() != ROOT {
            return Err(Errno::XDEV.into());
        }
        call.check_room(size_of::<IoctlOut>() + NOTIFY_LEN)?;
        let args: NotifyIn = call.arguments.take()?;
        if args.version != NOTIFY_VERSION {
            return Err(Errno::PROTO.into());
        }
        let calls = self.begin_notifications(service)?;
        let next = service.calls.ask(NotifierAsk {
            notifier: args.notifier,
            step: AskStep::of_number(args.step).ok_or(Errno::PROTO)?,
            call: args.call,
            result: EventCallError::decode(args.result),
        })?;
        let (number, bytes) = next.unwrap_or_default();
        call.send(&IoctlOut::default())?;
        call.send(&NotifyOut {
            call: number,
            group: calls.group(),
            retry_us: self.options.ttl_max.min(RETRY_MAX).as_micros() as u32,
            len: bytes.len() as u32,
            ..NotifyOut::default()
        })?;
        call.send_bytes(&bytes)
    }

    /// Begins to raise events, once.
    fn begin_notifications(&self, service: &NotifierService<Self>) -> Result<&EventCalls> {
        let mut threads = service.threads.lock();
        if let (Some(calls), false) = (self.event_calls(), threads.is_empty()) {
            return Ok(calls);
        }
        // A client that keeps data without regard to its times would wake and read old data.
        if !self.options.has_external_writers {
            return Err(Errno::NODATA.into());
        }
        self.changes.ask_for_events();
        if !self.watch_changes() {
            return Err(Errno::NODATA.into());
        }
        let calls = self.event_calls.get_or_init(EventCalls::of_notifier);
        self.note_known_places(calls);
        let server = service.server.upgrade().ok_or(Errno::NOTCONN)?;
        let start = |name: &str, run: fn(&Self, &NotifierCalls)| {
            let (server, calls) = (Arc::clone(&server), Arc::clone(&service.calls));
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread
                .spawn(move || run(&server, &calls))
                .map_err(|error| Error::io("start a thread", error))
        };
        let push = start("folio-push", |server, _| {
            server.push_changes(&NoInvalidator);
        })?;
        let send = start("folio-events", |server, calls| {
            // A notifier is always recognized.
            let _ = server.send_events(calls);
        })?;
        threads.extend([push, send]);
        Ok(calls)
    }

    /// Notes where the client has the directories that it knows already.
    fn note_known_places(&self, calls: &EventCalls) {
        for node in self.nodes.ids() {
            if let Ok(handle) = self.nodes.handle(node)
                && handle.attributes().file_type == FileType::Directory
                && node != ROOT
                && let Some((parent, name)) = handle.parent_and_name()
                && !calls.places.contains(node)
            {
                let (parent, name) = (self.node_of(InodeNumber(parent)), name.into());
                calls.places.set(node, Place { parent, name });
            }
        }
    }
}

#[cfg(all(test, feature = "virtiofs"))]
mod tests {
    use super::*;
    use crate::client_options::{ClientOptions, PermissionChecks};
    use crate::events::{EventCall, EventCallKind};
    use crate::wire::Message;
    use crate::wire::abi::{EntryOut, InHeader, IoctlIn, MknodIn, NOTIFY, OutHeader};
    use crate::wire::op;
    use folio::vfs::MountOptions;
    use folio::{Kernel, KernelOptions};
    use zerocopy::{FromBytes, IntoBytes};

    const USER: u32 = 1000;

    fn send(server: &Server, ids: [u32; 2], opcode: u32, body: &[u8]) -> (Errno, Vec<u8>) {
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode,
            node: ROOT,
            uid: ids[0],
            gid: ids[1],
            ..InHeader::default()
        };
        let mut reply = Message::default();
        server.handle(&[header.as_bytes(), body].concat(), &mut reply);
        let (header, body) = OutHeader::read_from_prefix(reply.bytes()).unwrap();
        (Errno::from_raw_os_error(-header.error), body.to_vec())
    }

    fn ask(server: &Server, ids: [u32; 2], args: &NotifyIn) -> (Errno, NotifyOut, Vec<u8>) {
        let ioctl = IoctlIn {
            command: NOTIFY,
            ..IoctlIn::default()
        };
        let args = [args.as_bytes(), &[0; NOTIFY_LEN - size_of::<NotifyIn>()]].concat();
        let (errno, body) = send(server, ids, op::IOCTL, &[ioctl.as_bytes(), &args].concat());
        let out = body.get(size_of::<IoctlOut>()..).unwrap_or_default();
        match NotifyOut::read_from_prefix(out) {
            Ok((out, bytes)) => (errno, out, bytes.to_vec()),
            Err(_) => (errno, NotifyOut::default(), Vec::new()),
        }
    }

    #[test]
    fn host_change_is_a_call_of_the_notifier() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel::new(KernelOptions::default());
        let options = MountOptions::default();
        kernel.mount_hostfs(folder.path(), "/", &options).unwrap();
        let options = ClientOptions::shared(Duration::from_millis(1));
        let server = Arc::new(Server::new(kernel, PermissionChecks::ByClient, options));
        let mut args = NotifyIn {
            version: NOTIFY_VERSION,
            step: AskStep::First.number(),
            notifier: 7,
            ..NotifyIn::default()
        };
        assert_eq!(ask(&server, [0, 0], &args).0, Errno::OPNOTSUPP);
        server.accept_notifier();
        assert_eq!(ask(&server, [USER, 0], &args).0, Errno::PERM);
        assert!(server.event_calls().is_none());
        let (_, first, _) = ask(&server, [0, 0], &args);
        let thread = [0, first.group];
        std::fs::write(folder.path().join("file"), "x").unwrap();
        args.step = AskStep::Next.number();
        let call = loop {
            let (_, out, bytes) = ask(&server, thread, &args);
            args.call = out.call;
            match EventCall::decode(&bytes[..out.len as usize]) {
                Some(call) if matches!(call.kind, EventCallKind::Create(_)) => break call,
                _ => {}
            }
        };
        assert_eq!(&*call.names[0].name, b"file");
        // The name exists for all programs but the thread, which creates it.
        // An ordinary user with the same group is another program.
        for ids in [[0, 0], [USER, first.group]] {
            let (errno, _) = send(&server, ids, op::LOOKUP, b"file\0");
            assert_eq!(errno, Errno::from_raw_os_error(0));
        }
        assert_eq!(send(&server, thread, op::LOOKUP, b"file\0").0, Errno::NOENT);
        let body = [MknodIn::default().as_bytes(), b"file\0"].concat();
        let (_, made) = send(&server, thread, op::MKNOD, &body);
        assert_eq!(EntryOut::read_from_prefix(&made).unwrap().0.attr.size, 1);
        let refused = send(&server, thread, op::LINK, &[]);
        assert_eq!(refused.0, Errno::PERM);
        args.notifier = 8;
        assert_eq!(ask(&server, thread, &args).0, Errno::BUSY);
        server.stop_notifier();
    }
}
