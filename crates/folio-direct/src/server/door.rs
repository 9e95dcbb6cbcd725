//! The door: the socket on which new processes attach.

use super::arena::Arena;
use super::client::Client;
use super::registry::Registry;
use super::threads;
use crate::shared::layout::{Attach, VERSION};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

/// Interval at which expired states of processes are dropped.
const EXPIRE_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Attaches processes until every one has closed its end of the door.
pub(super) fn serve(registry: &Arc<Registry>, door: &OwnedFd) {
    loop {
        registry.expire();
        // Before the door is looked at: their messages, if any, are there already.
        let orphans = registry.orphans();
        let timeout = if orphans.is_empty() {
            EXPIRE_INTERVAL
        } else {
            Timespec::default()
        };
        let mut ready = [PollFd::new(door, PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => {
                registry.drop_states(&orphans);
                continue;
            }
            Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        let events = ready[0].revents();
        if events.contains(PollFlags::IN) {
            if let Some(message) = receive(door) {
                // A process that cannot attach finds its socket closed.
                let _ = attach_process(registry, message);
            } else if events.contains(PollFlags::HUP) {
                return;
            }
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return;
        }
    }
}

/// The message of a new process.
struct Message {
    attach: Attach,
    arena: OwnedFd,
    socket: OwnedFd,
    /// The sender, as the kernel knows it: it may be killed.
    sender: Option<Pid>,
}

/// Receives a message; `None` if it is not one of a new process.
fn receive(door: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; size_of::<Attach>()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(
        door,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    );
    let (mut descriptors, mut sender) = (Vec::new(), None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
            RecvAncillaryMessage::ScmCredentials(found) => sender = Some(found.pid),
            _ => {}
        }
    }
    if received.ok()?.bytes != bytes.len() {
        return None;
    }
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(word)
    };
    let attach = Attach {
        version: word(0),
        process: word(4),
        token: u64::from(word(8)) | u64::from(word(12)) << 32,
    };
    let [arena, socket] = descriptors.try_into().ok()?;
    Some(Message {
        attach,
        arena,
        socket,
        sender,
    })
}

fn attach_process(registry: &Arc<Registry>, message: Message) -> Option<()> {
    let Message {
        attach,
        arena,
        socket,
        sender,
    } = message;
    if attach.version != VERSION {
        return None;
    }
    let arena = Arena::map(arena.as_fd()).ok()?;
    // A process of another PID namespace has no number here.
    let pidfd = sender.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let (registration, process) = registry.attach(attach.token, pidfd)?;
    let state = process
        .process
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    state.set_pid(attach.process);
    drop(state);
    threads::serve(Client::new(registration, arena, process), socket);
    Some(())
}
