//! A session's frames in both directions, over one stream after another.
//!
//! Numbered frames arrive once each and in order, whatever happens to streams: the sender keeps
//! what the receiver has not acknowledged, and a new stream begins where the receiver says that it
//! stopped.
//!
//! Invariants:
//! - L1: a frame counts as received before anything is done about it, and only if it came over the
//!   stream that is the link's at that moment; what comes over an older one is sent again over the
//!   newer.
//! - L2: one thread at a time sends; others leave their frames with it.
//! - L3: no lock is held while bytes are sent or received.

use crate::frame::{Frame, Kind};
use crate::stream::Stream;
use folio::{Errno, Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

/// Received frames and bytes after which the other side is told even if there is nothing else to
/// say.
const UNTOLD_FRAMES: u64 = 32;
const UNTOLD_BYTES: usize = 256 << 10;
/// Bytes that one call of the host sends, unless a single frame is longer.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_FRAMES: usize = 16;

/// One side of a session.
pub(crate) struct Link {
    state: Mutex<State>,
    /// Bytes that may wait for the other side.
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    /// Sent and not acknowledged, then not sent.
    frames: VecDeque<Frame>,
    /// How many of them are sent over this stream.
    sent: usize,
    /// Weight of all of them.
    bytes: usize,
    /// How many were acknowledged before the first of them.
    acknowledged: u64,
    /// How many frames came.
    received: u64,
    /// What the other side knows of that.
    told: u64,
    untold_bytes: usize,
    stream: Option<Arc<Stream>>,
    /// Counts streams.
    generation: u64,
    is_sending: bool,
}

/// What came with a frame does not fit what was sent, or more waits than may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Frames are acknowledged that were never sent.
    Acknowledged,
    /// The other side takes nothing, or tells nothing of it.
    TakesNothing,
    /// A message is none, or not one that this side gets.
    Malformed,
}

impl Breach {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Acknowledged => "frames are acknowledged that were never sent",
            Self::TakesNothing => "more bytes wait than may: replies are not taken",
            Self::Malformed => "a message that breaks the rules",
        }
    }
}

impl Link {
    /// A link without a stream, of which nothing has been sent; at most `bytes_max` may wait.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
        }
    }

    /// Forgets the stream there was, and tells how many frames have come; no more are counted until
    /// [`Link::attach`].
    pub(crate) fn detach(&self) -> u64 {
        let mut state = self.state.lock();
        state.generation += 1;
        if let Some(stream) = state.stream.take() {
            stream.close();
        }
        state.received
    }

    /// Goes on over a new stream, whose other side has received `theirs` frames. Returns the
    /// stream's generation.
    pub(crate) fn attach(&self, stream: Arc<Stream>, theirs: u64) -> Result<u64> {
        let mut state = self.state.lock();
        let range = state.acknowledged..=state.acknowledged + state.frames.len() as u64;
        if !range.contains(&theirs) {
            return Err(Error::new(
                Errno::PROTO,
                "the other side does not remember what it has received",
            ));
        }
        state.acknowledge(theirs);
        state.sent = 0;
        state.told = state.received;
        state.untold_bytes = 0;
        state.generation += 1;
        state.stream = Some(stream);
        let generation = state.generation;
        self.send(state);
        Ok(generation)
    }

    /// The stream of this generation is of no use any more; whether it was the link's.
    pub(crate) fn lose(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        state.generation == generation && state.lose()
    }

    /// Whether the stream of this generation is the link's.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        let state = self.state.lock();
        state.generation == generation && state.stream.is_some()
    }

    /// Whether there is a stream.
    pub(crate) fn is_attached(&self) -> bool {
        self.state.lock().stream.is_some()
    }

    /// Bytes that wait to be sent or acknowledged.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Counts a frame that came over the stream of this generation; `false` if that is not the
    /// link's any more, and the frame is not to be heeded.
    pub(crate) fn receive(
        &self,
        generation: u64,
        (kind, len): (Kind, usize),
        acknowledged: u64,
    ) -> Result<bool, Breach> {
        let mut state = self.state.lock();
        if state.generation != generation || state.stream.is_none() {
            return Ok(false);
        }
        if acknowledged > state.acknowledged + state.sent as u64 {
            return Err(Breach::Acknowledged);
        }
        state.acknowledge(acknowledged);
        if kind.is_numbered() {
            state.received += 1;
            state.untold_bytes += len;
            if state.is_untold() {
                self.send(state);
            }
        }
        Ok(true)
    }

    /// Sends a numbered frame, now or over a later stream.
    pub(crate) fn push(&self, frame: Frame) -> Result<(), Breach> {
        debug_assert!(frame.kind.is_numbered());
        let mut state = self.state.lock();
        if state.bytes > self.bytes_max {
            return Err(Breach::TakesNothing);
        }
        state.bytes += frame.weight();
        state.frames.push_back(frame);
        self.send(state);
        Ok(())
    }

    /// Says why the session is over, if anybody listens.
    pub(crate) fn goodbye(&self, why: &str) {
        let mut state = self.state.lock();
        let Some(stream) = state.stream.clone() else {
            return;
        };
        if state.is_sending {
            return;
        }
        state.is_sending = true;
        let frame = Frame::goodbye(why);
        let head = frame.head(state.received);
        drop(state);
        // It is a courtesy.
        let _ = stream.write_all(&[&head, &frame.body]);
        self.state.lock().is_sending = false;
    }

    /// Sends what waits, unless somebody does.
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
            if sent.is_err() && state.generation == generation {
                state.lose();
            }
            batch.clear();
        }
    }
}

