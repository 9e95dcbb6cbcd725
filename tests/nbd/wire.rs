//! A client that sends and receives raw bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Options.
pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const STARTTLS: u32 = 5;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const SET_META_CONTEXT: u32 = 10;

/// Commands.
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

/// Flags of commands.
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;
pub(crate) const FAST_ZERO: u16 = 16;

/// A client of raw bytes.
pub(crate) struct RawClient(pub(crate) UnixStream);

/// One chunk of a structured reply.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) is_last: bool,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
    pub(crate) payload: Vec<u8>,
}

impl Chunk {
    /// Returns a big-endian number in the payload.
    pub(crate) fn number(&self, at: usize, len: usize) -> u64 {
        self.payload[at..at + len]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

impl RawClient {
    /// Connects, and exchanges the flags.
    #[track_caller]
    pub(crate) fn greet(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        // A server that hangs must not hang the test.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut client = Self(stream);
        assert_eq!(client.take(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(client.take(2), [0, 3]);
        client.send(&[0, 0, 0, 3]);
        client
    }

    /// Connects and starts the transmission, with structured replies and `base:allocation`.
    #[track_caller]
    pub(crate) fn structured(socket: &Path) -> Self {
        let mut client = Self::greet(socket);
        assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(1, vec![])]);
        let query = [
            &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..],
            b"base:allocation",
        ]
        .concat();
        assert_eq!(client.option(SET_META_CONTEXT, &query).len(), 2);
        assert_eq!(client.option(GO, &[0; 6]).last(), Some(&(1, vec![])));
        client
    }

    /// Connects and starts the transmission by `NBD_OPT_EXPORT_NAME`.
    #[track_caller]
    pub(crate) fn simple(socket: &Path) -> Self {
        let mut client = Self::greet(socket);
        client.send_option(EXPORT_NAME, &[]);
        assert_eq!(client.take(10)[..8], (64u64 << 20).to_be_bytes());
        client
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    #[track_caller]
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[track_caller]
    pub(crate) fn number(&mut self, len: usize) -> u64 {
        self.take(len)
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    #[track_caller]
    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let len = (data.len() as u32).to_be_bytes();
        self.send(&[b"IHAVEOPT", &option.to_be_bytes()[..], &len, data].concat());
    }

    /// Sends an option; returns kind and data of all its replies.
    #[track_caller]
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            let (kind, data) = self.option_reply(option);
            replies.push((kind, data));
            if kind == 1 || kind >= 1 << 31 {
                return replies;
            }
        }
    }

    #[track_caller]
    pub(crate) fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.number(8), 0x3e889045565a9);
        assert_eq!(self.number(4), u64::from(option));
        let (kind, len) = (self.number(4) as u32, self.number(4) as usize);
        (kind, self.take(len))
    }

    #[track_caller]
    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request(command, flags, cookie, offset, len));
    }

    /// Receives a simple reply; returns its error and cookie.
    #[track_caller]
    pub(crate) fn simple_reply(&mut self) -> (u32, u64) {
        assert_eq!(self.number(4), 0x67446698);
        (self.number(4) as u32, self.number(8))
    }

    #[track_caller]
    pub(crate) fn chunk(&mut self) -> Chunk {
        assert_eq!(self.number(4), 0x668e33ef);
        let (flags, kind, cookie, len) = (
            self.number(2),
            self.number(2) as u16,
            self.number(8),
            self.number(4) as usize,
        );
        Chunk {
            is_last: flags & 1 != 0,
            kind,
            cookie,
            payload: self.take(len),
        }
    }

    /// Receives a reply of one error chunk; returns the error number.
    #[track_caller]
    pub(crate) fn error(&mut self, cookie: u64) -> u64 {
        let chunk = self.chunk();
        assert!(
            chunk.is_last && chunk.cookie == cookie && chunk.kind == 0x8001,
            "{chunk:?}"
        );
        assert_eq!(chunk.number(4, 2) as usize, chunk.payload.len() - 6);
        chunk.number(0, 4)
    }

    /// Checks that the server closes the connection, after any replies.
    #[track_caller]
    pub(crate) fn expect_close(mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    /// Checks that the connection works: reads data that [`super::image`] wrote.
    #[track_caller]
    pub(crate) fn still_works(&mut self) {
        self.request(READ, 0, 0xabcdef, 1 << 20, 512);
        let chunk = self.chunk();
        assert_eq!(
            (chunk.kind, chunk.cookie, chunk.payload.len()),
            (1, 0xabcdef, 8 + 512)
        );
    }
}

/// Encodes a request.
pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let magic = 0x25609513u32.to_be_bytes();
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    [
        &magic[..],
        &flags,
        &command,
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}
