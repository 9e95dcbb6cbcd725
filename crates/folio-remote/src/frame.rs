//! Frames: the format of a stream after the handshake.
//!
//! ```text
//!   0        4        8                16
//!   | length | kind   | acknowledged   | length bytes
//! ```
//!
//! Little-endian. The body of a message is a FUSE message as /dev/fuse has it (linux/fuse.h).

use folio_fuse::EventCallError;
use folio_net::StreamReader;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const HEADER_BYTES: usize = 16;
/// Longest body, in bytes, of a frame that is not a message: a reason as text.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
/// Longest body, in bytes, of an [`EventCall`](folio_fuse::EventCall): four paths.
const EVENT_BYTES_MAX: usize = 32 << 10;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A FUSE request, reply or notification. Numbered.
    Message,
    /// Invalidates all names that the client's kernel has cached. Numbered.
    DropNames,
    /// Carries only the number of received frames.
    Acknowledge,
    /// Ends the session; the body is the reason.
    Goodbye,
    /// A call that raises an event in the client's kernel; an empty body ends a burst of them.
    /// Numbered, from the server, and only to a client that has asked for events.
    EventCall,
    /// The result of the last call, as a 32-bit number. The first one means that the client is
    /// ready. Numbered, from the client.
    EventResult,
}

impl FrameKind {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Message,
            2 => Self::DropNames,
            3 => Self::Acknowledge,
            4 => Self::Goodbye,
            5 => Self::EventCall,
            6 => Self::EventResult,
            _ => return None,
        })
    }

    fn number(self) -> u32 {
        match self {
            Self::Message => 1,
            Self::DropNames => 2,
            Self::Acknowledge => 3,
            Self::Goodbye => 4,
            Self::EventCall => 5,
            Self::EventResult => 6,
        }
    }

    /// Returns whether frames of the kind are counted, and sent again if they may be lost.
    pub(crate) fn is_numbered(self) -> bool {
        !matches!(self, Self::Acknowledge | Self::Goodbye)
    }
}

/// A frame to send, perhaps more than once.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) body: Arc<Vec<u8>>,
}

impl Frame {
    pub(crate) fn message(body: Vec<u8>) -> Self {
        Self {
            kind: FrameKind::Message,
            body: Arc::new(body),
        }
    }

    /// Creates a message whose body the caller shares.
    pub(crate) fn shared(body: Arc<Vec<u8>>) -> Self {
        Self {
            kind: FrameKind::Message,
            body,
        }
    }

    /// Creates a frame with a call that raises an event.
    pub(crate) fn event_call(body: Vec<u8>) -> Self {
        Self {
            kind: FrameKind::EventCall,
            body: Arc::new(body),
        }
    }

    /// Creates a frame with the result of a call that raises an event.
    pub(crate) fn event_result(result: Result<(), EventCallError>) -> Self {
        Self {
            kind: FrameKind::EventResult,
            body: Arc::new(EventCallError::encode(result).to_le_bytes().to_vec()),
        }
    }

    pub(crate) fn empty(kind: FrameKind) -> Self {
        Self {
            kind,
            body: Arc::default(),
        }
    }

    /// Creates a frame that ends the session, with at most [`TEXT_BYTES_MAX`] of the reason.
    pub(crate) fn goodbye(reason: &str) -> Self {
        let len = reason.floor_char_boundary(TEXT_BYTES_MAX);
        Self {
            kind: FrameKind::Goodbye,
            body: Arc::new(reason.as_bytes()[..len].to_vec()),
        }
    }

    /// Returns the bytes that the frame takes in memory and on the stream.
    pub(crate) fn len_bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    pub(crate) fn header(&self, acknowledged: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        // A body is never longer than a message, about 1 MiB.
        header[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.kind.number().to_le_bytes());
        header[8..].copy_from_slice(&acknowledged.to_le_bytes());
        header
    }
}

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedFrame {
    pub(crate) kind: FrameKind,
    pub(crate) acknowledged: u64,
    pub(crate) body: Vec<u8>,
}

/// The receiving side of a stream.
pub(crate) struct FrameReader<R = StreamReader> {
    bytes: BufReader<R>,
    body_bytes_max: usize,
}

