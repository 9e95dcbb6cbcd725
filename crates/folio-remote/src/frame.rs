//! Frames: what goes over a stream once both sides have agreed, byte by byte.
//!
//! ```text
//!   0        4        8                16
//!   | length | kind   | acknowledged   | length bytes
//! ```
//!
//! Little-endian. The body of a message is a FUSE message as /dev/fuse has it (linux/fuse.h).

use crate::stream::Reader;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const HEAD_BYTES: usize = 16;
/// Longest body that is not a message: a reason in words.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A FUSE request, reply or notification. Numbered.
    Message,
    /// The client's kernel may believe no name that it was told. Numbered.
    DropNames,
    /// Nothing but the number of the last frame received.
    Acknowledge,
    /// The session is over; the body says why.
    Goodbye,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Message,
            2 => Self::DropNames,
            3 => Self::Acknowledge,
            4 => Self::Goodbye,
            _ => return None,
        })
    }

    fn number(self) -> u32 {
        match self {
            Self::Message => 1,
            Self::DropNames => 2,
            Self::Acknowledge => 3,
            Self::Goodbye => 4,
        }
    }

    /// Whether frames of the kind count, and are sent again if they may have been lost.
    pub(crate) fn is_numbered(self) -> bool {
        matches!(self, Self::Message | Self::DropNames)
    }
}

/// A frame that is sent, perhaps more than once.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) body: Arc<Vec<u8>>,
}

impl Frame {
    pub(crate) fn message(body: Vec<u8>) -> Self {
        Self {
            kind: Kind::Message,
            body: Arc::new(body),
        }
    }

    /// A message of which the caller keeps a copy.
    pub(crate) fn shared(body: Arc<Vec<u8>>) -> Self {
        Self {
            kind: Kind::Message,
            body,
        }
    }

    pub(crate) fn empty(kind: Kind) -> Self {
        Self {
            kind,
            body: Arc::default(),
        }
    }

    pub(crate) fn goodbye(why: &str) -> Self {
        let len = why.floor_char_boundary(TEXT_BYTES_MAX);
        Self {
            kind: Kind::Goodbye,
            body: Arc::new(why.as_bytes()[..len].to_vec()),
        }
    }

    /// What it costs to keep.
    pub(crate) fn weight(&self) -> usize {
        HEAD_BYTES + self.body.len()
    }

    pub(crate) fn head(&self, acknowledged: u64) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        // A body is never longer than a frame may be.
        head[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&self.kind.number().to_le_bytes());
        head[8..].copy_from_slice(&acknowledged.to_le_bytes());
        head
    }
}

/// A frame that was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) acknowledged: u64,
    pub(crate) body: Vec<u8>,
}

/// The receiving end of a stream.
pub(crate) struct Input<R = Reader> {
    bytes: BufReader<R>,
    body_bytes_max: usize,
}

impl Input {
    /// How long to wait for bytes from now on.
    pub(crate) fn set_patience(&self, patience: Duration) -> folio::Result<()> {
        let set = self.bytes.get_ref().0.set_patience(Some(patience));
        set.map_err(|error| folio::Error::io("connection", error))
    }

    /// As long as it takes.
    pub(crate) fn end_patience(&self) -> folio::Result<()> {
        let set = self.bytes.get_ref().0.set_patience(None);
        set.map_err(|error| folio::Error::io("connection", error))
    }
}

impl<R: Read> Input<R> {
    /// Receives frames with bodies of at most `body_bytes_max`.
    pub(crate) fn new(stream: R, body_bytes_max: usize) -> Self {
        Self {
            bytes: BufReader::with_capacity(32 << 10, stream),
            body_bytes_max,
        }
    }

    /// Waits for the next frame; `None` where the stream ends between two of them.
    pub(crate) fn next(&mut self) -> io::Result<Option<Received>> {
        let mut head = [0; HEAD_BYTES];
        if !self.fill_head(&mut head)? {
            return Ok(None);
        }
        let [len, kind] = [0, 4]
            .map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let mut acknowledged = [0; 8];
        acknowledged.copy_from_slice(&head[8..]);
        let kind = Kind::from_number(kind).ok_or_else(|| wrong("a frame of no known kind"))?;
        let len = len as usize;
        let len_max = match kind {
            Kind::Message => self.body_bytes_max,
            Kind::Goodbye => TEXT_BYTES_MAX,
            Kind::DropNames | Kind::Acknowledge => 0,
        };
        if len > len_max {
            return Err(wrong("a frame that is longer than agreed"));
        }
        let mut body = vec![0; len];
        self.bytes.read_exact(&mut body)?;
        Ok(Some(Received {
            kind,
            acknowledged: u64::from_le_bytes(acknowledged),
            body,
        }))
    }

    fn fill_head(&mut self, head: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < head.len() {
            match self.bytes.read(&mut head[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(true)
    }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(frame: &Frame, acknowledged: u64) -> Vec<u8> {
        [&frame.head(acknowledged)[..], &frame.body].concat()
    }

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let sent = [
            Frame::message(vec![7; 5000]),
            Frame::empty(Kind::DropNames),
            Frame::goodbye("no more"),
        ];
        let stream: Vec<u8> = sent.iter().flat_map(|frame| bytes(frame, 9)).collect();
        let mut input = Input::new(&stream[..], 5000);
        for frame in &sent {
            let received = input.next().unwrap().unwrap();
            assert_eq!((received.kind, received.acknowledged), (frame.kind, 9));
            assert_eq!(received.body, *frame.body);
        }
        assert_eq!(input.next().unwrap(), None);
    }

    #[test]
    fn frames_outside_the_rules_are_refused() {
        let long = bytes(&Frame::message(vec![0; 101]), 0);
        assert!(Input::new(&long[..], 100).next().is_err());
        let cut = &bytes(&Frame::message(vec![0; 100]), 0)[..90];
        assert!(Input::new(cut, 100).next().is_err());
        let mut unknown = bytes(&Frame::empty(Kind::Acknowledge), 0);
        unknown[4] = 9;
        assert!(Input::new(&unknown[..], 100).next().is_err());
        // A length that nobody could keep, of which no byte comes.
        let huge = [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(Input::new(&huge[..], 100).next().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_end(stream in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut input = Input::new(&stream[..], 64);
            while let Ok(Some(frame)) = input.next() {
                prop_assert!(frame.body.len() <= TEXT_BYTES_MAX);
            }
        }
    }
}
