//! The composition root: the only file that names concrete file systems and devices.

use crate::base::owner_process::OwnerProcess;
use crate::base::{Clock, Errno, Error, Result, Timespec};
use crate::block::{Device, FileSystemKind};
use crate::cache::{CacheOptions, Counters, PageCache};
use crate::fs::ext4::{self, Ext4};
#[cfg(feature = "fat")]
use crate::fs::fat::FatFileSystem;
#[cfg(feature = "hostfs")]
use crate::fs::hostfs::{self, Hostfs};
use crate::fs::ramfs::{FrameFiles, FrameMemory, Ramfs};
#[cfg(any(feature = "squashfs", feature = "erofs"))]
use crate::fs::rofs;
#[cfg(feature = "hostfs")]
use crate::vfs::AccessTime;
use crate::vfs::{
    ChangeListener, Context, Credentials, FileSystem, HostNames, LastLink, Location, MountOptions,
    Vfs,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};

pub(crate) use crate::fs::ext4::{FormatOptions, format as format_ext4};

/// Limits and sources of a [`Kernel`].
#[derive(Debug, Clone)]
pub struct KernelOptions {
    /// Memory for cached pages, inodes and names, in bytes. Inodes and names take a half at most
    /// before unused ones are evicted; pages get the rest.
    pub cache_bytes: u64,
    /// Whether background threads write dirty pages.
    pub background_writeback: bool,
    /// Age in milliseconds from which those threads write dirty pages, however few there are.
    /// Linux: `dirty_expire_centisecs`.
    pub dirty_expire_ms: u64,
    /// Interval in milliseconds at which they look for such pages; 0 is never. Linux:
    /// `dirty_writeback_centisecs`.
    pub dirty_writeback_ms: u64,
    /// The source of timestamps.
    pub clock: Clock,
}

impl Default for KernelOptions {
    fn default() -> Self {
        let cache = CacheOptions::default();
        Self {
            cache_bytes: cache.budget_bytes,
            background_writeback: cache.background_writeback,
            dirty_expire_ms: cache.dirty_expire_ms,
            dirty_writeback_ms: cache.dirty_writeback_ms,
            clock: Clock::System,
        }
    }
}

/// Mounts and caches, shared by all processes. Starts with an empty ramfs as `/`.
///
/// Dropping the last reference syncs and unmounts every file system and discards errors: call
/// [`Kernel::unmount`] first to see them.
///
/// A child of fork(2) has neither the kernel's threads nor its devices: there each call fails with
/// EIO, and drops release nothing. A program that forks creates its kernels afterwards.
pub struct Kernel {
    /// Dropped only in the process that created the kernel.
    vfs: ManuallyDrop<Vfs>,
    cache: ManuallyDrop<Arc<PageCache>>,
    clock: Clock,
    owner: OwnerProcess,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("cache_bytes", &self.cache.budget_bytes())
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Returns a kernel with an empty ramfs as its root.
    pub fn new(options: KernelOptions) -> Arc<Self> {
        let cache = PageCache::new(CacheOptions {
            budget_bytes: options.cache_bytes,
            dirty_background_bytes: options.cache_bytes / 8,
            dirty_bytes: options.cache_bytes / 2,
            background_writeback: options.background_writeback,
            dirty_expire_ms: options.dirty_expire_ms,
            dirty_writeback_ms: options.dirty_writeback_ms,
        });
        let mount_options = MountOptions {
            clock: options.clock,
            ..MountOptions::default()
        };
        let root = Ramfs::new_root(&cache, &mount_options);
        Arc::new(Self {
            vfs: ManuallyDrop::new(Vfs::new(root, mount_options, cache.objects().clone())),
            cache: ManuallyDrop::new(cache),
            clock: options.clock,
            owner: OwnerProcess::current(),
        })
    }

    /// Mounts the file system on `device`, of any [`FileSystemKind`], over the directory `target`.
    /// [`crate::block::partition::select`] finds the partition of a disk. Linux: mount(8) with
    /// `-t auto`.
    ///
    /// # Errors
    ///
    /// Those of [`Kernel::mount_ext4`]; EOPNOTSUPP for a kind whose feature this build lacks.
    pub fn mount_image(
        self: &Arc<Self>,
        device: Arc<dyn Device>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        self.mount(self.open_image(device, options)?, target, options)
    }

    fn open_image(
        &self,
        device: Arc<dyn Device>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        Ok(match FileSystemKind::of(&*device)? {
            // Without a file system ext4's error names what the device holds instead.
            None | Some(FileSystemKind::Ext4) => Ext4::mount(device, &self.cache, options)?,
            #[cfg(feature = "fat")]
            Some(FileSystemKind::Fat) => {
                FatFileSystem::mount(device, options.read_only, options.clock)?
            }
            #[cfg(feature = "squashfs")]
            Some(FileSystemKind::Squashfs) => rofs::mount_squashfs(device, &self.cache)?,
            #[cfg(feature = "erofs")]
            Some(FileSystemKind::Erofs) => rofs::mount_erofs(device, &self.cache)?,
            #[cfg(not(all(feature = "fat", feature = "squashfs", feature = "erofs")))]
            Some(kind) => {
                let what =
                    format!("{kind}: this build lacks the feature {kind} of the crate folio");
                let detail = crate::base::Detail::FeatureNotBuilt {
                    feature: kind.to_string(),
                };
                return Err(Error::unsupported(what).about(detail));
            }
        })
    }

