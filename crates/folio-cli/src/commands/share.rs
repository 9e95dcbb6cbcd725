//! `folio share`: shares files with virtual machines, as a virtiofs device or over a stream.

use crate::exit::{Failure, Outcome, explain};
use crate::ready;
use crate::remote_share;
use crate::sandbox::{Places, Reach, Sandbox, SandboxArgs};
use crate::serving;
use crate::session::{Session, clock};
use crate::source::{Mounted, Source};
use clap::{ArgGroup, Args};
use folio::vfs::MountOptions;
use folio_fuse::virtiofs::{ConnectionEvent, Service, ServiceOptions};
use folio_fuse::{ClientOptions, FOREVER, PermissionChecks, Server};
use folio_remote::Address;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  folio share disk.qcow2 --socket /tmp/fs.sock
  qemu-system-x86_64 -m 1G \\
    -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\
    -chardev socket,id=fs,path=/tmp/fs.sock \\
    -device vhost-user-fs-pci,chardev=fs,tag=share,queue-size=1024 ...
  mount -t virtiofs share /mnt                     in the guest
  folio share /srv/data --socket fs.sock           a directory; the host may change it meanwhile
  folio share -o ttl=1s ~/src --socket fs.sock     the guest may be 1 s stale, and sends fewer requests
  folio share --read-only disk.img@2 --socket fs.sock
  folio share disk.img --listen vsock:5000         and in a guest: folio mount vsock:2:5000 /mnt
  folio share disk.img --listen unix:/run/share    for a program on this machine
  head -c 32 /dev/urandom | base64 > key; chmod 600 key
  folio share disk.img --listen tcp:5000 --key-file key
                                                   for clients through ssh -L or a similar tunnel

With --listen, clients run folio mount. Changes by other programs reach them at once. After a lost connection a client
reconnects: no request is executed twice, and open files stay open. A key authenticates each side to the other but
does not encrypt, so use TCP through ssh or WireGuard.

-o accepts the options of mount(8) for all file systems (ro, noatime and so on), those of ext4, and those for host
directories (push=, cache=, squash=, map=, xattr=; see folio help mount). It also accepts:
  ttl=TIME        how long names and attributes stay valid in the guest: 0, inf, or a number with us, ms or s. The
                  default is 1ms for directories, and inf for images, which no other program changes
  cache=none      the guest caches no data
  writeback       the guest may delay writes; without it, write(2) returns when the host has the data
  noreaddirplus   directory listings carry no attributes
  fakeroot        root owns all new files

The command serves until Ctrl-C or SIGTERM. A guest may reboot, and another one may connect after it. Any program that
can connect to the socket can read and change all shared files: keep it in a private directory.";

/// Share files with virtual machines through virtiofs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("place").required(true).args(["socket", "listen"])))]
pub(crate) struct Share {
    /// The source: an image (IMAGE or IMAGE@N), or a directory
    source: OsString,
    /// Listen on a new Unix socket for a virtual machine monitor (vhost-user)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    remote: remote_share::ShareArgs,
    /// Mount tag, for monitors that ask for it; QEMU and cloud-hypervisor have a tag= of their own
    #[arg(long, value_name = "TAG", conflicts_with = "listen")]
    tag: Option<String>,
    /// Request queues; each has a thread
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "listen")]
    queues: usize,
    /// Refuse all changes, like -o ro
    #[arg(long)]
    read_only: bool,
    /// End when the first guest disconnects
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// The default validity of a directory's names and attributes in the guest: at most one tick of its
/// clock.
const DIRECTORY_TTL: Duration = Duration::from_millis(1);

/// The parsed options.
struct ShareOptions {
    /// Options of the guest's kernel.
    guest: ClientOptions,
    /// Options of the file system.
    inside: MountOptions,
    permissions: PermissionChecks,
}

