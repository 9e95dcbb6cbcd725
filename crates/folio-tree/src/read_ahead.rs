//! Reading and decompressing on a thread of its own, ahead of the reader of an archive.

use crate::compression::decoder;
use folio::{AlignedBuffer, Errno, Error};
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Bytes of a buffer: a multiple of a tar block, so that blocks do not span buffers.
const BUFFER_BYTES: usize = 1 << 20;
/// Buffers in flight.
const BUFFERS: usize = 6;
/// How often a reader that waits for its thread looks at its stop flag.
const STOP_POLL: Duration = Duration::from_millis(50);

struct Filled {
    bytes: AlignedBuffer,
    len: usize,
    /// Bytes of the input, compressed or not, that these were made of.
    input_bytes: u64,
}

/// The bytes of a stream, read ahead by a thread. It ends when this value is dropped, at the latest
/// after its current read.
pub struct ReadAhead {
    source: Source,
    current: Option<Filled>,
    at: usize,
    is_finished: bool,
    /// What was read so far, for [`ReadAhead::rewind`].
    kept: Option<Kept>,
    progress: Option<InputProgress>,
    stop: Arc<AtomicBool>,
}

enum Source {
    Thread {
        filled: Receiver<io::Result<Filled>>,
        empty: SyncSender<AlignedBuffer>,
    },
    Memory(VecDeque<Filled>),
}

struct Kept {
    buffers: VecDeque<Filled>,
    budget: Arc<MemoryBudget>,
}

/// How many of an archive's own bytes, compressed or not, a reader has used. Clones are the same
/// counter.
#[derive(Debug, Clone)]
pub struct InputProgress {
    done_bytes: Arc<AtomicU64>,
    total_bytes: u64,
}

/// An input that counts its bytes.
pub(crate) struct Counted<R> {
    input: R,
    count: Arc<AtomicU64>,
}

impl InputProgress {
    /// Creates a counter for an archive of `total_bytes` bytes.
    pub fn new(total_bytes: u64) -> Self {
        Self {
            done_bytes: Arc::default(),
            total_bytes,
        }
    }

    /// Returns the bytes that were used.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the archive.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

impl<R> Counted<R> {
    /// Creates an input that adds the bytes read from it to `count`.
    pub(crate) fn new(input: R, count: Arc<AtomicU64>) -> Self {
        Self { input, count }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Memory that streams share to keep their bytes in.
#[derive(Debug)]
pub struct MemoryBudget(AtomicUsize);

impl MemoryBudget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        let buffers = bytes / BUFFER_BYTES as u64;
        Self(AtomicUsize::new(
            usize::try_from(buffers).unwrap_or(usize::MAX),
        ))
    }

    /// Returns the buffers that are left.
    pub(crate) fn buffers(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn give_back(&self, buffers: usize) {
        self.0.fetch_add(buffers, Ordering::Relaxed);
    }

    fn take_buffer(&self) -> bool {
        let less = |buffers: usize| buffers.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

impl ReadAhead {
    /// Starts a thread that reads `input`.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn start(input: impl Read + Send + 'static) -> io::Result<Self> {
        let count = Arc::<AtomicU64>::default();
        let input = Counted::new(input, count.clone());
        Self::start_far(move || Ok(Box::new(input)), count, BUFFERS)
    }

    /// Starts a thread that reads and decompresses `input`.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn decompress(input: impl Read + Send + 'static) -> io::Result<Self> {
        let count = Arc::<AtomicU64>::default();
        let input = Counted::new(input, count.clone());
        Self::start_far(move || decoder(input), count, BUFFERS)
    }

    /// Starts a thread that opens an input and fills up to `buffers` buffers ahead: for an input
    /// that waits for its turn. `count` is the number of bytes that it has read from its own input.
    pub(crate) fn start_far(
        open: impl FnOnce() -> io::Result<Box<dyn Read + Send>> + Send + 'static,
        count: Arc<AtomicU64>,
        buffers: usize,
    ) -> io::Result<Self> {
        let (send_filled, filled) = sync_channel(buffers);
        let (empty, receive_empty) = sync_channel(buffers + 2);
        std::thread::Builder::new()
            .name("archive-read".to_owned())
            .spawn(move || match open() {
                Ok(input) => fill(input, &count, &send_filled, &receive_empty),
                // Without a reader there is none to report to.
                Err(error) => drop(send_filled.send(Err(error))),
            })?;
        Ok(Self::new(Source::Thread { filled, empty }))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            current: None,
            at: 0,
            is_finished: false,
            kept: None,
            progress: None,
            stop: Arc::default(),
        }
    }

