//! `folio notify`: raises events of the host's changes in a guest, for the programs that watch a
//! virtiofs mount of `folio share`.

use crate::exit::{Failure, Outcome};
use crate::serving::{self, Background, Readiness};
use crate::session::Session;
use crate::{exit, ready};
use clap::Args;
use folio::Errno;
use folio_fuse::{Notifier, NotifierEnd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const EXAMPLES: &str = "\
Examples:
  folio share /srv/data --socket fs.sock           on the host, for a virtual machine
  mount -t virtiofs share /mnt                     in the guest, as root
  folio notify --background /mnt                   from now on inotify reports changes that the host makes

Programs in the guest that watch the mount (inotify, fanotify) then get the events of changes on the host, as watchers
on the host do: new, changed, moved and removed files. The command asks the server for changes through the mount
itself, so it needs no network. It makes a request once in a second without changes, and ends after the unmount in its
mount namespace. One command serves a mount; a new one replaces it.

A mount by folio mount needs no folio notify: give it -o events=on. docs/semantics.md, section Events, has the
guarantees.";

/// Raise events of the host's changes in a guest, for programs that watch a virtiofs mount
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Notify {
    /// The virtiofs mount of a directory that folio share serves
    mountpoint: PathBuf,
    /// Return once changes are events, and go on in the background
    #[arg(long)]
    background: bool,
    /// Write the line "ready" to this file descriptor once changes are events; NOTIFY_SOCKET of a
    /// service manager is notified too
    #[arg(long, value_name = "FD")]
    ready_fd: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(notify: &Notify, session: &Session) -> Outcome {
    let is_background = serving::is_background();
    if notify.background && !is_background {
        return serving::start_in_background();
    }
    if is_background {
        // Signals to the starter's terminal must not reach this process.
        let _ = rustix::process::setsid();
    }
    let target = &notify.mountpoint;
    let at_target =
        |error: folio::Error| Failure::new(format!("{}: {}", target.display(), reason(&error)));
    let signals = serving::signals()?;
    let is_stopping = AtomicBool::new(false);
    let stop = || is_stopping.store(true, Ordering::Relaxed);
    let readiness = Readiness {
        fd: notify.ready_fd,
        background: is_background.then_some(Background {
            record: None,
            log: None,
        }),
    };
    let ended = serving::until_signal(signals, stop, || {
        let mut notifier = Notifier::attach(target).map_err(at_target)?;
        let description = format!("changes on the host are events in {}", target.display());
        serving::report_ready(readiness, session, &description)?;
        let ended = notifier.run(|| is_stopping.load(Ordering::Relaxed));
        ready::notify_stopping();
        ended.map_err(at_target)
    })?;
    if ended == NotifierEnd::Unmounted && !session.quiet {
        session.note(format_args!("{} is unmounted", target.display()));
    }
    Ok(())
}

/// Says why a mount has no notifier, and what to do.
fn reason(error: &folio::Error) -> String {
    let text = match error.errno() {
        Errno::NOTTY | Errno::NOSYS => {
            "not a virtiofs mount of folio share, or one of an older release: run \
             'folio share DIR --socket PATH' on the host"
        }
        Errno::OPNOTSUPP => {
            "a mount of folio mount raises events by itself: mount it with -o events=on"
        }
        Errno::NODATA => {
            "the host reports no changes of this share: it must be a directory, without push=off \
             and ttl=inf"
        }
        Errno::PERM | Errno::ACCESS => "only root raises events",
        Errno::XDEV => "not the root of a virtiofs mount: give the directory that it is mounted on",
        Errno::ROFS => {
            "the mount is read-only: mount it without ro; to forbid writes use folio share \
             --read-only"
        }
        Errno::BUSY => "replaced by another folio notify, or the device was reset",
        Errno::PROTO => "the share is of another release of folio: use the same one on both sides",
        _ => return exit::explain(error),
    };
    text.to_owned()
}
