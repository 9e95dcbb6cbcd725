//! `folio run`: runs a command with an image as its root, in namespaces of its own, or directly on
//! the library.

use super::direct;
use crate::control::{ControlServer, MountedDisk, obey_while};
use crate::exit::{Exit, Failure, Outcome, explain};
use crate::image::{Access, Image, open_device, open_live};
use crate::image_path::ImagePath;
use crate::session::{Session, clock};
use crate::temporary_overlay::TemporaryOverlay;
use clap::{Args, ValueEnum};
use folio::block::tools::{AfterCommit, CommitOptions, OverlayOptions};
use folio::block::{self, BackingPolicy, Device, LiveImage};
use folio::vfs::MountOptions;
use folio_direct::View;
use folio_fuse::{AllowedUsers, DeviceSession, SessionOptions};
use folio_run::{Bind, Container, Network, Options, Root};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  folio run disk.qcow2                                   a shell in the image
  folio run disk.qcow2 -- apt-get install -y nginx       as the image's root, without root here
  folio run --throw-away disk.qcow2 -- make -C /src test changes are dropped at the end
  folio run --commit-on-success disk.img@2 -- ./update   changes are kept only if it ends with 0
  folio run --bind ~/src:/src --workdir /src disk.img -- make
  folio run --user www-data --env DEBUG=1 --network none disk.img -- /usr/bin/app
  folio run --control /tmp/d.ctl disk.qcow2              folio ctl /tmp/d.ctl fork NEW copies it meanwhile
  folio run --at /mnt disk.img -- tar -C /mnt -cf out.tar .   the host's tree, the image at /mnt
  folio run --direct disk.img -- make -C /src            without FUSE and namespaces, as it does where there are none

The command sees the image as /, with new /proc, /dev and /tmp, and /sys and the host's /etc/resolv.conf read-only. It
runs in namespaces of its own: it sees no other processes, and its mounts are in no table of the host. When the
command exits, all its processes are stopped. The image is locked while it runs and clean when it ends.

Where the machine permits no FUSE or no user namespaces, as in most containers, the command runs as with --direct, after
a note that says so; --fuse fails there.

Root is the calling user inside. Other ids need ranges for the user in /etc/subuid and /etc/subgid, and the programs
newuidmap and newgidmap (package uidmap). Without them all files appear as root's, keep their owners in the image, and
chown to other ids fails.

Exit codes: that of the command, 128 and the number of the signal that ended it, 125 if folio failed, 126 if the command
is not executable, 127 if it was not found. docs/run.md compares other tools.";

/// Run a command inside an image, without root
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The image (IMAGE or IMAGE@N)
    image: OsString,
    /// The command and its arguments; the default is the user's login shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
    /// Drop all changes at the end
    #[arg(long, conflicts_with_all = ["commit_on_success", "read_only"])]
    throw_away: bool,
    /// Keep the changes only if the command ends with 0: they are in an overlay beside the image
    /// until then
    #[arg(long, conflicts_with = "read_only")]
    commit_on_success: bool,
    /// Refuse all changes of the image
    #[arg(long)]
    read_only: bool,
    /// Listen on a new Unix socket for the orders of folio ctl: stats, flush, snapshot, fork
    #[arg(long, value_name = "PATH", conflicts_with_all = ["throw_away", "commit_on_success"])]
    control: Option<PathBuf>,
    /// Keep the host's tree and environment, with the image at this directory; root's capabilities
    /// are not limited then
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["bind", "user"])]
    at: Option<PathBuf>,
    /// Answer the command's system calls in this process, without FUSE, namespaces or root. This is
    /// not a sandbox: the command has the user's rights, and sees the host's processes and network
    #[arg(long, conflicts_with_all = ["bind", "user", "hostname", "network", "allow_namespaces", "control"])]
    direct: bool,
    /// Fail where there is no FUSE or no user namespace, instead of the way of --direct
    #[arg(long, conflicts_with = "direct")]
    fuse: bool,
    /// Show a file or directory of the host inside
    #[arg(long, value_name = "HOST:INSIDE[:ro]", value_parser = clap::builder::OsStringValueParser::new())]
    bind: Vec<OsString>,
    /// Set a variable of the environment; without a value, to the host's
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,
    /// The working directory inside [default: /]
    #[arg(short, long, value_name = "DIRECTORY")]
    workdir: Option<PathBuf>,
    /// The user inside, and the group, by name or number [default: root]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// The host name inside [default: the host's]
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    hostname: Option<String>,
    /// Let the command create namespaces, as bwrap, browsers and `folio run --at` inside do; more
    /// of the kernel is then within its reach
    #[arg(long, conflicts_with = "at")]
    allow_namespaces: bool,
    /// The network inside
    #[arg(long, value_enum, default_value_t = NetworkName::Host)]
    network: NetworkName,
}

