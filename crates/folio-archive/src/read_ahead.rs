//! Reading and decompressing on a thread of its own, ahead of the reader of an archive.

use folio::AlignedBuffer;
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of a buffer: a multiple of a tar block, so that blocks do not span buffers.
const BUFFER_BYTES: usize = 1 << 20;
/// Buffers in flight.
const BUFFERS: usize = 6;

struct Filled {
    bytes: AlignedBuffer,
    len: usize,
}

/// The bytes of a stream, read ahead by a thread. It ends when this value is dropped, at the latest
/// after its current read.
pub struct ReadAhead {
    filled: Receiver<io::Result<Filled>>,
    empty: SyncSender<AlignedBuffer>,
    current: Option<Filled>,
    at: usize,
    is_finished: bool,
}

impl ReadAhead {
    /// Starts a thread that reads `input`.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn start(input: impl Read + Send + 'static) -> io::Result<Self> {
        Self::start_far(input, BUFFERS)
    }

    /// Starts a thread that reads up to `buffers` MiB ahead: for an input that waits for its turn.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn start_far(input: impl Read + Send + 'static, buffers: usize) -> io::Result<Self> {
        let (send_filled, filled) = sync_channel(buffers);
        let (empty, receive_empty) = sync_channel(buffers + 2);
        std::thread::Builder::new()
            .name("archive-read".to_owned())
            .spawn(move || fill(input, &send_filled, &receive_empty))?;
        Ok(Self {
            filled,
            empty,
            current: None,
            at: 0,
            is_finished: false,
        })
    }

    fn advance(&mut self) -> io::Result<()> {
        if let Some(used) = self.current.take() {
            // The thread may have finished.
            let _ = self.empty.try_send(used.bytes);
        }
        self.at = 0;
        if self.is_finished {
            return Ok(());
        }
        match self.filled.recv() {
            Ok(Ok(filled)) => self.current = Some(filled),
            Ok(Err(error)) => {
                self.is_finished = true;
                return Err(error);
            }
            Err(_) => self.is_finished = true,
        }
        Ok(())
    }
}

fn fill(
    mut input: impl Read,
    filled: &SyncSender<io::Result<Filled>>,
    empty: &Receiver<AlignedBuffer>,
) {
    loop {
        let buffer = empty.try_recv();
        let mut bytes = buffer.unwrap_or_else(|_| AlignedBuffer::new(BUFFER_BYTES));
        let (len, failure) = fill_buffer(&mut input, &mut bytes);
        let is_full = len == bytes.len();
        if len > 0 && filled.send(Ok(Filled { bytes, len })).is_err() {
            return;
        }
        if let Some(error) = failure {
            // Without a reader there is no one left to report to.
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
