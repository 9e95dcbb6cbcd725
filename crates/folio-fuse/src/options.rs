//! How a mount appears to the host: what `-o` says beyond the options of the file system inside.

use crate::adapter::PermissionChecks;
use crate::keeping::Pages;
use crate::mountpoint::MountAttributes;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Result};

/// Who may use the mount at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AllowedUsers {
    /// The user who mounts, whom alone the kernel lets in: files of an image mean nothing to
    /// others.
    #[default]
    Owner,
    /// The superuser too (`allow_root`).
    OwnerAndRoot,
    /// Everybody (`allow_other`), as far as modes and ACLs allow. Users other than root need
    /// `user_allow_other` in /etc/fuse.conf.
    All,
}

/// How a mount appears to the host; the same words as in mount.fuse3(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Who may use the mount.
    pub allowed: AllowedUsers,
    /// Whose permissions count.
    pub judge: PermissionChecks,
    /// What the mount is of, as /proc/mounts tells.
    pub source: String,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Whether the kernel reads and writes files of the host by itself.
    pub passthrough: Passthrough,
    pub(crate) pages: Pages,
}

/// Whether the kernel reads and writes files of the host by itself, past the server
/// (`FUSE_PASSTHROUGH`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Passthrough {
    /// If it can: Linux 6.9, and a server that is root.
    #[default]
    Auto,
    /// It must, or the mount fails.
    Always,
    /// It must not.
    Never,
}

/// Threads that are of use when most requests are answered from memory.
const THREADS_MAX: usize = 8;

impl SessionOptions {
    /// A mount of `source`, for its owner alone.
    pub fn new(source: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            allowed: AllowedUsers::Owner,
            judge: PermissionChecks::ByClient,
            source: source.into(),
            // One that waits for the device must not keep the others waiting.
            threads: cores.clamp(2, THREADS_MAX),
            passthrough: Passthrough::Auto,
            pages: Pages::Clean,
        }
    }

    /// The words that are about the mount, those with a value without it.
    pub const OPTION_NAMES: [&str; 9] = [
        "allow_other",
        "allow_root",
        "fakeroot",
        "writeback",
        "default_permissions",
        "fsname",
        "threads",
        "passthrough",
        "cache",
    ];

    /// Obeys one word of `-o`; `false` if it is not about the mount, but perhaps about what is
    /// mounted.
    pub fn set(&mut self, word: &str) -> Result<bool> {
        match word.split_once('=') {
            None => match word {
                "allow_other" => self.allowed = AllowedUsers::All,
                "allow_root" => self.allowed = AllowedUsers::OwnerAndRoot,
                "fakeroot" => self.judge = PermissionChecks::Off,
                "writeback" => self.pages = Pages::WrittenBack,
                // It is so unless `fakeroot` is given.
                "default_permissions" => {}
                _ => return Ok(false),
            },
            Some(("fsname", source)) => source.clone_into(&mut self.source),
            Some(("threads", count)) => self.threads = threads(count)?,
            Some(("passthrough", word)) => self.passthrough = passthrough(word)?,
            Some(("cache", "none")) => {
                self.pages = Pages::None;
                // What is mounted caches nothing either.
                return Ok(false);
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// The same for the kernel, with what it has to know of the options inside.
    pub(crate) fn words(&self, inside: &MountOptions) -> MountAttributes {
        MountAttributes {
            source: self.source.clone(),
            // The kernel knows no other word; who else is kept out is seen to here.
            allow_other: self.allowed != AllowedUsers::Owner,
            read_only: inside.read_only,
            no_set_id: inside.no_set_id,
            no_devices: inside.no_devices,
            no_execution: inside.no_execution,
        }
    }

    /// Whether the kernel checks permissions before it asks.
    pub(crate) fn checks_permissions(&self) -> bool {
        self.judge == PermissionChecks::ByClient
    }
}

fn threads(count: &str) -> Result<usize> {
    match count.parse() {
        Ok(count @ 1..=64) => Ok(count),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("threads={count}: not a number from 1 to 64"),
        )),
    }
}

fn passthrough(word: &str) -> Result<Passthrough> {
    match word {
        "auto" => Ok(Passthrough::Auto),
        "on" => Ok(Passthrough::Always),
        "off" => Ok(Passthrough::Never),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("passthrough={word}: not auto, on or off"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_the_mount_are_obeyed_and_others_left() {
        let mut options = SessionOptions::new("disk.img");
        for word in [
            "allow_root",
            "allow_other",
            "threads=3",
            "fsname=a,b",
            "default_permissions",
        ] {
            assert_eq!(options.set(word).ok(), Some(true), "{word}");
        }
        assert_eq!((options.allowed, options.threads), (AllowedUsers::All, 3));
        assert!(!options.set("data=journal").unwrap() && !options.set("ro").unwrap());
        assert!(options.set("threads=0").is_err() && options.set("passthrough=maybe").is_err());
        assert!(options.set("passthrough=off").unwrap() && options.set("writeback").unwrap());
        assert_eq!(
            (options.passthrough, options.pages),
            (Passthrough::Never, Pages::WrittenBack)
        );
        // Two are told of that.
        assert!(!options.set("cache=none").unwrap());
        assert_eq!(options.pages, Pages::None);
        let words = options.words(&MountOptions::parse("ro,nosuid").unwrap());
        assert!(words.read_only && words.no_set_id && !words.no_devices && words.allow_other);
        assert_eq!(words.source, "a,b");
        assert!(options.checks_permissions() && options.set("fakeroot").unwrap());
        assert!(!options.checks_permissions());
    }
}