impl Run {
    /// Returns whether there is an option that only namespaces and a mount can obey.
    fn needs_namespaces(&self) -> bool {
        let is_host = matches!(self.network, NetworkName::Host) && self.hostname.is_none();
        let is_plain = self.bind.is_empty() && self.user.is_none() && self.control.is_none();
        !(is_host && is_plain) || self.allow_namespaces
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum NetworkName {
    /// The host's
    Host,
    /// None but a loopback interface
    None,
}

fn host_name(text: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if text.is_empty() || text.len() > 64 || !text.bytes().all(is_valid) {
        return Err("expected at most 64 letters, digits, hyphens and dots".to_owned());
    }
    Ok(text.to_owned())
}

/// Runs the command; returns its exit code.
pub(crate) fn run(run: &Run, session: &Session) -> Outcome<u8> {
    let ran = try_run(run, session);
    ran.map_err(|failure| Failure {
        exit: match failure.exit {
            Exit::Command(code) => Exit::Command(code),
            _ => Exit::Command(folio_run::Failure::NOT_STARTED),
        },
        ..failure
    })
}

fn try_run(run: &Run, session: &Session) -> Outcome<u8> {
    let place = ImagePath::parse(&run.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!(
            "{place}: a command runs in the whole image: use {}",
            place.image_name()
        );
        return Err(Failure::usage(text));
    }
    let (fuse, inside) = mount_options(run, session, &place)?;
    if run.direct {
        return run_directly(run, session, &place, &inside);
    }
    let options = options(run, &fuse)?;
    options.check().map_err(failure)?;
    // First: the process must have one thread.
    let (container, mount) = match start(&options) {
        Ok(started) => started,
        Err(why) if !why.is_unsupported || run.fuse => return Err(failure(why)),
        Err(mut why) if run.needs_namespaces() => {
            why.message += "; an option of this command needs namespaces and FUSE, which --direct \
                            does without: see folio run --help";
            return Err(failure(why));
        }
        Err(why) => {
            // Even if quiet: the command has more rights than it would have had.
            session.note(format_args!(
                "{}: the command's system calls are answered as with --direct, which omits this \
                 note: not a sandbox",
                why.message
            ));
            return run_directly(run, session, &place, &inside);
        }
    };
    let control = ControlServer::bind(run.control.as_deref())?;
    let overlay = Overlay::new(run, &place)?;
    let (device, live) = open(run, &place, overlay.as_ref())?;
    let image = Image::mount_with(session, &place, device, &inside)?;
    let ran = serve(&container, mount, &image, session, fuse, &inside).and_then(|served| {
        let disk = live.as_deref().map(|live| MountedDisk {
            image: &image,
            live,
            target: None,
            counts: served.request_counts(),
            options: inside.to_string(),
        });
        let disks: Vec<_> = disk.iter().map(MountedDisk::controlled).collect();
        obey_while(control.as_ref(), &disks, || {
            container
                .run(served, &|text| session.note(text))
                .map_err(failure)
        })
    });
    close(run, session, image, overlay, ran)
}

/// Starts a container, and mounts FUSE in it. Fails where the machine permits either not.
fn start(options: &Options) -> Result<(Container, OwnedFd), folio_run::Failure> {
    folio_run::execute_read_only()?;
    let mut container = Container::start(options)?;
    let mount = container.device()?;
    Ok((container, mount))
}

/// Runs the command with its system calls answered by this process.
fn run_directly(
    run: &Run,
    session: &Session,
    place: &ImagePath,
    inside: &MountOptions,
) -> Outcome<u8> {
    let view = match &run.at {
        None => View::Root,
        Some(at) => View::At(host_folder(at)?),
    };
    let overlay = Overlay::new(run, place)?;
    let (device, _) = open(run, place, overlay.as_ref())?;
    let image = Image::mount_on(session, place, device, inside, view.target())?;
    let mut command = run.command.clone();
    if command.is_empty() {
        command.push(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    }
    let options = folio_direct::Options {
        command,
        environment: variables(&run.env)?,
        view,
        working_directory: run.workdir.clone(),
    };
    let ran = direct::serve(&image, &options);
    close(run, session, image, overlay, ran)
}

/// Returns the path without links of a folder at which the command sees the image.
fn host_folder(at: &Path) -> Outcome<PathBuf> {
    let folder = at.canonicalize().map_err(|error| cannot(at, &error))?;
    if !folder.is_dir() {
        return Err(cannot(at, &std::io::ErrorKind::NotADirectory.into()));
    }
    if folder.parent().is_none() {
        let text = "invalid --at /: without --at the command sees the image as /";
        return Err(Failure::usage(text.to_owned()));
    }
    // Links of the host lead to the folder itself, not to the image.
    let mut entries = folder.read_dir().map_err(|error| cannot(at, &error))?;
    if entries.next().is_some() {
        let text = format!(
            "{}: the folder must be empty for --direct, and where there is no FUSE",
            at.display()
        );
        return Err(Failure::usage(text));
    }
    Ok(folder)
}

/// Closes the image after the command, and keeps or drops its changes.
fn close(
    run: &Run,
    session: &Session,
    image: Image,
    overlay: Option<Overlay>,
    ran: Outcome<u8>,
) -> Outcome<u8> {
    match overlay {
        Some(overlay) if run.commit_on_success => {
            let closed = image.release();
            let code = ran?;
            closed?;
            overlay.finish(code, session)?;
            Ok(code)
        }
        _ => {
            let closed = image.close();
            let code = ran?;
            closed.map(|()| code)
        }
    }
}

/// Opens the disk; for orders, if there is a control socket.
fn open(
    run: &Run,
    place: &ImagePath,
    overlay: Option<&Overlay>,
) -> Outcome<(Arc<dyn Device>, Option<Arc<LiveImage>>)> {
    let access = if run.read_only {
        Access::Read
    } else {
        Access::Write
    };
    match overlay {
        Some(overlay) => Ok((overlay.temporary.open()?, None)),
        None if run.control.is_some() => {
            let live = open_live(&place.image, access)?;
            Ok((live.clone(), Some(live)))
        }
        None => Ok((open_device(&place.image, access)?, None)),
    }
}

fn failure(failure: folio_run::Failure) -> Failure {
    Failure::exiting(Exit::Command(failure.exit), failure.message)
}

/// Splits `-o` into options of the FUSE mount and those of the file system.
fn mount_options(
    run: &Run,
    session: &Session,
    place: &ImagePath,
) -> Outcome<(SessionOptions, MountOptions)> {
    let usage = |error| Failure::usage(format!("-o {}", explain(&error)));
    let name = place.image.canonicalize();
    let name = name.as_deref().unwrap_or(&place.image);
    let mut fuse = SessionOptions::new(name.display().to_string());
    fuse.allowed = AllowedUsers::All;
    let mut words = String::new();
    if run.read_only {
        words.push_str("ro");
    }
    for word in &session.options {
        if !fuse.apply(word).map_err(usage)? {
            words.push(',');
            words.push_str(word);
        }
    }
    let inside = MountOptions::parse(&words).map_err(usage)?;
    Ok((
        fuse,
        MountOptions {
            clock: clock(),
            ..inside
        },
    ))
}

fn options(run: &Run, fuse: &SessionOptions) -> Outcome<Options> {
    Ok(Options {
        command: run.command.clone(),
        environment: variables(&run.env)?,
        working_directory: run.workdir.clone(),
        user: run.user.clone(),
        hostname: run.hostname.clone(),
        network: match run.network {
            NetworkName::Host => Network::Host,
            NetworkName::None => Network::None,
        },
        root: run.at.clone().map_or(Root::Image, Root::At),
        binds: run
            .bind
            .iter()
            .map(|word| bind(word))
            .collect::<Outcome<_>>()?,
        read_only: run.read_only,
        allows_namespaces: run.allow_namespaces,
        source: fuse.source.clone(),
    })
}

/// Parses `NAME=VALUE`, or `NAME` for the variable of this process, which is left out if not set.
fn variables(words: &[OsString]) -> Outcome<Vec<(OsString, OsString)>> {
    let mut variables = Vec::new();
    for word in words {
        let bytes = word.as_bytes();
        let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => (
                &bytes[..at],
                Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned()),
            ),
            None => (bytes, std::env::var_os(word)),
        };
        if name.is_empty() {
            return Err(Failure::usage(format!(
                "invalid --env {:?}: expected NAME=VALUE or NAME",
                word.display()
            )));
        }
        if let Some(value) = value {
            variables.push((OsStr::from_bytes(name).to_owned(), value));
        }
    }
    Ok(variables)
}

/// Parses `HOST:INSIDE[:ro]`.
fn bind(word: &OsStr) -> Outcome<Bind> {
    let fields: Vec<_> = word.as_bytes().split(|byte| *byte == b':').collect();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let (host, inside, read_only) = match fields.as_slice() {
        [host, inside] => (path(host), path(inside), false),
        [host, inside, b"ro"] => (path(host), path(inside), true),
        [host, inside, b"rw"] => (path(host), path(inside), false),
        _ => {
            return Err(Failure::usage(format!(
                "invalid --bind {}: expected HOST:INSIDE or HOST:INSIDE:ro",
                word.display()
            )));
        }
    };
    let is_root = inside.components().count() == 1;
    if !inside.is_absolute() || is_root || host.as_os_str().is_empty() {
        return Err(Failure::usage(format!(
            "invalid --bind {}: INSIDE must be an absolute path other than /",
            word.display()
        )));
    }
    Ok(Bind {
        host,
        inside,
        read_only,
    })
}

/// Begins to serve the mount of the namespace.
fn serve(
    container: &Container,
    mount: OwnedFd,
    image: &Image,
    session: &Session,
    mut fuse: SessionOptions,
    inside: &MountOptions,
) -> Outcome<DeviceSession> {
    if let Some(reason) = container.single_id_reason() {
        fuse.hides_owners = true;
        if !session.quiet {
            session.note(format_args!(
                "no user ids but root's inside: {reason}; files of other owners appear as root's, \
                 and chown to them fails"
            ));
        }
    }
    Ok(DeviceSession::new(
        image.kernel().clone(),
        inside,
        mount,
        &fuse,
    )?)
}

/// A qcow2 image that receives the changes instead of the image.
struct Overlay {
    temporary: TemporaryOverlay,
    /// The image before the run.
    before: Metadata,
}

impl Overlay {
    /// Creates the overlay if the options ask for one.
    fn new(run: &Run, place: &ImagePath) -> Outcome<Option<Self>> {
        if !run.throw_away && !run.commit_on_success {
            return Ok(None);
        }
        let image = &place.image;
        let before = image.metadata().map_err(|error| cannot(image, &error))?;
        let temporary = if run.throw_away {
            TemporaryOverlay::new(image, None)?
        } else {
            // To be committed, it must outlive a failure, and be found.
            TemporaryOverlay::beside(image)?
        };
        Ok(Some(Self { temporary, before }))
    }

