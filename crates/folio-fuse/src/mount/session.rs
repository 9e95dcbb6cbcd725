//! One mount session: mounts, serves, unmounts.

use super::invalidator::DeviceInvalidator;
use super::mountpoint::{Mountpoint, Unmounter};
use super::options::{AllowedUsers, SessionOptions};
use super::transport::DeviceTransport;
use crate::client_options::ClientOptions;
use crate::local::{Backings, CachePolicy, Invalidation, LocalClient, PageCaching, Passthrough};
use crate::server::Server;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Kernel, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mounted file system, ready to be served.
///
/// Written data is in the page cache and the journal of [`Kernel`]: sync and unmount it after the
/// session.
pub struct Session {
    server: Arc<Server>,
    transport: DeviceTransport,
    /// Sends external changes to the kernel, if the file system is shared.
    invalidator: Option<DeviceInvalidator>,
    threads: usize,
    // Last: dropped after the server.
    mountpoint: Mountpoint,
}

impl Session {
    /// Mounts the root of `kernel`, which is mounted with the options `inside`, on the directory
    /// `target`.
    ///
    /// # Errors
    /// EINVAL for options that the file system does not support, EPERM for those that need root,
    /// else those of mount(2).
    pub fn mount(
        kernel: Arc<Kernel>,
        inside: &MountOptions,
        target: &Path,
        options: &SessionOptions,
    ) -> Result<Self> {
        let at_target = |error: Error| error.at(target.display().to_string());
        let server = Server::new(kernel, options.permissions, ClientOptions::exclusive());
        let policy = cache_policy(&server, options).map_err(at_target)?;
        let attributes = options.mount_attributes(inside);
        let mountpoint = Mountpoint::new(target, &attributes, options.checks_permissions())?;
        let device = Arc::clone(mountpoint.device());
        let user = rustix::process::geteuid();
        let len_min = policy.passthrough_len_min().filter(|_| user.is_root());
        let backings = len_min.map(|len_min| Backings::new(Arc::clone(&device), len_min));
        let only_user = (options.allowed == AllowedUsers::OwnerAndRoot).then_some(user.as_raw());
        let local = LocalClient::new(policy, backings, only_user);
        let server = Arc::new(server.with_local_client(policy.client_options(), local));
        let invalidator = if policy.is_shared() {
            let device = device.try_clone();
            let device = device.map_err(|error| at_target(Error::io("/dev/fuse", error)))?;
            Some(DeviceInvalidator::new(device))
        } else {
            None
        };
        let transport = DeviceTransport::new(Arc::clone(&server), device, invalidator.is_some());
        transport
            .begin()
            .map_err(|error| at_target(Error::io("cannot mount", error)))?;
        Ok(Self {
            server,
            transport,
            invalidator,
            threads: options.threads,
            mountpoint,
        })
    }

    /// Returns the handle that ends [`Session::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.mountpoint.unmounter().clone()
    }

    /// Serves the kernel until the file system is unmounted and unused. On return all its files are
    /// closed and all handles are dropped.
    ///
    /// # Errors
    /// Those of /dev/fuse, and of starting the threads.
    pub fn serve(self) -> Result<()> {
        let Self {
            server,
            transport,
            invalidator,
            threads,
            mountpoint,
        } = self;
        let push_thread = invalidator.map(|invalidator| {
            let server = Arc::clone(&server);
            std::thread::Builder::new()
                .name("folio-push".to_owned())
                .spawn(move || server.push_changes(&invalidator))
        });
        let served = transport.run(threads);
        server.stop_pushing();
        let served = served.and_then(|()| match push_thread {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            // Not after a failure: a notice that waits for a request which no thread serves would
            // wait for ever.
            Some(Ok(thread)) => thread
                .join()
                .map_err(|_| io::Error::other("the push thread panicked")),
        });
        served.map_err(|error| Error::io("FUSE session", error).at(mountpoint.unmounter().target()))
    }
}

/// Returns what the kernel may keep of the mounted file system.
fn cache_policy(server: &Server, options: &SessionOptions) -> Result<CachePolicy> {
    let invalidation = if !server.is_shared() {
        Invalidation::None
    } else if server.watch_changes() {
        Invalidation::Push
    } else {
        Invalidation::Ttl
    };
    let policy = CachePolicy {
        invalidation,
        page_caching: options.page_caching,
        passthrough: options.passthrough,
    };
    let invalid = |text| Err(Error::new(Errno::INVAL, text));
    if policy.is_shared() && options.page_caching == PageCaching::Writeback {
        return invalid(
            "option writeback: not for a directory of the host, whose external changes the kernel would not see",
        );
    }
    if options.passthrough == Passthrough::Always {
        if policy.passthrough_len_min().is_none() {
            return invalid(
                "option passthrough=on: needs a directory of the host, and a cache other than none",
            );
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(Errno::PERM, "option passthrough=on: needs root"));
        }
    }
    Ok(policy)
}
