//! How a file system is mounted: the options of mount(8) that mean the same on every file system.
//!
//! Linux: fs/fs_context.c and libmount, which between them take these words out of the text and
//! hand the rest to the file system.
//!
//! | option | what it does here |
//! |---|---|
//! | `ro` `rw` | changes are refused with EROFS, or not |
//! | `sync` `async` | every write and change of names is durable when its call returns, or not |
//! | `dirsync` | every change of names is |
//! | `noatime` `relatime` `strictatime` `atime` `nodiratime` `diratime` ... | see [`AccessTime`] |
//! | `lazytime` `nolazytime` | times alone are not written until something else is, or for 24 hours |
//! | `nosuid` `suid` `nodev` `dev` `noexec` `exec` | kept for faces that show them; Folio runs no program and opens no device node |
//! | `defaults` `auto` `noauto` `nofail` `_netdev` `silent` `loud` `x-*` `X-*` `comment=` | nothing: words of fstab(5) for others |
//!
//! A later option wins over an earlier one. Any other word is the file system's
//! ([`MountOptions::file_system`]), which refuses what it does not know by name.

use crate::base::{Clock, Errno, Error, Result};
use std::fmt;

/// When reading a file changes its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTime {
    /// If it is not later than the last change, or older than a day (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Strict,
    /// Never (`noatime`).
    Never,
}

/// How a file system is mounted; the part every file system understands, and the words for this
/// one.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// Refuse every change with EROFS and write nothing to the device (`ro`).
    pub read_only: bool,
    /// Writes and changes of names are durable when they return (`sync`).
    pub is_sync: bool,
    /// Changes of names are durable when they return (`dirsync`).
    pub is_directory_sync: bool,
    /// Changes of times alone stay in memory (`lazytime`).
    pub is_lazy_time: bool,
    /// Programs do not run as their owner (`nosuid`).
    pub no_set_id: bool,
    /// Device nodes lead nowhere (`nodev`).
    pub no_devices: bool,
    /// Nothing can be executed (`noexec`).
    pub no_execution: bool,
    /// When access times change.
    pub access_time: AccessTime,
    /// Leave access times of directories alone (`nodiratime`).
    pub no_directory_access_time: bool,
    /// The options that only this file system knows, joined by commas.
    pub file_system: String,
    /// Where timestamps come from.
    pub clock: Clock,
}

impl MountOptions {
    /// The words that mean the same on every file system, for lists and for who looks for the
    /// nearest one.
    pub const WORDS: [&str; 26] = [
        "ro",
        "rw",
        "sync",
        "async",
        "dirsync",
        "lazytime",
        "nolazytime",
        "noatime",
        "strictatime",
        "atime",
        "relatime",
        "norelatime",
        "nostrictatime",
        "nodiratime",
        "diratime",
        "nosuid",
        "suid",
        "nodev",
        "dev",
        "noexec",
        "exec",
        "defaults",
        "auto",
        "noauto",
        "nofail",
        "_netdev",
    ];

    /// Reads the text of `mount -o`: words separated by commas. What is not for every file system
    /// is kept for the one that is mounted, which may still refuse it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut options = Self::default();
        options.add(text)?;
        Ok(options)
    }

    /// Reads further words, as if they stood behind those that made `self`.
    pub fn add(&mut self, text: &str) -> Result<()> {
        if text.contains('\0') {
            return Err(Error::new(Errno::INVAL, "mount options with a zero byte"));
        }
        for word in text.split(',').filter(|word| !word.is_empty()) {
            if !self.set(word) {
                if !self.file_system.is_empty() {
                    self.file_system.push(',');
                }
                self.file_system.push_str(word);
            }
        }
        Ok(())
    }

    /// The refusal of a word that nobody knows. EINVAL.
    pub(crate) fn unknown(word: &str) -> Error {
        Error::new(Errno::INVAL, format!("unknown mount option {word:?}"))
    }

    /// Whether the word was one for every file system.
    fn set(&mut self, word: &str) -> bool {
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "sync" => self.is_sync = true,
            "async" => self.is_sync = false,
            "dirsync" => self.is_directory_sync = true,
            "lazytime" => self.is_lazy_time = true,
            "nolazytime" => self.is_lazy_time = false,
            "noatime" => self.access_time = AccessTime::Never,
            "strictatime" => self.access_time = AccessTime::Strict,
            "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                self.access_time = AccessTime::Relative;
            }
            "nodiratime" => self.no_directory_access_time = true,
            "diratime" => self.no_directory_access_time = false,
            "nosuid" => self.no_set_id = true,
            "suid" => self.no_set_id = false,
            "nodev" => self.no_devices = true,
            "dev" => self.no_devices = false,
            "noexec" => self.no_execution = true,
            "exec" => self.no_execution = false,
            "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "silent" | "loud" => {}
            _ => {
                return word.starts_with("x-")
                    || word.starts_with("X-")
                    || word.starts_with("comment=");
            }
        }
        true
    }
}

/// The effective options as /proc/mounts shows them, in its order.
impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.is_sync, "sync"),
            (self.is_directory_sync, "dirsync"),
            (self.is_lazy_time, "lazytime"),
            (self.no_set_id, "nosuid"),
            (self.no_devices, "nodev"),
            (self.no_execution, "noexec"),
            (self.access_time == AccessTime::Never, "noatime"),
            (self.no_directory_access_time, "nodiratime"),
            (self.access_time == AccessTime::Relative, "relatime"),
            (!self.file_system.is_empty(), self.file_system.as_str()),
        ];
        f.write_str(if self.read_only { "ro" } else { "rw" })?;
        words
            .iter()
            .filter(|(is_set, _)| *is_set)
            .try_for_each(|(_, word)| write!(f, ",{word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        assert_eq!(
            MountOptions::parse(text).unwrap().to_string(),
            shown,
            "{text}"
        );
    }

    #[test]
    fn options_are_shown_as_in_proc_mounts() {
        check("", "rw,relatime");
        check("defaults", "rw,relatime");
        check("ro,noatime", "ro,noatime");
        check("strictatime", "rw");
        check("nodiratime", "rw,nodiratime,relatime");
        check("lazytime,dirsync,sync", "rw,sync,dirsync,lazytime,relatime");
        check("noexec,nosuid,nodev", "rw,nosuid,nodev,noexec,relatime");
        check(
            "nofail,x-systemd.automount,comment=no,,_netdev,silent",
            "rw,relatime",
        );
    }

    #[test]
    fn the_listed_words_are_known() {
        for word in MountOptions::WORDS {
            assert!(MountOptions::default().set(word), "{word}");
        }
    }

    #[test]
    fn a_later_option_wins() {
        check("ro,rw", "rw,relatime");
        check("ro,defaults", "ro,relatime");
        check("sync,async,lazytime,nolazytime", "rw,relatime");
        check("noatime,strictatime,atime", "rw,relatime");
        check("relatime,noatime", "rw,noatime");
        check(
            "nosuid,nodev,noexec,suid,dev,exec,nodiratime,diratime",
            "rw,relatime",
        );
    }

    #[test]
    fn other_words_are_left_to_the_file_system() {
        let options = MountOptions::parse("data=journal,ro,size=1m,,foo,ro=1").unwrap();
        assert_eq!(options.file_system, "data=journal,size=1m,foo,ro=1");
        assert_eq!(
            options.to_string(),
            "ro,relatime,data=journal,size=1m,foo,ro=1"
        );
        assert_eq!(
            MountOptions::parse("a\0b").unwrap_err().errno(),
            Errno::INVAL
        );
    }
}
