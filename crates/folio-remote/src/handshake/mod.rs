//! How both sides agree before the first frame: that they speak the same protocol, that they know
//! the same key, and which session goes on.
//!
//! ```text
//!   client                                     server
//!     Hello      magic, version, layout,  -->
//!                session, received, nonce
//!                                         <--  Challenge   magic, version, layout, whether a key is needed, nonce
//!     Proof      HMAC(key, "client", all so far)  -->
//!                                         <--  Welcome     refusal in words, or session, limits, share,
//!                                                          HMAC(key, "server", all so far)
//! ```
//!
//! Little-endian; each part has a fixed length but for the two texts of the welcome. Who has no key
//! sends zeros for a proof. Nothing that a side sends before it has seen the other's proof tells
//! anything about the share.

use crate::key::{Key, PROOF_BYTES};
use crate::stream::{Reader, Stream};
use folio::{Errno, Error, Result};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits of texts in a welcome, in bytes.
const TEXT_BYTES_MAX: usize = 255;
/// How long the other side may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
const MAGIC: [u8; 8] = *b"folio\0\r\n";
const VERSION: u32 = 1;
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 4 + 8 + 16 + 8 + NONCE_BYTES;
const CHALLENGE_BYTES: usize = 8 + 4 + 8 + 1 + NONCE_BYTES;
const WELCOME_BYTES: usize = 1 + 1 + 1 + 16 + 8 + 4 + 4 + 4 + 1;

/// How FUSE messages look on this machine: the order of bytes, and which numbers errors and open
/// flags have. FUSE itself has the same structs on all machines of 64 bits.
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

/// Names a session; who knows it may resume it.
pub(crate) type SessionId = [u8; 16];

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wish {
    /// The session that shall go on; zeros for a new one.
    pub(crate) session: SessionId,
    /// How many numbered frames of it the client has received.
    pub(crate) received: u64,
}

/// What a server grants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Grant {
    /// Whether the session that the client named goes on.
    pub(crate) is_resumed: bool,
    /// Whether the client's kernel checks permissions.
    pub(crate) kernel_judges: bool,
    /// Which session it is.
    pub(crate) session: SessionId,
    /// How many numbered frames of it the server has received.
    pub(crate) received: u64,
    /// Longest message, in bytes.
    pub(crate) message_bytes_max: u32,
    /// Bytes of requests and of the replies they ask for that may be under way.
    pub(crate) under_way_bytes_max: u32,
    /// How long the server keeps the session if the stream is lost, in seconds.
    pub(crate) grace_s: u32,
    /// What is shared, in the server's words; at most 255 bytes.
    pub(crate) share: String,
}

/// What a client hears.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted(Grant),
    /// In the server's words.
    Refused(String),
}

/// Reads and writes; a stream, or bytes in tests.
pub(crate) trait Talk {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
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

/// A name that nobody can guess.
pub(crate) fn new_session_id() -> Result<SessionId> {
    random()
}

fn lost(error: io::Error) -> Error {
    Error::io("handshake", error)
}

/// Magic, version and layout.
fn preface() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &LAYOUT].concat()
}

/// What is wrong with the other side's preface.
fn check_preface(mut bytes: &[u8]) -> Result<(), &'static str> {
    if take::<8>(&mut bytes) != MAGIC {
        return Err("this is no folio share");
    }
    if u32::from_le_bytes(take(&mut bytes)) != VERSION {
        return Err(
            "the other side speaks another version of the protocol; use the same release of folio on both",
        );
    }
    if take::<8>(&mut bytes) != LAYOUT {
        return Err(
            "the other side's processor has another order of bytes or other numbers of errors",
        );
    }
    Ok(())
}

/// The next `N` bytes; the caller has as many.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut part = [0; N];
    let (head, rest) = bytes.split_at(N.min(bytes.len()));
    part[..head.len()].copy_from_slice(head);
    *bytes = rest;
    part
}

