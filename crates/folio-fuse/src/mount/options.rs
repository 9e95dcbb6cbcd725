//! Options of a mount session: the `-o` options that concern the host's side of the mount.

use crate::client_options::PermissionChecks;
use crate::local::{PageCaching, Passthrough};
use folio::vfs::MountOptions;
use folio::{Errno, Error, Result};

/// Attributes of a mount on this machine, as in mount.fuse3(8). Linux: `struct mount_attr`.
#[derive(Debug, Clone, Default)]
pub struct MountAttributes {
    /// The source in /proc/mounts.
    pub source: String,
    /// Whether other users have access.
    pub allow_other: bool,
    /// Whether changes fail with EROFS.
    pub read_only: bool,
    /// Whether set-user-ID bits are ignored.
    pub no_set_id: bool,
    /// Whether device nodes cannot be opened.
    pub no_devices: bool,
    /// Whether programs cannot be executed.
    pub no_execution: bool,
    /// Whether the kernel sends sync(2) and syncfs(2) to the server, if it can: Linux 6.18, root,
    /// and a free loop device.
    pub sends_sync: bool,
}

/// The users with access to the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedUsers {
    /// The mounting user alone: user ids of an image mean nothing on this machine. The kernel
    /// checks it.
    #[default]
    Owner,
    /// The mounting user and root (`allow_root`).
    OwnerAndRoot,
    /// All users (`allow_other`), as far as modes and ACLs permit. Mounting users other than root
    /// need `user_allow_other` in /etc/fuse.conf.
    All,
}

/// Whether requests come over io_uring, each to a thread on the CPU that made it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uring {
    /// If the kernel offers it: Linux 6.14, and the parameter `enable_uring` of its module `fuse`.
    #[default]
    Auto,
    /// Required: without it the mount fails.
    Always,
    /// Not permitted: all requests come over /dev/fuse.
    Never,
}

impl Uring {
    /// The parameter of the kernel's module `fuse` by which the administrator permits io_uring.
    pub const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

    /// Returns whether kernel and process could use io_uring, but the administrator does not permit
    /// it.
    pub fn is_off_in_kernel() -> bool {
        std::fs::read_to_string(Self::PARAMETER).is_ok_and(|value| value.trim() == "N")
            && super::uring::probe().is_ok()
    }
}

/// Whether changes on the host are events for the programs that watch the mount (inotify(7),
/// fanotify(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Events {
    /// Not raised yet: as [`Events::Never`].
    #[default]
    Auto,
    /// Required: without it the mount fails.
    Always,
    /// Not raised.
    Never,
}

/// Options of a mount session, with the names of mount.fuse3(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// The users with access.
    pub allowed: AllowedUsers,
    /// Which side checks permissions.
    pub permissions: PermissionChecks,
    /// The mount's source in /proc/mounts.
    pub source: String,
    /// All words of `-o`. A remount that names one again changes nothing.
    pub given: Vec<String>,
    /// Threads that serve requests.
    pub threads: usize,
    /// Whether the kernel reads and writes files of the host by itself.
    pub passthrough: Passthrough,
    /// Whether the kernel sends requests over io_uring.
    pub uring: Uring,
    /// Whether changes on the host are events in the mount.
    pub events: Events,
    /// Whether all inodes are presented as the superuser's, for a user namespace without other ids.
    /// The file system keeps their owners.
    pub hides_owners: bool,
    /// Whether sync(2) and syncfs(2) reach a file system that delays writes, if the kernel can send
    /// them: see [`MountAttributes::sends_sync`].
    pub sends_sync: bool,
    /// What the kernel caches; by default what suits the mounted file system.
    pub(super) page_caching: Option<PageCaching>,
}

/// More threads do not help while most requests are served from memory.
const THREADS_MAX: usize = 8;

