//! Inline data: file contents inside the inode. Linux: fs/ext4/inline.c.

use super::checker::Checker;
use super::inode_view::InodeView;
use super::report::{CheckedStructure, FindingLocation};

/// Length of `i_block`, where inline data starts, in bytes.
const BLOCK_FIELD_LEN: u64 = 60;

impl Checker<'_> {
    /// Checks that the attribute with the end of the data exists and that the size fits both parts.
    /// Directory entries are checked later, with all directories.
    pub(super) fn check_inline(&mut self, view: &InodeView<'_>, end: Option<&[u8]>) {
        let location = FindingLocation::inode(view.number);
        let Some(end) = end else {
            return self.report.error(
                CheckedStructure::InlineData,
                location,
                format_args!("attribute system.data is missing"),
            );
        };
        let room = BLOCK_FIELD_LEN + end.len() as u64;
        let is_directory = view.kind == super::sets::InodeKind::Directory;
        if view.size > room || (is_directory && view.size != room) {
            let what = format_args!("size {}, with room for {room}", view.size);
            self.report
                .error(CheckedStructure::InlineData, location, what);
        }
    }
}
