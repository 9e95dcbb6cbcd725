//! One connection: who reads its requests, and who works on them.
//!
//! ```text
//!   leader:  read a request --> quick?  work on it, read the next; replies are sent when no more requests are here
//!                 ^                 |
//!                 |                 no: hand the lead to another thread, work on it, look for something else to do
//!                 `-----------------'
//! ```
//!
//! The leader alone has the [`Input`], so that needs no lock. Quick is a small read or write while
//! the device answers such ones quickly: then a thread of its own for each would cost more than the
//! work. Once a device was slow, requests are worked on beside each other for a while.

use crate::command::Call;
use crate::crew::Task;
use crate::handshake::{Mode, negotiate};
use crate::input::Input;
use crate::listener::Stream;
use crate::outbox::Outbox;
use crate::protocol::{Command, CommandFlags, REQUEST_BYTES, Request};
use crate::server::{Export, Shared};
use crate::{PAYLOAD_BYTES_MAX, PIECE_BYTES};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a client may take to agree, and a reply in that time to be taken.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Longest read or write that may be quick.
const QUICK_BYTES_MAX: u32 = 64 << 10;
/// A read or write that took longer was slow.
const QUICK: Duration = Duration::from_micros(100);
/// As many requests are worked on beside each other after a slow one.
const BESIDE_COUNT: u32 = 128;
/// Most requests of one connection that are worked on at a time, besides the leader's.
const IN_FLIGHT_MAX: u32 = 32;
/// Replies wait for others until they are so many bytes.
const SEND_BYTES: usize = 32 << 10;

/// The part of a connection that all its threads share.
pub(crate) struct Client {
    pub(crate) stream: Stream,
    /// Held while bytes are sent.
    pub(crate) output: Mutex<()>,
    pub(crate) shared: Arc<Shared>,
    number: u64,
    in_flight: AtomicU32,
    /// How many more requests shall not be treated as quick.
    beside: AtomicU32,
    has_told: AtomicBool,
}

/// The right and duty to read a connection's next request.
pub(crate) struct Lead {
    client: Arc<Client>,
    mode: Mode,
    input: Box<Input>,
}

/// What a thread keeps from request to request.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) outbox: Outbox,
    /// Bytes to be written.
    pub(crate) payload: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: Stream, shared: Arc<Shared>, number: u64) -> Self {
        Self {
            stream,
            output: Mutex::default(),
            shared,
            number,
            in_flight: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            has_told: AtomicBool::new(false),
        }
    }

    pub(crate) fn export(&self) -> &Export {
        &self.shared.export
    }

    /// Tells the operator what failed, once for each client, so that none can fill a log.
    pub(crate) fn tell(&self, error: &folio::Error) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            self.shared.tell(&format!(
                "client {}: {error}; later failures are not told",
                self.number
            ));
        }
    }

    fn may_be_quick(&self, request: &Request) -> bool {
        matches!(request.command, Command::Read | Command::Write)
            && request.len_bytes <= QUICK_BYTES_MAX
            && !request.flags.contains(CommandFlags::FUA)
    }

    /// Learns from how long a request took that might have been quick.
    fn learn(&self, took: Duration) {
        // Two threads may count as one here; nothing but speed depends on it.
        let beside = if took > QUICK {
            BESIDE_COUNT
        } else {
            match self.beside.load(Ordering::Relaxed) {
                0 => return,
                count => count - 1,
            }
        };
        self.beside.store(beside, Ordering::Relaxed);
    }

    fn begin(&self) -> bool {
        let more = |count| (count < IN_FLIGHT_MAX).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.left(self.number);
    }
}

/// Agrees with a new client, and leads its connection.
pub(crate) fn greet(client: Arc<Client>, worker: &mut Worker) {
    let mut input = Box::new(Input::new(Instant::now() + HANDSHAKE));
    let mut agree = || {
        client.stream.set_write_timeout(Some(HANDSHAKE))?;
        let mode = negotiate(&client, &mut input, &mut worker.outbox)?;
        client.stream.set_write_timeout(None)?;
        input.wait_for_ever(&client.stream)?;
        Ok::<_, io::Error>(mode)
    };
    match agree() {
        Ok(Some(mode)) => lead(
            Lead {
                client,
                mode,
                input,
            },
            worker,
        ),
        // Who does not keep to the rules finds the connection closed.
        Ok(None) | Err(_) => worker.outbox.truncate(0),
    }
}

