//! The handshake before the first frame: both sides check protocol and key, and agree on the
//! session to start or resume.
//!
//! ```text
//!   client                                     server
//!     Hello      magic, version, layout,  -->
//!                session, received, nonce
//!                                         <--  Challenge   magic, version, layout, whether a key is needed, nonce
//!     Proof      HMAC(key, "client", all so far)  -->
//!                                         <--  Welcome     refusal as text, or session, limits, share,
//!                                                          HMAC(key, "server", all so far)
//! ```
//!
//! Little-endian; each part has a fixed length, except the text of the welcome. A side without a
//! key sends zeros for a proof. Before a side has checked the other's proof, it sends nothing about
//! the share.

use crate::key::{Key, PROOF_BYTES};
use folio::{Errno, Error, Result};
use folio_net::{Stream, StreamReader};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest text in a welcome, in bytes.
const TEXT_BYTES_MAX: usize = 255;
/// Longest time for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
const MAGIC: [u8; 8] = *b"folio\0\r\n";
const VERSION: u32 = 1;
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 4 + 8 + 16 + 8 + NONCE_BYTES;
const CHALLENGE_BYTES: usize = 8 + 4 + 8 + 1 + NONCE_BYTES;
const WELCOME_BYTES: usize = 1 + 1 + 1 + 16 + 8 + 4 + 4 + 4 + 1;

/// The bit of [`SessionRequest::wants_events`].
const WANTS_EVENTS: u64 = 1 << 63;
/// The bits of a grant, and of [`SessionGrant::sends_events`].
const IS_GRANTED: u8 = 1;
const SENDS_EVENTS: u8 = 1 << 1;

/// The layout of FUSE messages on this machine: byte order, and the numbers of errors and open
/// flags. FUSE's structs are the same on all 64-bit machines.
const LAYOUT: [u8; 8] = [
    if cfg!(target_endian = "little") {
        b'l'
    } else {
        b'b'
    },
    if cfg!(any(
        target_arch = "mips64",
        target_arch = "sparc64",
        target_arch = "powerpc64"
    )) {
        b'o'
    } else {
        b'g'
    },
    b'6',
    b'4',
    0,
    0,
    0,
    0,
];

/// The secret name of a session; a client that knows it may resume the session.
pub(crate) type SessionId = [u8; 16];

/// A client's request for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SessionRequest {
    /// The session to resume; zeros for a new one.
    pub(crate) session: SessionId,
    /// The number of numbered frames of the session that the client has received.
    pub(crate) received: u64,
    /// Whether the client raises events of changes. One bit of the number before: a server that
    /// does not know it ignores that number with any session it does not know either.
    pub(crate) wants_events: bool,
}

/// A server's grant of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SessionGrant {
    /// Whether the requested session is resumed.
    pub(crate) is_resumed: bool,
    /// Whether the server sends events of changes. A bit of the byte that grants: an older client
    /// takes any number but 0 for a grant.
    pub(crate) sends_events: bool,
    /// Whether the client's kernel checks permissions.
    pub(crate) kernel_checks_permissions: bool,
    /// The session's name.
    pub(crate) session: SessionId,
    /// The number of numbered frames of the session that the server has received.
    pub(crate) received: u64,
    /// Longest message, in bytes.
    pub(crate) message_bytes_max: u32,
    /// Most bytes under way: requests, and the replies that they ask for.
    pub(crate) under_way_bytes_max: u32,
    /// How long the server keeps the session without a stream, in seconds.
    pub(crate) grace_s: u32,
    /// The name of the share; at most 255 bytes.
    pub(crate) share: String,
}

/// A server's answer to a [`SessionRequest`].
#[derive(Debug)]
pub(crate) enum SessionAnswer {
    Granted(SessionGrant),
    /// The server's reason.
    Refused(String),
}

/// The bytes of a handshake in both directions; a stream, or buffers in tests.
pub(crate) trait Transport {
    /// Sends all of `bytes`.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Fills all of `bytes`.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()>;
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// Returns a session name that cannot be guessed.
pub(crate) fn new_session_id() -> Result<SessionId> {
    random()
}

fn handshake_error(error: io::Error) -> Error {
    Error::io("handshake", error)
}

/// Encodes magic, version and layout.
fn preface() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &LAYOUT].concat()
}

