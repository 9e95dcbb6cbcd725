//! The channel from the reading to the writing thread: a tree as a stream of items, in batches of
//! bounded size.

use crate::target::FileMeta;
use folio::AlignedBuffer;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Bytes of file contents in a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Alignment of a file's contents in a batch; see [`AlignedBuffer`].
const ALIGNMENT_BYTES: usize = 64;
/// Items in a batch.
const BATCH_ITEMS: usize = 512;
/// Batches in flight; with the two being filled and emptied, about 10 MiB.
const BATCHES: usize = 8;

/// Identifies the inode of a file with several names.
pub(crate) type LinkId = usize;

/// One step of the walk. Names are single components, except in the first item of a walk.
#[derive(Debug)]
pub(crate) enum TreeItem {
    /// Starts a walk into this directory.
    Start { parent: Vec<u8> },
    /// A directory. It contains the items up to its `Leave`.
    Directory { name: Vec<u8>, meta: FileMeta },
    /// Returns to the parent directory.
    Leave,
    /// A regular file, with its first bytes in the batch. Unless it `is_whole`, `Data` and `End`
    /// follow.
    File {
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
        data: Range<usize>,
        is_whole: bool,
    },
    /// More bytes of the file.
    Data { offset: u64, data: Range<usize> },
    /// The end of the file, at this size.
    End { size_bytes: u64 },
    /// The rest of the file cannot be read, so its copy is removed.
    Incomplete,
    /// Another name of an earlier item.
    Link { name: Vec<u8>, first: LinkId },
    /// A symbolic link.
    Symlink {
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
        target: Vec<u8>,
    },
    /// A device node, pipe or socket.
    Special {
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
    },
}

impl TreeItem {
    /// Returns the metadata of a new file.
    pub(crate) fn meta_mut(&mut self) -> Option<&mut FileMeta> {
        match self {
            Self::Directory { meta, .. }
            | Self::File { meta, .. }
            | Self::Symlink { meta, .. }
            | Self::Special { meta, .. } => Some(meta),
            _ => None,
        }
    }
}

/// Items and the bytes that they refer to.
pub(crate) struct Batch {
    pub(crate) items: Vec<TreeItem>,
    pub(crate) data: AlignedBuffer,
    used: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            items: Vec::with_capacity(BATCH_ITEMS),
            data: AlignedBuffer::new(BATCH_BYTES),
            used: 0,
        }
    }
}

/// The writing thread has stopped, so further reads are useless.
#[derive(Debug)]
pub(crate) struct WriterStopped;

/// The end of the reading thread.
pub(crate) struct BatchSender {
    batch: Batch,
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
}

/// The end of the writing thread.
pub(crate) struct BatchReceiver {
    full: Receiver<Batch>,
    empty: SyncSender<Batch>,
}

/// Creates a channel.
pub(crate) fn channel() -> (BatchSender, BatchReceiver) {
    let (full_sender, full) = sync_channel(BATCHES);
    let (empty_sender, empty) = sync_channel(BATCHES + 2);
    let sender = BatchSender {
        batch: Batch::new(),
        full: full_sender,
        empty,
    };
    (
        sender,
        BatchReceiver {
            full,
            empty: empty_sender,
        },
    )
}

impl BatchSender {
    /// Flushes the batch unless it has room for an item and `len_bytes`, or all that a batch can
    /// hold.
    pub(crate) fn reserve(&mut self, len_bytes: usize) -> Result<(), WriterStopped> {
        let len_bytes = len_bytes.min(BATCH_BYTES);
        if self.batch.data.len() - self.batch.used < len_bytes
            || self.batch.items.len() >= BATCH_ITEMS
        {
            self.flush()?;
        }
        Ok(())
    }

    /// Returns the free part of the batch.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.batch.data[self.batch.used..]
    }

    /// Marks `len` bytes of the free part as used, and returns their range.
    pub(crate) fn take(&mut self, len: usize) -> Range<usize> {
        let start = self.batch.used;
        let end = start + len;
        self.batch.used = end.next_multiple_of(ALIGNMENT_BYTES);
        start..end
    }

    /// Appends an item to the batch.
    pub(crate) fn put(&mut self, item: TreeItem) {
        self.batch.items.push(item);
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Result<(), WriterStopped> {
        if self.batch.items.is_empty() {
            return Ok(());
        }
        let next = match self.empty.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Batch::new(),
        };
        let batch = std::mem::replace(&mut self.batch, next);
        self.full.send(batch).map_err(|_| WriterStopped)
    }
}

impl BatchReceiver {
    /// Returns the next batch; `None` when the reader has finished.
    pub(crate) fn next(&self) -> Option<Batch> {
        self.full.recv().ok()
    }

    /// Returns a batch for reuse.
    pub(crate) fn recycle(&self, mut batch: Batch) {
        batch.items.clear();
        batch.used = 0;
        // The reader may have finished already.
        let _ = self.empty.try_send(batch);
    }
}
