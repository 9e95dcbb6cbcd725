//! Contents in compressed pieces: a queue keeps the order of the files, while threads compress.
//!
//! ```text
//!   PieceBuilder --piece--> Pool --> PieceQueue, in order --> blocks of the image
//! ```

use crate::compress::{Compression, PIECE_BYTES, Piece, Pool};
use crate::content::{Content, ContentOwner, Data, TAIL_MAX, ZEROS, out_of_order};
use crate::duplicates::{Duplicates, hash_after};
use crate::format::{BLOCK_BYTES, HOLE};
use crate::output::BlockOutput;
use folio::base::InodeNumber;
use folio::{Errno, Error, Result};
use std::collections::VecDeque;
use std::sync::mpsc::Receiver;

/// Bytes that may wait in the queue.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// The smallest hole for which a file has chunks instead of pieces.
const LARGE_HOLE_BYTES: u64 = 4 << 20;

/// A content that is complete.
pub(crate) struct Finished {
    pub(crate) owner: ContentOwner,
    pub(crate) content: Content,
}

/// The end of a file.
struct End {
    owner: ContentOwner,
    size_bytes: u64,
    is_discarded: bool,
}

struct Queued {
    len: usize,
    piece: Receiver<Piece>,
    end: Option<End>,
}

/// The blocks of the file whose pieces leave the queue.
#[derive(Default)]
struct FileBlocks {
    start_block: Option<u32>,
    block_count: u32,
    hash: u64,
    /// The blocks of each piece; 0 for one that is not compressed.
    pieces: Vec<u16>,
    tail: Vec<u8>,
}

/// Pieces in the order of their files.
pub(crate) struct PieceQueue {
    pool: Pool,
    queued: VecDeque<Queued>,
    queued_bytes: usize,
    file: FileBlocks,
}

