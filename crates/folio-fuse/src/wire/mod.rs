//! The FUSE protocol as bytes, whatever carries them: a request in, a reply out. Linux: fs/fuse,
//! linux/fuse.h.
//!
//! ```text
//!   carrier     /dev/fuse (transport.rs), a guest's queue (folio-virtiofs), a stream of frames (folio-remote)
//!      |  request bytes            ^ Reply: body, then header      ^ Notice::encode
//!      v                           |                               |
//!   Server::handle --> call.rs: header and arguments, checked      notify.rs
//!      |   session.rs  what both sides can do      names.rs        look up, make, move, list
//!      |   data.rs     open files and bytes        attributes.rs   stat, set, extended attributes
//!      v   (abi.rs: the structs; options.rs: what the kernel may keep; local.rs: what this machine's own may besides)
//!   adapter/    one call per operation
//! ```
//!
//! Neighbours: carriers above; the adapter below.
//!
//! Invariants:
//! - W1: whoever asks may be hostile. Every length and offset is checked, a reply never exceeds its
//!   room, nothing panics, and memory is bounded by [`REQUEST_MAX`] and [`REPLY_BODY_MAX`].
//! - W2: no lock is held while a request is handled; requests may be handled by any number of
//!   threads.
//! - W3: an entry that could not be told is not counted, so tables do not grow by replies that did
//!   not fit.

mod abi;
mod attributes;
mod call;
mod data;
mod encode;
mod local;
mod names;
mod notify;
mod options;
mod reply;
mod session;
#[cfg(test)]
mod tests;

pub use abi::op;
pub(crate) use abi::open;
pub(crate) use local::Local;
pub use notify::Notice;
pub use options::{ClientOptions, DataCache, FOREVER, parse_ttl};
pub use reply::{Message, Reply};

use crate::adapter::{Adapter, PermissionChecks};
use call::{Body, Call};
use folio::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of data in one read or write; the kernel's own limit is 256 pages
/// (`fs.fuse.max_pages_limit`).
pub const TRANSFER_MAX: usize = 1 << 20;
/// Bytes of the body of a reply at most.
pub const REPLY_BODY_MAX: usize = TRANSFER_MAX;
/// Bytes of a request at most: headers, and names or data.
pub const REQUEST_MAX: usize = TRANSFER_MAX + (128 << 10);
/// Bytes of the header of a reply, which is the least room that a carrier must have.
pub const REPLY_HEADER_LEN: usize = reply::HEADER_LEN;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The reply is complete.
    Replied,
    /// This request has no reply.
    Silent,
    /// The reply is complete, and the kernel has unmounted: it knows no node and no file any more.
    Ended,
    /// No request at all: too short, too long, or not as long as it says. Nothing can be replied.
    Malformed,
}

/// Serves one kernel: one virtiofs device, or one stream. Calls from any thread.
///
/// A carrier that pushes changes ([`Notice`]) holds [`Adapter::begin_reply`] while a request is handled
/// and until its reply is sent.
pub struct Server {
    adapter: Arc<Adapter>,
    judge: PermissionChecks,
    options: ClientOptions,
    /// If this machine's own kernel asks.
    local: Option<Local>,
    /// What both sides can do: `abi::init`.
    agreed: AtomicU64,
}

/// What a request has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Data that are not in memory.
    Data,
    /// That much is written, or longer.
    Long,
}

/// What a call came to.
enum Done {
    Replied,
    Silent,
    Ended,
    /// It would have to wait, and must not.
    Slow,
}

impl Server {
    /// Serves `adapter`, whose calls `judge` judges.
    pub fn new(adapter: Arc<Adapter>, judge: PermissionChecks, options: ClientOptions) -> Self {
        Self {
            adapter,
            judge,
            options,
            local: None,
            agreed: AtomicU64::new(0),
        }
    }

    /// The same for the kernel behind /dev/fuse.
    pub(crate) fn local(
        adapter: Arc<Adapter>,
        judge: PermissionChecks,
        options: ClientOptions,
        local: Local,
    ) -> Self {
        Self {
            local: Some(local),
            ..Self::new(adapter, judge, options)
        }
    }

    /// The file system's side of the service.
    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Does what `request` asks (header and body) and writes the reply. May wait for devices.
    pub fn handle(&self, request: &[u8], reply: &mut dyn Reply) -> Outcome {
        // Who may wait is never told to.
        self.attend(request, reply, true)
            .unwrap_or(Outcome::Malformed)
    }

    /// The same for a thread that has others to serve: if the request has to wait nothing was done,
    /// and [`Server::handle`] does it, on another thread perhaps.
    pub fn handle_at_once(
        &self,
        request: &[u8],
        reply: &mut dyn Reply,
    ) -> std::result::Result<Outcome, Wait> {
        self.attend(request, reply, false)
    }

    /// Lets go of all that the kernel knew, as if it had unmounted: for a carrier that has lost its
    /// other end.
    pub fn end(&self) {
        self.adapter.forget_all();
    }