impl SessionOptions {
    /// Returns the options of a mount of `source` for the mounting user alone.
    pub fn new(source: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            allowed: AllowedUsers::Owner,
            permissions: PermissionChecks::ByClient,
            source: source.into(),
            given: Vec::new(),
            // At least two: one may wait for the device.
            threads: cores.clamp(2, THREADS_MAX),
            passthrough: Passthrough::Auto,
            uring: Uring::Auto,
            events: Events::Auto,
            hides_owners: false,
            sends_sync: true,
            page_caching: None,
        }
    }

    /// Names of the `-o` options that [`SessionOptions::apply`] accepts, without their values.
    pub const OPTION_NAMES: [&str; 12] = [
        "allow_other",
        "allow_root",
        "fakeroot",
        "writeback",
        "nowriteback",
        "default_permissions",
        "fsname",
        "threads",
        "passthrough",
        "io_uring",
        "events",
        "cache",
    ];

    /// Applies one `-o` option; returns false if it concerns the mounted file system, or both.
    ///
    /// # Errors
    /// EINVAL for an invalid value.
    pub fn apply(&mut self, option: &str) -> Result<bool> {
        match option.split_once('=') {
            None => match option {
                "allow_other" => self.allowed = AllowedUsers::All,
                "allow_root" => self.allowed = AllowedUsers::OwnerAndRoot,
                "fakeroot" => self.permissions = PermissionChecks::Off,
                "writeback" => self.page_caching = Some(PageCaching::Writeback),
                "nowriteback" => self.page_caching = Some(PageCaching::Writethrough),
                // The default, unless `fakeroot` is given.
                "default_permissions" => {}
                _ => return Ok(false),
            },
            Some(("fsname", source)) => source.clone_into(&mut self.source),
            Some(("threads", count)) => self.threads = threads(count)?,
            Some(("passthrough", value)) => self.passthrough = passthrough(value)?,
            Some(("io_uring", value)) => self.uring = uring(value)?,
            Some(("events", value)) => self.events = events(value)?,
            Some(("cache", "none")) => {
                self.page_caching = Some(PageCaching::None);
                // The mounted file system caches nothing either.
                return Ok(false);
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the attributes of the mount, some of them from the options of the file system, which
    /// writes later than its writers with `delays_writes`.
    pub(super) fn mount_attributes(
        &self,
        inside: &MountOptions,
        delays_writes: bool,
    ) -> MountAttributes {
        MountAttributes {
            source: self.source.clone(),
            sends_sync: self.sends_sync && delays_writes && !inside.read_only,
            // The kernel has no such option for root alone: the server denies other users.
            allow_other: self.allowed != AllowedUsers::Owner,
            read_only: inside.read_only,
            no_set_id: inside.no_set_id,
            no_devices: inside.no_devices,
            no_execution: inside.no_execution,
        }
    }

    /// Returns whether the kernel checks permissions before it sends a request.
    pub(super) fn checks_permissions(&self) -> bool {
        self.permissions == PermissionChecks::ByClient
    }
}

fn threads(count: &str) -> Result<usize> {
    match count.parse() {
        Ok(count @ 1..=64) => Ok(count),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("invalid threads={count}: expected a number from 1 to 64"),
        )),
    }
}

fn passthrough(value: &str) -> Result<Passthrough> {
    match value {
        "auto" => Ok(Passthrough::Auto),
        "on" => Ok(Passthrough::Always),
        "off" => Ok(Passthrough::Never),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("invalid passthrough={value}: expected auto, on or off"),
        )),
    }
}

fn uring(value: &str) -> Result<Uring> {
    match value {
        "auto" => Ok(Uring::Auto),
        "on" => Ok(Uring::Always),
        "off" => Ok(Uring::Never),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("invalid io_uring={value}: expected auto, on or off"),
        )),
    }
}

fn events(value: &str) -> Result<Events> {
    match value {
        "auto" => Ok(Events::Auto),
        "on" => Ok(Events::Always),
        "off" => Ok(Events::Never),
        _ => Err(Error::new(
            Errno::INVAL,
            format!("invalid events={value}: expected auto, on or off"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_mount_option_returns_true() {
        let mut options = SessionOptions::new("disk.img");
        for option in [
            "allow_root",
            "allow_other",
            "threads=3",
            "fsname=a,b",
            "default_permissions",
        ] {
            assert_eq!(options.apply(option).ok(), Some(true), "{option}");
        }
        assert_eq!((options.allowed, options.threads), (AllowedUsers::All, 3));
        assert!(!options.apply("data=journal").unwrap() && !options.apply("ro").unwrap());
        assert!(options.apply("threads=0").is_err() && options.apply("passthrough=maybe").is_err());
        assert!(options.apply("io_uring=yes").is_err() && options.apply("io_uring=on").unwrap());
        assert_eq!(options.uring, Uring::Always);
        assert!(options.apply("events=yes").is_err() && options.apply("events=off").unwrap());
        assert_eq!(options.events, Events::Never);
        assert!(options.apply("passthrough=off").unwrap() && options.apply("writeback").unwrap());
        assert_eq!(
            (options.passthrough, options.page_caching),
            (Passthrough::Never, Some(PageCaching::Writeback))
        );
        assert!(options.apply("nowriteback").unwrap());
        assert_eq!(options.page_caching, Some(PageCaching::Writethrough));
        // It also concerns the file system.
        assert!(!options.apply("cache=none").unwrap());
        assert_eq!(options.page_caching, Some(PageCaching::None));
        let attributes = options.mount_attributes(&MountOptions::parse("ro,nosuid").unwrap(), true);
        assert!(
            attributes.read_only
                && attributes.no_set_id
                && !attributes.no_devices
                && attributes.allow_other
                && !attributes.sends_sync
        );
        assert_eq!(attributes.source, "a,b");
        assert!(options.checks_permissions() && options.apply("fakeroot").unwrap());
        assert!(!options.checks_permissions());
    }
}
