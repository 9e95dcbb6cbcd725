//! Access times: updated as the mount's options require. Linux: `touch_atime`,
//! `atime_needs_update`.

use super::attributes::FileType;
use super::dentry::Mount;
use super::inode::{Inode, InodeCommon};
use super::mount_options::AccessTime;

/// Updates the access time if the mount's options require it. Errors are ignored.
pub(crate) fn touch_accessed(mount: &Mount, inode: &dyn Inode) {
    if !is_access_time_current(mount, inode.common()) {
        let _ = inode.touch_accessed();
    }
}

/// Returns whether an access leaves the access time as it is. Takes no lock.
#[inline]
pub(super) fn is_access_time_current(mount: &Mount, common: &InodeCommon) -> bool {
    let options = mount.options();
    if options.no_directory_access_time && common.file_type == FileType::Directory {
        return true;
    }
    match options.access_time {
        AccessTime::Never => return true,
        AccessTime::Strict => return mount.is_read_only(),
        AccessTime::Relative => {}
    }
    let now_secs = options.clock.now_secs();
    common.attributes.is_accessed_current(now_secs) || mount.is_read_only()
}
