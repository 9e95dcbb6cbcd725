//! An opened image: the device, and a kernel of its own in which its file system is `/`.

use crate::exit::{Exit, Failure, Outcome, explain};
use crate::image_path::{ImagePath, has_pattern};
use crate::nearest::{nearest_file, nearest_path};
use crate::objects::{check_built, is_url};
use crate::session::{Session, clock, fixed_time};
use crate::volumes;
use folio::base::{Errno, Error, ErrorKind};
use folio::block::{self, Device, LiveImage, MemoryDevice, OpenOptions};
use folio::cache::Counters;
use folio::syscall::{AtFlags, Credentials, OpenFlags};
use folio::vfs::{AccessTime, Attributes, FileType, MountOptions};
use folio::{Detail, Kernel, KernelOptions, Process};
use folio_erofs::NewErofs;
use folio_tree::ContentSink;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How a command uses an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
    /// Fill a new image. If that fails the image is useless, so nothing goes through a journal.
    Fill,
}

/// A file system in an image, mounted as `/` in a kernel of its own, so that links inside cannot
/// lead anywhere else.
pub(crate) struct Image {
    /// The image as the user named it.
    pub(crate) name: String,
    /// The image file and its partition.
    place: ImagePath,
    /// Created by this command.
    is_new: bool,
    disk: Arc<dyn Device>,
    /// A new EROFS: it has the contents of files, and gets their names at close.
    new_erofs: Option<Arc<NewErofs>>,
    /// The names of a new EROFS are in it, too.
    is_direct: AtomicBool,
    process: Process,
    kernel: Arc<Kernel>,
    /// The directory that the file system is mounted on.
    target: PathBuf,
    /// The counters of the page cache are added here at close.
    counters: Arc<Mutex<Counters>>,
}

/// Opens the device of an image.
pub(crate) fn open_device(path: &Path, access: Access) -> Outcome<Arc<dyn Device>> {
    let options = options_of(path, access)?;
    block::open(path, &options).map_err(|error| image_failure(error, path))
}

/// Opens an image, for orders to a command that keeps it open.
pub(crate) fn open_live(path: &Path, access: Access) -> Outcome<Arc<LiveImage>> {
    let options = options_of(path, access)?;
    let image = LiveImage::open(path, &options).map_err(|error| image_failure(error, path))?;
    Ok(Arc::new(image))
}

/// Returns how an image is opened, unless the path cannot be one.
fn options_of(path: &Path, access: Access) -> Outcome<OpenOptions> {
    if is_url(path.as_os_str()) {
        check_built(path).map_err(Failure::usage)?;
    }
    if path.is_dir() {
        return Err(Failure::exiting(
            Exit::Image,
            format!(
                "{}: is a directory of the host, not an image",
                path.display()
            ),
        ));
    }
    Ok(OpenOptions {
        read_only: access == Access::Read,
        ..OpenOptions::default()
    })
}

/// Opens the device of an image for reading; with `-U` also one that another program may write.
pub(crate) fn open_to_read(session: &Session, path: &Path) -> Outcome<Arc<dyn Device>> {
    if !session.shares_images() {
        let hint = "; -U reads it nevertheless, and may see changes halfway";
        let opened = open_device(path, Access::Read);
        return opened.map_err(|failure| failure.hint(&Detail::ImageInUse, hint));
    }
    let options = OpenOptions {
        read_only: true,
        is_shared: true,
        ..OpenOptions::default()
    };
    block::open(path, &options).map_err(|error| image_failure(error, path))
}

/// Returns the names in a directory, sorted, without `.` and `..`.
pub(crate) fn sorted_names(process: &Process, path: &Path) -> folio::Result<Vec<Vec<u8>>> {
    let fd = process.open(path, OpenFlags::DIRECTORY, 0)?;
    let listed = process.readdir(fd);
    process.close(fd)?;
    let listed = listed.map_err(|error| error.within(path.display().to_string()))?;
    let mut names: Vec<_> = listed.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether both paths lead to the same file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    real(a) == real(b)
}

