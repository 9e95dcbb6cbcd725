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
use folio::{Errno, Error, Result};
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
}

impl State {
    pub(crate) fn new(file: File, queue: Option<PieceQueue>) -> Self {
        Self {
            tree: Tree::new(Clock::System.now()),
            output: BlockOutput::new(file),
            duplicates: Duplicates::default(),
            xattrs: XattrTable::default(),
            open: None,
            staged: HashMap::new(),
            queue,
        }
    }

    /// Begins the content of a file. Only one is written at a time.
    pub(crate) fn begin(&mut self, owner: ContentOwner, size_bytes: u64) -> Result<()> {
        let builder = match self.queue {
            Some(_) => Builder::Pieces(PieceBuilder::default()),
            None => Builder::Plain(ContentBuilder::new(&self.output, size_bytes)?),
        };
        self.open = Some(OpenContent { owner, builder });
        Ok(())
    }

    /// Adds bytes to the open content.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let open = self.open.as_mut().ok_or(Errno::BADF)?;
        match (&mut open.builder, &mut self.queue) {
            (Builder::Plain(builder), _) => builder.write(&mut self.output, bytes, offset)?,
            (Builder::Pieces(builder), Some(queue)) => builder.write(queue, bytes, offset)?,
            (Builder::Pieces(_), None) => {}
        }
        self.write_pieces(PieceQueue::is_full)
    }

    /// Ends the open content.
    pub(crate) fn end(&mut self, size_bytes: u64) -> Result<()> {
        let OpenContent { owner, builder } = self.open.take().ok_or(Errno::BADF)?;
        let content = match (builder, &mut self.queue) {
            (Builder::Plain(builder), _) => {
                let (output, duplicates) = (&mut self.output, &mut self.duplicates);
                Some(builder.finish(output, duplicates, size_bytes)?)
            }
            (Builder::Pieces(builder), Some(queue)) => builder.finish(queue, owner, size_bytes)?,
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

    /// Returns the content that was written before the file had a node.
    pub(crate) fn take_staged(&mut self, number: InodeNumber) -> Option<Content> {
        self.staged.remove(&number)
    }

    /// Sets the attributes of a node.
    pub(crate) fn set(&mut self, id: NodeId, meta: &FileMeta, failures: &mut AttributeFailures) {
        let (xattrs, unsupported) = self.xattrs.intern(&meta.xattrs);
        failures.unsupported_xattrs += unsupported;
        self.tree.nodes[id].set(&meta.attributes, xattrs);
    }

    /// Writes the rest of the image.
    pub(crate) fn finish(&mut self, identity: &Identity) -> Result<()> {
        if self.open.is_some() {
            let reason = "a file of the image is still open";
            return Err(Error::new(Errno::BUSY, reason));
        }
        self.drain()?;
        compact(&mut self.tree, &mut self.output)?;
        image::finish(&self.tree, &mut self.xattrs, &mut self.output, identity)
    }
}
