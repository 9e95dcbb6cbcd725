//! The thread of a mount that makes the calls of its server's events.

use super::mount_caller::MountCaller;
use super::mountpoint::Unmounter;
use crate::changes::EventInbox;
use crate::events::{EventCall, EventCallError, EventCaller};
use crate::server::Server;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts the thread of a mount, if the server raises events. It ends the mount if no event can be
/// raised.
pub(super) fn start(
    server: &Arc<Server>,
    unmounter: Unmounter,
) -> io::Result<Option<JoinHandle<folio::Result<()>>>> {
    if server.event_calls().is_none() {
        return Ok(None);
    }
    let server = Arc::clone(server);
    let thread = std::thread::Builder::new().name("folio-events".to_owned());
    let run = move || {
        let sent = run(&server, &unmounter);
        if sent.is_err() {
            let _ = unmounter.unmount(true);
        }
        sent
    };
    thread.spawn(run).map(Some)
}

fn run(server: &Server, unmounter: &Unmounter) -> folio::Result<()> {
    let Some(inbox) = server.event_inbox() else {
        return Ok(());
    };
    server.send_events(&LocalCaller {
        inbox,
        mount: RefCell::new(MountCaller::enter(unmounter.target().to_owned())?),
    })
}

struct LocalCaller<'a> {
    inbox: &'a EventInbox,
    mount: RefCell<MountCaller>,
}

impl EventCaller for LocalCaller<'_> {
    fn make(&self, call: &EventCall) -> Result<(), EventCallError> {
        let _turn = self.inbox.take_turn();
        self.mount.borrow_mut().make(call)
    }

    fn release(&self) {
        self.mount.borrow_mut().release();
    }
}