/// Reads requests and works on them until another thread leads or the connection ends.
pub(crate) fn lead(lead: Lead, worker: &mut Worker) {
    let client = lead.client.clone();
    if serve(lead, worker).is_err() {
        // Bytes that are no requests, or a client that takes no replies: other threads need not
        // try.
        client.stream.shutdown(Shutdown::Both);
    }
    worker.outbox.truncate(0);
}

fn serve(lead: Lead, worker: &mut Worker) -> io::Result<()> {
    let Lead {
        client,
        mode,
        mut input,
    } = lead;
    loop {
        if !input.holds(REQUEST_BYTES) {
            worker.outbox.send(&client)?;
            if client.shared.is_stopping() {
                return Ok(());
            }
        }
        let Some(bytes) = input.request(&client.stream)? else {
            break;
        };
        let request = Request::parse(&bytes).ok_or(ErrorKind::InvalidData)?;
        if request.command == Command::Disconnect {
            break;
        }
        let call = Call {
            client: &client,
            mode,
            request,
        };
        if !receive(&call, &mut input, worker)? {
            continue;
        }
        if client.may_be_quick(&request) && client.beside.load(Ordering::Relaxed) == 0 {
            let start = Instant::now();
            call.answer(worker)?;
            client.learn(start.elapsed());
            if worker.outbox.len() >= SEND_BYTES {
                worker.outbox.send(&client)?;
            }
            continue;
        }
        worker.outbox.send(&client)?;
        let handed = match client.begin() {
            false => Err(input),
            true => hand_over(Lead {
                client: client.clone(),
                mode,
                input,
            }),
        };
        let start = Instant::now();
        let answered = call.answer(worker);
        if client.may_be_quick(&request) {
            client.learn(start.elapsed());
        }
        let sent = answered.and_then(|()| worker.outbox.send(&client));
        match handed {
            Ok(()) => {
                client.end();
                return sent;
            }
            Err(back) => {
                sent?;
                input = back;
            }
        }
    }
    worker.outbox.send(&client)
}

/// Finds somebody else to lead, or gives the input back.
fn hand_over(lead: Lead) -> Result<(), Box<Input>> {
    let client = lead.client.clone();
    match client.shared.crew.give(Task::Lead(lead)) {
        Ok(()) => Ok(()),
        Err(task) => {
            client.end();
            match task {
                Task::Lead(lead) => Err(lead.input),
                // Nothing else was given.
                Task::Greet(_) => Ok(()),
            }
        }
    }
}

/// Checks a request and takes its payload; `false` if it is answered already.
fn receive(call: &Call<'_>, input: &mut Input, worker: &mut Worker) -> io::Result<bool> {
    let (client, request) = (call.client, &call.request);
    let checked = call.check();
    let len = request.len_bytes as usize;
    if request.command == Command::Write {
        if !input.holds(len) {
            // It may take a while until the payload is here.
            worker.outbox.send(client)?;
        }
        match checked {
            Err(_) => input.skip(&client.stream, len as u64)?,
            Ok(()) if len <= PIECE_BYTES => {
                input.read_exact(&client.stream, room(&mut worker.payload, len))?;
            }
            Ok(()) => {
                write_in_pieces(call, input, worker)?;
                return Ok(false);
            }
        }
    }
    match checked {
        Ok(()) => Ok(true),
        Err(failure) => {
            call.fail(&mut worker.outbox, &failure);
            Ok(false)
        }
    }
}

/// A write that is too long to be held: it goes to the device as it comes.
fn write_in_pieces(call: &Call<'_>, input: &mut Input, worker: &mut Worker) -> io::Result<()> {
    debug_assert!(call.request.len_bytes <= PAYLOAD_BYTES_MAX);
    let mut done = 0;
    let mut written = Ok(());
    while done < call.request.len_bytes as usize {
        let count = (call.request.len_bytes as usize - done).min(PIECE_BYTES);
        let piece = room(&mut worker.payload, count);
        input.read_exact(&call.client.stream, piece)?;
        if written.is_ok() {
            written = call
                .client
                .export()
                .device
                .write_at(piece, call.request.offset + done as u64);
        }
        done += count;
    }
    call.finish_write(&mut worker.outbox, written);
    worker.outbox.send(call.client)
}

/// The first `len` bytes of a buffer that grows as needed.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len.next_multiple_of(4096), 0);
    }
    &mut buffer[..len]
}
