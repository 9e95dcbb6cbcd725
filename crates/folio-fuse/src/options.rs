//! What `-o` says: the part that is about the mount; the rest is the file system's.

use crate::adapter::Judge;
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

/// How a mount appears to the host; the same words as in mount(8) and mount.fuse3(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Refuse every change.
    pub read_only: bool,
    /// Who may use the mount.
    pub allowed: Allowed,
    /// Whose permissions count.
    pub judge: Judge,
    /// What the mount is of, as /proc/mounts tells.
    pub source: String,
    /// Threads that answer the kernel.
    pub threads: usize,
    flags: Vec<MountOption>,
}

/// Threads that are of use when most requests are answered from memory.
const THREADS_MAX: usize = 8;

impl Options {
    /// A mount of `source`, for its owner alone, without setuid programs and device nodes.
    pub fn new(source: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            read_only: false,
            allowed: Allowed::Owner,
            judge: Judge::Kernel,
            source: source.into(),
            // One that waits for the device must not keep the others waiting.
            threads: cores.clamp(2, THREADS_MAX),
            flags: Vec::new(),
        }
    }

    /// Obeys one word of `-o`; `false` if it is not about the mount, and the file system may know it.
    pub fn set(&mut self, word: &str) -> Result<bool> {
        let flag = match word {
            "ro" => {
                self.read_only = true;
                return Ok(true);
            }
            "rw" => {
                self.read_only = false;
                return Ok(true);
            }
            "allow_other" => {
                self.allowed = Allowed::All;
                return Ok(true);
            }
            "allow_root" => {
                self.allowed = Allowed::OwnerAndRoot;
                return Ok(true);
            }
            // It is so unless `fakeroot` is given.
            "default_permissions" | "defaults" => return Ok(true),
            "fakeroot" => {
                self.judge = Judge::Nobody;
                return Ok(true);
            }
            "suid" => MountOption::Suid,
            "nosuid" => MountOption::NoSuid,
            "dev" => MountOption::Dev,
            "nodev" => MountOption::NoDev,
            "exec" => MountOption::Exec,
            "noexec" => MountOption::NoExec,
            _ => match word.split_once('=') {
                Some(("fsname", source)) => {
                    source.clone_into(&mut self.source);
                    return Ok(true);
                }
                Some(("threads", count)) => {
                    self.threads = threads(count)?;
                    return Ok(true);
                }
                _ => return Ok(false),
            },
        };
        // The last word counts, as in mount(8).
        self.flags.retain(|other| !contradicts(other, &flag));
        self.flags.push(flag);
        Ok(true)
    }

    /// The same for fuser.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = self.flags.clone();
        config.mount_options.push(MountOption::FSName(self.source.replace([',', '\\', '\n'], "_")));
        config.mount_options.push(MountOption::Subtype("folio".to_owned()));
        config.mount_options.push(if self.read_only { MountOption::RO } else { MountOption::RW });
        if self.judge == Judge::Kernel {
            config.mount_options.push(MountOption::DefaultPermissions);
        }
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

fn contradicts(one: &MountOption, other: &MountOption) -> bool {
    use MountOption::{Dev, Exec, NoDev, NoExec, NoSuid, Suid};
    one == other
        || matches!(
            (one, other),
            (Suid, NoSuid) | (NoSuid, Suid) | (Dev, NoDev) | (NoDev, Dev) | (Exec, NoExec) | (NoExec, Exec)
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_others_words_are_left() {
        let mut options = Options::new("disk.img");
        for word in ["ro", "nosuid", "suid", "dev", "rw", "allow_other", "threads=3"] {
            assert_eq!(options.set(word).ok(), Some(true), "{word}");
        }
        assert_eq!(options.flags, [MountOption::Suid, MountOption::Dev]);
        assert_eq!((options.read_only, options.allowed, options.threads), (false, Allowed::All, 3));
        assert!(!options.set("data=journal").unwrap() && options.set("threads=0").is_err());
    }
}