/// Returns the part of a disk that holds the file system.
fn select(place: &ImagePath, disk: &Arc<dyn Device>) -> Outcome<Arc<dyn Device>> {
    let selected = place.select(disk.clone());
    selected.map_err(|error| mount_failure(error.at(place.image_name())))
}

/// Returns the failure to open an image, with the nearest existing file name if it is missing.
fn image_failure(error: Error, path: &Path) -> Failure {
    let hint = if error.errno() == Errno::NOENT && !is_url(path.as_os_str()) {
        nearest_file(path)
    } else {
        None
    };
    let mut failure = Failure::image(error.within(path.display().to_string()));
    if let Some(hint) = hint {
        failure.message.push_str(&format!("; did you mean {hint}?"));
    }
    failure
}

impl Image {
    /// Opens the image of `place` and mounts its file system.
    pub(crate) fn open(session: &Session, place: &ImagePath, access: Access) -> Outcome<Self> {
        let device = match access {
            Access::Read => open_to_read(session, &place.image),
            _ => open_device(&place.image, access),
        };
        let device = device.map_err(|failure| below_a_file(&place.image, failure))?;
        Self::mount(session, place, device, access)
    }

    /// Mounts the file system of `place` for reading: on the open disk of this image if that is the
    /// same file, as its lock refuses a second open.
    pub(crate) fn open_beside(&self, session: &Session, place: &ImagePath) -> Outcome<Self> {
        if is_same_file(&self.place.image, &place.image) {
            Self::mount(session, place, self.disk.clone(), Access::Read)
        } else {
            Self::open(session, place, Access::Read)
        }
    }

    /// Whether `place` is in this file system, perhaps by another name of its partition.
    pub(crate) fn holds(&self, place: &ImagePath) -> bool {
        let number = |place: &ImagePath| place.selected(&self.disk).ok();
        is_same_file(&self.place.image, &place.image)
            && (self.place.partition == place.partition
                || number(place).is_some_and(|found| number(&self.place) == Some(found)))
    }

    /// Mounts the file system on an open disk.
    pub(crate) fn mount(
        session: &Session,
        place: &ImagePath,
        disk: Arc<dyn Device>,
        access: Access,
    ) -> Outcome<Self> {
        let window = select(place, &disk)?;
        Self::mount_window(session, place, disk, window, access)
    }

    /// Mounts the file system on the window of a disk that holds it.
    pub(crate) fn mount_window(
        session: &Session,
        place: &ImagePath,
        disk: Arc<dyn Device>,
        window: Arc<dyn Device>,
        access: Access,
    ) -> Outcome<Self> {
        let mut options = MountOptions {
            read_only: access == Access::Read,
            // Inspection by this command does not count as access by the image's own programs.
            access_time: AccessTime::Never,
            clock: clock(),
            file_system: if access == Access::Fill {
                "noload".to_owned()
            } else {
                String::new()
            },
            ..MountOptions::default()
        };
        let words = session.options.join(",");
        options
            .add(&words)
            .map_err(|error| Failure::usage(format!("-o {}", explain(&error))))?;
        // `-o rw` does not make a read-only command writable.
        options.read_only |= access == Access::Read;
        let root = Path::new("/");
        let mut image = Self::mount_selected(session, place, disk, window, &options, root)?;
        image.is_new = access == Access::Fill;
        Ok(image)
    }

    /// Mounts and unmounts the file system, whatever `-o` specifies, so that its journal is empty.
    pub(crate) fn replay(session: &Session, place: &ImagePath, device: Arc<dyn Device>) -> Outcome {
        let options = MountOptions {
            access_time: AccessTime::Never,
            clock: clock(),
            ..MountOptions::default()
        };
        Self::mount_with(session, place, device, &options)?.close()
    }

