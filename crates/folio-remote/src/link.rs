//! A session's frames in both directions, over one stream after another.
//!
//! Numbered frames arrive once each and in order, even if streams fail: the sender keeps frames
//! until the receiver acknowledges them, and over a new stream it continues after the last frame
//! that the receiver reports.
//!
//! Invariants:
//! - L1: a frame counts as received before it is handled, and only if it arrived over the link's
//!   current stream. A frame that arrives over an older stream is sent again over the newer one.
//! - L2: one thread at a time sends; other threads queue their frames for it.
//! - L3: no lock is held while bytes are sent or received.

use crate::frame::{Frame, FrameKind};
use folio::{Errno, Error, Result};
use folio_net::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::Arc;

/// Received frames and bytes after which an acknowledgement is sent, even without another frame to
/// carry it.
const UNACKNOWLEDGED_FRAMES_MAX: u64 = 32;
const UNACKNOWLEDGED_BYTES_MAX: usize = 256 << 10;
/// Most bytes of one send call, unless a single frame is longer.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_FRAMES: usize = 16;

/// One side of a session.
pub(crate) struct Link {
    state: Mutex<State>,
    /// Most bytes that may wait for the peer.
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    /// Frames sent and not acknowledged, then frames not sent.
    frames: VecDeque<Frame>,
    /// The number of `frames` that are sent over this stream.
    sent: usize,
    /// Bytes of all `frames`.
    bytes: usize,
    /// The number of acknowledged frames, which precede `frames`.
    acknowledged: u64,
    /// The number of received frames.
    received: u64,
    /// The number of received frames that are acknowledged to the peer.
    reported: u64,
    /// Bytes of the received frames after those.
    unreported_bytes: usize,
    stream: Option<Arc<Stream>>,
    /// The number of the current stream.
    generation: u64,
    is_sending: bool,
}

/// A peer's violation of the protocol, which ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolViolation {
    /// The peer acknowledges frames that were never sent.
    InvalidAcknowledgement,
    /// The peer takes no frames, or does not acknowledge them, and too many bytes wait.
    QueueOverflow,
    /// A message cannot be parsed, or is not valid in this direction.
    MalformedMessage,
}

impl ProtocolViolation {
    /// Returns a description.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::InvalidAcknowledgement => "acknowledgement of frames that were never sent",
            Self::QueueOverflow => "too many bytes wait: the peer takes no replies",
            Self::MalformedMessage => "malformed message",
        }
    }
}

