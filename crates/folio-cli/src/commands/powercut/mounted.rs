//! A disk that is mounted for the commands of the user.

use folio::block::Device;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Fs, Image, Result};
use folio_fuse::{AllowedUsers, CallObserver, Session, SessionOptions, Unmounter};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Options without which the programs of an image could harm the host.
pub(super) const SAFE: &str = "nosuid,nodev";

/// Time after an unmount for programs that still use the mount to end.
const UNUSED_AFTER: Duration = Duration::from_secs(10);

/// How to mount.
#[derive(Clone)]
pub(super) struct How {
    /// The words of `-o` for the file system.
    pub(super) options: String,
    /// Size of the page cache in bytes.
    pub(super) cache_bytes: u64,
    /// Whether the kernel caches no bytes of files, and so splits no write at a page.
    pub(super) is_direct: bool,
    /// Sees the changes.
    pub(super) observer: Option<Arc<dyn CallObserver>>,
}

/// Detaches a mount when it is dropped. Its users keep it until they end.
struct DetachAtEnd(Unmounter);

impl Drop for DetachAtEnd {
    fn drop(&mut self) {
        // It fails if the user has unmounted it.
        let _ = self.0.unmount(true);
    }
}

/// A mounted disk.
pub(super) struct MountedDisk {
    fs: Fs,
    /// Detached also after a failure, before the folder is removed.
    unmounter: DetachAtEnd,
    /// Receives the result of the session.
    served: Receiver<Result<()>>,
}

impl MountedDisk {
    /// Mounts `device` on the directory `target`.
    ///
    /// # Errors
    /// Those of the file system, of its options, and of mount(2).
    pub(super) fn new(device: Arc<dyn Device>, target: &Path, how: &How) -> Result<Self> {
        let words = [SAFE, &how.options].join(",");
        let words = words.trim_end_matches(',');
        let image = Image::device(device).cache_bytes(how.cache_bytes);
        let fs = image.options(words).and_then(Image::mount);
        let fs = fs.map_err(|error| Error::io("mount", error))?;
        Self::serve(fs, words, target, how)
    }

    /// Mounts `fs`, which has been mounted with the options `words`, on the directory `target`.
    ///
    /// # Errors
    /// Those of the options, and of mount(2).
    pub(super) fn serve(fs: Fs, words: &str, target: &Path, how: &How) -> Result<Self> {
        let mut options = SessionOptions::new("powercut");
        if rustix::process::geteuid().is_root() {
            // The program may change its user.
            options.allowed = AllowedUsers::All;
        }
        // A check has nothing to make durable.
        options.sends_sync = how.observer.is_some();
        if how.is_direct {
            options.apply("cache=none")?;
        }
        let inside = MountOptions::parse(words)?;
        let session = Session::mount(fs.kernel().clone(), &inside, target, &options)?;
        if let Some(observer) = &how.observer {
            session.observe(observer.clone());
        }
        let unmounter = DetachAtEnd(session.unmounter());
        let thread = std::thread::Builder::new().name("folio-powercut".to_owned());
        let (sender, served) = channel();
        let spawned = thread.spawn(move || {
            // It fails if the disk was dropped without an unmount.
            let _ = sender.send(session.serve());
        });
        spawned.map_err(|error| Error::io("a thread", error))?;
        Ok(Self {
            fs,
            unmounter,
            served,
        })
    }

    /// Returns the file system.
    pub(super) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Unmounts; everything is then on the device.
    ///
    /// # Errors
    /// EBUSY if a program still uses the mount, else what could not be written.
    pub(super) fn close(self) -> Result<()> {
        // Processes that were killed may not have ended yet.
        drop(self.unmounter);
        match self.served.recv_timeout(UNUSED_AFTER) {
            Ok(served) => served?,
            Err(RecvTimeoutError::Timeout) => {
                let why =
                    "a program still uses the mount: end all programs before the command ends";
                return Err(Error::new(Errno::BUSY, why));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(Errno::IO, "the server of the mount panicked"));
            }
        }
        self.fs.close().map_err(|error| Error::io("unmount", error))
    }
}
