//! Mount options that all file systems share, as in mount(8).
//!
//! Linux: fs/fs_context.c and libmount; together they remove these words from the text and pass the
//! rest to the file system.
//!
//! | option | effect |
//! |---|---|
//! | `ro` `rw` | changes fail with EROFS, or not |
//! | `sync` `async` | every write and change of names is durable when its call returns, or not |
//! | `dirsync` | every change of names is durable when its call returns |
//! | `noatime` `relatime` `strictatime` `atime` `nodiratime` `diratime` ... | see [`AccessTime`] |
//! | `lazytime` `nolazytime` | changed times are written with the next other change, or after 24 hours |
//! | `nosuid` `suid` `nodev` `dev` `noexec` `exec` | stored for faces that show them; Folio runs no program and opens no device node |
//! | `defaults` `auto` `noauto` `nofail` `_netdev` `silent` `loud` `x-*` `X-*` `comment=` | ignored: words of fstab(5) for other programs |
//!
//! A later option overrides an earlier one. Any other word belongs to the file system
//! ([`MountOptions::file_system`]), which rejects unknown words by name.

use crate::base::{Clock, Detail, Errno, Error, Result};
use std::borrow::Cow;
use std::fmt;

/// The policy for access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTime {
    /// Update if the access time is not later than the last change, or older than a day
    /// (`relatime`).
    #[default]
    Relative,
    /// Always update (`strictatime`).
    Strict,
    /// Never update (`noatime`).
    Never,
}

/// Mount options: those that all file systems share, and the words for one file system.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// Refuse every change with EROFS and write nothing to the device (`ro`).
    pub read_only: bool,
    /// Writes and changes of names are durable when they return (`sync`).
    pub is_sync: bool,
    /// Changes of names are durable when they return (`dirsync`).
    pub is_directory_sync: bool,
    /// Changed times stay in memory until another change (`lazytime`).
    pub is_lazy_time: bool,
    /// Setuid and setgid bits have no effect (`nosuid`).
    pub no_set_id: bool,
    /// Device nodes cannot be opened (`nodev`).
    pub no_devices: bool,
    /// Programs cannot be executed (`noexec`).
    pub no_execution: bool,
    /// The policy for access times.
    pub access_time: AccessTime,
    /// Never update access times of directories (`nodiratime`).
    pub no_directory_access_time: bool,
    /// The options of the file system itself, joined by commas.
    pub file_system: String,
    /// The source of timestamps.
    pub clock: Clock,
}

impl MountOptions {
    /// The words that all file systems share, for lists and for spelling suggestions.
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

    /// Parses the text of `mount -o`: words separated by commas. Keeps unknown words for the file
    /// system, which may still reject them.
    ///
    /// # Errors
    ///
    /// EINVAL for a zero byte.
    pub fn parse(text: &str) -> Result<Self> {
        let mut options = Self::default();
        options.add(text)?;
        Ok(options)
    }

    /// Parses further words, as if they followed the words of `self`.
    ///
    /// # Errors
    ///
    /// EINVAL for a zero byte.
    pub fn add(&mut self, text: &str) -> Result<()> {
        if text.contains('\0') {
            return Err(Error::new(
                Errno::INVAL,
                "invalid mount options: they contain a zero byte",
            ));
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

    /// Returns the error for an unknown word: EINVAL.
    pub(crate) fn unknown(word: &str) -> Error {
        Error::new(Errno::INVAL, format!("unknown mount option {word:?}"))
            .about(Detail::UnknownMountOption)
    }

    /// Returns the error for an invalid value of a known option, or for one that another option or
    /// the file system excludes: EINVAL.
    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Errno::INVAL, why).about(Detail::InvalidMountOption)
    }

    /// Parses the options of one file system: words separated by commas. Calls `set` with the name
    /// and the value of each word in `names`; `None` means an invalid value.
    ///
    /// # Errors
    ///
    /// EINVAL for a word that is not in `names`, and for an invalid value.
    pub(crate) fn parse_words(
        text: &str,
        names: &[&str],
        mut set: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<()> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !names.contains(&name) {
                return Err(Self::unknown(option));
            }
            set(name, value).ok_or_else(|| {
                Self::invalid(format!("invalid value in mount option {option:?}"))
            })?;
        }
        Ok(())
    }

    /// Applies a word; returns whether all file systems share it.
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

/// Formats the effective options as /proc/mounts shows them, in its order.
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
    fn options_display_as_in_proc_mounts() {
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
    fn listed_words_are_accepted() {
        for word in MountOptions::WORDS {
            assert!(MountOptions::default().set(word), "{word}");
        }
    }

    #[test]
    fn later_option_overrides_earlier() {
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
    fn other_words_are_kept_for_the_file_system() {
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
