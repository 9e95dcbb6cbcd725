//! A client that sends raw bytes, valid or not (docs/design/remote.md).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const MESSAGE: u32 = 1;
pub(crate) const DROP_NAMES: u32 = 2;
pub(crate) const ACKNOWLEDGE: u32 = 3;
pub(crate) const GOODBYE: u32 = 4;

/// Opcodes (linux/fuse.h).
pub(crate) const LOOKUP: u32 = 1;
pub(crate) const GETATTR: u32 = 3;
pub(crate) const OPEN: u32 = 14;
pub(crate) const READ: u32 = 15;
pub(crate) const INIT: u32 = 26;

/// A client of raw bytes.
pub(crate) struct RawClient {
    pub(crate) stream: UnixStream,
    pub(crate) session: [u8; 16],
    pub(crate) is_resumed: bool,
    received: u64,
}

/// Encodes magic, version and layout of this machine.
pub(crate) fn preface() -> Vec<u8> {
    let order = if cfg!(target_endian = "little") {
        b'l'
    } else {
        b'b'
    };
    [
        b"folio\0\r\n\x01\0\0\0",
        &[order, b'g', b'6', b'4', 0, 0, 0, 0][..],
    ]
    .concat()
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl RawClient {
    /// Runs the handshake for a new session, without a key.
    pub(crate) fn greet(socket: &Path) -> Self {
        Self::resume(socket, [0; 16], 0).unwrap()
    }

    /// Runs the handshake to resume a session.
    ///
    /// # Errors
    /// The server's refusal, or the failure of the connection.
    pub(crate) fn resume(socket: &Path, session: [u8; 16], received: u64) -> Result<Self, String> {
        let mut stream = connect(socket);
        let lost = |error: io::Error| error.to_string();
        let hello = [&preface()[..], &session, &received.to_le_bytes(), &[9; 32]].concat();
        stream.write_all(&hello).map_err(lost)?;
        assert_eq!(take::<53>(&mut stream).map_err(lost)?[..20], preface());
        stream.write_all(&[0; 32]).map_err(lost)?;
        let welcome = take::<40>(&mut stream).map_err(lost)?;
        let mut text = vec![0; usize::from(welcome[39])];
        stream.read_exact(&mut text).map_err(lost)?;
        take::<32>(&mut stream).map_err(lost)?;
        if welcome[0] == 0 {
            return Err(String::from_utf8(text).unwrap());
        }
        let session = welcome[3..19].try_into().unwrap();
        Ok(Self {
            stream,
            session,
            is_resumed: welcome[1] != 0,
            received,
        })
    }

    /// Runs the handshake and sends the kernel's first request.
    pub(crate) fn begin(socket: &Path) -> Self {
        let mut client = Self::greet(socket);
        let init = [7_u32, 39, 1 << 17, 0].map(u32::to_ne_bytes).concat();
        client.request(INIT, 0, &init);
        assert_eq!(client.reply().0, 0);
        client
    }

    pub(crate) fn frame(&mut self, kind: u32, acknowledged: u64, body: &[u8]) -> io::Result<()> {
        let head = [
            &(body.len() as u32).to_le_bytes()[..],
            &kind.to_le_bytes(),
            &acknowledged.to_le_bytes(),
        ]
        .concat();
        self.stream.write_all(&[&head, body].concat())
    }

    pub(crate) fn request(&mut self, opcode: u32, node: u64, body: &[u8]) {
        let message = message(opcode, node, body);
        self.frame(MESSAGE, self.received, &message).unwrap();
    }

    /// Receives the next reply: error and body. Skips notices of changes.
    pub(crate) fn reply(&mut self) -> (i32, Vec<u8>) {
        loop {
            let (kind, body) = self.next().expect("a frame");
            assert!(kind != GOODBYE, "{}", String::from_utf8_lossy(&body));
            if kind == MESSAGE && body[8..16] != [0; 8] {
                return (
                    i32::from_ne_bytes(body[4..8].try_into().unwrap()),
                    body[16..].to_vec(),
                );
            }
        }
    }

    pub(crate) fn next(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let head = take::<16>(&mut self.stream)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; number(0) as usize];
        self.stream.read_exact(&mut body)?;
        if number(4) <= DROP_NAMES {
            self.received += 1;
        }
        Ok((number(4), body))
    }

    /// Checks that the server closes the connection; returns its reason, empty if there is none.
    #[track_caller]
    pub(crate) fn expect_close(&mut self) -> String {
        let mut why = String::new();
        while let Ok((kind, body)) = self.next() {
            if kind == GOODBYE {
                why = String::from_utf8(body).unwrap();
            }
        }
        let left = self.stream.read(&mut [0; 16]);
        let timed_out = left
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(
            !timed_out && !left.is_ok_and(|count| count > 0),
            "the connection stays open"
        );
        why
    }

    /// Checks that the connection works: reads the root's attributes.
    #[track_caller]
    pub(crate) fn still_works(&mut self) {
        self.request(GETATTR, 1, &[0; 16]);
        let (error, body) = self.reply();
        assert!(error == 0 && body.len() > 80, "{error}");
    }
}

/// Encodes a request of user 0.
pub(crate) fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let head = [
        &(40 + body.len() as u32).to_ne_bytes()[..],
        &opcode.to_ne_bytes(),
        &77_u64.to_ne_bytes(),
    ]
    .concat();
    [&head[..], &node.to_ne_bytes(), &[0; 16], body].concat()
}
