//! Bytes that came from a client and wait to be understood: many small requests by one call of the
//! host.

use crate::listener::Stream;
use crate::protocol::REQUEST_BYTES;
use std::io::{self, ErrorKind};
use std::time::Instant;

/// Room for what comes at once: hundreds of reads, or some small writes with their bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Who has it reads the connection; it goes from thread to thread.
pub(crate) struct Input {
    bytes: Box<[u8]>,
    /// What is not yet understood.
    start: usize,
    end: usize,
    /// When waiting is over.
    deadline: Option<Instant>,
}

impl Input {
    /// Nothing yet; until [`Input::wait_for_ever`] all has to come before `deadline`.
    pub(crate) fn new(deadline: Instant) -> Self {
        let bytes = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self {
            bytes,
            start: 0,
            end: 0,
            deadline: Some(deadline),
        }
    }

    /// Lifts the deadline.
    pub(crate) fn wait_for_ever(&mut self, stream: &Stream) -> io::Result<()> {
        self.deadline = None;
        stream.set_read_timeout(None)
    }

    /// Whether this many bytes are here, so that nobody has to wait for them.
    pub(crate) fn holds(&self, count: usize) -> bool {
        self.end - self.start >= count
    }

    /// The next request without its payload; `None` if the client ended between requests.
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
    pub(crate) fn read_exact(&mut self, stream: &Stream, buf: &mut [u8]) -> io::Result<()> {
        let count = buf.len().min(self.end - self.start);
        let (here, mut rest) = buf.split_at_mut(count);
        here.copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        while !rest.is_empty() {
            // Long ones go straight to their place.
            self.arm(stream)?;
            match stream.read(rest)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => rest = &mut rest[count..],
            }
        }
        Ok(())
    }

    /// Leaves out what comes next.
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
        self.arm(stream)?;
        let count = stream.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    fn arm(&self, stream: &Stream) -> io::Result<()> {
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
    fn requests_come_whole_however_they_are_cut() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = Stream::Unix(server);
        let mut input = Input::new(Instant::now() + Duration::from_secs(600));
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
                let request = input.request(&server).unwrap().unwrap();
                assert_eq!(request[..], bytes[at..at + REQUEST_BYTES]);
                at += REQUEST_BYTES;
                let mut payload = vec![0; 1500];
                input.read_exact(&server, &mut payload).unwrap();
                assert_eq!(payload, bytes[at..at + 1500]);
                input.skip(&server, 999).unwrap();
                at += 2499;
            }
            input.skip(&server, (bytes.len() - at - 1) as u64).unwrap();
            assert_eq!(
                input.request(&server).unwrap_err().kind(),
                ErrorKind::UnexpectedEof
            );
            input.skip(&server, 1).unwrap();
            assert!(input.request(&server).unwrap().is_none());
        });
    }
}