impl PieceQueue {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::new`].
    pub(crate) fn new(compression: Compression) -> Result<Self> {
        Ok(Self {
            pool: Pool::new(compression)?,
            queued: VecDeque::new(),
            queued_bytes: 0,
            file: FileBlocks::default(),
        })
    }

    fn push(&mut self, bytes: Vec<u8>, end: Option<End>) {
        self.queued_bytes += bytes.len();
        self.queued.push_back(Queued {
            len: bytes.len(),
            piece: self.pool.submit(bytes),
            end,
        });
    }

    /// Whether pieces are to be written before there are more.
    pub(crate) fn is_full(&self) -> bool {
        self.queued_bytes > QUEUED_BYTES_MAX
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether the end of a content of this staged file waits.
    pub(crate) fn has_staged(&self, number: InodeNumber) -> bool {
        let mut ends = self.queued.iter().filter_map(|queued| queued.end.as_ref());
        ends.any(|end| matches!(end.owner, ContentOwner::Staged(found) if found == number))
    }

    /// Writes the first piece; returns the content that it completes.
    ///
    /// # Errors
    ///
    /// EIO: a thread ended; those of writes of the image.
    pub(crate) fn write_first(
        &mut self,
        output: &mut BlockOutput,
        duplicates: &mut Duplicates,
    ) -> Result<Option<Finished>> {
        let Some(Queued { len, piece, end }) = self.queued.pop_front() else {
            return Ok(None);
        };
        self.queued_bytes -= len;
        let ended = |_| Error::new(Errno::IO, "a thread that compresses has ended");
        let piece = piece.recv().map_err(ended)?;
        self.file.add(output, piece, end.is_some())?;
        let Some(end) = end else { return Ok(None) };
        let content = std::mem::take(&mut self.file).finish(output, duplicates, &end)?;
        Ok(Some(Finished {
            owner: end.owner,
            content,
        }))
    }
}

impl FileBlocks {
    fn is_plain(&self) -> bool {
        self.pieces.iter().all(|blocks| *blocks == 0)
    }

    fn add(&mut self, output: &mut BlockOutput, piece: Piece, is_last: bool) -> Result<()> {
        let (mut bytes, count) = match piece {
            Piece::Compressed(blocks) => {
                let count = (blocks.len() / BLOCK_BYTES) as u16;
                (blocks, count)
            }
            Piece::Plain(bytes) => (bytes, 0),
        };
        self.pieces.push(count);
        let whole = bytes.len() / BLOCK_BYTES * BLOCK_BYTES;
        if is_last && self.is_plain() && bytes.len() - whole <= TAIL_MAX {
            self.tail = bytes.split_off(whole);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let block = output.next_block()?;
        self.start_block.get_or_insert(block);
        output.append(&bytes)?;
        self.block_count += bytes.len().div_ceil(BLOCK_BYTES) as u32;
        for block in bytes.chunks(BLOCK_BYTES) {
            self.hash = hash_after(self.hash, block);
        }
        Ok(())
    }

    fn finish(
        self,
        output: &mut BlockOutput,
        duplicates: &mut Duplicates,
        end: &End,
    ) -> Result<Content> {
        let start_block = match self.start_block {
            Some(start) if end.is_discarded => {
                output.truncate(start);
                return Ok(Content::EMPTY);
            }
            Some(start) => duplicates.share(output, start, self.block_count, self.hash)?,
            None => HOLE,
        };
        let data = if self.is_plain() {
            Data::Flat {
                start_block,
                tail: self.tail,
            }
        } else {
            Data::Compressed {
                start_block,
                block_count: self.block_count,
                pieces: self.pieces,
            }
        };
        Ok(Content {
            size_bytes: end.size_bytes,
            data,
        })
    }
}

/// Splits the content of a file into pieces.
#[derive(Default)]
pub(crate) struct PieceBuilder {
    /// Where the next byte belongs.
    position: u64,
    /// The bytes since the last piece; a full piece waits for the next byte.
    partial: Vec<u8>,
}

impl PieceBuilder {
    /// Whether a hole up to `offset` makes a file of `size_bytes` mostly a hole. Then the bytes so
    /// far, at most one piece, are returned: the file is to have chunks.
    pub(crate) fn take_before_hole(&mut self, offset: u64, size_bytes: u64) -> Option<Vec<u8>> {
        let hole = offset.checked_sub(self.position)?;
        let is_first_piece = self.position == self.partial.len() as u64;
        let is_large = hole >= LARGE_HOLE_BYTES.max(size_bytes / 2);
        (is_first_piece && is_large).then(|| std::mem::take(&mut self.partial))
    }

    /// Adds zeros before `offset`, at most one piece; returns false if none are missing.
    pub(crate) fn fill(&mut self, queue: &mut PieceQueue, offset: u64) -> bool {
        let len = offset.saturating_sub(self.position).min(ZEROS.len() as u64);
        self.append(queue, &ZEROS[..len as usize]);
        len > 0
    }

    /// Adds bytes at an offset, after [`PieceBuilder::fill`]. See
    /// [`crate::content::ContentBuilder::write`].
    pub(crate) fn write(
        &mut self,
        queue: &mut PieceQueue,
        bytes: &[u8],
        offset: u64,
    ) -> Result<()> {
        if offset != self.position {
            return Err(out_of_order());
        }
        self.append(queue, bytes);
        Ok(())
    }

    fn append(&mut self, queue: &mut PieceQueue, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.partial.len() == PIECE_BYTES {
                queue.push(std::mem::take(&mut self.partial), None);
            }
            let len = bytes.len().min(PIECE_BYTES - self.partial.len());
            self.partial.extend_from_slice(&bytes[..len]);
            self.position += len as u64;
            bytes = &bytes[len..];
        }
    }

    /// Ends the file, as [`crate::content::ContentBuilder::finish`] does, after
    /// [`PieceBuilder::fill`]. Returns a content that needs no blocks; another one leaves the queue
    /// later.
    pub(crate) fn finish(
        self,
        queue: &mut PieceQueue,
        owner: ContentOwner,
        size_bytes: u64,
    ) -> Option<Content> {
        let is_discarded = size_bytes < self.position;
        if self.position < BLOCK_BYTES as u64 {
            if is_discarded {
                return Some(Content::EMPTY);
            }
            return Some(Content {
                size_bytes,
                data: Data::Flat {
                    start_block: HOLE,
                    tail: self.partial,
                },
            });
        }
        let end = End {
            owner,
            size_bytes,
            is_discarded,
        };
        queue.push(self.partial, Some(end));
        None
    }
}