impl Link {
    /// Creates a link without a stream, in which at most `bytes_max` may wait.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
        }
    }

    /// Closes the current stream, and returns the number of received frames. It does not grow until
    /// [`Link::attach`].
    pub(crate) fn detach(&self) -> u64 {
        let mut state = self.state.lock();
        // A frame that the old stream's reader still has does not count any more (L1).
        state.generation += 1;
        if let Some(stream) = state.stream.take() {
            stream.shutdown(Shutdown::Both);
        }
        state.received
    }

    /// Continues over a new stream, whose peer has received `peer_received` frames. Returns the
    /// stream's generation.
    ///
    /// # Errors
    /// EPROTO if frames from there on are not kept.
    pub(crate) fn attach(&self, stream: Arc<Stream>, peer_received: u64) -> Result<u64> {
        let mut state = self.state.lock();
        let range = state.acknowledged..=state.acknowledged + state.frames.len() as u64;
        if !range.contains(&peer_received) {
            return Err(Error::new(
                Errno::PROTO,
                "the peer reports a number of received frames that is not possible",
            ));
        }
        state.acknowledge(peer_received);
        // What the peer lacks goes over the new stream again.
        state.sent = 0;
        state.reported = state.received;
        state.unreported_bytes = 0;
        state.generation += 1;
        state.stream = Some(stream);
        let generation = state.generation;
        self.send(state);
        Ok(generation)
    }

    /// Closes the stream of this generation, if it is the current one. Returns whether it was.
    pub(crate) fn lose(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        state.generation == generation && state.lose()
    }

    /// Returns whether the stream of this generation is the current one.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        let state = self.state.lock();
        state.generation == generation && state.stream.is_some()
    }

    /// Returns whether there is a stream.
    pub(crate) fn is_attached(&self) -> bool {
        self.state.lock().stream.is_some()
    }

    /// Returns the number of bytes that wait to be sent or acknowledged.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Counts a frame that arrived over the stream of this generation. Returns false if that stream
    /// is not the current one; the caller ignores the frame then.
    ///
    /// # Errors
    /// [`ProtocolViolation::InvalidAcknowledgement`].
    pub(crate) fn receive(
        &self,
        generation: u64,
        kind: FrameKind,
        len: usize,
        acknowledged: u64,
    ) -> Result<bool, ProtocolViolation> {
        let mut state = self.state.lock();
        // A stream that was replaced may still deliver frames; the new one delivers them again.
        if state.generation != generation || state.stream.is_none() {
            return Ok(false);
        }
        if acknowledged > state.acknowledged + state.sent as u64 {
            return Err(ProtocolViolation::InvalidAcknowledgement);
        }
        state.acknowledge(acknowledged);
        if kind.is_numbered() {
            // Before the caller handles it: a resumed session must not deliver it twice (L1).
            state.received += 1;
            state.unreported_bytes += len;
            if state.needs_acknowledgement() {
                self.send(state);
            }
        }
        Ok(true)
    }

    /// Sends a numbered frame, over this stream or a later one.
    ///
    /// # Errors
    /// [`ProtocolViolation::QueueOverflow`].
    pub(crate) fn push(&self, frame: Frame) -> Result<(), ProtocolViolation> {
        debug_assert!(frame.kind.is_numbered());
        let mut state = self.state.lock();
        if state.bytes > self.bytes_max {
            return Err(ProtocolViolation::QueueOverflow);
        }
        state.bytes += frame.len_bytes();
        state.frames.push_back(frame);
        self.send(state);
        Ok(())
    }

    /// Sends the reason of the session's end, if there is a stream and no other thread is sending.
    pub(crate) fn send_goodbye(&self, reason: &str) {
        let mut state = self.state.lock();
        let Some(stream) = state.stream.clone() else {
            return;
        };
        if state.is_sending {
            return;
        }
        state.is_sending = true;
        let frame = Frame::goodbye(reason);
        let header = frame.header(state.received);
        // `is_sending` keeps frames out of the middle: the lock is free during the write.
        drop(state);
        // The session ends either way.
        let _ = stream.write_all_vectored(&[&header, &frame.body]);
        self.state.lock().is_sending = false;
    }

    /// Sends all waiting frames, unless another thread is sending.
    fn send(&self, mut state: MutexGuard<'_, State>) {
        if state.is_sending {
            return;
        }
        let mut batch = Vec::new();
        while let Some((stream, received)) = state.take_batch(&mut batch) {
            state.is_sending = true;
            let generation = state.generation;
            let sent = MutexGuard::unlocked(&mut state, || send_batch(&stream, &batch, received));
            state.is_sending = false;
            // A later stream must not end by the failure of this one.
            if sent.is_err() && state.generation == generation {
                state.lose();
            }
            batch.clear();
        }
    }
}

fn send_batch(stream: &Stream, batch: &[Frame], received: u64) -> std::io::Result<()> {
    let headers: Vec<_> = batch.iter().map(|frame| frame.header(received)).collect();
    let pieces: Vec<&[u8]> = headers
        .iter()
        .zip(batch)
        .flat_map(|(header, frame)| [&header[..], &frame.body[..]])
        .collect();
    stream.write_all_vectored(&pieces)
}

impl State {
    fn needs_acknowledgement(&self) -> bool {
        self.received - self.reported >= UNACKNOWLEDGED_FRAMES_MAX
            || self.unreported_bytes >= UNACKNOWLEDGED_BYTES_MAX
    }