    /// Writes the changes into the image if the command has succeeded.
    fn finish(self, code: u8, session: &Session) -> Outcome {
        if code != 0 {
            if !session.quiet {
                session.note(format_args!(
                    "the command ended with {code}: {} is unchanged",
                    self.temporary.base.display()
                ));
            }
            return Ok(());
        }
        let committed = self.commit();
        committed.map_err(|why| match self.temporary.path.keep() {
            Ok(path) => Failure::new(format!(
                "{why}; the changes are in {}: folio image commit {0}",
                path.display()
            )),
            Err(_) => Failure::new(why),
        })
    }

    fn commit(&self) -> Result<(), String> {
        let now = self.temporary.base.metadata();
        let now = now.map_err(|error| format!("{}: {error}", self.temporary.base.display()))?;
        let state = |of: &Metadata| (of.ino(), of.len(), of.mtime(), of.mtime_nsec());
        if state(&now) != state(&self.before) {
            return Err(format!(
                "{} was changed by another program meanwhile",
                self.temporary.base.display()
            ));
        }
        let mut what = CommitOptions::default();
        what.then = AfterCommit::Keep;
        let options = OverlayOptions {
            policy: BackingPolicy::Anywhere,
            ..OverlayOptions::default()
        };
        block::tools::commit(&self.temporary.path, &what, &options).map_err(|error| explain(&error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}
