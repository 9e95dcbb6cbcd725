//! The threads that serve one process: one for its messages, and one for each slot.

use super::client::Client;
use super::dispatch;
use crate::shared::layout::SLOTS_MAX;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Serves a process until all copies of its socket are closed.
pub(super) fn serve(client: Client, socket: OwnedFd) {
    let name = format!("direct-{}", client.registration.number());
    // Without a thread the socket is closed, which the process notices.
    let _ = thread::Builder::new().name(name).spawn(move || {
        let client = Arc::new(client);
        let slots = receive(&client, &socket);
        end(&client, slots);
    });
}

type Slots = Vec<Option<JoinHandle<()>>>;

/// Starts a thread for each slot that the process takes, until it ends.
fn receive(client: &Arc<Client>, socket: &OwnedFd) -> Slots {
    let mut slots: Slots = Vec::new();
    slots.resize_with(SLOTS_MAX, || None);
    let mut message = [0; 4];
    loop {
        match recv(socket, &mut message, RecvFlags::empty()) {
            Ok((4, 4)) => {}
            Err(Errno::INTR) => continue,
            _ => return slots,
        }
        let number = u32::from_ne_bytes(message);
        let Some(slot) = slots.get_mut(number as usize) else {
            return slots;
        };
        if slot.is_none() {
            if !client.registration.count_slot() {
                return slots;
            }
            let client = client.clone();
            let name = format!("slot-{number}");
            let started = thread::Builder::new()
                .name(name)
                .spawn(move || serve_slot(&client, number));
            match started {
                Ok(thread) => *slot = Some(thread),
                Err(_) => return slots,
            }
        }
    }
}

/// Ends the threads of a process.
fn end(client: &Client, slots: Slots) {
    client.set_ended();
    for (number, thread) in (0..).zip(slots) {
        if let (Some(slot), Some(thread)) = (client.arena.slot(number), thread) {
            slot.end();
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Serves the requests of one slot.
fn serve_slot(client: &Client, number: u32) {
    let Some(slot) = client.arena.slot(number) else {
        return;
    };
    let (mut input, mut output) = (Vec::new(), Vec::new());
    while !client.is_ended() {
        if !slot.wait(|| client.is_ended()) {
            continue;
        }
        let Some(header) = slot.take(&mut input) else {
            slot.reply(-i64::from(Errno::INVAL.raw_os_error()), &[]);
            continue;
        };
        let is_withdrawn = || slot.is_withdrawn() || client.is_ended();
        let result = dispatch::serve(client, &header, &input, &is_withdrawn, &mut output);
        slot.reply(result, &output);
    }
}