    /// Puts the next frames to send into `batch`. Returns the stream and the number of received
    /// frames, which the batch acknowledges; `None` if nothing is to be sent.
    fn take_batch(&mut self, batch: &mut Vec<Frame>) -> Option<(Arc<Stream>, u64)> {
        let stream = self.stream.clone()?;
        let mut bytes = 0;
        while let Some(frame) = self.frames.get(self.sent) {
            if !batch.is_empty()
                && (bytes + frame.len_bytes() > BATCH_BYTES || batch.len() == BATCH_FRAMES)
            {
                break;
            }
            bytes += frame.len_bytes();
            batch.push(frame.clone());
            self.sent += 1;
        }
        if batch.is_empty() {
            if !self.needs_acknowledgement() {
                return None;
            }
            batch.push(Frame::empty(FrameKind::Acknowledge));
        }
        // Each frame carries the acknowledgement.
        self.reported = self.received;
        self.unreported_bytes = 0;
        Some((stream, self.received))
    }

    fn acknowledge(&mut self, number: u64) {
        while self.acknowledged < number {
            let Some(frame) = self.frames.pop_front() else {
                break;
            };
            self.bytes -= frame.len_bytes();
            self.sent = self.sent.saturating_sub(1);
            self.acknowledged += 1;
        }
    }

    fn lose(&mut self) -> bool {
        self.stream.take().is_some_and(|stream| {
            stream.shutdown(Shutdown::Both);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameReader;
    use crate::stream::set_timeouts;
    use folio_net::StreamReader;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Arc<Stream>, Arc<Stream>) {
        let (one, two) = UnixStream::pair().unwrap();
        [one, two]
            .map(|stream| {
                let stream = Arc::new(Stream::from(stream));
                set_timeouts(&stream).unwrap();
                stream
            })
            .into()
    }

    #[test]
    fn protocol_violations_are_detected() {
        let link = Link::new(100);
        let (ours, _peer) = pair();
        let generation = link.attach(ours.clone(), 0).unwrap();
        assert_eq!(
            link.receive(generation, FrameKind::Acknowledge, 0, 1),
            Err(ProtocolViolation::InvalidAcknowledgement)
        );
        link.push(Frame::message(vec![0; 200])).unwrap();
        assert_eq!(
            link.push(Frame::message(Vec::new())),
            Err(ProtocolViolation::QueueOverflow)
        );
        assert_eq!(
            link.receive(generation, FrameKind::Acknowledge, 0, 1),
            Ok(true)
        );
        assert_eq!(link.waiting_bytes(), 0);
        // Neither more than was sent nor less than was acknowledged.
        link.detach();
        assert_eq!(
            link.receive(generation, FrameKind::Message, 5, 1),
            Ok(false)
        );
        assert!(link.attach(ours.clone(), 2).is_err() && link.attach(ours.clone(), 0).is_err());
        assert!(link.attach(ours, 1).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Streams are cut after any number of frames; every frame arrives once and in order.
        #[test]
        fn cut_streams_lose_and_repeat_no_frame(cuts in proptest::collection::vec(0_usize..40, 1..12), len in 1_usize..200) {
            let (sender, receiver) = (Link::new(1 << 20), Link::new(1 << 20));
            let mut received_numbers = Vec::new();
            let mut next = 0_u32;
            for cut in &cuts {
                for _ in 0..len {
                    sender.push(Frame::message(next.to_le_bytes().to_vec())).unwrap();
                    next += 1;
                }
                let (ours, peer) = pair();
                let received = receiver.detach();
                sender.detach();
                let generation = receiver.attach(peer.clone(), 0).unwrap();
                let sending = sender.attach(ours.clone(), received).unwrap();
                let mut input = FrameReader::new(StreamReader(peer), 100);
                for _ in 0..(*cut).min(next as usize - received_numbers.len()) {
                    let frame = input.next().unwrap().unwrap();
                    prop_assert_eq!(receiver.receive(generation, frame.kind, 4, frame.acknowledged), Ok(true));
                    received_numbers.push(u32::from_le_bytes(frame.body.try_into().unwrap()));
                }
                // Acknowledgements that have arrived by now.
                ours.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
                let mut back = FrameReader::new(StreamReader(ours), 100);
                while let Ok(Some(frame)) = back.next() {
                    prop_assert_eq!(sender.receive(sending, frame.kind, 0, frame.acknowledged), Ok(true));
                }
            }
            prop_assert!(received_numbers.iter().copied().eq(0..received_numbers.len() as u32));
        }
    }
}
