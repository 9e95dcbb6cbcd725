//! Access times: updated as the mount's options require. Linux: `touch_atime`,
//! `atime_needs_update`.

use super::attributes::FileType;
use super::dentry::Mount;
use super::inode::Inode;
use super::mount_options::AccessTime;

/// With relatime, an access time older than this is updated.
const ACCESSED_AGE_MAX_SECS: i64 = 24 * 60 * 60;

/// Updates the access time if the mount's options require it. Errors are ignored.
pub(crate) fn touch_accessed(mount: &Mount, inode: &dyn Inode) {
    if !is_access_time_current(mount, inode) {
        let _ = inode.touch_accessed();
    }
}

/// Returns whether an access leaves the access time as it is. Takes no lock.
#[inline]
pub(super) fn is_access_time_current(mount: &Mount, inode: &dyn Inode) -> bool {
    let (options, common) = (mount.options(), inode.common());
    if options.no_directory_access_time && common.file_type == FileType::Directory {
        return true;
    }
    match options.access_time {
        AccessTime::Never => return true,
        AccessTime::Strict => return mount.is_read_only(),
        AccessTime::Relative => {}
    }
    let times = common.attributes.times();
    let is_current = times.accessed > times.modified
        && times.accessed > times.changed
        && options.clock.now().secs.saturating_sub(times.accessed.secs) < ACCESSED_AGE_MAX_SECS;
    is_current || mount.is_read_only()
}