    /// Mounts the ext4 file system on `device` over the directory `target`. Linux: mount(2).
    ///
    /// # Errors
    ///
    /// EUCLEAN for a corrupt and EOPNOTSUPP for an unsupported file system, EINVAL for an invalid
    /// option, EROFS for a writable mount of a read-only device, EBUSY if another mount of this
    /// process writes a part of the device, or reads what this one would write; else those of
    /// [`Kernel::mount`].
    pub fn mount_ext4(
        self: &Arc<Self>,
        device: Arc<dyn Device>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        self.mount(Ext4::mount(device, &self.cache, options)?, target, options)
    }

    /// Mounts the host's directory `source` over the directory `target`. Changes by other programs
    /// are seen within a time to live, or sooner by change notification. Options besides those of
    /// every file system:
    /// `ttl=5ms`, `cache=writethrough|writeback|none`, `push=auto|inotify|off`, `squash=UID:GID`,
    /// `map=u:INSIDE:OUTSIDE:COUNT`, `xattr=on|off`.
    /// The host records access times. Linux: mount(2) with type virtiofs.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid option; else those of [`Kernel::mount`] and of the host's open(2).
    #[cfg(feature = "hostfs")]
    pub fn mount_hostfs(
        self: &Arc<Self>,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        let file_system = Hostfs::mount(source.as_ref(), &self.cache, options)?;
        tracing::info!(directory = %source.as_ref().display(), %options, "host directory mounted");
        let options = MountOptions {
            access_time: AccessTime::Never,
            ..options.clone()
        };
        self.mount(file_system, target, &options)
    }

    /// Notifies `listener` of external changes in the file system that `target` is on, as long as
    /// the caller keeps a strong reference. Returns false if that file system has no change
    /// notifications.
    ///
    /// # Errors
    ///
    /// Those of a path walk.
    pub fn listen(
        &self,
        target: impl AsRef<Path>,
        listener: Weak<dyn ChangeListener>,
    ) -> Result<bool> {
        let target = target.as_ref();
        let found = self.find(target).map_err(|error| place(error, target))?;
        Ok(found.mount.file_system().listen(listener))
    }

    /// Returns warnings for the user that mounted the file system that `target` is on: missing
    /// change notifications, for example.
    ///
    /// # Errors
    ///
    /// Those of a path walk.
    pub fn warnings(&self, target: impl AsRef<Path>) -> Result<Vec<String>> {
        let target = target.as_ref();
        let found = self.find(target).map_err(|error| place(error, target))?;
        Ok(found.mount.file_system().warnings())
    }

    /// Changes an option of the mounted file system that `target` is on: one word, such as
    /// `noauto_da_alloc`. Linux: mount(2) with `MS_REMOUNT`.
    ///
    /// # Errors
    ///
    /// EINVAL for an unknown option, EOPNOTSUPP for one that only a new mount changes, EROFS for
    /// `rw` if the file system was mounted read-only; those of a path walk.
    pub fn remount(&self, target: impl AsRef<Path>, option: &str) -> Result<()> {
        let target = target.as_ref();
        let found = self.find(target).map_err(|error| place(error, target))?;
        let file_system = found.mount.file_system();
        let changed = match option {
            // Changes end above the file system; it stores those that it has.
            "ro" => file_system.sync(),
            "rw" if file_system.is_read_only() => Err(Errno::ROFS.into()),
            "rw" => Ok(()),
            _ => file_system.set_option(option),
        };
        changed.map_err(|error| place(error, target))
    }

    /// Mounts a new, empty ramfs over the directory `target`. Linux: mount(2) with type ramfs.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid option; else those of [`Kernel::mount`].
    pub fn mount_ramfs(
        self: &Arc<Self>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        self.mount(Ramfs::mount(&self.cache, options)?, target, options)
    }

    /// Mounts a new, empty tmpfs over the directory `target`: a ramfs with limits, beyond which
    /// changes fail with ENOSPC. The limits are options of tmpfs(5):
    /// `size=64m,nr_inodes=1k,mode=1770,uid=7,gid=8`.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid option; else those of [`Kernel::mount`].
    pub fn mount_tmpfs(
        self: &Arc<Self>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        self.mount(Ramfs::mount_tmpfs(&self.cache, options)?, target, options)
    }

    /// Mounts a new, empty gpufs over the directory `target`: a ramfs whose files have their pages
    /// in `memory`, that of a GPU for example. Returns the files for code that runs on the device.
    /// Options: `size=4g` or `size=50%` of the device (the default; beyond it writes fail with
    /// ENOSPC), `page=4k` to `64k` (the default), `mode=`.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid option, EIO if the device fails; else those of [`Kernel::mount`].
    pub fn mount_gpufs(
        self: &Arc<Self>,
        target: impl AsRef<Path>,
        memory: Arc<dyn FrameMemory>,
        options: &MountOptions,
    ) -> Result<FrameFiles> {
        let (file_system, files) = Ramfs::mount_gpufs(&self.cache, memory, options)?;
        self.mount(file_system, target, options)?;
        Ok(files)
    }