    /// Ends reads with EINTR once `stop` is set, also one that waits for the input.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// Counts the bytes that are used from here on.
    #[must_use]
    pub fn reporting(mut self, progress: &InputProgress) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Keeps all bytes in memory while `budget` lasts, so that they can be read again.
    #[must_use]
    pub fn keeping(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.kept = Some(Kept {
            buffers: VecDeque::new(),
            budget,
        });
        self
    }

    /// Returns the stream from its start, if it was read to its end and all of it was kept.
    pub fn rewind(mut self) -> Option<Self> {
        self.release_current();
        let kept = self.kept.take().filter(|_| self.is_finished)?;
        Some(Self::new(Source::Memory(kept.buffers)).with_stop(self.stop))
    }

    /// Keeps the current buffer, or returns it to the thread.
    fn release_current(&mut self) {
        let Some(used) = self.current.take() else {
            return;
        };
        if let Some(mut kept) = self.kept.take() {
            if kept.budget.take_buffer() {
                kept.buffers.push_back(used);
                self.kept = Some(kept);
                return;
            }
            // A part is useless.
            kept.budget.give_back(kept.buffers.len());
        }
        if let Source::Thread { empty, .. } = &self.source {
            // The thread may have finished.
            let _ = empty.try_send(used.bytes);
        }
    }

