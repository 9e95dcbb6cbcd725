//! Writing and compressing on a thread of its own, behind the writer of an archive.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes of a buffer.
const BUFFER_BYTES: usize = 1 << 20;
/// Buffers in flight.
const BUFFERS: usize = 6;

/// A writer that passes its bytes to a thread. A failure of the output fails a later call, at the
/// latest [`WriteBehind::finish`].
pub struct WriteBehind<W> {
    full: Option<SyncSender<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
    buffer: Vec<u8>,
    thread: Option<JoinHandle<io::Result<W>>>,
}

impl<W: Write + Send + 'static> WriteBehind<W> {
    /// Starts a thread that writes to `output`.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn start(mut output: W) -> io::Result<Self> {
        let (full, receive_full) = sync_channel::<Vec<u8>>(BUFFERS);
        let (send_empty, empty) = sync_channel(BUFFERS + 2);
        let thread = std::thread::Builder::new()
            .name("archive-write".to_owned())
            .spawn(move || {
                for mut bytes in receive_full {
                    output.write_all(&bytes)?;
                    bytes.clear();
                    // The writer may have finished.
                    let _ = send_empty.try_send(bytes);
                }
                Ok(output)
            })?;
        Ok(Self {
            full: Some(full),
            empty,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            thread: Some(thread),
        })
    }

    /// Waits until all bytes are written; returns the output.
    ///
    /// # Errors
    ///
    /// The output failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.send()?;
        self.full = None;
        self.join()
    }

    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let next = self.empty.try_recv();
        let next = next.unwrap_or_else(|_| Vec::with_capacity(BUFFER_BYTES));
        let full = std::mem::replace(&mut self.buffer, next);
        let sender = self.full.as_ref();
        if sender.is_some_and(|sender| sender.send(full).is_ok()) {
            return Ok(());
        }
        self.full = None;
        Err(match self.join() {
            Err(error) => error,
            Ok(_) => io::ErrorKind::BrokenPipe.into(),
        })
    }

    fn join(&mut self) -> io::Result<W> {
        let ended = || io::Error::other("the writing thread has ended");
        let thread = self.thread.take().ok_or_else(ended)?;
        thread.join().unwrap_or_else(|_| Err(ended()))
    }
}

impl<W: Write + Send + 'static> Write for WriteBehind<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= BUFFER_BYTES {
            self.send()?;
        }
        let count = bytes.len().min(BUFFER_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Keeps the bytes: only the end of the stream matters to its reader.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_in_order() {
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES + 5)
            .map(|at| (at >> 9) as u8)
            .collect();
        let mut behind = WriteBehind::start(Vec::new()).unwrap();
        behind.write_all(&bytes).unwrap();
        assert!(behind.finish().unwrap() == bytes);
    }

    #[test]
    fn failure_of_the_output_is_returned() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("full"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut behind = WriteBehind::start(Full).unwrap();
        let written = behind.write_all(&vec![0; 40 * BUFFER_BYTES]);
        assert_eq!(written.unwrap_err().to_string(), "full");
        assert!(behind.finish().is_err());
    }
}