    fn attend(
        &self,
        request: &[u8],
        reply: &mut dyn Reply,
        may_wait: bool,
    ) -> std::result::Result<Outcome, Wait> {
        let Some((header, body)) = call::split(request) else {
            return Ok(Outcome::Malformed);
        };
        if !may_wait && is_slow(header.opcode) {
            return Err(Wait::Long);
        }
        reply.restart();
        let mut call = Call {
            header,
            body: Body(body),
            reply,
            may_wait,
        };
        let done = match self.refuses(header.opcode) {
            true => Err(Errno::ROFS.into()),
            false
                if self
                    .local
                    .as_ref()
                    .is_some_and(|local| local.shuts_out(&header)) =>
            {
                Err(Errno::ACCESS.into())
            }
            false => self.dispatch(&mut call),
        };
        let (outcome, errno) = match done {
            Ok(Done::Slow) => return Err(Wait::Data),
            Ok(Done::Silent) => return Ok(Outcome::Silent),
            Ok(Done::Replied) => (Outcome::Replied, 0),
            Ok(Done::Ended) => (Outcome::Ended, 0),
            Err(error) => (Outcome::Replied, error.errno().raw_os_error()),
        };
        reply::finish(call.reply, header.unique, errno);
        Ok(outcome)
    }

    /// Whether a change is asked of what is read-only. What opens a file for writing is refused by
    /// the asking kernel, which knows that it has mounted it read-only, or else by the write.
    fn refuses(&self, opcode: u32) -> bool {
        const CHANGES: [u32; 16] = [
            op::SETATTR,
            op::SYMLINK,
            op::MKNOD,
            op::MKDIR,
            op::UNLINK,
            op::RMDIR,
            op::RENAME,
            op::RENAME2,
            op::LINK,
            op::WRITE,
            op::SETXATTR,
            op::REMOVEXATTR,
            op::CREATE,
            op::FALLOCATE,
            op::COPY_FILE_RANGE,
            op::TMPFILE,
        ];
        self.options.read_only && CHANGES.contains(&opcode)
    }

    fn dispatch(&self, call: &mut Call<'_>) -> Result<Done> {
        let replied = match call.header.opcode {
            op::INIT => self.init(call),
            op::DESTROY => {
                self.end();
                return Ok(Done::Ended);
            }
            op::FORGET | op::BATCH_FORGET => {
                // Nobody hears what is wrong with it.
                let _ = self.forget(call);
                return Ok(Done::Silent);
            }
            // What it is about has been handled, or is on its way.
            op::INTERRUPT | op::NOTIFY_REPLY => return Ok(Done::Silent),
            op::READ => return self.read(call),
            op::LOOKUP => self.lookup(call),
            op::GETATTR => self.getattr(call),
            op::SETATTR => self.setattr(call),
            op::STATX => self.statx(call),
            op::READLINK => self.readlink(call),
            op::SYMLINK => self.symlink(call),
            op::MKNOD => self.mknod(call),
            op::MKDIR => self.mkdir(call),
            op::UNLINK => self.unlink(call),
            op::RMDIR => self.rmdir(call),
            op::RENAME | op::RENAME2 => self.rename(call),
            op::LINK => self.link(call),
            op::OPEN => self.open(call),
            op::CREATE => self.create(call),
            op::TMPFILE => self.tmpfile(call),
            op::WRITE => self.write(call),
            op::RELEASE => self.release(call),
            op::FSYNC => self.fsync(call),
            op::FSYNCDIR => self.fsyncdir(call),
            op::SYNCFS => self.adapter.sync_all(),
            op::STATFS => self.statfs(call),
            op::GETXATTR => self.getxattr(call),
            op::LISTXATTR => self.listxattr(call),
            op::SETXATTR => self.setxattr(call),
            op::REMOVEXATTR => self.removexattr(call),
            op::OPENDIR => self.opendir(call),
            op::RELEASEDIR => Ok(()),
            op::READDIR => self.readdir(call),
            op::READDIRPLUS => self.readdirplus(call),
            op::FALLOCATE => self.fallocate(call),
            op::LSEEK => self.lseek(call),
            op::COPY_FILE_RANGE => self.copy_file_range(call),
            // Locks are the asking kernel's; FLUSH has nothing to do at close(2), and ACCESS is
            // judged before anybody asks. Once told so, the kernel does not ask again.
            _ => Err(Errno::NOSYS.into()),
        };
        replied.map(|()| Done::Replied)
    }
}

/// Whether the reply to a request tells attributes or names ([`Adapter::begin_reply`]).
pub(crate) fn is_telling(request: &[u8]) -> bool {
    call::split(request).is_some_and(|(header, _)| {
        matches!(
            header.opcode,
            op::LOOKUP
                | op::GETATTR
                | op::STATX
                | op::SETATTR
                | op::SYMLINK
                | op::MKNOD
                | op::MKDIR
                | op::LINK
                | op::CREATE
                | op::TMPFILE
                | op::READDIRPLUS
        )
    })
}

/// Requests that wait for devices as a rule.
fn is_slow(opcode: u32) -> bool {
    matches!(
        opcode,
        op::FSYNC | op::FSYNCDIR | op::SYNCFS | op::FALLOCATE | op::COPY_FILE_RANGE | op::DESTROY
    )
}
