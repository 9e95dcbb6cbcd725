//! Compression of pieces of files, on as many threads as there are processors.

use crate::format::BLOCK_BYTES;
use folio::{Detail, Errno, Error, Result};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes of a file that are compressed together.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

/// A compression of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// LZ4, in blocks.
    Lz4,
    /// Zstandard with this level, from 1 to 22.
    Zstd(i32),
}

impl FromStr for Compression {
    type Err = Error;

    /// Parses `lz4`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse().ok()),
            None => (text, Some(3)),
        };
        let parsed = match (name, level) {
            ("lz4", _) if name == text => Self::Lz4,
            ("zstd", Some(level @ 1..=22)) => Self::Zstd(level),
            _ => {
                let reason = format!(
                    "invalid compression {text:?}: expected lz4, zstd or zstd:LEVEL with a level \
                     from 1 to 22"
                );
                return Err(Error::new(Errno::INVAL, reason));
            }
        };
        Encoder::new(parsed).map(|_| parsed)
    }
}

/// A compressed piece of a file.
pub(crate) enum Piece {
    /// Whole blocks; what is compressed is at their end, behind zeros.
    Compressed(Vec<u8>),
    /// The bytes of the file: compression would save no block.
    Plain(Vec<u8>),
}

struct Job {
    bytes: Vec<u8>,
    reply: SyncSender<Piece>,
}

/// The threads that compress.
pub(crate) struct Pool {
    /// `None` when the threads are to end.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: this build lacks the compression; EAGAIN: a thread cannot be started.
    pub(crate) fn new(compression: Compression) -> Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut pool = Self {
            jobs: Some(sender),
            threads: Vec::new(),
        };
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..count {
            let (receiver, encoder) = (receiver.clone(), Encoder::new(compression)?);
            let thread = std::thread::Builder::new().name("folio-compress".to_owned());
            let started = thread.spawn(move || work(&receiver, encoder));
            let started = started.map_err(|error| Error::io("start a thread", error))?;
            pool.threads.push(started);
        }
        Ok(pool)
    }

    /// Compresses bytes, at most [`PIECE_BYTES`]; the receiver gets the result.
    pub(crate) fn submit(&self, bytes: Vec<u8>) -> Receiver<Piece> {
        let (reply, receiver) = sync_channel(1);
        if let Some(jobs) = &self.jobs {
            // Without threads, the receiver reports it.
            let _ = jobs.send(Job { bytes, reply });
        }
        receiver
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has sent no result, which was an error.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, mut encoder: Encoder) {
    let mut buffer = vec![0; 2 * PIECE_BYTES];
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { bytes, reply }) = job else {
            return;
        };
        // The image may have been dropped.
        let _ = reply.send(compress(&mut encoder, bytes, &mut buffer));
    }
}

fn compress(encoder: &mut Encoder, bytes: Vec<u8>, buffer: &mut [u8]) -> Piece {
    let len = encoder.encode(&bytes, buffer);
    let len = len.map(|len| (len, len.next_multiple_of(BLOCK_BYTES)));
    match len.filter(|(_, padded)| *padded < bytes.len().next_multiple_of(BLOCK_BYTES)) {
        Some((len, padded)) => {
            let mut blocks = vec![0; padded];
            blocks[padded - len..].copy_from_slice(&buffer[..len]);
            Piece::Compressed(blocks)
        }
        None => Piece::Plain(bytes),
    }
}

/// A compressor of one thread.
enum Encoder {
    #[cfg(feature = "lz4")]
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Encoder {
    fn new(compression: Compression) -> Result<Self> {
        match compression {
            #[cfg(feature = "lz4")]
            Compression::Lz4 => Ok(Self::Lz4),
            #[cfg(feature = "zstd")]
            Compression::Zstd(level) => {
                let encoder = zstd::bulk::Compressor::new(level);
                let failed = |error| Error::io("start zstd", error);
                encoder.map(Self::Zstd).map_err(failed)
            }
            #[allow(unreachable_patterns, reason = "depends on the features")]
            Compression::Lz4 | Compression::Zstd(_) => {
                let feature = match compression {
                    Compression::Lz4 => "lz4",
                    Compression::Zstd(_) => "zstd",
                };
                let reason = format!("this build of folio-erofs lacks the feature {feature}");
                Err(Error::unsupported(reason).about(Detail::FeatureNotBuilt {
                    feature: feature.to_owned(),
                }))
            }
        }
    }

    /// Returns the length of the compressed bytes; `None` if the buffer is too small.
    fn encode(&mut self, bytes: &[u8], buffer: &mut [u8]) -> Option<usize> {
        match self {
            #[cfg(feature = "lz4")]
            Self::Lz4 => lz4_flex::block::compress_into(bytes, buffer).ok(),
            #[cfg(feature = "zstd")]
            Self::Zstd(encoder) => encoder.compress_to_buffer(bytes, buffer).ok(),
            #[allow(unreachable_patterns, reason = "without features there is no encoder")]
            _ => {
                let _ = (bytes, buffer);
                None
            }
        }
    }
}
