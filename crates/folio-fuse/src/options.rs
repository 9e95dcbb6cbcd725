//! How a mount appears to the host: what `-o` says beyond the options of the file system inside.

use crate::adapter::Judge;
use crate::keeping::Pages;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Result};
use fuser::{Config, MountOption, SessionACL};

/// Who may use the mount at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Allowed {
    /// The user who mounts, whom alone the kernel lets in: files of an image mean nothing to others.
    #[default]
    Owner,
    /// The superuser too (`allow_root`).
    OwnerAndRoot,
    /// Everybody (`allow_other`), as far as modes and ACLs allow. Users other than root need `user_allow_other` in
    /// /etc/fuse.conf.
    All,
}

/// How a mount appears to the host; the same words as in mount.fuse3(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who may use the mount.
    pub allowed: Allowed,
    /// Whose permissions count.
    pub judge: Judge,
    /// What the mount is of, as /proc/mounts tells.
    pub source: String,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Whether the kernel reads and writes files of the host by itself.
    pub passthrough: Passthrough,
    pub(crate) pages: Pages,
}

/// Whether the kernel reads and writes files of the host by itself, past the server (`FUSE_PASSTHROUGH`).
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

impl Options {
    /// A mount of `source`, for its owner alone.
    pub fn new(source: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            allowed: Allowed::Owner,
            judge: Judge::Kernel,
            source: source.into(),
            // One that waits for the device must not keep the others waiting.
            threads: cores.clamp(2, THREADS_MAX),
            passthrough: Passthrough::Auto,
            pages: Pages::Clean,
        }
    }

    /// The words that are about the mount, those with a value without it.
    pub const WORDS: [&str; 9] = [
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

    /// Obeys one word of `-o`; `false` if it is not about the mount, but perhaps about what is mounted.
    pub fn set(&mut self, word: &str) -> Result<bool> {
        match word.split_once('=') {
            None => match word {
                "allow_other" => self.allowed = Allowed::All,
                "allow_root" => self.allowed = Allowed::OwnerAndRoot,
                "fakeroot" => self.judge = Judge::Nobody,
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

    /// The same for fuser, with what the host has to know of the options inside.
    pub(crate) fn config(&self, inside: &MountOptions) -> Config {
        let choose = |is_set, yes, no| if is_set { yes } else { no };
        let mut words = vec![
            // Commas and the like would be more options.
            MountOption::FSName(self.source.replace([',', '\\', '\n'], "_")),
            MountOption::Subtype("folio".to_owned()),
            choose(inside.read_only, MountOption::RO, MountOption::RW),
            choose(inside.no_set_id, MountOption::NoSuid, MountOption::Suid),
            choose(inside.no_devices, MountOption::NoDev, MountOption::Dev),
            choose(inside.no_execution, MountOption::NoExec, MountOption::Exec),
        ];
        if self.judge == Judge::Kernel {
            words.push(MountOption::DefaultPermissions);
        }
        let mut config = Config::default();
        config.mount_options = words;
        config.acl = match self.allowed {
            Allowed::Owner => SessionACL::Owner,
            Allowed::OwnerAndRoot => SessionACL::RootAndOwner,
            Allowed::All => SessionACL::All,
        };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}

fn threads(count: &str) -> Result<usize> {
    match count.parse() {
        Ok(count @ 1..=64) => Ok(count),
        _ => Err(Error::new(Errno::INVAL, format!("threads={count}: not a number from 1 to 64"))),
    }
}

fn passthrough(word: &str) -> Result<Passthrough> {
    match word {
        "auto" => Ok(Passthrough::Auto),
        "on" => Ok(Passthrough::Always),
        "off" => Ok(Passthrough::Never),
        _ => Err(Error::new(Errno::INVAL, format!("passthrough={word}: not auto, on or off"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_the_mount_are_obeyed_and_others_left() {
        let mut options = Options::new("disk.img");
        for word in ["allow_root", "allow_other", "threads=3", "fsname=a,b", "default_permissions"] {
            assert_eq!(options.set(word).ok(), Some(true), "{word}");
        }
        assert_eq!((options.allowed, options.threads), (Allowed::All, 3));
        assert!(!options.set("data=journal").unwrap() && !options.set("ro").unwrap());
        assert!(options.set("threads=0").is_err() && options.set("passthrough=maybe").is_err());
        assert!(options.set("passthrough=off").unwrap() && options.set("writeback").unwrap());
        assert_eq!((options.passthrough, options.pages), (Passthrough::Never, Pages::WrittenBack));
        // Two are told of that.
        assert!(!options.set("cache=none").unwrap());
        assert_eq!(options.pages, Pages::None);
        let words = options.config(&MountOptions::parse("ro,nosuid").unwrap()).mount_options;
        assert!(words.contains(&MountOption::RO) && words.contains(&MountOption::NoSuid), "{words:?}");
        assert!(words.contains(&MountOption::Dev) && words.contains(&MountOption::DefaultPermissions));
        assert!(words.contains(&MountOption::FSName("a_b".to_owned())));
    }
}
