//! The attributes of a file, with the accessors of [`std::fs::Metadata`].

use crate::base::Timespec;
use crate::vfs::{Attributes, FileType};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

/// The attributes of a file. Linux: `struct statx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(Attributes);

impl Metadata {
    pub(super) fn new(attributes: Attributes) -> Self {
        Self(attributes)
    }

    /// Returns the file type.
    pub fn file_type(&self) -> FileType {
        self.0.file_type
    }

    /// Returns whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.file_type == FileType::Directory
    }

    /// Returns whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.file_type == FileType::Regular
    }

    /// Returns whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.file_type == FileType::Symlink
    }

    /// Returns the size in bytes.
    // A file of length 0 is not an empty collection: std::fs::Metadata has no `is_empty` either.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }

    /// Returns the permission bits with setuid, setgid and sticky (12 bits).
    pub fn mode(&self) -> u16 {
        self.0.mode
    }

    /// Returns the bits of [`Metadata::mode`] as `set_permissions` takes them.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode.into())
    }

    /// Returns the time of the last change of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.modified)
    }

    /// Returns the time of the last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.accessed)
    }

    /// Returns the time of creation, if the file system records it.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.created.map(system_time)
    }

    /// Returns every attribute: owner, inode number, link count, blocks, device number.
    pub fn attributes(&self) -> &Attributes {
        &self.0
    }
}

/// Converts a timestamp, which may be before 1970.
fn system_time(time: Timespec) -> SystemTime {
    let secs = Duration::from_secs(time.secs.unsigned_abs());
    let whole = if time.secs < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(secs)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(secs)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanos.into())))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Converts a time, which may be before 1970.
pub(super) fn timespec(time: SystemTime) -> Timespec {
    let secs = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timespec::new(secs(since), since.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            match before.subsec_nanos() {
                0 => Timespec::new(-secs(before), 0),
                nanos => Timespec::new(-secs(before) - 1, 1_000_000_000 - nanos),
            }
        }
    }
}

/// Returns the 12 bits of `permissions`.
pub(super) fn mode(permissions: &Permissions) -> u16 {
    (permissions.mode() & 0o7777) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timespec_before_1970_counts_nanos_forward() {
        let time = system_time(Timespec::new(-2, 500_000_000));
        let before = SystemTime::UNIX_EPOCH.duration_since(time).unwrap();
        assert_eq!(before, Duration::from_millis(1500));
    }

    #[test]
    fn times_are_the_same_in_both_forms() {
        for (secs, nanos) in [(-2, 500_000_000), (-2, 0), (0, 0), (7, 1)] {
            let time = Timespec::new(secs, nanos);
            assert_eq!(timespec(system_time(time)), time);
        }
    }
}
