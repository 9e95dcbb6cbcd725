//! Data that lies in the inode.

use super::Checker;
use super::inodes::View;
use super::report::{Place, Structure};

/// Length of `i_block`, where such data starts.
const BLOCK_FIELD_LEN: u64 = 60;

impl Checker<'_> {
    /// The attribute that holds the end must be there, and the size must fit both. Entries of
    /// directories are checked with all others.
    pub(super) fn check_inline(&mut self, view: &View<'_>, end: Option<&[u8]>) {
        let place = Place::inode(view.number);
        let Some(end) = end else {
            return self.report.error(
                Structure::InlineData,
                place,
                format_args!("has no attribute system.data"),
            );
        };
        let room = BLOCK_FIELD_LEN + end.len() as u64;
        let is_directory = view.kind == super::sets::Kind::Directory;
        if view.size > room || (is_directory && view.size != room) {
            let what = format_args!("size {}, with room for {room}", view.size);
            self.report.error(Structure::InlineData, place, what);
        }
    }
}