/// The client's side.
pub(crate) fn greet(talk: &mut impl Talk, key: Option<&Key>, wish: Wish) -> Result<Answer> {
    let hello = [
        &preface()[..],
        &wish.session,
        &wish.received.to_le_bytes(),
        &random::<NONCE_BYTES>()?,
    ]
    .concat();
    talk.send(&hello).map_err(lost)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    talk.receive(&mut challenge).map_err(lost)?;
    check_preface(&challenge).map_err(|why| Error::new(Errno::PROTO, why))?;
    let needs_key = challenge[20] != 0;
    match (key, needs_key) {
        (None, true) => {
            return Err(Error::new(
                Errno::ACCESS,
                "the share needs a key: --key-file",
            ));
        }
        (Some(_), false) => {
            let why = "the server has no key, so it cannot prove that it is the right one; leave --key-file out to trust it";
            return Err(Error::new(Errno::ACCESS, why));
        }
        _ => {}
    }
    let proof = key.map_or([0; PROOF_BYTES], |key| {
        key.prove(b"folio client 1", &[&hello, &challenge])
    });
    talk.send(&proof).map_err(lost)?;
    let (answer, welcome, server_proof) = read_welcome(talk)?;
    match (key, &answer) {
        (Some(key), Answer::Granted(_))
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

fn read_welcome(talk: &mut impl Talk) -> Result<(Answer, Vec<u8>, [u8; PROOF_BYTES])> {
    let mut welcome = vec![0; WELCOME_BYTES];
    talk.receive(&mut welcome).map_err(lost)?;
    let text_len = usize::from(welcome[WELCOME_BYTES - 1]);
    let mut text = vec![0; text_len];
    talk.receive(&mut text).map_err(lost)?;
    let mut proof = [0; PROOF_BYTES];
    talk.receive(&mut proof).map_err(lost)?;
    let mut bytes = &welcome[..];
    let [is_granted, is_resumed, kernel_judges] = take::<3>(&mut bytes);
    // It is printed on terminals.
    let text_told = String::from_utf8_lossy(&text).replace(char::is_control, " ");
    let answer = match is_granted {
        0 => Answer::Refused(text_told),
        _ => Answer::Granted(Grant {
            is_resumed: is_resumed != 0,
            kernel_judges: kernel_judges != 0,
            session: take(&mut bytes),
            received: u64::from_le_bytes(take(&mut bytes)),
            message_bytes_max: u32::from_le_bytes(take(&mut bytes)),
            under_way_bytes_max: u32::from_le_bytes(take(&mut bytes)),
            grace_s: u32::from_le_bytes(take(&mut bytes)),
            share: text_told,
        }),
    };
    welcome.extend_from_slice(&text);
    Ok((answer, welcome, proof))
}

/// The server's side, half way: the client has said what it wishes, and has proved that it knows
/// the key.
pub(crate) struct Greeted {
    pub(crate) wish: Wish,
    said: [Vec<u8>; 3],
}

/// The server's side, up to the welcome; a client that breaks the rules or does not know the key is
/// told why.
pub(crate) fn receive(talk: &mut impl Talk, key: Option<&Key>) -> Result<Greeted> {
    let mut hello = vec![0; HELLO_BYTES];
    talk.receive(&mut hello).map_err(lost)?;
    if hello[..8] != MAGIC {
        // Somebody else; what we say would mean nothing to it.
        return Err(Error::new(
            Errno::PROTO,
            "a client that does not speak the protocol",
        ));
    }
    let challenge = [
        &preface()[..],
        &[u8::from(key.is_some())],
        &random::<NONCE_BYTES>()?,
    ]
    .concat();
    talk.send(&challenge).map_err(lost)?;
    // The client finds out the same way.
    check_preface(&hello).map_err(|why| Error::new(Errno::PROTO, why))?;
    let mut proof = vec![0; PROOF_BYTES];
    talk.receive(&mut proof).map_err(lost)?;
    let said = [hello, challenge, proof];
    if let Some(key) = key
        && !key.check(b"folio client 1", &[&said[0], &said[1]], &said[2])
    {
        let why = "the keys of client and server are not the same";
        refuse(talk, why);
        return Err(Error::new(Errno::ACCESS, why));
    }
    let mut bytes = &said[0][20..];
    let wish = Wish {
        session: take(&mut bytes),
        received: u64::from_le_bytes(take(&mut bytes)),
    };
    Ok(Greeted { wish, said })
}

/// Says why not, if the client listens.
pub(crate) fn refuse(talk: &mut impl Talk, why: &str) {
    let text = &why.as_bytes()[..why.floor_char_boundary(TEXT_BYTES_MAX)];
    let mut welcome = [0; WELCOME_BYTES];
    // At most 255.
    welcome[WELCOME_BYTES - 1] = text.len() as u8;
    let _ = talk.send(&[&welcome[..], text, &[0; PROOF_BYTES]].concat());
}

impl Greeted {
    /// The last word.
    pub(crate) fn welcome(
        &self,
        talk: &mut impl Talk,
        key: Option<&Key>,
        grant: &Grant,
    ) -> Result<()> {
        let text = &grant.share.as_bytes()[..grant.share.floor_char_boundary(TEXT_BYTES_MAX)];
        let welcome = [
            &[1, u8::from(grant.is_resumed), u8::from(grant.kernel_judges)][..],
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
        let [hello, challenge, proof] = &self.said;
        let words: [&[u8]; 4] = [hello, challenge, proof, &welcome];
        let server_proof = key.map_or([0; PROOF_BYTES], |key| key.prove(b"folio server 1", &words));
        talk.send(&[&welcome[..], &server_proof].concat())
            .map_err(lost)
    }
}

/// A handshake over a stream, with a time by which it has to be over.
pub(crate) struct Timed {
    reader: Reader,
    until: Instant,
}

impl Timed {
    /// A handshake that begins now.
    pub(crate) fn new(stream: &Arc<Stream>) -> Self {
        Self {
            reader: Reader(stream.clone()),
            until: Instant::now() + HANDSHAKE,
        }
    }

    /// The stream, which waits for ever from now on.
    pub(crate) fn finish(self) -> Result<Reader> {
        self.reader.0.set_patience(None).map_err(lost)?;
        Ok(self.reader)
    }
}

impl Talk for Timed {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.0.write_all(&[bytes])
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.reader.0.set_patience(Some(left))?;
            match self.reader.read(&mut bytes[filled..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }
}

/// A talk over any reader and writer, in tests.
impl<R: Read, W: FnMut(&[u8]) -> io::Result<()>> Talk for (R, W) {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.1)(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes)
    }
}

#[cfg(test)]
mod tests;
