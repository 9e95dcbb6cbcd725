//! Mount sessions: mount, serve, unmount; and the server of a mount that another process has made.

use super::event_thread;
use super::invalidator::DeviceInvalidator;
use super::mountpoint::{Mountpoint, Unmounter};
use super::options::{AllowedUsers, Events, SessionOptions, Uring};
use super::sync_device::SyncDevice;
use super::transport::DeviceTransport;
use super::uring;
use super::writeback::WritebackThread;
use crate::changes::Invalidator;
use crate::client_options::ClientOptions;
use crate::local::{Backings, CachePolicy, Invalidation, LocalClient, PageCaching, Passthrough};
use crate::server::{CallObserver, RequestCounts, Server};
use folio::vfs::{AccessTime, MountOptions};
use folio::{Errno, Error, Kernel, Result};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mounted file system, ready to be served.
///
/// Written data is in the page cache and the journal of [`Kernel`]: sync and unmount it after the
/// session.
pub struct Session {
    device: DeviceSession,
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
        let mut server = Server::new(kernel, options.permissions, ClientOptions::exclusive());
        if options.events == Events::Always && may_raise_events(&server, options, inside) {
            server.raise_events();
        }
        let policy = cache_policy(&server, options, inside).map_err(at_target)?;
        if options.events == Events::Always
            && (server.event_calls().is_none() || policy.invalidation != Invalidation::Push)
        {
            let text = "option events=on: needs a directory of the host with change notifications, which may be written, without passthrough=on";
            return Err(at_target(Error::new(Errno::OPNOTSUPP, text)));
        }
        let attributes = options.mount_attributes(inside, delays_writes(policy, inside));
        let mountpoint = Mountpoint::new(target, &attributes, options.checks_permissions())?;
        let device = Arc::clone(mountpoint.device());
        let device = DeviceSession::begin(server, policy, device, options).map_err(at_target)?;
        Ok(Self { device, mountpoint })
    }

    /// Returns the handle that ends [`Session::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.mountpoint.unmounter().clone()
    }

    /// Returns the counters of the kernel's requests.
    pub fn request_counts(&self) -> Arc<RequestCounts> {
        self.device.request_counts()
    }

    /// Shows changes to `observer`, before [`Session::serve`].
    pub fn observe(&self, observer: Arc<dyn CallObserver>) {
        self.device.server.observe(observer);
    }

    /// Serves the kernel until the file system is unmounted and unused. On return all its files are
    /// closed and all handles are dropped.
    ///
    /// # Errors
    /// Those of /dev/fuse, and of starting the threads.
    pub fn serve(self) -> Result<()> {
        self.serve_confined(|| {})
    }

    /// As [`Session::serve`]. Calls `confine` once serving needs no further descriptor, ring or
    /// thread, so that the process can give up the right to open any.
    ///
    /// # Errors
    /// As [`Session::serve`].
    pub fn serve_confined(self, confine: impl FnOnce()) -> Result<()> {
        let Self {
            device,
            mut mountpoint,
        } = self;
        let unmounter = mountpoint.unmounter().clone();
        let served = device.serve_with(Some(unmounter), mountpoint.take_sync_device(), confine);
        served.map_err(|error| {
            let target = mountpoint.unmounter().target().display().to_string();
            error.at(target)
        })
    }
}

/// The server of a mount that another process has made, with its device.
///
/// Written data is in the page cache and the journal of [`Kernel`]: sync and unmount it after the
/// session.
pub struct DeviceSession {
    server: Arc<Server>,
    transport: DeviceTransport,
    /// Sends external changes to the kernel, if the file system is shared, and asks it to forget
    /// nodes.
    invalidator: DeviceInvalidator,
    is_shared: bool,
    /// Whether the kernel delays writes.
    writes_back: bool,
    threads: usize,
}

