//! From a path to a dentry that is in memory, without a lock and without a reference. Linux:
//! "RCU-walk", Documentation/filesystems/path-lookup.rst.
//!
//! It goes the way of walk.rs as long as that is plain: names that the cache knows in directories
//! that may be searched. At anything else it gives up, and walk.rs, which knows everything, starts
//! anew.

use super::FileType;
use super::dentry_cache::Cached;
use super::mount::{LocationRef, Vfs};
use super::permission::{Access, is_known_to_be_allowed};
use super::walk::{Context, LastLink, PATH_MAX};
use crate::base::rcu::Pin;

/// What a quick walk found out.
pub(crate) enum Quick<'p> {
    /// The path leads here.
    Found(LocationRef<'p>),
    /// ENOENT.
    Missing,
    /// Nothing: [`Context::resolve`] must go.
    Unknown,
}

impl Context<'_> {
    /// Where `path` leads, from `start` if it is relative. Does not wait.
    #[inline]
    pub(crate) fn walk_quickly<'p>(
        &'p self,
        start: LocationRef<'p>,
        path: &[u8],
        last_link: LastLink,
        pin: &'p Pin,
    ) -> Quick<'p> {
        let Some(first) = path.first().filter(|_| path.len() < PATH_MAX) else {
            return Quick::Unknown;
        };
        let start = if *first == b'/' {
            self.vfs.find_root(pin)
        } else {
            Some(start)
        };
        let Some(mut at) = start else {
            return Quick::Unknown;
        };
        let mut rest = path;
        loop {
            while let [b'/', tail @ ..] = rest {
                rest = tail;
            }
            let directory = at.dentry.value();
            if !directory.is_directory() {
                return Quick::Unknown;
            }
            if rest.is_empty() {
                return Quick::Found(at);
            }
            if !is_known_to_be_allowed(&**directory.inode(), self.credentials, Access::EXECUTE) {
                return Quick::Unknown;
            }
            let len = rest
                .iter()
                .position(|byte| *byte == b'/')
                .unwrap_or(rest.len());
            let (name, tail) = rest.split_at(len);
            rest = tail;
            match name {
                b"." => {}
                b".." => return Quick::Unknown,
                _ => match self.vfs.dentries.find(directory, name, pin) {
                    Cached::Positive(child) if child.value().file_type() == FileType::Symlink => {
                        if !rest.is_empty() || last_link == LastLink::Follow {
                            return Quick::Unknown;
                        }
                        at.dentry = child;
                    }
                    Cached::Positive(child) => {
                        let Some(entered) = Vfs::find_mounted(
                            LocationRef {
                                dentry: child,
                                ..at
                            },
                            pin,
                        ) else {
                            return Quick::Unknown;
                        };
                        at = entered;
                    }
                    Cached::Negative => return Quick::Missing,
                    Cached::Unknown => return Quick::Unknown,
                },
            }
            if rest.is_empty() {
                return Quick::Found(at);
            }
        }
    }
}