impl FrameReader {
    /// Limits how long each read waits from now on.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> folio::Result<()> {
        let set = self.bytes.get_ref().0.set_read_timeout(Some(timeout));
        set.map_err(|error| folio::Error::io("connection", error))
    }

    /// Lets reads wait without a limit from now on.
    pub(crate) fn remove_timeout(&self) -> folio::Result<()> {
        let set = self.bytes.get_ref().0.set_read_timeout(None);
        set.map_err(|error| folio::Error::io("connection", error))
    }
}

impl<R: Read> FrameReader<R> {
    /// Creates a reader of frames with bodies of at most `body_bytes_max`.
    pub(crate) fn new(stream: R, body_bytes_max: usize) -> Self {
        Self {
            bytes: BufReader::with_capacity(32 << 10, stream),
            body_bytes_max,
        }
    }

    /// Waits for the next frame; `None` if the stream ends before it.
    ///
    /// # Errors
    /// `InvalidData` for an unknown kind or an excessive length, `UnexpectedEof` if the stream ends
    /// within a frame, else the host's error.
    pub(crate) fn next(&mut self) -> io::Result<Option<ReceivedFrame>> {
        let mut header = [0; HEADER_BYTES];
        if !self.fill_header(&mut header)? {
            return Ok(None);
        }
        let [len, kind] = [0, 4].map(|at| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        });
        let mut acknowledged = [0; 8];
        acknowledged.copy_from_slice(&header[8..]);
        let kind =
            FrameKind::from_number(kind).ok_or_else(|| invalid("a frame of unknown kind"))?;
        let len = len as usize;
        let len_max = match kind {
            FrameKind::Message => self.body_bytes_max,
            FrameKind::Goodbye => TEXT_BYTES_MAX,
            FrameKind::EventCall => EVENT_BYTES_MAX,
            FrameKind::EventResult => size_of::<i32>(),
            FrameKind::DropNames | FrameKind::Acknowledge => 0,
        };
        if len > len_max {
            return Err(invalid("a frame longer than allowed"));
        }
        let mut body = vec![0; len];
        self.bytes.read_exact(&mut body)?;
        Ok(Some(ReceivedFrame {
            kind,
            acknowledged: u64::from_le_bytes(acknowledged),
            body,
        }))
    }

    fn fill_header(&mut self, header: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < header.len() {
            match self.bytes.read(&mut header[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(true)
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(frame: &Frame, acknowledged: u64) -> Vec<u8> {
        [&frame.header(acknowledged)[..], &frame.body].concat()
    }

    #[test]
    fn frames_are_received_as_sent() {
        let sent = [
            Frame::message(vec![7; 5000]),
            Frame::empty(FrameKind::DropNames),
            Frame::goodbye("no more"),
            Frame::empty(FrameKind::EventCall),
            Frame::event_result(Ok(())),
        ];
        let stream: Vec<u8> = sent.iter().flat_map(|frame| bytes(frame, 9)).collect();
        let mut reader = FrameReader::new(&stream[..], 5000);
        for frame in &sent {
            let received = reader.next().unwrap().unwrap();
            assert_eq!((received.kind, received.acknowledged), (frame.kind, 9));
            assert_eq!(received.body, *frame.body);
        }
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn invalid_frames_are_refused() {
        let long = bytes(&Frame::message(vec![0; 101]), 0);
        assert!(FrameReader::new(&long[..], 100).next().is_err());
        let cut = &bytes(&Frame::message(vec![0; 100]), 0)[..90];
        assert!(FrameReader::new(cut, 100).next().is_err());
        let mut unknown = bytes(&Frame::empty(FrameKind::Acknowledge), 0);
        unknown[4] = 9;
        assert!(FrameReader::new(&unknown[..], 100).next().is_err());
        // A length that does not fit into memory, without a body.
        let huge = [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(FrameReader::new(&huge[..], 100).next().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(stream in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = FrameReader::new(&stream[..], 64);
            while let Ok(Some(frame)) = reader.next() {
                prop_assert!(frame.body.len() <= TEXT_BYTES_MAX);
            }
        }
    }
}