impl DeviceSession {
    /// Begins to serve the root of `kernel`, which is mounted with the options `inside`. `device`
    /// is that of a [`DetachedMount`](super::DetachedMount).
    ///
    /// # Errors
    /// EINVAL for options that the file system does not support, EPERM for those that need root,
    /// ENOTCONN if the kernel has removed the mount.
    pub fn new(
        kernel: Arc<Kernel>,
        inside: &MountOptions,
        device: OwnedFd,
        options: &SessionOptions,
    ) -> Result<Self> {
        let server = Server::new(kernel, options.permissions, ClientOptions::exclusive());
        let policy = cache_policy(&server, options, inside)?;
        Self::begin(server, policy, Arc::new(device), options)
    }

    /// Answers the first request of the kernel behind `device`.
    fn begin(
        server: Server,
        policy: CachePolicy,
        device: Arc<OwnedFd>,
        options: &SessionOptions,
    ) -> Result<Self> {
        let user = rustix::process::geteuid();
        let len_min = policy.passthrough_len_min().filter(|_| user.is_root());
        let backings = len_min.map(|len_min| Backings::new(Arc::clone(&device), len_min));
        let only_user = (options.allowed == AllowedUsers::OwnerAndRoot).then_some(user.as_raw());
        let over_uring = may_use_uring(options.uring)?;
        let given = options.given.clone();
        let local = LocalClient::new(policy, backings, only_user, over_uring, given);
        let client = ClientOptions {
            hides_owners: options.hides_owners,
            ..policy.client_options()
        };
        let server = Arc::new(server.with_local_client(client, local));
        let cloned = device.try_clone();
        let cloned = cloned.map_err(|error| Error::io("/dev/fuse", error))?;
        let invalidator = DeviceInvalidator::new(cloned);
        let transport = DeviceTransport::new(Arc::clone(&server), device, policy.is_shared());
        transport
            .begin()
            .map_err(|error| Error::io("cannot mount", error))?;
        if options.uring == Uring::Always && !server.is_over_uring() {
            let text = format!(
                "option io_uring=on: the kernel does not offer it (Linux 6.14; echo Y > {})",
                Uring::PARAMETER
            );
            return Err(Error::new(Errno::OPNOTSUPP, text));
        }
        Ok(Self {
            server,
            transport,
            invalidator,
            is_shared: policy.is_shared(),
            writes_back: policy.page_caching == PageCaching::Writeback,
            threads: options.threads,
        })
    }

    /// Returns the counters of the kernel's requests.
    pub fn request_counts(&self) -> Arc<RequestCounts> {
        self.server.request_counts()
    }

    /// Serves the kernel until it has removed the mount. On return all files are closed and all
    /// handles are dropped.
    ///
    /// # Errors
    /// Those of /dev/fuse, and of starting the threads.
    pub fn serve(self) -> Result<()> {
        self.serve_with(None, None, || {})
    }

    /// `unmounter` is that of the mount, for events.
    fn serve_with(
        self,
        unmounter: Option<Unmounter>,
        sync_device: Option<SyncDevice>,
        started: impl FnOnce(),
    ) -> Result<()> {
        let Self {
            server,
            transport,
            invalidator,
            is_shared,
            writes_back,
            threads,
        } = self;
        // The kernel keeps the block device as long as the mount needs it.
        let sync_device = sync_device.filter(|_| writes_back);
        let writeback = sync_device.map(WritebackThread::start).transpose();
        let invalidator = Arc::new(invalidator);
        let spawn = |name: &str, send: fn(&Server, &dyn Invalidator)| {
            let (server, invalidator) = (Arc::clone(&server), Arc::clone(&invalidator));
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || send(&server, &*invalidator))
        };
        let push_thread = is_shared.then(|| spawn("folio-push", Server::push_changes));
        // Without it the kernel forgets nodes when it needs memory itself.
        let prune_thread = spawn("folio-prune", Server::prune_nodes).ok();
        let event_thread = unmounter.map_or(Ok(None), |unmounter| {
            event_thread::start(&server, unmounter)
        });
        let served = transport.run(threads, started);
        // After the last request: until then the kernel's caches must be invalidated.
        server.stop_pushing();
        // Not after a failure: a notice that waits for a request which no thread serves would wait
        // for ever.
        let served = served.and_then(|()| {
            let threads = push_thread.transpose()?.into_iter().chain(prune_thread);
            let panics = threads
                .map(JoinHandle::join)
                .filter(std::result::Result::is_err);
            let raised = event_thread?.map_or(Ok(Ok(())), JoinHandle::join);
            match (panics.count(), raised) {
                (0, Ok(raised)) => raised.map_err(io::Error::other),
                _ => Err(io::Error::other("a thread that sends changes panicked")),
            }
        });
        let served = served.and_then(|()| writeback?.map_or(Ok(()), WritebackThread::stop));
        served.map_err(|error| Error::io("FUSE session", error))
    }
}

