//! An image that is being written.

use crate::compaction::compact;
use crate::content::{Content, ContentBuilder, ContentOwner};
use crate::duplicates::Duplicates;
use crate::image::{self, Identity};
use crate::output::BlockOutput;
use crate::pieces::{PieceBuilder, PieceQueue};
use crate::tree::{Body, NodeId, Tree};
use crate::xattr::XattrTable;
use folio::base::{Clock, InodeNumber};
use folio::{Errno, Error, Result, Timespec};
use folio_tree::{AttributeFailures, FileMeta};
use std::collections::HashMap;
use std::fs::File;

/// What receives the content of a file.
enum Builder {
    Plain(ContentBuilder),
    Pieces(PieceBuilder),
}

/// A file whose content is being written.
struct OpenContent {
    owner: ContentOwner,
    /// About the size that it will have.
    size_bytes: u64,
    builder: Builder,
}

/// The image file, and what is to be written to it.
pub(crate) struct State {
    pub(crate) tree: Tree,
    output: BlockOutput,
    duplicates: Duplicates,
    xattrs: XattrTable,
    open: Option<OpenContent>,
    staged: HashMap<InodeNumber, Content>,
    /// Pieces that are being compressed, if contents are.
    queue: Option<PieceQueue>,
    /// Later modification times become it.
    latest: Option<Timespec>,
    /// The first failure of a write. The blocks of several files may be lost: all later calls fail.
    failure: Option<(Errno, String)>,
}

impl State {
    pub(crate) fn new(file: File, queue: Option<PieceQueue>, latest: Option<Timespec>) -> Self {
        Self {
            tree: Tree::new(latest.unwrap_or_else(|| Clock::System.now())),
            output: BlockOutput::new(file),
            duplicates: Duplicates::default(),
            xattrs: XattrTable::default(),
            open: None,
            staged: HashMap::new(),
            queue,
            latest,
            failure: None,
        }
    }

    /// Begins the content of a file. Only one is written at a time.
    pub(crate) fn begin(&mut self, owner: ContentOwner, size_bytes: u64) -> Result<()> {
        if let ContentOwner::Staged(number) = owner {
            self.forget(number)?;
        }
        // Rejects an impossible size, of pieces too: a large hole makes them chunks.
        let plain = ContentBuilder::new(&self.output, size_bytes)?;
        let builder = match self.queue {
            Some(_) => Builder::Pieces(PieceBuilder::default()),
            None => Builder::Plain(plain),
        };
        self.open = Some(OpenContent {
            owner,
            size_bytes,
            builder,
        });
        Ok(())
    }

