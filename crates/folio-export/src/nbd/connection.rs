//! The threads of a connection: one reads requests, other threads run them.
//!
//! ```text
//!   thread with the read turn:
//!     read a request --> quick?  run it, read the next; send replies when no more requests are buffered
//!           ^              |
//!           |              no: pass the read turn to another thread, run the request, take a new task
//!           `--------------'
//! ```
//!
//! Only the thread with the read turn has the [`RequestReader`], so that needs no lock. A request
//! is quick if it is a small read or write and the device answers such ones quickly: then a thread
//! of its own would cost more than the work. After a slow request, the next requests run in
//! parallel for a while.

use super::client::Client;
use super::command::{ClientRequest, WorkBuffers};
use super::handshake::{NegotiatedMode, negotiate};
use super::protocol::{
    Command, CommandFlags, PAYLOAD_BYTES_MAX, PIECE_BYTES, REQUEST_BYTES, Request,
};
use super::request_reader::RequestReader;

use folio_net::{Keepalive, Task, WorkerPool};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for the whole handshake, and for a client to take a reply during it.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Detects a TCP client whose host fails silently, within about two minutes.
const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(10),
    probes: 6,
};
/// Longest read or write that may be quick, in bytes.
const QUICK_BYTES_MAX: u32 = 64 << 10;
/// Queued bytes from which on replies of quick requests are sent.
const SEND_BYTES: usize = 32 << 10;

/// The next work of a pool thread.
pub(crate) enum ConnectionTask {
    /// Negotiate with a new client, then read its requests.
    Greet(Arc<Client>),
    /// Read the connection's next requests.
    Read(ReadTurn),
}

/// The right and duty to read a connection's next request.
pub(crate) struct ReadTurn {
    client: Arc<Client>,
    mode: NegotiatedMode,
    reader: Box<RequestReader>,
}

impl Task for ConnectionTask {
    type Scratch = WorkBuffers;

    fn run(self, buffers: &mut WorkBuffers, pool: &WorkerPool<Self>) {
        match self {
            Self::Greet(client) => greet(client, buffers, pool),
            Self::Read(turn) => take_read_turn(turn, buffers, pool),
        }
    }
}

/// Negotiates with a new client, then reads its requests.
fn greet(client: Arc<Client>, buffers: &mut WorkBuffers, pool: &WorkerPool<ConnectionTask>) {
    let mut reader = Box::new(RequestReader::new(Instant::now() + HANDSHAKE));
    let mut agree = || {
        client.stream.set_write_timeout(Some(HANDSHAKE))?;
        let mode = negotiate(&client, &mut reader, &mut buffers.replies)?;
        let send_timeout = client.server.send_timeout;
        client.stream.set_write_timeout(Some(send_timeout))?;
        client.stream.set_keepalive(KEEPALIVE)?;
        reader.remove_deadline(&client.stream)?;
        Ok::<_, io::Error>(mode)
    };
    match agree() {
        Ok(Some(mode)) => {
            let turn = ReadTurn {
                client,
                mode,
                reader,
            };
            take_read_turn(turn, buffers, pool);
        }
        // The connection of a client that violates the protocol is closed without a reply.
        Ok(None) | Err(_) => buffers.replies.truncate(0),
    }
}

/// Reads and runs requests until another thread has the read turn or the connection ends.
fn take_read_turn(turn: ReadTurn, buffers: &mut WorkBuffers, pool: &WorkerPool<ConnectionTask>) {
    let client = turn.client.clone();
    if let Err(error) = serve(turn, buffers, pool) {
        // Reads have no timeout here.
        if error.kind() == ErrorKind::WouldBlock {
            client.report_stuck();
        }
        // The client violated the protocol or takes no replies: the other threads of the connection
        // must not wait for it.
        client.stream.shutdown(Shutdown::Both);
    }
    // The buffers stay with the thread, which may serve another client next.
    buffers.replies.truncate(0);
}

