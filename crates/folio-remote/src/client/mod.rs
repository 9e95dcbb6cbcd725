//! The client: a mount whose requests another machine answers.
//!
//! ```text
//!   kernel --- /dev/fuse ---> reading --> under way --> link --> stream          relay.rs
//!      ^  ^                                  |                     |
//!      |  +------ replies -------------------+---- talking <-------+             talk.rs (and connecting anew)
//!      +--------- notices.rs (a thread of its own) <---+
//!                 known.rs: what to forget when all is to be forgotten
//! ```
//!
//! Neighbours: `folio-cli` above; below, the frames of `link.rs`, and the kernel.
//!
//! Locks, none held while another is taken, or bytes are moved: what is under way; what the kernel
//! knows; the notices.
//!
//! Invariants:
//! - C1: every request of the kernel is answered once: by the server, or with an error by us if the
//!   server cannot any more.
//! - C2: a session that is resumed has missed nothing, neither replies nor changes. With any other,
//!   all that the kernel has cached is forgotten, and files that were open are lost.
//! - C3: only the thread that talks writes replies, but for those that fail here; notices have
//!   their own.

mod known;
mod notices;
mod relay;
mod talk;

use crate::address::Address;
use crate::key::Key;
use folio::{Errno, Error, Result};
pub use folio_fuse::MountAttributes;
use folio_fuse::{Mountpoint, Unmounter};
use relay::Relay;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use talk::Talker;

/// What the relay makes of any request and reply.
pub(crate) fn fuzz_known(request: &[u8], reply: &[u8]) {
    let mut known = known::Known::default();
    known.replied(request, reply);
    known.requested(request);
    known.all();
}

/// A share that was reached and not mounted yet.
pub struct Remote {
    talker: Talker,
}

/// A share that is mounted, and ready to be served.
pub struct Mount {
    relay: Arc<Relay>,
    talker: Talker,
    mounted: Mountpoint,
}

impl Remote {
    /// Connects. If the connection is lost later, calls wait for it up to `patience`, and fail from
    /// then on until it is back. `tell` gets what the operator should know.
    ///
    /// Errors: EACCES if the key is not the server's, else what the server or the host says.
    pub fn connect(
        address: Address,
        key: Option<Key>,
        patience: Duration,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        Ok(Self {
            talker: Talker::connect(address, key, patience, Box::new(tell))?,
        })
    }

    /// What is shared, in the server's words.
    pub fn share(&self) -> &str {
        self.talker.share()
    }

    /// Mounts it on the directory `target`.
    pub fn mount(self, target: &Path, words: &MountAttributes) -> Result<Mount> {
        let mounted = Mountpoint::new(target, words, self.talker.kernel_judges())?;
        let relay = Arc::new(Relay::new(
            Arc::clone(mounted.device()),
            self.talker.limits(),
        ));
        Ok(Mount {
            relay,
            talker: self.talker,
            mounted,
        })
    }
}

impl Mount {
    /// What ends [`Mount::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.mounted.unmounter().clone()
    }

    /// For who does not want to wait for a server that is away: calls that wait for it fail now,
    /// and those that come do too. With a connection nothing happens.
    pub fn abandoner(&self) -> impl Fn() + Send + Sync + use<> {
        let relay = self.relay.clone();
        move || relay.abandon_if_lost()
    }

    /// Relays until the file system is unmounted, by whomever, and nobody uses it any more.
    ///
    /// Errors: if the server shares something else by now; the mount is detached then, and calls
    /// fail.
    pub fn serve(self) -> Result<()> {
        let Self {
            relay,
            mut talker,
            mounted,
        } = self;
        let Some(init) = relay.first_request()? else {
            return Ok(());
        };
        talker.begin(&relay, init)?;
        std::thread::scope(|scope| {
            let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let notices = spawn("folio notices").spawn_scoped(scope, || relay.tell_notices());
            let talking = spawn("folio talk").spawn_scoped(scope, || {
                let talked = talker.talk(&relay);
                if talked.is_err() {
                    relay.abandon();
                    // The kernel tells us then that it is over.
                    let _ = mounted.unmounter().unmount(true);
                }
                talked
            });
            let read = match (&notices, &talking) {
                (Ok(_), Ok(_)) => relay.read_requests(),
                _ => Err(Error::new(Errno::AGAIN, "the host gives no more threads")),
            };
            relay.end();
            let talked = talking.map(|thread| thread.join());
            match talked {
                Ok(Ok(talked)) => read.and(talked),
                Ok(Err(_)) => Err(Error::new(Errno::IO, "the relay has failed")),
                Err(_) => read,
            }
        })
    }
}