    /// Runs a step that writes, unless an earlier one failed.
    fn run<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some((errno, reason)) = &self.failure {
            return Err(Error::new(*errno, reason.clone()));
        }
        let result = step(self);
        let failure = result.as_ref().err();
        self.failure = failure.map(|error| (error.errno(), error.to_string()));
        result
    }

    /// Adds bytes to the open content.
    ///
    /// # Errors
    ///
    /// Those of writes of the image; the first one is returned by all later calls.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.run(|state| state.write_open(bytes, offset))
    }

    fn write_open(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.fill(offset)?;
        let open = self.open.as_mut().ok_or(Errno::BADF)?;
        match (&mut open.builder, &mut self.queue) {
            (Builder::Plain(builder), _) => builder.write(&mut self.output, bytes, offset)?,
            (Builder::Pieces(builder), Some(queue)) => builder.write(queue, bytes, offset)?,
            (Builder::Pieces(_), None) => {}
        }
        self.write_pieces(PieceQueue::is_full)
    }

    /// Makes the hole before `offset` in a content that is compressed: a large one by chunks, a
    /// small one by zeros. Pieces are written meanwhile, so that few of them wait.
    fn fill(&mut self, offset: u64) -> Result<()> {
        self.use_chunks(offset)?;
        while let (Some(open), Some(queue)) = (&mut self.open, &mut self.queue) {
            let Builder::Pieces(builder) = &mut open.builder else {
                return Ok(());
            };
            if !builder.fill(queue, offset) {
                return Ok(());
            }
            self.write_pieces(PieceQueue::is_full)?;
        }
        Ok(())
    }

    /// Gives the open content chunks if it is mostly the hole before `offset`.
    fn use_chunks(&mut self, offset: u64) -> Result<()> {
        let Some(OpenContent {
            builder: Builder::Pieces(pieces),
            size_bytes,
            ..
        }) = &mut self.open
        else {
            return Ok(());
        };
        let size_bytes = (*size_bytes).max(offset);
        let Some(first) = pieces.take_before_hole(offset, size_bytes) else {
            return Ok(());
        };
        // The blocks of a file with chunks follow each other.
        self.drain()?;
        let mut builder = ContentBuilder::new(&self.output, size_bytes)?;
        builder.write(&mut self.output, &first, 0)?;
        if let Some(open) = &mut self.open {
            open.builder = Builder::Plain(builder);
        }
        Ok(())
    }

    /// Ends the open content.
    ///
    /// # Errors
    ///
    /// Those of [`State::write`].
    pub(crate) fn end(&mut self, size_bytes: u64) -> Result<()> {
        self.run(|state| state.end_open(size_bytes))
    }

    fn end_open(&mut self, size_bytes: u64) -> Result<()> {
        self.fill(size_bytes)?;
        let OpenContent { owner, builder, .. } = self.open.take().ok_or(Errno::BADF)?;
        let content = match (builder, &mut self.queue) {
            (Builder::Plain(builder), _) => {
                let (output, duplicates) = (&mut self.output, &mut self.duplicates);
                Some(builder.finish(output, duplicates, size_bytes)?)
            }
            (Builder::Pieces(builder), Some(queue)) => builder.finish(queue, owner, size_bytes),
            (Builder::Pieces(_), None) => None,
        };
        if let Some(content) = content {
            self.keep(owner, content);
        }
        self.write_pieces(PieceQueue::is_full)
    }

    fn keep(&mut self, owner: ContentOwner, content: Content) {
        match owner {
            ContentOwner::Node(id) => self.tree.nodes[id].body = Body::File(content),
            ContentOwner::Staged(number) => drop(self.staged.insert(number, content)),
        }
    }

    /// Writes compressed pieces while `is_due` returns true.
    fn write_pieces(&mut self, is_due: impl Fn(&PieceQueue) -> bool) -> Result<()> {
        while let Some(queue) = self.queue.as_mut().filter(|queue| is_due(queue)) {
            let written = queue.write_first(&mut self.output, &mut self.duplicates)?;
            if let Some(finished) = written {
                self.keep(finished.owner, finished.content);
            }
        }
        Ok(())
    }

    /// Writes all pieces that are being compressed.
    pub(crate) fn drain(&mut self) -> Result<()> {
        self.write_pieces(|queue| !queue.is_empty())
    }

    /// Drops the content that was written for a file.
    pub(crate) fn forget(&mut self, number: InodeNumber) -> Result<()> {
        self.run(|state| {
            // What waits would arrive later.
            let is_queued = |queue: &PieceQueue| queue.has_staged(number);
            if state.queue.as_ref().is_some_and(is_queued) {
                state.drain()?;
            }
            state.staged.remove(&number);
            Ok(())
        })
    }

    /// Returns the content that was written before the file had a node.
    pub(crate) fn take_staged(&mut self, number: InodeNumber) -> Option<Content> {
        self.staged.remove(&number)
    }

    /// Sets the attributes of a node.
    pub(crate) fn set(&mut self, id: NodeId, meta: &FileMeta, failures: &mut AttributeFailures) {
        let (xattrs, unsupported) = self.xattrs.intern(&meta.xattrs);
        failures.unsupported_xattrs += unsupported;
        let mut attributes = meta.attributes;
        if let Some(latest) = self.latest {
            attributes.modified = attributes.modified.min(latest);
        }
        self.tree.nodes[id].set(&attributes, xattrs);
    }

    /// Writes the rest of the image.
    ///
    /// # Errors
    ///
    /// Those of [`State::write`], EFBIG.
    pub(crate) fn finish(&mut self, identity: &Identity) -> Result<()> {
        self.run(|state| state.finish_image(identity))
    }

    fn finish_image(&mut self, identity: &Identity) -> Result<()> {
        if self.open.is_some() {
            let reason = "a file of the image is still open";
            return Err(Error::new(Errno::BUSY, reason));
        }
        self.drain()?;
        compact(&mut self.tree, &mut self.output)?;
        image::finish(&self.tree, &mut self.xattrs, &mut self.output, identity)
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    #[cfg(feature = "lz4")]
    use crate::compress::Compression;
    use crate::content::ContentOwner;
    #[cfg(feature = "lz4")]
    use crate::content::Data;
    use crate::image::Identity;
    #[cfg(feature = "lz4")]
    use crate::pieces::PieceQueue;
    use folio::Errno;
    use folio::base::InodeNumber;
    use std::fs::File;

    const ONE: ContentOwner = ContentOwner::Staged(InodeNumber(1));
    const TWO: ContentOwner = ContentOwner::Staged(InodeNumber(2));

    #[cfg(feature = "lz4")]
    fn compressed(file: File) -> State {
        State::new(file, Some(PieceQueue::new(Compression::Lz4).unwrap()), None)
    }

    /// A file whose writes fail with EBADF.
    fn unwritable() -> File {
        let file = tempfile::NamedTempFile::new().unwrap();
        File::open(file.path()).unwrap()
    }

    /// Writes a file that fails, and checks that no later one succeeds.
    fn check_failure(state: &mut State) {
        let bytes = vec![1; 64 << 20];
        state.begin(ONE, bytes.len() as u64).unwrap();
        let failed = state.write(&bytes, 0).and_then(|()| state.end(64 << 20));
        assert_eq!(failed.unwrap_err().errno(), Errno::BADF);
        let later = state
            .begin(TWO, 1)
            .and_then(|()| state.write(b"x", 0))
            .and_then(|()| state.end(1));
        assert_eq!(later.unwrap_err().errno(), Errno::BADF);
        let finished = state.finish(&Identity::default());
        assert_eq!(finished.unwrap_err().errno(), Errno::BADF);
    }

    #[test]
    fn failed_write_fails_the_image() {
        check_failure(&mut State::new(unwritable(), None, None));
    }

    #[test]
    fn size_beyond_the_largest_chunks_is_efbig() {
        let mut state = State::new(tempfile::tempfile().unwrap(), None, None);
        state.begin(ONE, 1 << 59).unwrap();
        let failed = state.begin(ONE, (1 << 59) + 4096).unwrap_err();
        assert_eq!(failed.errno(), Errno::FBIG);
        state.end(0).unwrap();
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn failed_compressed_write_fails_the_image() {
        check_failure(&mut compressed(unwritable()));
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn compressed_hole_keeps_the_queue_short() {
        let mut state = compressed(tempfile::tempfile().unwrap());
        // More data than hole: zeros are compressed.
        state.begin(ONE, 200 << 20).unwrap();
        state.write(b"data", 0).unwrap();
        state.write(b"data", 96 << 20).unwrap();
        assert!(!state.queue.as_ref().unwrap().is_full());
        state.write(b"data", 192 << 20).unwrap();
        state.end(200 << 20).unwrap();
        assert!(!state.queue.as_ref().unwrap().is_full());
        state.drain().unwrap();
        let content = state.take_staged(InodeNumber(1)).unwrap();
        assert_eq!(content.size_bytes, 200 << 20);
        assert!(matches!(content.data, Data::Compressed { pieces, .. } if pieces.len() == 1600));
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn file_of_mostly_hole_has_chunks() {
        let mut state = compressed(tempfile::tempfile().unwrap());
        for offset in [0, 12 << 30] {
            state.begin(TWO, 4 << 20).unwrap();
            state.write(&vec![1; 4 << 20], 0).unwrap();
            state.end(4 << 20).unwrap();
            state.begin(ONE, 16 << 30).unwrap();
            state.write(b"data", offset).unwrap();
            state.end(16 << 30).unwrap();
            let content = state.take_staged(InodeNumber(1)).unwrap();
            assert_eq!(content.size_bytes, 16 << 30);
            let Data::Chunks { chunk_bits, blocks } = content.data else {
                panic!("{offset}: no chunks");
            };
            let chunk = (offset >> 12 >> chunk_bits) as usize;
            let is_hole = |block: &u32| *block == crate::format::HOLE;
            let data = Vec::from_iter((0..blocks.len()).filter(|at| !is_hole(&blocks[*at])));
            assert_eq!(data, [chunk]);
        }
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn forgotten_content_does_not_return() {
        let mut state = compressed(tempfile::tempfile().unwrap());
        let write = |state: &mut State, len: usize| {
            state.begin(ONE, len as u64).unwrap();
            state.write(&vec![7; len], 0).unwrap();
            state.end(len as u64).unwrap();
        };
        write(&mut state, 1 << 20);
        state.forget(InodeNumber(1)).unwrap();
        state.drain().unwrap();
        assert!(state.take_staged(InodeNumber(1)).is_none());
        // A small content needs no piece: the earlier one must not replace it.
        write(&mut state, 1 << 20);
        write(&mut state, 5);
        state.drain().unwrap();
        assert_eq!(state.take_staged(InodeNumber(1)).unwrap().size_bytes, 5);
    }
}