fn serve(
    turn: ReadTurn,
    buffers: &mut WorkBuffers,
    pool: &WorkerPool<ConnectionTask>,
) -> io::Result<()> {
    let ReadTurn {
        client,
        mode,
        mut reader,
    } = turn;
    loop {
        if !reader.holds(REQUEST_BYTES) {
            buffers.replies.send(&client)?;
            if client.server.stopper.is_stopping() {
                return Ok(());
            }
        }
        let Some(bytes) = reader.request(&client.stream)? else {
            break;
        };
        let request = Request::parse(&bytes).ok_or(ErrorKind::InvalidData)?;
        if request.command == Command::Disconnect {
            break;
        }
        let request = ClientRequest {
            client: &client,
            mode,
            request,
        };
        if !receive(&request, &mut reader, buffers)? {
            continue;
        }
        let may_be_quick = may_be_quick(&request.request);
        if may_be_quick && client.pace.is_quick() {
            let start = Instant::now();
            request.run(buffers)?;
            client.pace.record(start.elapsed());
            if buffers.replies.len() >= SEND_BYTES {
                buffers.replies.send(&client)?;
            }
            continue;
        }
        buffers.replies.send(&client)?;
        let turn = ReadTurn {
            client: client.clone(),
            mode,
            reader,
        };
        let handed_over = hand_over(turn, pool);
        let start = Instant::now();
        let run = request.run(buffers);
        if may_be_quick {
            client.pace.record(start.elapsed());
        }
        let sent = run.and_then(|()| buffers.replies.send(&client));
        match handed_over {
            Ok(()) => {
                // Only now: a client that takes no replies must not start more requests (invariant
                // 1).
                client.end_request();
                return sent;
            }
            Err(returned) => {
                sent?;
                reader = returned;
            }
        }
    }
    buffers.replies.send(&client)
}

/// Returns whether the request's kind and size allow it to run in the reading thread.
fn may_be_quick(request: &Request) -> bool {
    matches!(request.command, Command::Read | Command::Write)
        && request.len_bytes <= QUICK_BYTES_MAX
        && !request.flags.contains(CommandFlags::FUA)
}

/// Passes the read turn to another thread. Returns the reader if there is none, or if the client
/// has too many requests in flight.
fn hand_over(turn: ReadTurn, pool: &WorkerPool<ConnectionTask>) -> Result<(), Box<RequestReader>> {
    if !turn.client.begin_request() {
        return Err(turn.reader);
    }
    match pool.try_run(ConnectionTask::Read(turn)) {
        Ok(()) => Ok(()),
        Err(ConnectionTask::Read(turn)) => {
            turn.client.end_request();
            Err(turn.reader)
        }
        // The pool returns the task that it was given.
        Err(ConnectionTask::Greet(_)) => Ok(()),
    }
}

/// Checks a request and receives its payload. Returns false if its reply is queued already.
fn receive(
    request: &ClientRequest<'_>,
    reader: &mut RequestReader,
    buffers: &mut WorkBuffers,
) -> io::Result<bool> {
    let client = request.client;
    let checked = request.check();
    let len = request.request.len_bytes as usize;
    if request.request.command == Command::Write {
        if !reader.holds(len) {
            // Receiving the payload may take long; earlier replies must not wait for it.
            buffers.replies.send(client)?;
        }
        match checked {
            // The payload comes all the same; the next request is behind it.
            Err(_) => reader.skip(&client.stream, len as u64)?,
            Ok(()) if len <= PIECE_BYTES => {
                reader.read_exact(&client.stream, resized(&mut buffers.payload, len))?;
            }
            Ok(()) => {
                write_in_pieces(request, reader, buffers)?;
                return Ok(false);
            }
        }
    }
    match checked {
        Ok(()) => Ok(true),
        Err(error) => {
            request.push_error(&mut buffers.replies, &error);
            Ok(false)
        }
    }
}

/// Passes a write that is longer than the buffer to the device piece by piece.
fn write_in_pieces(
    request: &ClientRequest<'_>,
    reader: &mut RequestReader,
    buffers: &mut WorkBuffers,
) -> io::Result<()> {
    let client = request.client;
    let len = request.request.len_bytes as usize;
    debug_assert!(request.request.len_bytes <= PAYLOAD_BYTES_MAX);
    let mut done = 0;
    let mut written = Ok(());
    while done < len {
        let count = (len - done).min(PIECE_BYTES);
        let piece = resized(&mut buffers.payload, count);
        reader.read_exact(&client.stream, piece)?;
        // After a failure the rest is received but not written.
        if written.is_ok() {
            let offset = request.request.offset + done as u64;
            written = client.export().device.write_at(piece, offset);
        }
        done += count;
    }
    request.finish_write(&mut buffers.replies, written);
    buffers.replies.send(client)
}

/// Returns the first `len` bytes of a buffer that grows as needed.
fn resized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len.next_multiple_of(4096), 0);
    }
    &mut buffer[..len]
}