    fn advance(&mut self) -> io::Result<()> {
        self.release_current();
        self.at = 0;
        if self.is_finished {
            return Ok(());
        }
        let next = match &mut self.source {
            Source::Thread { filled, .. } => receive(filled, &self.stop),
            Source::Memory(buffers) => Ok(buffers.pop_front()),
        };
        match next {
            Ok(Some(filled)) => {
                if let Some(progress) = &self.progress {
                    let done_bytes = &progress.done_bytes;
                    done_bytes.fetch_add(filled.input_bytes, Ordering::Relaxed);
                }
                self.current = Some(filled);
            }
            Ok(None) => self.is_finished = true,
            Err(error) => {
                self.is_finished = true;
                self.kept = None;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Waits for the next buffer; `None` at the end.
fn receive(filled: &Receiver<io::Result<Filled>>, stop: &AtomicBool) -> io::Result<Option<Filled>> {
    while !stop.load(Ordering::Relaxed) {
        match filled.recv_timeout(STOP_POLL) {
            Ok(next) => return next.map(Some),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    // Readers repeat a call that fails with the kind Interrupted.
    Err(io::Error::other(Error::from(Errno::INTR)))
}

fn fill(
    mut input: impl Read,
    count: &AtomicU64,
    filled: &SyncSender<io::Result<Filled>>,
    empty: &Receiver<AlignedBuffer>,
) {
    let mut counted = 0;
    loop {
        let buffer = empty.try_recv();
        let mut bytes = buffer.unwrap_or_else(|_| AlignedBuffer::new(BUFFER_BYTES));
        let (len, failure) = fill_buffer(&mut input, &mut bytes);
        let is_full = len == bytes.len();
        let now = count.load(Ordering::Relaxed);
        let buffer = Filled {
            bytes,
            len,
            input_bytes: now - std::mem::replace(&mut counted, now),
        };
        if len > 0 && filled.send(Ok(buffer)).is_err() {
            return;
        }
        if let Some(error) = failure {
            // As above.
            let _ = filled.send(Err(error));
            return;
        }
        if !is_full {
            return;
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn fill_buffer(input: &mut impl Read, bytes: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut len = 0;
    while len < bytes.len() {
        match input.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (len, Some(error)),
        }
    }
    (len, None)
}

impl BufRead for ReadAhead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self
            .current
            .as_ref()
            .is_none_or(|filled| self.at >= filled.len)
        {
            self.advance()?;
        }
        Ok(match &self.current {
            Some(filled) => &filled.bytes[self.at..filled.len],
            None => &[],
        })
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(buf.len());
        buf[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::{Compression, Encoder};
    use std::io::Write;

    #[test]
    fn reads_all_bytes_in_order() {
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES + 77)
            .map(|at| at as u8 ^ (at >> 8) as u8)
            .collect();
        let mut read = Vec::new();
        let mut ahead = ReadAhead::start(io::Cursor::new(bytes.clone())).unwrap();
        ahead.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(ahead.fill_buf().unwrap(), b"");
    }

    #[test]
    fn kept_stream_is_read_twice() {
        let bytes: Vec<u8> = (0..2 * BUFFER_BYTES + 9).map(|at| at as u8).collect();
        for (buffers, is_kept) in [(3, true), (2, false)] {
            let budget = Arc::new(MemoryBudget::new(buffers * BUFFER_BYTES as u64));
            let ahead = ReadAhead::start(io::Cursor::new(bytes.clone())).unwrap();
            let mut ahead = ahead.keeping(budget);
            let mut read = Vec::new();
            ahead.read_to_end(&mut read).unwrap();
            let again = ahead.rewind();
            assert_eq!(again.is_some(), is_kept);
            if let Some(mut again) = again {
                read.clear();
                again.read_to_end(&mut read).unwrap();
            }
            assert!(read == bytes);
        }
        let budget = Arc::new(MemoryBudget::new(9 * BUFFER_BYTES as u64));
        let ahead = ReadAhead::start(io::Cursor::new(bytes)).unwrap();
        assert!(ahead.keeping(budget).rewind().is_none());
    }

    #[test]
    fn progress_counts_bytes_of_the_input() {
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES + 77).map(|at| at as u8).collect();
        let mut encoder = Encoder::new(Vec::new(), Compression::Gzip).unwrap();
        encoder.write_all(&bytes).unwrap();
        let packed = encoder.finish().unwrap();
        for input in [bytes, packed] {
            let progress = InputProgress::new(input.len() as u64);
            let budget = Arc::new(MemoryBudget::new(9 * BUFFER_BYTES as u64));
            let ahead = ReadAhead::decompress(io::Cursor::new(input)).unwrap();
            let mut ahead = ahead.keeping(budget);
            // Not reported: the size of a new image is computed.
            io::copy(&mut ahead, &mut io::sink()).unwrap();
            assert_eq!(progress.done_bytes(), 0);
            let mut again = ahead.rewind().unwrap().reporting(&progress);
            let mut seen = 0;
            loop {
                let len = again.fill_buf().unwrap().len();
                if len == 0 {
                    break;
                }
                assert!(progress.done_bytes() >= seen);
                seen = progress.done_bytes();
                again.consume(len);
            }
            assert_eq!(progress.done_bytes(), progress.total_bytes());
        }
    }

    #[test]
    fn stop_ends_a_wait_for_the_input() {
        let (input, _held_open) = io::pipe().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut ahead = ReadAhead::decompress(input)
            .unwrap()
            .with_stop(stop.clone());
        let reader = std::thread::spawn(move || ahead.read_to_end(&mut Vec::new()));
        stop.store(true, Ordering::Relaxed);
        let error = reader.join().unwrap().unwrap_err();
        let error = error.downcast::<Error>().unwrap();
        assert_eq!(error.errno(), Errno::INTR);
    }

    #[test]
    fn failure_follows_the_bytes_before_it() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("torn"))
            }
        }
        let mut ahead = ReadAhead::start(io::Cursor::new(b"abc").chain(Broken)).unwrap();
        let mut read = Vec::new();
        let error = ahead.read_to_end(&mut read).unwrap_err();
        assert_eq!(
            (read.as_slice(), error.to_string().as_str()),
            (&b"abc"[..], "torn")
        );
    }
}
