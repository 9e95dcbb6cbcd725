//! `folio mount`: mounts an image or a directory on the host through FUSE.

use crate::arguments::force_share::ForceShare;
use crate::control::{ControlServer, MountedDisk, obey_while};
use crate::exit::{Failure, Outcome, explain};
use crate::mount_record::{self, MountRecord};
use crate::output::{human, io_reason};
use crate::ready;
use crate::remote_share;
use crate::remount;
use crate::sandbox::{Reach, Sandbox, SandboxArgs};
use crate::serving::{self, Background, Readiness};
use crate::session::{Session, clock};
use crate::source::{Mounted, Source};
use crate::unmount_process::{self, UnmountProcess};
use clap::Args;
use folio::vfs::MountOptions;
use folio_fuse::{AllowedUsers, SessionOptions, Uring};
use folio_remote::Address;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  folio mount disk.qcow2 /mnt                      until Ctrl-C, or umount /mnt
  folio mount --background disk.img@2 ./root       the second partition; fusermount3 -u ./root ends it
  umount ./root && folio mount --wait disk.img     until the image is complete; fails if it is not
  folio mount --ro disk.img /mnt                   writes nothing, not even the journal
  folio mount -o allow_other,noatime d.img /mnt    for all users, as far as modes and ACLs allow
  folio mount -o fakeroot disk.img ./root          every user is root inside: edit any file without root
  folio mount --control /run/d.ctl d.qcow2 /mnt    folio ctl /run/d.ctl fork NEW copies it while it is used
  folio mount -o ro /srv/data /mnt                 a directory, read-only, cached, and never stale
  folio mount vsock:2:5000 /mnt                    a share of this guest's host; see folio share --listen
  folio mount --key-file key tcp:[::1]:5000 /mnt   a share of another machine, here through a tunnel

Changes reach the image 1 second after the last one, and within 5 seconds (-o commit=SECONDS) while changes go on.
fsync(2) writes a file at once, and an unmount writes everything. So do sync(2) and syncfs(2) if root mounts, on Linux
6.18 or later: docs/semantics.md.

The host's kernel checks permissions, with the caller's groups, capabilities and ACLs, before it calls folio. An
unmount returns before the image is complete. The image stays locked until then, so other folio commands refuse it:
folio mount --wait IMAGE waits for that, and says whether everything was stored. In the foreground it is complete when
this command ends.

A mount in the background sends its messages to the system's log, or appends them to the file of --log. Without --log
they are kept until folio mount --wait, or the next mount of the image or on the directory, prints them.

As a link called mount.fuse.folio in /sbin, folio serves mount -t fuse.folio SOURCE TARGET and lines of /etc/fstab:
  /srv/disk.img  /mnt  fuse.folio  nofail,noatime  0 0
Then mount -o remount changes a running mount: ro, rw, atime and its kin, suid, dev and exec in the kernel, and
auto_da_alloc= in folio. Other options are refused: only a new mount changes them.

SIGUSR1 prints the number of requests from the kernel so far, by operation.

-o accepts the options of mount(8) for all file systems (ro, sync, noatime and so on) and those of ext4. nosuid and
nodev are set unless suid and dev are given. It also accepts options of mount.fuse3(8):
  allow_other     all users may use the mount; allow_root: root and you. The default is only you
  fakeroot        no permission checks, and root owns all new files
  fsname=NAME     the name in /proc/mounts; the default is the image
  threads=N       threads that answer the kernel
  nowriteback     write(2) returns once folio has the data, and fails if the image is full (the default)
  writeback       the kernel keeps written data of an image for a second, or for 30 where it does not pass on sync.
                  Small writes are faster, but on a full image only close and fsync fail, and data may read as zeros
  io_uring=MODE   each request goes to a thread on the CPU that made it: auto (if the kernel offers it), on or off.
                  The administrator permits it: echo Y > /sys/module/fuse/parameters/enable_uring

Options of -o for host directories and remote shares:
  events=MODE     changes on the host are events for programs that watch the mount (inotify): on, off, or auto,
                  which is off for now. In a remote share changes by other clients are events, too

Options of -o for host directories:
  ttl=TIME        how long names, attributes and data stay valid: 0, inf, or a number with us, ms or s. The default
                  is inf if the host sends change notifications, else 1ms
  push=MODE       change notifications: auto, inotify or off
  cache=MODE      host (only the kernel caches data; the default), writethrough, writeback or none
  passthrough=MODE  the kernel reads and writes the host's files itself: on, which needs root and suits writers of
                  large files; off; or auto: only if it cannot open files without asking folio, which suits readers
  squash=UID:GID, map=u:INSIDE:OUTSIDE:COUNT   owners
  xattr=on|off    extended attributes

Other programs may change the directory meanwhile; docs/semantics.md describes the guarantee of each option.";

