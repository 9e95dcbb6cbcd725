//! The source of a mount or share: an image, or a directory of the host, in a kernel of its own.

use crate::exit::{Failure, Outcome, explain};
use crate::image::{Access, Image, mount_failure, open_device, open_live, open_to_read};
use crate::image_path::ImagePath;
use crate::session::{Session, clock};
use folio::block::LiveImage;
use folio::cache::Counters;
use folio::vfs::{Change, ChangeListener, MountOptions};
use folio::{Kernel, KernelOptions};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// The source as the command line names it.
pub(crate) enum Source {
    /// An image, or one of its partitions.
    Image(ImagePath),
    /// A directory of the host.
    Directory(PathBuf),
}

/// A source mounted as `/` of a kernel.
pub(crate) enum Mounted {
    Image {
        image: Image,
        /// For orders.
        live: Option<Arc<LiveImage>>,
    },
    Directory {
        name: String,
        kernel: Arc<Kernel>,
        /// The counters of the page cache are added here at close.
        counters: Arc<Mutex<Counters>>,
    },
}

impl Source {
    /// Parses `IMAGE`, `IMAGE@N` or `DIRECTORY`.
    pub(crate) fn parse(word: &OsStr) -> Outcome<Self> {
        if Path::new(word).is_dir() {
            return Ok(Self::Directory(word.into()));
        }
        let place = ImagePath::parse(word)?;
        if place.path.as_os_str() != "/" {
            let text = format!(
                "{place}: an image is mounted as a whole: use {}",
                place.image_name()
            );
            return Err(Failure::usage(text));
        }
        Ok(Self::Image(place))
    }

    /// Returns the file or directory on the host, as an absolute path if possible.
    pub(crate) fn path(&self) -> PathBuf {
        let path = match self {
            Self::Image(place) => &place.image,
            Self::Directory(path) => path,
        };
        path.canonicalize().unwrap_or_else(|_| path.clone())
    }

    /// Mounts the source; with `has_orders` such that `folio ctl` can change an image.
    pub(crate) fn mount(
        &self,
        session: &Session,
        options: &MountOptions,
        has_orders: bool,
    ) -> Outcome<Mounted> {
        match self {
            Self::Image(place) => {
                let access = if options.read_only {
                    Access::Read
                } else {
                    Access::Write
                };
                let live = has_orders.then(|| open_live(&place.image, access));
                let live = live.transpose()?;
                let device = match &live {
                    Some(live) => live.clone(),
                    None if options.read_only => open_to_read(session, &place.image)?,
                    None => open_device(&place.image, access)?,
                };
                let image = Image::mount_with(session, place, device, options)?;
                Ok(Mounted::Image { image, live })
            }
            Self::Directory(path) => {
                let kernel = Kernel::new(KernelOptions {
                    cache_bytes: session.cache_bytes,
                    clock: clock(),
                    ..KernelOptions::default()
                });
                let name = path.display().to_string();
                kernel
                    .mount_hostfs(path, "/", options)
                    .map_err(|error| mount_failure(error.at(name.clone())))?;
                Ok(Mounted::Directory {
                    name,
                    kernel,
                    counters: session.counters.clone(),
                })
            }
        }
    }
}

impl Mounted {
    /// Returns the kernel in which the source is mounted.
    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        match self {
            Self::Image { image, .. } => image.kernel(),
            Self::Directory { kernel, .. } => kernel,
        }
    }

    /// Returns an image that orders can change.
    pub(crate) fn live(&self) -> Option<(&Image, &LiveImage)> {
        match self {
            Self::Image { image, live } => Some((image, live.as_deref()?)),
            Self::Directory { .. } => None,
        }
    }

    /// Prints all warnings of the file system, both earlier ones and those during `work`.
    pub(crate) fn with_warnings<T>(&self, session: &Session, work: impl FnOnce() -> T) -> T {
        let (sender, receiver) = mpsc::channel();
        let listener: Arc<dyn ChangeListener> = Arc::new(WarningSender(sender));
        // A file system without change notifications has no later warnings either.
        let _ = self.kernel().listen("/", Arc::downgrade(&listener));
        let mut printed = self.warn(session, 0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while receiver.recv().is_ok() {
                    printed = self.warn(session, printed);
                }
            });
            let done = work();
            drop(listener);
            done
        })
    }

    /// Prints all warnings so far except the first `printed`; returns the number of all.
    fn warn(&self, session: &Session, printed: usize) -> usize {
        let warnings = self.kernel().warnings("/").unwrap_or_default();
        for warning in warnings.iter().skip(printed) {
            session.note(format_args!("{self}: {warning}"));
        }
        warnings.len()
    }

    /// Syncs and unmounts, so that all data is on the host.
    pub(crate) fn close(self) -> Outcome {
        match self {
            Self::Image { image, .. } => image.close(),
            Self::Directory {
                name,
                kernel,
                counters,
            } => {
                let halted = kernel.clone().halt();
                crate::image::log_counters(&kernel.counters());
                *counters.lock().unwrap_or_else(PoisonError::into_inner) += kernel.counters();
                halted.map_err(|error| Failure::new(format!("{name}: {}", explain(&error))))
            }
        }
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image { image, .. } => &image.name,
            Self::Directory { name, .. } => name,
        })
    }
}

/// Wakes the thread that prints warnings.
struct WarningSender(mpsc::Sender<()>);

impl ChangeListener for WarningSender {
    fn changed(&self, _: Change<'_>) {}

    fn warned(&self) {
        // At the very end the receiver is dropped.
        let _ = self.0.send(());
    }
}
