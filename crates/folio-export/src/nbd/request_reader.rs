//! The buffer of received bytes: one read of the socket brings many small requests.

use super::protocol::REQUEST_BYTES;
use folio_net::Stream;
use std::io::{self, ErrorKind};
use std::time::Instant;

/// Buffer size: hundreds of read requests, or some small writes with their payloads.
const BUFFER_BYTES: usize = 64 << 10;

/// The receiving side of a connection. It moves from thread to thread with the read turn.
pub(crate) struct RequestReader {
    bytes: Box<[u8]>,
    /// `start..end` is received and not parsed yet.
    start: usize,
    end: usize,
    /// The time at which reads fail.
    deadline: Option<Instant>,
}

impl RequestReader {
    /// Creates an empty reader whose reads fail with `TimedOut` or `WouldBlock` after `deadline`.
    pub(crate) fn new(deadline: Instant) -> Self {
        let bytes = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self {
            bytes,
            start: 0,
            end: 0,
            deadline: Some(deadline),
        }
    }

    /// Removes the deadline.
    pub(crate) fn remove_deadline(&mut self, stream: &Stream) -> io::Result<()> {
        self.deadline = None;
        stream.set_read_timeout(None)
    }

    /// Returns whether this many bytes can be read without waiting.
    pub(crate) fn holds(&self, count: usize) -> bool {
        self.end - self.start >= count
    }

    /// Reads the next request without its payload; `None` if the stream ends before it.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends within the request, else the host's error.
    pub(crate) fn request(&mut self, stream: &Stream) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        while !self.holds(REQUEST_BYTES) {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.bytes.len() - self.start < REQUEST_BYTES {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.fill(stream)? == 0 {
                return if self.start == self.end {
                    Ok(None)
                } else {
                    Err(ErrorKind::UnexpectedEof.into())
                };
            }
        }
        let mut bytes = [0; REQUEST_BYTES];
        bytes.copy_from_slice(&self.bytes[self.start..self.start + REQUEST_BYTES]);
        self.start += REQUEST_BYTES;
        Ok(Some(bytes))
    }

    /// Fills all of `buf`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends before, else the host's error.
    pub(crate) fn read_exact(&mut self, stream: &Stream, buf: &mut [u8]) -> io::Result<()> {
        let count = buf.len().min(self.end - self.start);
        let (buffered, mut rest) = buf.split_at_mut(count);
        buffered.copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        while !rest.is_empty() {
            // Long payloads bypass the buffer.
            self.arm_timeout(stream)?;
            match stream.read(rest)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => rest = &mut rest[count..],
            }
        }
        Ok(())
    }

    /// Skips the next `len_bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends before, else the host's error.
    pub(crate) fn skip(&mut self, stream: &Stream, mut len_bytes: u64) -> io::Result<()> {
        loop {
            let count = len_bytes.min((self.end - self.start) as u64);
            self.start += count as usize;
            len_bytes -= count;
            if len_bytes == 0 {
                return Ok(());
            }
            (self.start, self.end) = (0, 0);
            if self.fill(stream)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self, stream: &Stream) -> io::Result<usize> {
        self.arm_timeout(stream)?;
        let count = stream.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Sets the socket's read timeout to the time left.
    fn arm_timeout(&self, stream: &Stream) -> io::Result<()> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn requests_split_at_any_byte_are_read_whole() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = Stream::from(server);
        let mut reader = RequestReader::new(Instant::now() + Duration::from_secs(600));
        let bytes: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in bytes.chunks(977) {
                    client.write_all(part).unwrap();
                }
                client.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut at = 0;
            while at + 3000 < bytes.len() {
                let request = reader.request(&server).unwrap().unwrap();
                assert_eq!(request[..], bytes[at..at + REQUEST_BYTES]);
                at += REQUEST_BYTES;
                let mut payload = vec![0; 1500];
                reader.read_exact(&server, &mut payload).unwrap();
                assert_eq!(payload, bytes[at..at + 1500]);
                reader.skip(&server, 999).unwrap();
                at += 2499;
            }
            reader.skip(&server, (bytes.len() - at - 1) as u64).unwrap();
            assert_eq!(
                reader.request(&server).unwrap_err().kind(),
                ErrorKind::UnexpectedEof
            );
            reader.skip(&server, 1).unwrap();
            assert!(reader.request(&server).unwrap().is_none());
        });
    }
}