/// Runs the command.
pub(crate) fn run(share: &Share, session: &Session) -> Outcome {
    let source = Source::parse(&share.source)?;
    let options = parse_options(share, session, &source)?;
    let sandbox = confine(share, &source);
    let mounted = source.mount(session, &options.inside, false)?;
    let served = mounted.with_warnings(session, || match (&share.remote.listen, &share.socket) {
        (Some(address), _) => {
            let name = mounted.to_string();
            let what = folio_remote::Share {
                kernel: Arc::clone(mounted.kernel()),
                permissions: options.permissions,
                options: options.guest.clone(),
                name: remote_share::share_name(&source.path()),
            };
            remote_share::serve(&share.remote, session, &sandbox, address, &name, what)
        }
        (None, Some(socket)) => serve(share, session, &sandbox, socket, &mounted, &options),
        // clap requires one of them.
        (None, None) => Ok(()),
    });
    let closed = mounted.close();
    served.and(closed)
}

/// Limits the files that the server can reach.
fn confine(share: &Share, source: &Source) -> Sandbox {
    let listens = match &share.remote.listen {
        Some(Address::Unix(path)) => Some(path),
        _ => share.socket.as_ref(),
    };
    let sockets: Vec<_> = listens.map(PathBuf::as_path).into_iter().collect();
    let places = Places {
        sockets: &sockets,
        key_file: share.remote.key_file(),
        ready_fd: share.remote.ready_fd,
    };
    Sandbox::begin(share.sandbox, Reach::of(source), places)
}

fn parse_options(share: &Share, session: &Session, source: &Source) -> Outcome<ShareOptions> {
    let refused = |error| Failure::usage(format!("-o {}", explain(&error)));
    let is_directory = matches!(source, Source::Directory(_));
    let mut guest = match (is_directory, &share.remote.listen) {
        (false, _) => ClientOptions::exclusive(),
        (true, None) => ClientOptions::shared(DIRECTORY_TTL),
        // hostfs itself knows which changes it is notified of, and how long other data stays valid.
        (true, Some(_)) => ClientOptions::shared(FOREVER),
    };
    let mut permissions = PermissionChecks::ByClient;
    let mut inside = MountOptions {
        clock: clock(),
        ..MountOptions::default()
    };
    if is_directory {
        // The guest caches data, and so does the host.
        inside.add("cache=host").map_err(refused)?;
    }
    for word in &session.options {
        if word == "fakeroot" {
            permissions = PermissionChecks::Off;
            continue;
        }
        let is_the_guests = guest.apply(word).map_err(refused)?;
        // The validity in the guest counts from the host's last check.
        let is_for_both = is_directory && (word.starts_with("ttl=") || word.starts_with("cache="));
        if !is_the_guests || is_for_both {
            inside.add(word).map_err(refused)?;
        }
    }
    if guest.ttl_max == FOREVER && share.remote.listen.is_none() {
        // A client that never revalidates does not need newer times.
        guest.has_external_writers = false;
    }
    inside.read_only |= share.read_only;
    guest.read_only = inside.read_only;
    Ok(ShareOptions {
        guest,
        inside,
        permissions,
    })
}

/// Serves guests until a signal.
fn serve(
    share: &Share,
    session: &Session,
    sandbox: &Sandbox,
    socket: &Path,
    mounted: &Mounted,
    options: &ShareOptions,
) -> Outcome {
    let mut service_options = ServiceOptions::default();
    service_options.tag = share.tag.clone();
    service_options.queues = share.queues;
    service_options.once = share.once;
    // A signal ends the command at once until the socket exists. Then it stops the service.
    let signals = serving::signals()?;
    let service = Service::new(socket, service_options)?;
    let stopper = service.stopper();
    serving::until_signal(
        signals,
        move || stopper.stop(),
        || {
            let description = format!("{mounted} is shared at {}", service.path().display());
            let notified = ready::notify_ready(share.remote.ready_fd, &description);
            if notified.is_ok() && !session.quiet {
                session.note(format_args!("{description} until Ctrl-C"));
            }
            let start = || {
                let kernel = Arc::clone(mounted.kernel());
                Server::new(kernel, options.permissions, options.guest.clone())
            };
            let report = |event| match event {
                ConnectionEvent::Connected | ConnectionEvent::Disconnected => {}
                ConnectionEvent::Failed(why) => {
                    session.note(format_args!("disconnected a virtual machine: {why}"))
                }
            };
            let served = notified.and_then(|()| {
                sandbox.close();
                Ok(service.serve(start, report)?)
            });
            ready::notify_stopping();
            served
        },
    )
}
