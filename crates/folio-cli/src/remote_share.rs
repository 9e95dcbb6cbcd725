//! Remote shares: the parts of `folio share --listen` and `folio mount unix:PATH DIRECTORY`.

use crate::exit::{Failure, Outcome, explain};
use crate::ready;
use crate::sandbox::Sandbox;
use crate::serving::{self, Readiness};
use crate::session::Session;
use clap::Args;
use folio::vfs::MountOptions;
use folio_fuse::{AllowedUsers, Events, SessionOptions};
use folio_remote::{Address, Key, Limits, Listener, MountAttributes, Remote, Server, Share};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `folio share` for clients over a stream.
#[derive(Args)]
pub(crate) struct ShareArgs {
    /// Listen for folio mount on unix:PATH, vsock:[CID:]PORT or tcp:[ADDRESS:]PORT; the default
    /// ADDRESS is 127.0.0.1
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) listen: Option<Address>,
    /// A file with the key that clients must have too; required for TCP beyond this machine
    #[arg(long, value_name = "FILE", requires = "listen")]
    key_file: Option<PathBuf>,
    /// Keep the open files of a disconnected client for this many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        conflicts_with = "socket"
    )]
    grace: u64,
    /// Maximum number of clients, including disconnected ones
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        conflicts_with = "socket"
    )]
    max_clients: usize,
    /// Write the line "ready" to this file descriptor once clients can connect; NOTIFY_SOCKET of a
    /// service manager is notified too
    #[arg(long, value_name = "FD")]
    pub(crate) ready_fd: Option<u32>,
    /// For vsock: accept only guests with this CID; repeatable
    #[arg(long, value_name = "CID", requires = "listen")]
    allow_cid: Vec<u32>,
}

impl ShareArgs {
    /// Returns the file of the key.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }
}

/// Options of `folio mount` for a remote share.
#[derive(Args)]
pub(crate) struct MountArgs {
    /// A file with the key of the remote share
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// After a lost connection, let calls wait this many seconds, then fail with EIO until it is
    /// restored
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    retry: u64,
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error| explain(&error))
}

/// Returns the address if `source` is one; `None` if it is a file.
pub(crate) fn parse_address(source: &OsStr) -> Outcome<Option<Address>> {
    match source.to_str().filter(|text| Address::has_scheme(text)) {
        Some(text) => address(text).map(Some).map_err(Failure::usage),
        None => Ok(None),
    }
}

fn key(file: Option<&PathBuf>) -> Outcome<Option<Key>> {
    Ok(file.map(|file| Key::read(file)).transpose()?)
}

/// Returns the name of the share for clients. They do not learn the host's directories.
pub(crate) fn share_name(source: &Path) -> String {
    source
        .file_name()
        .unwrap_or(source.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Serves a share until a signal.
pub(crate) fn serve(
    args: &ShareArgs,
    session: &Session,
    sandbox: &Sandbox,
    place: &Address,
    name: &str,
    share: Share,
) -> Outcome {
    let limits = Limits {
        clients: args.max_clients.max(1),
        grace: Duration::from_secs(args.grace),
        ..Limits::default()
    };
    if !args.allow_cid.is_empty() && !matches!(place, Address::Vsock { .. }) {
        return Err(Failure::usage(
            "--allow-cid: valid only with --listen vsock:",
        ));
    }
    let key = key(args.key_file.as_ref())?;
    // A signal ends the command at once until clients can connect. Then it stops the server.
    let signals = serving::signals()?;
    let listener = Listener::bind(place)?.with_allowed_cids(args.allow_cid.clone());
    let server = Server::new(listener, share, key, limits, |message| {
        eprintln!("folio: share: {message}")
    })?;
    let stopper = server.stopper();
    serving::until_signal(
        signals,
        move || stopper.stop(),
        || {
            let description = format!("{name} is shared at {}", server.address());
            let notified = ready::notify_ready(args.ready_fd, &description);
            if !session.quiet {
                session.note(format_args!("{description} until Ctrl-C"));
            }
            let served = notified.and_then(|()| {
                sandbox.close();
                Ok(server.serve()?)
            });
            ready::notify_stopping();
            served
        },
    )
}

/// The arguments of `folio mount` for a remote share.
pub(crate) struct MountRequest<'a> {
    /// The directory to mount on.
    pub(crate) target: &'a Path,
    /// `--ro`.
    pub(crate) is_read_only: bool,
    /// `--allow-other`.
    pub(crate) allow_other: bool,
    pub(crate) args: &'a MountArgs,
    pub(crate) readiness: Readiness<'a>,
}

/// Mounts the share of a server, until an unmount.
pub(crate) fn mount(request: &MountRequest<'_>, session: &Session, place: Address) -> Outcome {
    let (words, wants_events) = mount_words(request, session, &place)?;
    let key = key(request.args.key_file.as_ref())?;
    let retry = Duration::from_secs(request.args.retry);
    let name = place.to_string();
    let remote = Remote::connect(place, key, retry, wants_events, session.note_printer())?;
    let description = format!(
        "{name} ({}) is on {}",
        remote.share(),
        request.target.display()
    );
    let mounted = remote.mount(request.target, &words)?;
    let signals = serving::signals()?;
    let (unmounter, abandon) = (mounted.unmounter(), mounted.abandoner());
    let unmount = |lazily| unmounter.unmount(lazily);
    serving::until_unmounted(signals, &unmount, session, abandon, || {
        let served = serving::report_ready(request.readiness, session, &description)
            .and_then(|()| Ok(mounted.serve()?));
        ready::notify_stopping();
        served
    })
}

/// Parses `-o` for the local mount, and whether it raises events. The server decides about all
/// other options.
fn mount_words(
    request: &MountRequest<'_>,
    session: &Session,
    place: &Address,
) -> Outcome<(MountAttributes, bool)> {
    let refused = |error| Failure::usage(format!("-o {}", explain(&error)));
    let mut options = SessionOptions::new(place.to_string());
    // As for an image: by default the server's files give no privileges here.
    let mut rest = "nosuid,nodev".to_owned();
    for word in &session.options {
        if word == "fakeroot" || word == "allow_root" || !options.apply(word).map_err(refused)? {
            rest.push(',');
            rest.push_str(word);
        }
    }
    if request.is_read_only {
        rest.push_str(",ro");
    }
    let inside = MountOptions::parse(&rest).map_err(refused)?;
    if !inside.file_system.is_empty() {
        let text = format!(
            "-o {}: invalid for a remote share; give it to folio share instead",
            inside.file_system
        );
        return Err(Failure::usage(text));
    }
    let wants_events = options.events == Events::Always;
    if wants_events && inside.read_only {
        return Err(Failure::usage(
            "-o events=on: needs a mount that may be written",
        ));
    }
    let attributes = MountAttributes {
        source: options.source,
        allow_other: request.allow_other || options.allowed == AllowedUsers::All,
        read_only: inside.read_only,
        no_set_id: inside.no_set_id,
        no_devices: inside.no_devices,
        no_execution: inside.no_execution,
        // Writes have reached the server, and sync(1) would wait for an unreachable one.
        sends_sync: false,
    };
    Ok((attributes, wants_events))
}
