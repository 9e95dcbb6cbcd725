//! The options of a copy: what it keeps of each file.

use crate::commands::excludes::Excludes;
use folio::vfs::Attributes;

/// What a copy keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyOptions {
    pub(super) is_recursive: bool,
    pub(super) follows: bool,
    pub(super) keeps_mode: bool,
    pub(super) keeps_owner: bool,
    pub(super) keeps_times: bool,
    pub(super) keeps_links: bool,
    pub(super) keeps_xattrs: bool,
    /// The umask of the process; the copy applies it itself.
    pub(super) umask: u16,
    /// Names to leave out. The patterns of the command line live as long as the process.
    pub(super) excludes: Option<&'static Excludes>,
}

impl CopyOptions {
    /// Returns the mode of a new file.
    pub(super) fn mode(&self, attributes: &Attributes) -> u16 {
        if self.keeps_mode {
            attributes.mode
        } else {
            attributes.mode & 0o777 & !self.umask
        }
    }

    /// Replaces the attributes that the copy does not keep with those of a new file of root.
    pub(super) fn drop_unkept(&self, attributes: &mut Attributes) {
        attributes.mode = self.mode(attributes);
        if !self.keeps_owner {
            (attributes.uid, attributes.gid) = (0, 0);
        }
    }
}