/// Checks the peer's preface; returns the reason if it does not match.
fn check_preface(mut bytes: &[u8]) -> Result<(), &'static str> {
    if take::<8>(&mut bytes) != MAGIC {
        return Err("the server is not a folio share");
    }
    if u32::from_le_bytes(take(&mut bytes)) != VERSION {
        return Err(
            "the peer uses another version of the protocol: run the same release of folio on both sides",
        );
    }
    if take::<8>(&mut bytes) != LAYOUT {
        return Err("the peer's processor has another byte order or other error numbers");
    }
    Ok(())
}

/// Takes the next `N` bytes; the caller has checked that there are as many.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut part = [0; N];
    let (head, rest) = bytes.split_at(N.min(bytes.len()));
    part[..head.len()].copy_from_slice(head);
    *bytes = rest;
    part
}

/// Runs the client's side of the handshake.
///
/// # Errors
/// EPROTO if the server does not match, EACCES if the keys differ or only one side has one, else
/// the host's error.
pub(crate) fn greet(
    transport: &mut impl Transport,
    key: Option<&Key>,
    request: SessionRequest,
) -> Result<SessionAnswer> {
    let wants_events = if request.wants_events {
        WANTS_EVENTS
    } else {
        0
    };
    let hello = [
        &preface()[..],
        &request.session,
        &(request.received | wants_events).to_le_bytes(),
        &random::<NONCE_BYTES>()?,
    ]
    .concat();
    transport.send(&hello).map_err(handshake_error)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    transport.receive(&mut challenge).map_err(handshake_error)?;
    check_preface(&challenge).map_err(|why| Error::new(Errno::PROTO, why))?;
    let needs_key = challenge[20] != 0;
    match (key, needs_key) {
        (None, true) => {
            return Err(Error::new(
                Errno::ACCESS,
                "the share needs a key: give --key-file",
            ));
        }
        (Some(_), false) => {
            let why = "the server has no key, so it cannot prove its identity: omit --key-file to trust it";
            return Err(Error::new(Errno::ACCESS, why));
        }
        _ => {}
    }
    let proof = key.map_or([0; PROOF_BYTES], |key| {
        key.prove(b"folio client 1", &[&hello, &challenge])
    });
    transport.send(&proof).map_err(handshake_error)?;
    let (answer, welcome, server_proof) = read_welcome(transport)?;
    match (key, &answer) {
        // The proof covers all messages: the grant was not changed on the way.
        (Some(key), SessionAnswer::Granted(_))
            if !key.check(
                b"folio server 1",
                &[&hello, &challenge, &proof, &welcome],
                &server_proof,
            ) =>
        {
            Err(Error::new(
                Errno::ACCESS,
                "the server does not know the key",
            ))
        }
        _ => Ok(answer),
    }
}

fn read_welcome(
    transport: &mut impl Transport,
) -> Result<(SessionAnswer, Vec<u8>, [u8; PROOF_BYTES])> {
    let mut welcome = vec![0; WELCOME_BYTES];
    transport.receive(&mut welcome).map_err(handshake_error)?;
    let text_len = usize::from(welcome[WELCOME_BYTES - 1]);
    let mut text = vec![0; text_len];
    transport.receive(&mut text).map_err(handshake_error)?;
    let mut proof = [0; PROOF_BYTES];
    transport.receive(&mut proof).map_err(handshake_error)?;
    let mut bytes = &welcome[..];
    let [is_granted, is_resumed, kernel_checks_permissions] = take::<3>(&mut bytes);
    // The text is printed on terminals.
    let printable = String::from_utf8_lossy(&text).replace(char::is_control, " ");
    let answer = if is_granted == 0 {
        SessionAnswer::Refused(printable)
    } else {
        SessionAnswer::Granted(SessionGrant {
            is_resumed: is_resumed != 0,
            sends_events: is_granted & SENDS_EVENTS != 0,
            kernel_checks_permissions: kernel_checks_permissions != 0,
            session: take(&mut bytes),
            received: u64::from_le_bytes(take(&mut bytes)),
            message_bytes_max: u32::from_le_bytes(take(&mut bytes)),
            under_way_bytes_max: u32::from_le_bytes(take(&mut bytes)),
            grace_s: u32::from_le_bytes(take(&mut bytes)),
            share: printable,
        })
    };
    welcome.extend_from_slice(&text);
    Ok((answer, welcome, proof))
}

/// The server's side of a handshake before its last message: the client has sent its request and
/// proved that it knows the key.
pub(crate) struct Handshake {
    pub(crate) request: SessionRequest,
    /// The hello, challenge and proof.
    transcript: [Vec<u8>; 3],
}