    /// Syncs the file system that `target` is on, and calls `work`. An ext4 with a journal, and a
    /// FAT, change nothing on their device meanwhile, and are marked clean: a copy of it needs no
    /// replay, and no repair but for files that were open without a name. Changes by other threads
    /// wait, so `work` must not wait for one. Other types go on. Linux: FIFREEZE and FITHAW of
    /// ioctl(2).
    ///
    /// # Errors
    ///
    /// Those of a path walk and of [`crate::Process::sync`]; `work` was not called then. Else those
    /// of `work`.
    pub fn freeze_while<T>(
        &self,
        target: impl AsRef<Path>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let target = target.as_ref();
        let found = self.find(target).map_err(|error| place(error, target))?;
        let (mut work, mut done) = (Some(work), None);
        found.mount.file_system().freeze_while(&mut || {
            if let Some(work) = work.take() {
                done = Some(work()?);
            }
            Ok(())
        })?;
        done.ok_or_else(|| Errno::IO.into())
    }

    /// Syncs and detaches the file system mounted at `target`. Linux: umount(2).
    ///
    /// # Errors
    ///
    /// EBUSY while files below it are open, EINVAL if `target` is not a mount point; else what
    /// could not be written.
    pub fn unmount(&self, target: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref();
        tracing::info!(target = %target.display(), "unmounting");
        self.find(target)
            .and_then(|found| self.vfs.unmount(found))
            .map_err(|error| place(error, target))
    }

    /// Syncs every file system and marks its medium clean, as a machine does before the power goes.
    /// For a program that is about to end: caches are left to the host, which drops them faster
    /// than they can be taken apart.
    pub fn halt(self: Arc<Self>) -> Result<()> {
        tracing::debug!("syncing and marking clean every file system");
        let kernel = ManuallyDrop::new(self);
        kernel.owner.check()?;
        kernel.vfs.halt()
    }

    /// Returns the page cache that all file systems of this kernel share, for a file system of
    /// another crate: [`PageCache::writeback`] and [`crate::cache::Mapping::new`].
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Returns the counters of the page cache since the kernel was made.
    pub fn counters(&self) -> Counters {
        self.cache.counters()
    }

    /// Mounts any `file_system` over the directory `target`: one of another crate, for example.
    /// Linux: mount(2).
    ///
    /// # Errors
    ///
    /// Those of a path walk, ENOTDIR if `target` is not a directory.
    pub fn mount(
        &self,
        file_system: Arc<dyn FileSystem>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        let target = target.as_ref();
        let mounted = self
            .find(target)
            .and_then(|found| self.vfs.mount(file_system, found, options.clone()));
        mounted.map_err(|error| place(error, target))
    }

    /// Gives names of the file system mounted at `target` to the host, at most once: a path to one
    /// fails with [`Detail::Elsewhere`](crate::Detail::Elsewhere). Later mounts need other targets.
    ///
    /// # Errors
    ///
    /// Those of a path walk, EBUSY if names were given before.
    pub fn set_host_names(&self, target: impl AsRef<Path>, names: HostNames) -> Result<()> {
        let target = target.as_ref();
        self.find(target)
            .and_then(|found| found.mount.set_host_names(names))
            .map_err(|error| place(error, target))
    }

    /// Returns the mount options of images and host directories, without their values: for lists,
    /// and to suggest the nearest one.
    pub fn mount_words() -> impl Iterator<Item = &'static str> {
        let words = MountOptions::WORDS.into_iter().chain(ext4::words_known());
        #[cfg(feature = "hostfs")]
        let words = words.chain(hostfs::HOSTFS_WORDS);
        words
    }

    fn find(&self, path: &Path) -> Result<Location> {
        self.owner.check()?;
        let credentials = Credentials::root();
        let context = Context {
            vfs: &self.vfs,
            credentials: &credentials,
            umask: 0,
        };
        context.resolve(
            &self.vfs.root(),
            path.as_os_str().as_bytes(),
            LastLink::Follow,
        )
    }

    pub(crate) fn vfs(&self) -> &Vfs {
        &self.vfs
    }

    /// Returns the process that created the kernel.
    #[inline]
    pub(crate) fn owner(&self) -> OwnerProcess {
        self.owner
    }

    pub(crate) fn now(&self) -> Timespec {
        self.clock.now()
    }
}

impl Drop for Kernel {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        // No process is left, so no file is in use, and no caller can receive an error.
        let _: Result<()> = self.vfs.unmount_all();
        // SAFETY: this is the kernel's drop, and no other code drops the field or uses it later.
        unsafe { ManuallyDrop::drop(&mut self.vfs) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.cache) };
    }
}

fn place(error: Error, path: &Path) -> Error {
    error.at(path.display().to_string())
}
