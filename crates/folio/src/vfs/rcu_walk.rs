//! The RCU walk: from a path to a cached dentry, without locks and without references. Linux:
//! "RCU-walk", Documentation/filesystems/path-lookup.rst.
//!
//! It handles cached names in directories that the caller may search. At anything else it stops,
//! and the walk with references (walk.rs) starts again from the beginning.

use super::attributes::FileType;
use super::credentials::Access;
use super::dentry::LocationRef;
use super::dentry_cache::Cached;
use super::open_flags::LastLink;
use super::permission::is_access_granted_nowait;
use super::vfs::Vfs;
use super::walk::{Context, PATH_MAX};
use crate::base::rcu::Pin;

/// The result of an RCU walk.
pub(crate) enum RcuWalk<'p> {
    /// The location of the path.
    Found(LocationRef<'p>),
    /// The path does not exist (ENOENT).
    Missing,
    /// Not known without waiting: [`Context::resolve`] is needed.
    Unknown,
}

impl<'a> Context<'a> {
    /// Walks along `path`, from `start` if it is relative. Does not wait.
    #[inline]
    pub(crate) fn rcu_walk<'p>(
        &self,
        start: LocationRef<'p>,
        path: &[u8],
        last_link: LastLink,
        pin: &'p Pin,
    ) -> RcuWalk<'p>
    where
        'a: 'p,
    {
        let Some(first) = path.first().filter(|_| path.len() < PATH_MAX) else {
            return RcuWalk::Unknown;
        };
        let root = (*first == b'/').then(|| self.vfs.find_root(pin));
        let Some(mut at) = root.unwrap_or(Some(start)) else {
            return RcuWalk::Unknown;
        };
        let mut rest = path;
        loop {
            while let [b'/', tail @ ..] = rest {
                rest = tail;
            }
            let directory = at.dentry.value();
            if !directory.is_directory() {
                return RcuWalk::Unknown;
            }
            if rest.is_empty() {
                return found(at);
            }
            if !is_access_granted_nowait(directory.common(), self.credentials, Access::EXECUTE) {
                return RcuWalk::Unknown;
            }
            let len = rest
                .iter()
                .position(|byte| *byte == b'/')
                .unwrap_or(rest.len());
            let (name, tail) = rest.split_at(len);
            rest = tail;
            if is_of_host(at, name) {
                return RcuWalk::Unknown;
            }
            match name {
                b"." => {}
                b".." => return RcuWalk::Unknown,
                _ => match self.vfs.dentries.find(directory, name, pin) {
                    Cached::Positive(child) if child.value().file_type() == FileType::Symlink => {
                        if !rest.is_empty() || last_link == LastLink::Follow {
                            return RcuWalk::Unknown;
                        }
                        at.dentry = child;
                    }
                    Cached::Positive(dentry) => {
                        let child = LocationRef { dentry, ..at };
                        let Some(entered) = Vfs::find_mounted(child, pin) else {
                            return RcuWalk::Unknown;
                        };
                        at = entered;
                    }
                    Cached::Negative if at.mount.value().is_hosts() => return RcuWalk::Unknown,
                    Cached::Negative => return RcuWalk::Missing,
                    Cached::Unknown => return RcuWalk::Unknown,
                },
            }
            if rest.is_empty() {
                return found(at);
            }
        }
    }
}

/// Returns the end of a walk, unless the directory belongs to the host.
#[inline]
fn found(at: LocationRef<'_>) -> RcuWalk<'_> {
    if at.mount.value().is_hosts() {
        RcuWalk::Unknown
    } else {
        RcuWalk::Found(at)
    }
}

/// Returns whether `name` in the root of a mount belongs to the host.
#[inline]
fn is_of_host(at: LocationRef<'_>, name: &[u8]) -> bool {
    let names = at.mount.value().host_names();
    names.is_some_and(|names| names.has_in_root(name) && at.dentry.value().is_root())
}