/// Runs the server's side of the handshake up to the welcome. A client without the right key gets a
/// refusal.
///
/// # Errors
/// EPROTO if the client does not match, EACCES if it does not know the key, else the host's error.
pub(crate) fn receive(transport: &mut impl Transport, key: Option<&Key>) -> Result<Handshake> {
    let mut hello = vec![0; HELLO_BYTES];
    transport.receive(&mut hello).map_err(handshake_error)?;
    if hello[..8] != MAGIC {
        // Not a folio client; it would not understand a reply.
        return Err(Error::new(
            Errno::PROTO,
            "the client does not speak the protocol",
        ));
    }
    let challenge = [
        &preface()[..],
        &[u8::from(key.is_some())],
        &random::<NONCE_BYTES>()?,
    ]
    .concat();
    transport.send(&challenge).map_err(handshake_error)?;
    // The client finds a mismatch in the same way, so it needs no refusal.
    check_preface(&hello).map_err(|why| Error::new(Errno::PROTO, why))?;
    let mut proof = vec![0; PROOF_BYTES];
    transport.receive(&mut proof).map_err(handshake_error)?;
    let transcript = [hello, challenge, proof];
    if let Some(key) = key
        && !key.check(
            b"folio client 1",
            &[&transcript[0], &transcript[1]],
            &transcript[2],
        )
    {
        let why = "the keys of client and server differ";
        refuse(transport, why);
        return Err(Error::new(Errno::ACCESS, why));
    }
    let mut bytes = &transcript[0][20..];
    let session = take(&mut bytes);
    let received = u64::from_le_bytes(take(&mut bytes));
    let request = SessionRequest {
        session,
        received: received & !WANTS_EVENTS,
        wants_events: received & WANTS_EVENTS != 0,
    };
    Ok(Handshake {
        request,
        transcript,
    })
}

/// Sends a refusal. Ignores errors: the connection is closed next.
pub(crate) fn refuse(transport: &mut impl Transport, why: &str) {
    let text = &why.as_bytes()[..why.floor_char_boundary(TEXT_BYTES_MAX)];
    let mut welcome = [0; WELCOME_BYTES];
    // At most 255.
    welcome[WELCOME_BYTES - 1] = text.len() as u8;
    let _ = transport.send(&[&welcome[..], text, &[0; PROOF_BYTES]].concat());
}

impl Handshake {
    /// Ends the handshake with a grant.
    pub(crate) fn welcome(
        &self,
        transport: &mut impl Transport,
        key: Option<&Key>,
        grant: &SessionGrant,
    ) -> Result<()> {
        let text = &grant.share.as_bytes()[..grant.share.floor_char_boundary(TEXT_BYTES_MAX)];
        let welcome = [
            &[
                if grant.sends_events {
                    IS_GRANTED | SENDS_EVENTS
                } else {
                    IS_GRANTED
                },
                u8::from(grant.is_resumed),
                u8::from(grant.kernel_checks_permissions),
            ][..],
            &grant.session,
            &grant.received.to_le_bytes(),
            &grant.message_bytes_max.to_le_bytes(),
            &grant.under_way_bytes_max.to_le_bytes(),
            &grant.grace_s.to_le_bytes(),
            // At most 255.
            &[text.len() as u8],
            text,
        ]
        .concat();
        let [hello, challenge, proof] = &self.transcript;
        let messages: [&[u8]; 4] = [hello, challenge, proof, &welcome];
        let server_proof = key.map_or([0; PROOF_BYTES], |key| {
            key.prove(b"folio server 1", &messages)
        });
        transport
            .send(&[&welcome[..], &server_proof].concat())
            .map_err(handshake_error)
    }
}

/// A stream whose handshake has a deadline.
pub(crate) struct TimedTransport {
    reader: StreamReader,
    deadline: Instant,
}

impl TimedTransport {
    /// Starts the time of the handshake.
    pub(crate) fn new(stream: &Arc<Stream>) -> Self {
        Self {
            reader: StreamReader(stream.clone()),
            deadline: Instant::now() + HANDSHAKE,
        }
    }

    /// Returns the stream, without a read timeout.
    pub(crate) fn finish(self) -> Result<StreamReader> {
        self.reader
            .0
            .set_read_timeout(None)
            .map_err(handshake_error)?;
        Ok(self.reader)
    }
}

impl Transport for TimedTransport {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.0.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.reader.0.set_read_timeout(Some(left))?;
            match self.reader.read(&mut bytes[filled..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }
}

/// A transport over any reader and writer, for tests and fuzz targets.
impl<R: Read, W: FnMut(&[u8]) -> io::Result<()>> Transport for (R, W) {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.1)(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes)
    }
}

#[cfg(test)]
mod tests;