fn send_batch(stream: &Stream, batch: &[Frame], received: u64) -> std::io::Result<()> {
    let heads: Vec<_> = batch.iter().map(|frame| frame.head(received)).collect();
    let pieces: Vec<&[u8]> = heads
        .iter()
        .zip(batch)
        .flat_map(|(head, frame)| [&head[..], &frame.body[..]])
        .collect();
    stream.write_all(&pieces)
}

impl State {
    fn is_untold(&self) -> bool {
        self.received - self.told >= UNTOLD_FRAMES || self.untold_bytes >= UNTOLD_BYTES
    }

    /// The frames to send next, and what they acknowledge.
    fn take_batch(&mut self, batch: &mut Vec<Frame>) -> Option<(Arc<Stream>, u64)> {
        let stream = self.stream.clone()?;
        let mut bytes = 0;
        while let Some(frame) = self.frames.get(self.sent) {
            if !batch.is_empty()
                && (bytes + frame.weight() > BATCH_BYTES || batch.len() == BATCH_FRAMES)
            {
                break;
            }
            bytes += frame.weight();
            batch.push(frame.clone());
            self.sent += 1;
        }
        if batch.is_empty() {
            if !self.is_untold() {
                return None;
            }
            batch.push(Frame::empty(Kind::Acknowledge));
        }
        self.told = self.received;
        self.untold_bytes = 0;
        Some((stream, self.received))
    }

    fn acknowledge(&mut self, number: u64) {
        while self.acknowledged < number {
            let Some(frame) = self.frames.pop_front() else {
                break;
            };
            self.bytes -= frame.weight();
            self.sent = self.sent.saturating_sub(1);
            self.acknowledged += 1;
        }
    }

    fn lose(&mut self) -> bool {
        self.stream.take().is_some_and(|stream| {
            stream.close();
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Input;
    use crate::stream::Reader;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Arc<Stream>, Arc<Stream>) {
        let (one, two) = UnixStream::pair().unwrap();
        (
            Arc::new(Stream::from_fd(one.into()).unwrap()),
            Arc::new(Stream::from_fd(two.into()).unwrap()),
        )
    }

    #[test]
    fn breaches_are_told() {
        let link = Link::new(100);
        let (ours, _theirs) = pair();
        let generation = link.attach(ours.clone(), 0).unwrap();
        assert_eq!(
            link.receive(generation, (Kind::Acknowledge, 0), 1),
            Err(Breach::Acknowledged)
        );
        link.push(Frame::message(vec![0; 200])).unwrap();
        assert_eq!(
            link.push(Frame::message(Vec::new())),
            Err(Breach::TakesNothing)
        );
        assert_eq!(
            link.receive(generation, (Kind::Acknowledge, 0), 1),
            Ok(true)
        );
        assert_eq!(link.waiting_bytes(), 0);
        // Neither more than was sent nor less than was acknowledged.
        link.detach();
        assert_eq!(link.receive(generation, (Kind::Message, 5), 1), Ok(false));
        assert!(link.attach(ours.clone(), 2).is_err() && link.attach(ours.clone(), 0).is_err());
        assert!(link.attach(ours, 1).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Streams are cut after any number of frames; every frame comes once and in order.
        #[test]
        fn nothing_is_lost_or_doubled(cuts in proptest::collection::vec(0_usize..40, 1..12), len in 1_usize..200) {
            let (sender, receiver) = (Link::new(1 << 20), Link::new(1 << 20));
            let mut came = Vec::new();
            let mut next = 0_u32;
            for cut in &cuts {
                for _ in 0..len {
                    sender.push(Frame::message(next.to_le_bytes().to_vec())).unwrap();
                    next += 1;
                }
                let (ours, theirs) = pair();
                let received = receiver.detach();
                sender.detach();
                let generation = receiver.attach(theirs.clone(), 0).unwrap();
                let sending = sender.attach(ours.clone(), received).unwrap();
                let mut input = Input::new(Reader(theirs), 100);
                for _ in 0..(*cut).min(next as usize - came.len()) {
                    let frame = input.next().unwrap().unwrap();
                    prop_assert_eq!(receiver.receive(generation, (frame.kind, 4), frame.acknowledged), Ok(true));
                    came.push(u32::from_le_bytes(frame.body.try_into().unwrap()));
                }
                // Acknowledgements that have come by now.
                ours.set_patience(Some(std::time::Duration::from_millis(1))).unwrap();
                let mut back = Input::new(Reader(ours), 100);
                while let Ok(Some(frame)) = back.next() {
                    prop_assert_eq!(sender.receive(sending, (frame.kind, 0), frame.acknowledged), Ok(true));
                }
            }
            prop_assert!(came.iter().copied().eq(0..came.len() as u32));
        }
    }
}
