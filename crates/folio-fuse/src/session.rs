//! One mount: made, served, taken away.

use crate::adapter::Adapter;
use crate::options::Options;
use crate::transport::Transport;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Kernel, Result};
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A mounted file system that is ready to be served.
///
/// What was written is in the page cache and the journal of [`Kernel`]: sync and unmount it once the session is over.
pub struct Session {
    session: fuser::Session<Transport>,
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
        let absolute = target.canonicalize().map_err(|error| place(Error::io("cannot mount here", error)))?;
        if !absolute.is_dir() {
            return Err(place(Error::new(Errno::NOTDIR, "not a directory, so nothing can be mounted on it")));
        }
        let adapter = Arc::new(Adapter::new(kernel, options.judge));
        let transport = Transport::new(adapter, options.judge);
        let session = fuser::Session::new(transport, &absolute, &options.config(inside));
        let session = session.map_err(|error| place(explain(error)))?;
        Ok(Self { session, unmounter: Unmounter { target: absolute } })
    }

    /// What ends [`Session::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Answers the kernel until the file system is unmounted, by whomever, and nobody uses it any more. When it
    /// returns, no file of it is open and every handle is let go of.
    pub fn serve(self) -> Result<()> {
        let place = self.unmounter.target.display().to_string();
        self.session.run().map_err(|error| Error::io("FUSE session", error).at(place))
    }
}

impl Unmounter {
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
