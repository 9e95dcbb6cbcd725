//! What travels from the reading to the writing thread: a tree as a stream, in batches of bounded
//! size.

use folio::vfs::Attributes;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// File contents that one batch carries.
const BATCH_BYTES: usize = 1 << 20;
/// Items that one batch carries.
const BATCH_ITEMS: usize = 512;
/// Batches under way: with the two being filled and emptied, about 10 MiB.
const BATCHES: usize = 8;

/// A set of names for one inode, met before.
pub(crate) type LinkId = usize;

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// All that is known of a file but its contents.
#[derive(Debug, Clone)]
pub(crate) struct FileMeta {
    pub(crate) attributes: Attributes,
    pub(crate) xattrs: Xattrs,
}

/// One step of the walk. Names are single names, except that of a walk's first item.
#[derive(Debug)]
pub(crate) enum TreeItem {
    /// A new walk: the directory it goes to.
    Start { parent: Vec<u8> },
    /// A directory; what follows, up to its `Leave`, lies in it.
    Directory { name: Vec<u8>, meta: FileMeta },
    /// Back to the parent directory.
    Leave,
    /// A regular file. Its first bytes lie in the batch; unless it `is_whole`, `Data` and `End`
    /// follow.
    File {
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
        data: Range<usize>,
        is_whole: bool,
    },
    /// More of the file.
    Data { offset: u64, data: Range<usize> },
    /// The file ends at this size.
    End { size_bytes: u64 },
    /// Another name of something that came before.
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

/// Items and the bytes they speak of.
pub(crate) struct Batch {
    pub(crate) items: Vec<TreeItem>,
    pub(crate) data: Box<[u8]>,
    used: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            items: Vec::with_capacity(BATCH_ITEMS),
            data: vec![0; BATCH_BYTES].into_boxed_slice(),
            used: 0,
        }
    }
}

/// The writing thread has stopped: there is nobody to read for.
#[derive(Debug)]
pub(crate) struct WriterStopped;

/// Where the reading thread puts items.
pub(crate) struct BatchSender {
    batch: Batch,
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
}

/// Where the writing thread gets them.
pub(crate) struct BatchReceiver {
    full: Receiver<Batch>,
    empty: SyncSender<Batch>,
}

/// Both ends of a new channel.
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
    /// Makes sure that `len_bytes` (or all that a batch can hold) may be put at once.
    pub(crate) fn reserve(&mut self, len_bytes: usize) -> Result<(), WriterStopped> {
        let len_bytes = len_bytes.min(BATCH_BYTES);
        if self.batch.data.len() - self.batch.used < len_bytes
            || self.batch.items.len() >= BATCH_ITEMS
        {
            self.flush()?;
        }
        Ok(())
    }

    /// Where the next bytes go.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.batch.data[self.batch.used..]
    }

    /// Takes `len` bytes of the room.
    pub(crate) fn take(&mut self, len: usize) -> Range<usize> {
        let start = self.batch.used;
        self.batch.used += len;
        start..self.batch.used
    }

    /// Puts an item into the present batch.
    pub(crate) fn put(&mut self, item: TreeItem) {
        self.batch.items.push(item);
    }

    /// Hands over the present batch.
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
    /// The next batch; `None` when the reader has finished.
    pub(crate) fn next(&self) -> Option<Batch> {
        self.full.recv().ok()
    }

    /// Gives a batch back for use again.
    pub(crate) fn recycle(&self, mut batch: Batch) {
        batch.items.clear();
        batch.used = 0;
        // The reader may be gone already.
        let _ = self.empty.try_send(batch);
    }
}
