//! The options of a copy: what it keeps of each file.

use crate::excludes::Excludes;
use folio::Timespec;
use folio::vfs::Attributes;
use std::sync::Arc;

/// What a copy does.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Directories are copied with everything below them; else they are failures.
    pub is_recursive: bool,
    /// Symbolic links are followed; else they are copied as links.
    pub follows_links: bool,
    /// Permission bits, setuid, setgid and sticky are kept.
    pub keeps_mode: bool,
    /// User and group are kept.
    pub keeps_owner: bool,
    /// Times of access and modification are kept.
    pub keeps_times: bool,
    /// Files with several names are copied once, and keep these names.
    pub keeps_links: bool,
    /// Extended attributes are kept, and ACLs, which are some of them.
    pub keeps_xattrs: bool,
    /// Permission bits that new files do not get unless modes are kept.
    pub umask: u16,
    /// Names to leave out.
    pub excludes: Option<Arc<Excludes>>,
    /// The latest modification time, for reproducible images. If it is given, access times are set
    /// to modification times, because reading a source file changes its access time.
    pub latest: Option<Timespec>,
}

impl CopyOptions {
    /// Everything is kept: `cp -a`.
    pub fn archive() -> Self {
        Self {
            keeps_mode: true,
            keeps_owner: true,
            keeps_times: true,
            keeps_links: true,
            keeps_xattrs: true,
            ..Self::content()
        }
    }

    /// Names and content are kept, and symbolic links as links; modes less the umask of this
    /// process: `cp -rP`.
    pub fn content() -> Self {
        Self {
            is_recursive: true,
            follows_links: false,
            keeps_mode: false,
            keeps_owner: false,
            keeps_times: false,
            keeps_links: false,
            keeps_xattrs: false,
            umask: process_umask().unwrap_or(0o022),
            excludes: None,
            latest: None,
        }
    }

    /// Returns the mode of a new file.
    pub(crate) fn mode(&self, attributes: &Attributes) -> u16 {
        if self.keeps_mode {
            attributes.mode
        } else {
            attributes.mode & 0o777 & !self.umask
        }
    }

    /// Replaces the attributes that the copy does not keep with those of a new file of root.
    pub(crate) fn drop_unkept(&self, attributes: &mut Attributes) {
        attributes.mode = self.mode(attributes);
        if !self.keeps_owner {
            (attributes.uid, attributes.gid) = (0, 0);
        }
    }

    /// Whether a copy leaves out a path, which is relative to its source.
    pub(crate) fn excludes(&self, relative: &[u8], is_directory: bool) -> bool {
        let excludes = self.excludes.as_ref();
        excludes.is_some_and(|excludes| excludes.contains(relative, is_directory))
    }
}

/// Returns the umask of this process without a change of it, as umask(2) would make; `None` without
/// /proc. Linux: proc(5).
pub(crate) fn process_umask() -> Option<u16> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|text| u16::from_str_radix(text.trim(), 8).ok())
}
