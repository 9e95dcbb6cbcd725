//! The image as bytes, and as the crate `erofs-rs` reads it, with the limit of all work.

use super::report::{CheckFinding, CheckedStructure, FindingReporter};
use crate::format::RawSuperblock;
use erofs_rs::r#async::EroFS;
use erofs_rs::backend::AsyncImage;
use folio::block::Device;
use folio::{Errno, Error, Result};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Bytes that are read and decoded for each byte of an image, at most, and for a small image.
const WORK_FACTOR: u64 = 1 << 12;
const WORK_BYTES_MIN: u64 = 64 << 20;

/// The blocks of an image. Its reads never wait for another future.
#[derive(Clone)]
pub(super) struct Blocks {
    pub(super) device: Arc<dyn Device>,
    /// The end of the last block, in bytes.
    pub(super) end: u64,
}

impl AsyncImage for Blocks {
    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> erofs_rs::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.end) {
            return Err(erofs_rs::Error::OutOfBounds("beyond the last block".into()));
        }
        let read = self.device.read_at(buf, offset);
        read.map_err(|error| erofs_rs::Error::Io(std::io::Error::other(error)))
    }
}

/// The reader of inodes, extended attributes and compressed contents.
pub(super) type Reader = EroFS<Blocks>;

/// Returns the result of a future that never waits; the inner error is one of the image's bytes.
///
/// # Errors
///
/// Those of reads of the device.
pub(super) fn ready<T>(
    future: impl Future<Output = erofs_rs::Result<T>>,
) -> Result<std::result::Result<T, String>> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(erofs_rs::Error::Io(error))) => Err(Error::io("read the image", error)),
        Poll::Ready(result) => Ok(result.map_err(|error| error.to_string())),
        Poll::Pending => Err(Error::new(Errno::IO, "erofs: a read waits")),
    }
}

/// An image that is being checked.
pub(super) struct Image<'a> {
    pub(super) superblock: RawSuperblock,
    pub(super) blocks: Blocks,
    pub(super) reader: Reader,
    pub(super) reporter: FindingReporter<'a>,
    /// Bytes that may still be read and decoded.
    work_left: u64,
}

impl<'a> Image<'a> {
    pub(super) fn new(
        superblock: RawSuperblock,
        blocks: Blocks,
        reader: Reader,
        reporter: FindingReporter<'a>,
    ) -> Self {
        let work_left = blocks.end.saturating_mul(WORK_FACTOR);
        Self {
            superblock,
            blocks,
            reader,
            reporter,
            work_left: work_left.saturating_add(WORK_BYTES_MIN),
        }
    }

    /// Returns the bytes of a block.
    pub(super) fn block_bytes(&self) -> u64 {
        1 << self.superblock.block_bits
    }

    /// Whether blocks are within the image.
    pub(super) fn has_blocks(&self, start: u64, count: u64) -> bool {
        let end = start.checked_add(count);
        end.is_some_and(|end| end <= self.superblock.block_count.get().into())
    }

    /// Fills a buffer; returns false if it is beyond the last block.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        Ok(ready(self.blocks.read_exact_at(buf, offset))?.is_ok())
    }

    /// Counts work, and lets the listener stop the check.
    ///
    /// # Errors
    ///
    /// EINTR.
    pub(super) fn work(&mut self, bytes: u64) -> Result<()> {
        self.work_left = self.work_left.saturating_sub(bytes.max(1));
        let report = &self.reporter.report;
        let (done, total) = (report.inodes_used, report.inode_count);
        let progress = self.reporter.listener.progress(done, total);
        if progress.is_break() {
            return Err(Errno::INTR.into());
        }
        Ok(())
    }

    /// Whether the structures need more work than any image that a tool writes.
    pub(super) fn is_exhausted(&self) -> bool {
        self.work_left == 0
    }

    /// Reports an error of an inode.
    pub(super) fn error(&mut self, structure: CheckedStructure, nid: u64, what: impl Into<String>) {
        self.reporter
            .add(CheckFinding::error(structure, what).of(nid));
    }
}