/// Returns whether written data and names reach the image or the host after write(2) has
/// returned, so that sync(2) concerns the server.
fn delays_writes(policy: CachePolicy, inside: &MountOptions) -> bool {
    let mut words = inside.file_system.split(',');
    !policy.is_shared() || words.any(|word| word == "cache=writeback")
}

/// Returns whether the calls that raise events may be made: the mount is writable, and all changes
/// through it are known.
fn may_raise_events(server: &Server, options: &SessionOptions, inside: &MountOptions) -> bool {
    server.is_shared() && !inside.read_only && options.passthrough != Passthrough::Always
}

/// Returns whether to ask the kernel for io_uring.
///
/// # Errors
/// Those of io_uring_setup(2), if it is required.
fn may_use_uring(uring: Uring) -> Result<bool> {
    match (uring, uring::probe()) {
        (Uring::Never, _) => Ok(false),
        (Uring::Auto, probed) => Ok(probed.is_ok()),
        (Uring::Always, probed) => probed
            .map(|()| true)
            .map_err(|error| Error::io("option io_uring=on: io_uring_setup(2)", error)),
    }
}

/// Returns what the kernel may keep of the mounted file system.
fn cache_policy(
    server: &Server,
    options: &SessionOptions,
    inside: &MountOptions,
) -> Result<CachePolicy> {
    let invalidation = if !server.is_shared() {
        Invalidation::None
    } else if server.watch_changes() {
        Invalidation::Push
    } else {
        Invalidation::Ttl
    };
    let page_caching = page_caching(options, inside, invalidation)?;
    let mut policy = CachePolicy {
        invalidation,
        page_caching,
        passthrough: options.passthrough,
        skips_open: false,
    };
    policy.skips_open = skips_open(server, options, inside, policy);
    let invalid = |text| Err(Error::new(Errno::INVAL, text));
    if policy.is_shared() && options.page_caching == Some(PageCaching::Writeback) {
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

/// Returns whether the kernel may open files by itself: changes are pushed, writes reach the host
/// at once, and the server may read and write every file without the descriptor of an open.
fn skips_open(
    server: &Server,
    options: &SessionOptions,
    inside: &MountOptions,
    policy: CachePolicy,
) -> bool {
    policy.invalidation == Invalidation::Push
        && policy.page_caching == PageCaching::Writethrough
        && !delays_writes(policy, inside)
        && options.passthrough != Passthrough::Always
        && options.allowed != AllowedUsers::OwnerAndRoot
        && rustix::process::geteuid().is_root()
        && server.has_change_notifications()
}

/// Returns what the kernel's page cache holds. Writes of an image are delayed only if asked for:
/// the kernel reserves no space for them, so write(2) could not fail with ENOSPC. Nothing is held
/// under `strictatime`, since the server sets the access time, and cached reads do not reach it.
fn page_caching(
    options: &SessionOptions,
    inside: &MountOptions,
    invalidation: Invalidation,
) -> Result<PageCaching> {
    // The host sets the times of its files.
    if invalidation != Invalidation::None {
        return Ok(options.page_caching.unwrap_or_default());
    }
    match (inside.access_time, options.page_caching) {
        (AccessTime::Strict, Some(PageCaching::Writeback)) => Err(Error::new(
            Errno::INVAL,
            "option strictatime: not with writeback, which caches reads in the kernel",
        )),
        (AccessTime::Strict, _) => Ok(PageCaching::None),
        (_, cached) => Ok(cached.unwrap_or_default()),
    }
}