    /// Mounts the file system on an open disk with these options.
    pub(crate) fn mount_with(
        session: &Session,
        place: &ImagePath,
        disk: Arc<dyn Device>,
        options: &MountOptions,
    ) -> Outcome<Self> {
        Self::mount_on(session, place, disk, options, Path::new("/"))
    }

    /// Mounts the file system on an open disk, over the new directory `target` of the kernel.
    pub(crate) fn mount_on(
        session: &Session,
        place: &ImagePath,
        disk: Arc<dyn Device>,
        options: &MountOptions,
        target: &Path,
    ) -> Outcome<Self> {
        let window = select(place, &disk)?;
        Self::mount_selected(session, place, disk, window, options, target)
    }

    fn mount_selected(
        session: &Session,
        place: &ImagePath,
        disk: Arc<dyn Device>,
        device: Arc<dyn Device>,
        options: &MountOptions,
        target: &Path,
    ) -> Outcome<Self> {
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: session.cache_bytes,
            // Background writeback would make the file layout depend on timing.
            background_writeback: !options.read_only && fixed_time().is_none(),
            clock: clock(),
            ..KernelOptions::default()
        });
        let name = place.image_name();
        let _span = tracing::info_span!("image", "{name}").entered();
        tracing::info!(
            disk_bytes = disk.len_bytes(),
            file_system_bytes = device.len_bytes(),
            "device opened"
        );
        let mounted = create_folders(&kernel, target)
            .and_then(|()| kernel.mount_image(device, target, options));
        mounted.map_err(|error| mount_failure(error.at(name.clone())))?;
        let process = kernel.process(Credentials::root());
        Ok(Self {
            name,
            place: place.clone(),
            is_new: false,
            disk,
            new_erofs: None,
            is_direct: AtomicBool::new(false),
            process,
            kernel,
            target: target.to_owned(),
            counters: session.counters.clone(),
        })
    }

    /// Makes a new EROFS look like a mounted image: its names are in a ramfs until the image is
    /// closed, and contents go to [`Image::contents`].
    pub(crate) fn stage(session: &Session, place: &ImagePath, new: Arc<NewErofs>) -> Outcome<Self> {
        session.refuse_options()?;
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: session.cache_bytes,
            background_writeback: false,
            clock: clock(),
            ..KernelOptions::default()
        });
        let options = MountOptions {
            access_time: AccessTime::Never,
            clock: clock(),
            file_system: "mode=755".to_owned(),
            ..MountOptions::default()
        };
        kernel.mount_ramfs("/", &options)?;
        Ok(Self {
            name: place.image_name(),
            place: place.clone(),
            is_new: true,
            disk: Arc::new(MemoryDevice::new(0)),
            new_erofs: Some(new),
            is_direct: AtomicBool::new(false),
            process: kernel.process(Credentials::root()),
            kernel,
            target: PathBuf::from("/"),
            counters: session.counters.clone(),
        })
    }

    /// Returns where the contents of files go, if not into the mounted file system.
    pub(crate) fn contents(&self) -> Option<&dyn ContentSink> {
        self.new_erofs.as_deref().map(|new| new as &dyn ContentSink)
    }

    /// Returns a new EROFS for the only copy into this image, whose names need no ramfs.
    pub(crate) fn direct_target(&self) -> Option<&NewErofs> {
        let new = self.new_erofs.as_deref()?;
        self.is_direct.store(true, Ordering::Relaxed);
        Some(new)
    }

    /// Returns the kernel in which the image is mounted.
    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// Returns the process that makes system calls in the image, as root.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Whether this command created the file system.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Formats a path for messages.
    pub(crate) fn at(&self, path: &Path) -> String {
        format!("{}:{}", self.name, path.display())
    }

    /// Returns what to do if the file system in the image is full, for the end of a message.
    pub(crate) fn full_hint(&self, error: &Error) -> String {
        let is_full = error.errno() == Errno::NOSPC && error.kind() == ErrorKind::Errno;
        // A new EROFS is as large as the host's disk allows.
        if !is_full || self.new_erofs.is_some() {
            return String::new();
        }
        let name = &self.name;
        if self.is_new {
            let larger = if self.place.partition.is_some() {
                "partition (--size, or size in the specification)"
            } else {
                "--create SIZE"
            };
            return format!("; the file system in {name} is full: repeat with a larger {larger}");
        }
        format!(
            "; the file system in {name} is full: see folio df {name}, and enlarge it with folio \
             resize {name} SIZE"
        )
    }

    /// Turns an error that names a path into a failure that names the image too, with the nearest
    /// existing path if the path is missing.
    pub(crate) fn name(&self, error: Error) -> Failure {
        // A path follows the name of its image without a space.
        let space = if error.place().is_some() { "" } else { " " };
        let mut text = format!("{}:{space}{}", self.name, explain(&error));
        text.push_str(&self.full_hint(&error));
        if let (Errno::NOENT, Some(path)) = (error.errno(), error.place())
            && let Some(meant) = self.meant(Path::new(path))
        {
            text.push_str(&format!("; did you mean {meant}?"));
        }
        Failure::new(text)
    }

    /// Returns the existing path that is nearest to a missing one.
    pub(crate) fn meant(&self, path: &Path) -> Option<String> {
        let meant = nearest_path(path, |above| self.names(above).ok())?;
        Some(self.at(Path::new(&meant)))
    }

    /// Returns the attributes of a file: lstat(2), or stat(2) with `follow`.
    pub(crate) fn stat(&self, path: &Path, follow: bool) -> folio::Result<Attributes> {
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        self.process.fstatat(folio::syscall::AT_FDCWD, path, flags)
    }

    /// Returns the target of a symbolic link, if it can be read.
    pub(crate) fn link_target(&self, path: &Path, found: &Attributes) -> Option<Vec<u8>> {
        (found.file_type == FileType::Symlink)
            .then(|| self.process.readlink(path).ok())
            .flatten()
    }

    /// Returns the files that a path with `*`, `?` or `[` matches, sorted. A path that exists as it
    /// is written, or that matches nothing, is returned unchanged. As in a shell, names that start
    /// with a dot match only patterns that do.
    pub(crate) fn expand(&self, path: &Path) -> Vec<PathBuf> {
        let whole = path.as_os_str().as_bytes();
        if !has_pattern(whole) || self.stat(path, false).is_ok() {
            return vec![path.to_owned()];
        }
        let mut found = vec![PathBuf::from("/")];
        for part in whole
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
        {
            let glob = std::str::from_utf8(part)
                .ok()
                .filter(|_| has_pattern(part))
                .and_then(|part| globset::Glob::new(part).ok())
                .map(|glob| glob.compile_matcher());
            let Some(glob) = glob else {
                found
                    .iter_mut()
                    .for_each(|path| path.push(OsStr::from_bytes(part)));
                found.retain(|path| self.stat(path, false).is_ok());
                continue;
            };
            let is_match = |name: &Vec<u8>| {
                (name[0] != b'.' || part[0] == b'.') && glob.is_match(OsStr::from_bytes(name))
            };
            found = found
                .iter()
                .flat_map(|above| {
                    let mut names = self.names(above).unwrap_or_default();
                    names.retain(is_match);
                    names
                        .into_iter()
                        .map(|name| above.join(OsStr::from_bytes(&name)))
                })
                .collect();
        }
        if found.is_empty() {
            found.push(path.to_owned());
        }
        found
    }

    /// Returns the names in a directory, sorted, without `.` and `..`.
    pub(crate) fn names(&self, path: &Path) -> folio::Result<Vec<Vec<u8>>> {
        sorted_names(&self.process, path)
    }

    /// Closes the image as [`Image::close`] does, and releases its memory and its lock, for a
    /// command that goes on.
    pub(crate) fn release(self) -> Outcome {
        let target = self.target.clone();
        self.end(|kernel| kernel.unmount(target))?;
        volumes::close_unused()
    }

    /// Syncs and unmounts, so that all data is in the image.
    pub(crate) fn close(self) -> Outcome {
        self.end(Kernel::halt)
    }

    fn end(self, unmount: impl FnOnce(Arc<Kernel>) -> folio::Result<()>) -> Outcome {
        let Self {
            name,
            process,
            kernel,
            counters,
            new_erofs,
            is_direct,
            ..
        } = self;
        let finished = match new_erofs {
            Some(new) if is_direct.into_inner() => new.finish(),
            Some(new) => new.finish_staged(&process),
            None => Ok(()),
        };
        drop(process);
        let _span = tracing::info_span!("image", "{name}").entered();
        let before = kernel.counters();
        let unmounted = unmount(kernel.clone());
        let after = Counters {
            // Files that an unmount has dropped no longer count.
            hits: before.hits,
            file_pages: before.file_pages,
            ..kernel.counters()
        };
        log_counters(&after);
        *counters.lock().unwrap_or_else(PoisonError::into_inner) += after;
        let ended = finished.and(unmounted);
        ended.map_err(|error| Failure::new(format!("{name}: {}", explain(&error))))
    }
}

