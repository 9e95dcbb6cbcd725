//! Counted references of folios. Linux: `folio_try_get`, `folio_put`.

use super::folio::{Folio, Frame};
use super::pool::Pool;
/// A reference of a folio: the frame holds the same page while it exists.
pub(super) struct FolioRef<'a> {
    pool: &'a Pool,
    frame: Frame,
}

impl<'a> FolioRef<'a> {
    /// Takes over an existing reference.
    pub(super) fn from_frame(pool: &'a Pool, frame: Frame) -> Self {
        Self { pool, frame }
    }

    /// Takes a new reference, unless the folio is being freed. The caller is pinned, or has the
    /// state locked of the mapping where it found the frame.
    pub(super) fn try_new(pool: &'a Pool, frame: Frame) -> Option<Self> {
        // Created only with a reference: its drop releases one.
        pool.folio(frame).try_get().then(|| Self { pool, frame })
    }

    pub(super) fn frame(&self) -> Frame {
        self.frame
    }

    pub(super) fn folio(&self) -> &'a Folio {
        self.pool.folio(self.frame)
    }

    /// Gives the reference up to a later [`FolioRef::from_frame`].
    pub(super) fn into_frame(self) -> Frame {
        std::mem::ManuallyDrop::new(self).frame
    }
}

impl Drop for FolioRef<'_> {
    fn drop(&mut self) {
        if self.folio().put() {
            self.pool.put([self.frame]);
        }
    }
}
