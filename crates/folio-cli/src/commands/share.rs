//! `folio share`: files for virtual machines, as a virtiofs device.

use super::remote;
use crate::exit::{Failure, Outcome, explain};
use crate::ready;
use crate::serving;
use crate::session::{Session, clock};
use crate::source::{Mounted, Source};
use clap::{ArgGroup, Args};
use folio::vfs::MountOptions;
use folio_fuse::{ClientOptions, FOREVER, PermissionChecks, Server};
use folio_virtiofs::{Event, Service};
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
  folio share /srv/data --socket fs.sock           a directory, which the host goes on using
  folio share -o ttl=1s ~/src --socket fs.sock     the guest may be a second behind, and asks less
  folio share --read-only disk.img@2 --socket fs.sock
  folio share disk.img --listen vsock:5000         and in a guest: folio mount vsock:2:5000 /mnt
  folio share disk.img --listen unix:/run/share    for a program of this machine
  head -c 32 /dev/urandom | base64 > key; chmod 600 key
  folio share disk.img --listen tcp:5000 --key-file key
                                                   for who comes through ssh -L or the like

With --listen, clients run folio mount. They hear at once what others change, and a connection that is lost is made
again: nothing is done twice, open files stay open. A key proves each side to the other; it does not encrypt, so let
TCP go through ssh or WireGuard.

Words of -o: those of mount(8) for every file system (ro, noatime and so on), for ext4, and for directories of the host
(push=, cache=, squash=, map=, xattr=: see folio help mount); and
  ttl=TIME        how long the guest believes names and attributes: 0, inf, or a number with us, ms or s. The default is
                  1ms for directories, and for ever for images, which nobody else changes
  cache=none      the guest keeps no data and asks each time
  writeback       the guest may keep what it has written for a while; without, write(2) returns when the host has it
  noreaddirplus   listing a folder does not tell attributes too
  fakeroot        everything that is made belongs to root

Serves until Ctrl-C or SIGTERM. A guest may reboot, and another may come when it is gone. Who can connect to the socket
can read and change all that is shared: keep it in a folder of your own.";

/// Share files with virtual machines through virtiofs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("place").required(true).args(["socket", "listen"])))]
pub(crate) struct Share {
    /// What to share: an image, IMAGE or IMAGE@N, or a directory
    source: OsString,
    /// Listen on a new Unix socket for a virtual machine monitor (vhost-user)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    remote: remote::ShareArgs,
    /// The name by which the guest mounts it, for monitors that ask; QEMU and cloud-hypervisor have
    /// their own tag=
    #[arg(long, value_name = "TAG", conflicts_with = "listen")]
    tag: Option<String>,
    /// Request queues, each with a thread
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "listen")]
    queues: usize,
    /// Refuse every change: -o ro
    #[arg(long)]
    read_only: bool,
    /// End when the first guest is gone
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// How long a guest believes what it was told of a directory, unless told otherwise: a tick of its
/// clock at most.
const DIRECTORY_TTL: Duration = Duration::from_millis(1);

/// What `-o` and the other words come to.
struct Words {
    /// For the guest's kernel.
    guest: ClientOptions,
    /// For the file system inside.
    inside: MountOptions,
    permissions: PermissionChecks,
}

/// Runs the command.
pub(crate) fn run(share: &Share, session: &Session) -> Outcome {
    let source = Source::parse(&share.source)?;
    let words = words(share, session, &source)?;
    let mounted = source.mount(session, &words.inside)?;
    let served = mounted.warning(session, || match (&share.remote.listen, &share.socket) {
        (Some(address), _) => {
            let name = mounted.to_string();
            let what = folio_remote::Share {
                kernel: Arc::clone(mounted.kernel()),
                permissions: words.permissions,
                options: words.guest.clone(),
                name: remote::share_name(&source.path()),
            };
            remote::serve(&share.remote, session, address, &name, what)
        }
        (None, Some(socket)) => serve(share, session, socket, &mounted, &words),
        // One of them is required.
        (None, None) => Ok(()),
    });
    let closed = mounted.close();
    served.and(closed)
}

fn words(share: &Share, session: &Session, source: &Source) -> Outcome<Words> {
    let refused = |error| Failure::usage(format!("-o {}", explain(&error)));
    let is_directory = matches!(source, Source::Directory(_));
    let mut guest = match (is_directory, &share.remote.listen) {
        (false, _) => ClientOptions::exclusive(),
        (true, None) => ClientOptions::shared(DIRECTORY_TTL),
        // The directory knows what it is told of, and how long the rest may be believed.
        (true, Some(_)) => ClientOptions::shared(FOREVER),
    };
    let mut permissions = PermissionChecks::ByClient;
    let mut inside = MountOptions {
        clock: clock(),
        ..MountOptions::default()
    };
    if is_directory {
        // The guest keeps what it reads, and so does the host.
        inside.add("cache=host").map_err(refused)?;
    }
    for word in &session.options {
        if word == "fakeroot" {
            permissions = PermissionChecks::Off;
            continue;
        }
        let is_the_guests = guest.apply(word).map_err(refused)?;
        // How long the guest believes counts from when the host was asked.
        let is_for_both = is_directory && (word.starts_with("ttl=") || word.starts_with("cache="));
        if !is_the_guests || is_for_both {
            inside.add(word).map_err(refused)?;
        }
    }
    if guest.ttl_max == FOREVER && share.remote.listen.is_none() {
        // Whoever believes what it was told for good has no use for newer times.
        guest.has_external_writers = false;
    }
    inside.read_only |= share.read_only;
    guest.read_only = inside.read_only;
    Ok(Words {
        guest,
        inside,
        permissions,
    })
}

/// Serves guests until a signal comes.
fn serve(
    share: &Share,
    session: &Session,
    socket: &Path,
    mounted: &Mounted,
    words: &Words,
) -> Outcome {
    let options = folio_virtiofs::Options {
        tag: share.tag.clone(),
        queues: share.queues,
        once: share.once,
    };
    // A signal ends the command at once until the socket exists. Then it stops the service.
    let signals = serving::signals()?;
    let service = Service::new(socket, options)?;
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
                Server::new(kernel, words.permissions, words.guest.clone())
            };
            let report = |event| match event {
                Event::Connected | Event::Gone => {}
                Event::Failed(why) => {
                    session.note(format_args!("disconnected a virtual machine: {why}"))
                }
            };
            let served = notified.and_then(|()| Ok(service.serve(start, report)?));
            ready::notify_stopping();
            served
        },
    )
}