/// Mount an image or a directory through FUSE
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mount {
    /// An image (IMAGE or IMAGE@N), a directory, or a remote share (unix:PATH, vsock:CID:PORT or
    /// tcp:HOST:PORT)
    source: OsString,
    /// The directory to mount on
    #[arg(required_unless_present = "wait")]
    target: Option<PathBuf>,
    /// Refuse all changes, like -o ro
    #[arg(long)]
    ro: bool,
    /// Return once mounted, and serve in the background
    #[arg(long)]
    background: bool,
    /// Append the messages of a mount in the background to a file; else they go to the system's
    /// log, and --wait prints them
    #[arg(long, value_name = "FILE", requires = "background")]
    log: Option<PathBuf>,
    /// Wait until the mount of an image, or on a directory, has ended and the image is complete and
    /// free. Prints the messages of a mount in the background, and fails if not everything was
    /// stored
    #[arg(long, conflicts_with_all = ["target", "background", "ro", "allow_other", "ready_fd"])]
    wait: bool,
    /// Let all users use the mount, like -o allow_other
    #[arg(long)]
    allow_other: bool,
    /// Write the line "ready" to this file descriptor once mounted; NOTIFY_SOCKET of a service
    /// manager is notified too
    #[arg(long, value_name = "FD")]
    ready_fd: Option<u32>,
    /// Listen on a new Unix socket for the orders of folio ctl: stats, flush, snapshot, fork
    #[arg(long, value_name = "PATH", conflicts_with_all = ["wait", "force_share"])]
    control: Option<PathBuf>,
    #[command(flatten)]
    share: ForceShare,
    #[command(flatten)]
    remote: remote_share::MountArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl Mount {
    /// Returns the directory to mount on: given unless the command waits.
    fn target(&self) -> &Path {
        self.target.as_deref().unwrap_or(Path::new(""))
    }
}

/// What is mounted.
enum Work {
    Remote(Address),
    Local(Source, SessionOptions, MountOptions),
}

/// Runs the command.
pub(crate) fn run(mount: &Mount, session: &Session) -> Outcome {
    if let Some(target) = unmount_process::requested() {
        return unmount_process::run(&target);
    }
    if mount.wait {
        return mount_record::wait(&mount.source, session);
    }
    if remount::is_requested(&session.options) {
        return remount::run(mount.target(), &session.options, mount.ro);
    }
    let work = match remote_share::parse_address(&mount.source)? {
        Some(address) => Work::Remote(address),
        None => {
            let source = Source::parse(&mount.source)?;
            let (options, inside) = options(mount, session, &source)?;
            if mount.share.is_given() && !inside.read_only {
                return Err(Failure::usage("-U needs --ro or -o ro"));
            }
            Work::Local(source, options, inside)
        }
    };
    if mount.control.is_some() && !matches!(work, Work::Local(Source::Image(_), ..)) {
        let text = format!(
            "--control: {} is not an image: folio ctl forks and flushes images only",
            mount.source.display()
        );
        return Err(Failure::usage(text));
    }
    let log = mount.log.as_ref().map(open_log).transpose()?;
    let is_background = serving::is_background();
    if mount.background && !is_background {
        return serving::start_in_background();
    }
    let _ = mount_record::report_ended([&mount.source, mount.target().as_os_str()], session);
    // Before the mount, while the target is the host's directory.
    let record = MountRecord::create(&mount.source, mount.target());
    let background = if is_background {
        // Signals to the starter's terminal must not reach this process.
        let _ = rustix::process::setsid();
        if let Err(error) = &record {
            session.note(format_args!(
                "--wait will not know of this mount: {}",
                io_reason(error)
            ));
        }
        Some(Background {
            record: record.as_ref().ok(),
            log: log.as_ref(),
        })
    } else {
        None
    };
    let readiness = Readiness {
        fd: mount.ready_fd,
        background,
    };
    let served = serve_work(mount, session, work, readiness);
    let is_stored = served.is_ok() && !session.has_failures();
    if let Ok(record) = record
        && let Err(error) = record.end(is_stored)
    {
        tracing::debug!(%error, "record of the mount lost");
    }
    served
}

fn serve_work(mount: &Mount, session: &Session, work: Work, readiness: Readiness<'_>) -> Outcome {
    match work {
        Work::Remote(address) => {
            let request = remote_share::MountRequest {
                target: mount.target(),
                is_read_only: mount.ro,
                allow_other: mount.allow_other,
                args: &mount.remote,
                readiness,
            };
            remote_share::mount(&request, session, address)
        }
        Work::Local(source, options, inside) => {
            mount.share.apply(session);
            let has_orders = mount.control.is_some();
            let reach = Reach::of(&source).with_forks(has_orders);
            let sandbox = Sandbox::of_mount(mount.sandbox, reach);
            let mounted = source.mount(session, &inside, has_orders)?;
            let served = serve(
                mount, session, &sandbox, &mounted, &options, &inside, readiness,
            );
            let closed = mounted.close();
            served.and(closed)
        }
    }
}

fn open_log(path: &PathBuf) -> Outcome<File> {
    let log = OpenOptions::new().append(true).create(true).open(path);
    log.map_err(|error| Failure::new(format!("--log {}: {}", path.display(), io_reason(&error))))
}

/// Splits `-o` and the options of the command into those of the FUSE mount and those of the file
/// system.
fn options(
    mount: &Mount,
    session: &Session,
    source: &Source,
) -> Outcome<(SessionOptions, MountOptions)> {
    let mut options = SessionOptions::new(source.path().display().to_string());
    // An image may come from any source. By default its programs gain no privileges and its device
    // nodes have no effect.
    let mut words = "nosuid,nodev".to_owned();
    if matches!(source, Source::Directory(_)) {
        // The kernel caches data, and so does the host.
        words.push_str(",cache=host");
    }
    for word in &session.options {
        if !options
            .apply(word)
            .map_err(|error| Failure::usage(format!("-o {}", explain(&error))))?
        {
            words.push(',');
            words.push_str(word);
        }
    }
    options.given.clone_from(&session.options);
    if mount.allow_other {
        options.allowed = AllowedUsers::All;
    }
    if mount.ro {
        words.push_str(",ro");
    }
    let inside = MountOptions::parse(&words)
        .map_err(|error| Failure::usage(format!("-o {}", explain(&error))))?;
    Ok((
        options,
        MountOptions {
            clock: clock(),
            ..inside
        },
    ))
}

/// Mounts and serves until an unmount.
fn serve(
    mount: &Mount,
    session: &Session,
    sandbox: &Sandbox,
    source: &Mounted,
    options: &SessionOptions,
    inside: &MountOptions,
    readiness: Readiness<'_>,
) -> Outcome {
    // Before the mount, which may hide the folder of the socket.
    let control = ControlServer::bind(mount.control.as_deref())?;
    // Also before it, so that it has an effect as soon as the mount is seen.
    let count_signal = serving::count_signal()?;
    let mounted =
        folio_fuse::Session::mount(source.kernel().clone(), inside, mount.target(), options)?;
    tracing::info!(target = %mount.target().display(), threads = options.threads, allowed = ?options.allowed, "FUSE mount made");
    // From here on a signal unmounts. Before, it ends the program, and nothing has changed yet.
    let signals = serving::signals()?;
    let (unmounter, process) = (mounted.unmounter(), unmount_process_of(sandbox, &mounted)?);
    let unmount = |lazily| match &process {
        Some(process) => process.unmount(lazily),
        None => unmounter.unmount(lazily),
    };
    let counts = mounted.request_counts();
    let disk = source.live().map(|(image, live)| MountedDisk {
        image,
        live,
        target: Some(unmounter.target().to_owned()),
        counts: counts.clone(),
        options: inside.to_string(),
    });
    let disks: Vec<_> = disk.iter().map(MountedDisk::controlled).collect();
    let serve = || {
        let description = format!("{source} is on {}", mount.target().display());
        hint_at_uring(session, options, inside);
        let served = source.with_warnings(session, || {
            serving::report_ready(readiness, session, &description).and_then(|()| {
                let serve = || mounted.serve_confined(|| sandbox.close());
                Ok(obey_while(control.as_ref(), &disks, serve)?)
            })
        });
        ready::notify_stopping();
        served
    };
    let print_counts = || session.note(format_args!("requests: {counts}"));
    let work = || serving::with_counts(count_signal, print_counts, serve);
    let served = serving::until_unmounted(signals, &unmount, session, || {}, work);
    if counts.lost_bytes() > 0 {
        session.fail(format!(
            "{source}: {} that programs had written could not be stored: the kernel had delayed \
             the write (a memory map, or -o writeback), and no space was left, or the disk failed",
            human(counts.lost_bytes())
        ));
    }
    served
}

/// Says on root's terminal what FUSE over io_uring would gain, if the kernel has it off.
fn hint_at_uring(session: &Session, options: &SessionOptions, inside: &MountOptions) {
    let could_gain = options.uring == Uring::Auto && !inside.read_only;
    let could_permit = rustix::process::geteuid().is_root() && session.shows_progress();
    if could_gain && could_permit && Uring::is_off_in_kernel() {
        session.note(format_args!(
            "FUSE over io_uring is off in this kernel. With it, tar -x took 0.4 to 0.9 of the time \
             (docs/design/mount-speed.md). Before a mount: echo Y > {}",
            Uring::PARAMETER
        ));
    }
}

/// Starts the process that unmounts, where this one will not be able to: only the set-user-ID
/// program unmounts a user's mount, and a confined server starts no programs.
fn unmount_process_of(
    sandbox: &Sandbox,
    mounted: &folio_fuse::Session,
) -> Outcome<Option<UnmountProcess>> {
    if !sandbox.is_on() || rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    Ok(Some(UnmountProcess::start(mounted.unmounter().target())?))
}
