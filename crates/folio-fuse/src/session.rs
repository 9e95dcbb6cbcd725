//! One mount: made, served, taken away.

use crate::adapter::Adapter;
use crate::backing::Backings;
use crate::keeping::{CachePolicy, Invalidation, Pages};
use crate::mountpoint::{Mountpoint, Unmounter};
use crate::options::{AllowedUsers, Passthrough, SessionOptions};
use crate::push::Device;
use crate::transport::Transport;
use crate::wire::{Local, Server};
use folio::vfs::MountOptions;
use folio::{Errno, Error, Kernel, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mounted file system that is ready to be served.
///
/// What was written is in the page cache and the journal of [`Kernel`]: sync and unmount it once
/// the session is over.
pub struct Session {
    transport: Transport,
    /// By which the kernel is told what others change, if that can be told.
    device: Option<Device>,
    threads: usize,
    // Last: who is still answered is answered before.
    mounted: Mountpoint,
}

impl Session {
    /// Mounts what is `/` in `kernel`, where it is mounted as `inside` says, on the directory
    /// `target`.
    pub fn mount(
        kernel: Arc<Kernel>,
        inside: &MountOptions,
        target: &Path,
        options: &SessionOptions,
    ) -> Result<Self> {
        let place = |error: Error| error.at(target.display().to_string());
        let adapter = Arc::new(Adapter::new(kernel, options.judge));
        let keeping = keeping(&adapter, options).map_err(place)?;
        let mounted =
            Mountpoint::new(target, &options.words(inside), options.checks_permissions())?;
        let device = Arc::clone(mounted.device());
        let (user, is_root) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::geteuid().is_root(),
        );
        let backings = keeping.passed_through().filter(|_| is_root);
        let backings = backings.map(|len_min| Backings::new(Arc::clone(&device), len_min));
        let only_user = (options.allowed == AllowedUsers::OwnerAndRoot).then_some(user);
        let local = Local::new(keeping, backings, only_user);
        let server = Server::local(adapter, options.judge, keeping.options(), local);
        let pushed = match keeping.is_shared() {
            true => Some(device.try_clone().map(Device::new)),
            false => None,
        };
        let pushed = pushed
            .transpose()
            .map_err(|error| place(Error::io("/dev/fuse", error)))?;
        let transport = Transport::new(server, device, pushed.is_some());
        transport
            .begin()
            .map_err(|error| place(Error::io("cannot mount", error)))?;
        Ok(Self {
            transport,
            device: pushed,
            threads: options.threads,
            mounted,
        })
    }

    /// What ends [`Session::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.mounted.unmounter().clone()
    }

    /// Answers the kernel until the file system is unmounted, by whomever, and nobody uses it any
    /// more. When it returns, no file of it is open and every handle is let go of.
    pub fn serve(self) -> Result<()> {
        let Self {
            transport,
            device,
            threads,
            mounted,
        } = self;
        let adapter = transport.adapter();
        let pushing = device.map(|device| {
            let adapter = adapter.clone();
            std::thread::Builder::new()
                .name("folio-push".to_owned())
                .spawn(move || adapter.push_changes(&device))
        });
        let served = transport.run(threads);
        adapter.stop_pushing();
        let served = served.and_then(|()| match pushing {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            // Not after a failure: a notice that waits for a request nobody answers any more would
            // wait for ever.
            Some(Ok(thread)) => thread
                .join()
                .map_err(|_| io::Error::other("the pushing thread panicked")),
        });
        served.map_err(|error| Error::io("FUSE session", error).at(mounted.unmounter().target()))
    }
}

/// What the kernel may keep of what is mounted.
fn keeping(adapter: &Adapter, options: &SessionOptions) -> Result<CachePolicy> {
    let invalidation = match adapter.is_shared() {
        false => Invalidation::None,
        true if adapter.watch_changes() => Invalidation::Push,
        true => Invalidation::Ttl,
    };
    let refuse = |what| Err(Error::new(Errno::INVAL, what));
    if invalidation != Invalidation::None && options.pages == Pages::WrittenBack {
        return refuse("writeback: the kernel would not see what others write to the directory");
    }
    let keeping = CachePolicy {
        invalidation,
        pages: options.pages,
        passthrough: options.passthrough,
    };
    if options.passthrough == Passthrough::Always {
        if keeping.passed_through().is_none() {
            return refuse(
                "passthrough=on: only files of a directory of the host, and not with cache=none",
            );
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(Errno::PERM, "passthrough=on: needs root"));
        }
    }
    Ok(keeping)
}