/// Creates a folder and those above it in a new kernel.
fn create_folders(kernel: &Arc<Kernel>, target: &Path) -> folio::Result<()> {
    let process = kernel.process(Credentials::root());
    let folders: Vec<_> = target.ancestors().collect();
    let mut below_root = folders.into_iter().rev().skip(1);
    below_root.try_for_each(|folder| process.mkdir(folder, 0o755))
}

/// Returns the failure of a mount: a usage error for a mount option, else an image that cannot be
/// used.
pub(crate) fn mount_failure(error: Error) -> Failure {
    let mut failure = Failure::image(error);
    match failure.detail() {
        Some(Detail::UnknownMountOption | Detail::InvalidMountOption) => {
            failure.exit = Exit::Usage;
        }
        Some(Detail::FeatureNotBuilt { .. }) => failure
            .message
            .push_str(": cargo install --path crates/folio-cli --features full"),
        _ => {}
    }
    failure
}

/// Logs the counters of the page cache for `-v`. `--stats` prints all of them.
pub(crate) fn log_counters(counters: &Counters) {
    let Counters {
        hits,
        misses,
        readahead_pages,
        written_pages,
        reclaimed_pages,
        ..
    } = *counters;
    tracing::info!(
        hits,
        misses,
        readahead_pages,
        written_pages,
        reclaimed_pages,
        "closed; page cache"
    );
}

/// Returns the failure to open `path`, which may be meant as a path in the image above it.
fn below_a_file(path: &Path, failure: Failure) -> Failure {
    let image = path.ancestors().skip(1).find(|above| above.is_file());
    let Some((image, inside)) =
        image.and_then(|image| Some((image, path.strip_prefix(image).ok()?)))
    else {
        return failure;
    };
    let (image, inside) = (image.display(), inside.display());
    let hint = format!("{image} is a file: write {image}:/{inside} for a path in it");
    Failure {
        message: format!("{}; {hint}", failure.message),
        ..failure
    }
}

/// Opens an image, runs `work` on it, and releases it whether or not `work` succeeded, so that the
/// command may open it again.
pub(crate) fn with_image<T>(
    session: &Session,
    place: &ImagePath,
    access: Access,
    work: impl FnOnce(&Image) -> Outcome<T>,
) -> Outcome<T> {
    let image = Image::open(session, place, access)?;
    let worked = work(&image);
    let closed = image.release();
    let worked = worked?;
    closed.map(|()| worked)
}
