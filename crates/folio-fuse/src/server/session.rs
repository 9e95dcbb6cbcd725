//! The start of a session: the capabilities that both sides have.

use super::Server;
use super::call::Call;
use crate::client_options::{ClientOptions, DataCache, PermissionChecks};
use crate::wire::TRANSFER_MAX;
use crate::wire::abi::{self, InitIn, InitOut, init};
use folio::{Errno, Result};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Most background requests of the kernel at a time, mostly readahead.
const BACKGROUND_MAX: u16 = 64;
/// Number of background requests from which the kernel takes the server for congested.
const CONGESTION: u16 = 48;
/// Most pages in one request; pages of 4 KiB are the smallest.
const PAGES_MAX: u16 = (TRANSFER_MAX >> 12) as u16;

impl Server {
    /// `FUSE_INIT`. Releases what an earlier session left: a guest that was reset ends none.
    pub(super) fn init(&self, call: &mut Call<'_>) -> Result<()> {
        let args: InitIn = call.arguments.take()?;
        self.end();
        if args.major < abi::MAJOR || args.major == abi::MAJOR && args.minor < abi::MINOR_MIN {
            return Err(Errno::PROTO.into());
        }
        let mut flags = u64::from(args.flags);
        if flags & init::INIT_EXT != 0 {
            flags |= u64::from(call.arguments.take::<u32>()?) << 32;
        }
        // A newer kernel sends the request again, in this version.
        let mut wanted = wanted(&self.options, self.permissions);
        if let Some(local) = &self.local {
            wanted = local.adjust_capabilities(wanted);
        }
        let agreed = if args.major > abi::MAJOR {
            0
        } else {
            flags & wanted
        };
        if let Some(local) = &self.local {
            local.negotiate(&args, agreed)?;
        }
        // Before the reply: the requests after it rely on them.
        self.capabilities.store(agreed, Ordering::Relaxed);
        let reply = InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            readahead_max: args.readahead_max,
            flags: agreed as u32,
            background_max: BACKGROUND_MAX,
            congestion: CONGESTION,
            write_max: TRANSFER_MAX as u32,
            time_nanos: 1,
            pages_max: PAGES_MAX,
            flags2: (agreed >> 32) as u32,
            // Backing files are on no stacked file system, and the mount itself may be the bottom
            // of a stack.
            stack_depth_max: u32::from(agreed & init::PASSTHROUGH != 0),
            ..InitOut::default()
        };
        // Older kernels have less room, and do not know the other fields.
        let len = size_of::<InitOut>().min(call.reply.room());
        call.send_bytes(&reply.as_bytes()[..len])
    }

    /// Returns whether the client sends its requests over io_uring.
    pub(crate) fn is_over_uring(&self) -> bool {
        self.has(init::OVER_IO_URING)
    }

    /// Returns whether both sides have a capability.
    pub(super) fn has(&self, capability: u64) -> bool {
        self.capabilities.load(Ordering::Relaxed) & capability != 0
    }
}

/// Returns the capabilities to ask for: fewer requests, and larger ones. Not
/// `FUSE_ATOMIC_O_TRUNC`, with which the kernel would truncate a program that is running; nor
/// locks, which work among the programs of one kernel without a server.
fn wanted(options: &ClientOptions, permissions: PermissionChecks) -> u64 {
    let mut wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::HANDLE_KILLPRIV_V2
        | init::INIT_EXT
        | init::EXPORT_SUPPORT
        | init::DIRECT_IO_ALLOW_MMAP;
    if options.data == DataCache::None {
        // Not where the kernel caches pages: it drops them after a direct write, but not after one
        // that completes asynchronously (`fuse_aio_complete`). A reader beside it would have filled
        // them with old bytes, which would stay.
        wanted |= init::ASYNC_DIO;
    }
    if options.readdirplus {
        wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
    }
    if options.data == DataCache::Kept {
        wanted |= init::CACHE_SYMLINKS;
        if options.keeps_listings() {
            wanted |= init::NO_OPENDIR_SUPPORT;
        }
        if !options.needs_open() {
            wanted |= init::NO_OPEN_SUPPORT;
        }
        wanted |= if options.has_external_writers {
            init::AUTO_INVAL_DATA
        } else {
            // With AUTO_INVAL_DATA the kernel would take a new mtime for an external change, and
            // drop the pages that it has just written.
            init::EXPLICIT_INVAL_DATA
        };
        if options.writeback {
            wanted |= init::WRITEBACK_CACHE;
        }
    }
    match permissions {
        // The kernel reads ACLs and checks permissions with them.
        PermissionChecks::ByClient => wanted | init::POSIX_ACL | init::SETXATTR_EXT,
        PermissionChecks::Off => wanted,
    }
}
