//! One mount: made, served, taken away.

use crate::adapter::Adapter;
use crate::keeping::{Keeping, Pages, Sharing};
use crate::options::{Options, Passthrough};
use crate::push::Device;
use crate::transport::Transport;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Kernel, Result};
use rustix::mount::UnmountFlags;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A mounted file system that is ready to be served.
///
/// What was written is in the page cache and the journal of [`Kernel`]: sync and unmount it once the session is over.
pub struct Session {
    session: fuser::Session<Transport>,
    adapter: Arc<Adapter>,
    /// By which the kernel is told what others change, if that can be told.
    device: Option<Device>,
    unmounter: Unmounter,
}

/// Takes a mount away, from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    /// Absolute, so that the working directory does not matter.
    target: PathBuf,
}

impl Session {
    /// Mounts what is `/` in `kernel`, where it is mounted as `inside` says, on the directory `target`.
    pub fn mount(
        kernel: Arc<Kernel>,
        inside: &MountOptions,
        target: &Path,
        options: &Options,
    ) -> Result<Self> {
        let place = |error: Error| error.at(target.display().to_string());
        let absolute = find(target).map_err(place)?;
        let adapter = Arc::new(Adapter::new(kernel, options.judge));
        let keeping = keeping(&adapter, options).map_err(place)?;
        let transport = Transport::new(adapter.clone(), options.judge, keeping);
        let session = fuser::Session::new(transport, &absolute, &options.config(inside));
        let session = session.map_err(|error| place(explain(error)))?;
        let unmounter = Unmounter { target: absolute };
        let device = match keeping.is_shared() {
            true => Some(session.as_fd().try_clone_to_owned().map(Device::new)),
            false => None,
        };
        let device = device.transpose().map_err(|error| place(Error::io("/dev/fuse", error)))?;
        Ok(Self { session, adapter, device, unmounter })
    }

    /// What ends [`Session::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Answers the kernel until the file system is unmounted, by whomever, and nobody uses it any more. When it
    /// returns, no file of it is open and every handle is let go of.
    pub fn serve(self) -> Result<()> {
        let Self { session, adapter, device, unmounter } = self;
        let pushing = device.map(|device| {
            let adapter = adapter.clone();
            std::thread::Builder::new().name("folio-push".to_owned()).spawn(move || adapter.push(&device))
        });
        let served = session.run();
        adapter.end_push();
        let served = served.and_then(|()| match pushing {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            // Not after a failure: a notice that waits for a request nobody answers any more would wait for ever.
            Some(Ok(thread)) => thread.join().map_err(|_| io::Error::other("the pushing thread panicked")),
        });
        served.map_err(|error| Error::io("FUSE session", error).at(unmounter.target.display().to_string()))
    }
}

/// What the kernel may keep of what is mounted.
fn keeping(adapter: &Adapter, options: &Options) -> Result<Keeping> {
    let sharing = match adapter.is_shared() {
        false => Sharing::Alone,
        true if adapter.listen() => Sharing::Told,
        true => Sharing::Asked,
    };
    let refuse = |what| Err(Error::new(Errno::INVAL, what));
    if sharing != Sharing::Alone && options.pages == Pages::WrittenBack {
        return refuse("writeback: the kernel would not see what others write to the directory");
    }
    let keeping = Keeping { sharing, pages: options.pages, passthrough: options.passthrough };
    if options.passthrough == Passthrough::Always && keeping.passed_through().is_none() {
        return refuse("passthrough=on: only files of a directory of the host, and not with cache=none");
    }
    Ok(keeping)
}

/// Where a mount on `target` will be. A FUSE mount there whose server has died is taken away first: those who use it
/// get ENOTCONN, and will go on getting it.
fn find(target: &Path) -> Result<PathBuf> {
    let cannot = |error| Error::io("cannot mount here", error);
    let is_dead = |error: &io::Error| error.kind() == io::ErrorKind::NotConnected;
    let absolute = match target.canonicalize() {
        Err(error) if is_dead(&error) => at_parent(target).ok_or(error),
        absolute => absolute,
    };
    let absolute = absolute.map_err(cannot)?;
    let metadata = match absolute.metadata() {
        Err(error) if is_dead(&error) => {
            Unmounter { target: absolute.clone() }.unmount(true)?;
            absolute.metadata()
        }
        metadata => metadata,
    };
    match metadata.map_err(cannot)?.is_dir() {
        true => Ok(absolute),
        false => Err(Error::new(Errno::NOTDIR, "not a directory, so nothing can be mounted on it")),
    }
}

/// The absolute path of what cannot be looked at itself.
fn at_parent(target: &Path) -> Option<PathBuf> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(target.file_name()?))
}

impl Unmounter {
    /// For what is mounted on `target`, an absolute path.
    pub fn new(target: PathBuf) -> Self {
        Self { target }
    }

    /// Unmounts; EBUSY while files are open or directories in use. `lazily` it is gone from the tree at once, and the
    /// session ends when the last user is gone.
    pub fn unmount(&self, lazily: bool) -> Result<()> {
        // Never through a link that somebody has put in the mountpoint's place.
        let flags = UnmountFlags::NOFOLLOW;
        let flags = if lazily { flags | UnmountFlags::DETACH } else { flags };
        match rustix::mount::unmount(&self.target, flags) {
            // A user's mount is the setuid helper's to take away.
            Err(Errno::PERM) => self.unmount_by_helper(lazily),
            unmounted => unmounted.map_err(|errno| self.place(errno.into())),
        }
    }

    fn unmount_by_helper(&self, lazily: bool) -> Result<()> {
        let mut command = Command::new("fusermount3");
        command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(&self.target).stdin(Stdio::null());
        let output = command.output().map_err(|error| self.place(Error::io("fusermount3", error)))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let errno = if said.contains("busy") { Errno::BUSY } else { Errno::PERM };
        Err(self.place(Error::new(errno, said)))
    }

    fn place(&self, error: Error) -> Error {
        error.at(self.target.display().to_string())
    }
}

/// Why a mount failed, and what helps.
fn explain(error: io::Error) -> Error {
    let hint = match error.kind() {
        // Of the device, of the mountpoint, or of the helper.
        io::ErrorKind::NotFound if !Path::new("/dev/fuse").exists() => {
            "cannot mount: no /dev/fuse; load the module fuse (modprobe fuse), or give the container the device"
        }
        io::ErrorKind::NotFound => {
            "cannot mount: users other than root need the program fusermount3 (package fuse3)"
        }
        io::ErrorKind::PermissionDenied if error.to_string().contains("user_allow_other") => {
            "cannot mount: allow_other needs the line user_allow_other in /etc/fuse.conf"
        }
        _ => "cannot mount",
    };
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::PERM);
    let text = match error.to_string() {
        text if hint == "cannot mount" => format!("{hint}: {}", text.trim()),
        _ => hint.to_owned(),
    };
    Error::new(errno, text)
}
