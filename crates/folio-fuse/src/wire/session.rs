//! The start of a session: what both sides can do.

use super::abi::{self, InitIn, InitOut, init};
use super::call::Call;
use super::{ClientOptions, DataCache, Server, TRANSFER_MAX};
use crate::adapter::PermissionChecks;
use folio::{Errno, Result};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Requests that the kernel has under way in the background, mostly readahead.
const BACKGROUND_MAX: u16 = 64;
/// How many of them make it think that the server is busy.
const CONGESTION: u16 = 48;
/// Pages in one request; pages of 4 KiB are the smallest.
const PAGES_MAX: u16 = (TRANSFER_MAX >> 12) as u16;

impl Server {
    /// `FUSE_INIT`. Whatever an earlier session left is let go of: a guest that was reset says no
    /// goodbye.
    pub(super) fn init(&self, call: &mut Call<'_>) -> Result<()> {
        let told: InitIn = call.body.take()?;
        self.end();
        if told.major < abi::MAJOR || told.major == abi::MAJOR && told.minor < abi::MINOR_MIN {
            return Err(Errno::PROTO.into());
        }
        let mut flags = u64::from(told.flags);
        if flags & init::INIT_EXT != 0 {
            flags |= u64::from(call.body.take::<u32>()?) << 32;
        }
        // A newer kernel asks again, in words that are known here.
        let mut wanted = wanted(&self.options, self.judge);
        if let Some(local) = &self.local {
            wanted = local.adjust(wanted);
        }
        let agreed = if told.major > abi::MAJOR {
            0
        } else {
            flags & wanted
        };
        if let Some(local) = &self.local {
            local.begin(&told, agreed)?;
        }
        self.agreed.store(agreed, Ordering::Relaxed);
        let reply = InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            readahead_max: told.readahead_max,
            flags: agreed as u32,
            background_max: BACKGROUND_MAX,
            congestion: CONGESTION,
            write_max: TRANSFER_MAX as u32,
            time_nanos: 1,
            pages_max: PAGES_MAX,
            flags2: (agreed >> 32) as u32,
            // What is behind is no stack of file systems, and the mount itself may be the bottom of
            // one.
            stack_depth_max: u32::from(agreed & init::PASSTHROUGH != 0),
            ..InitOut::default()
        };
        // Older kernels have room for less, and know nothing of the rest.
        let len = size_of::<InitOut>().min(call.reply.room());
        call.send_bytes(&reply.as_bytes()[..len])
    }

    /// Whether both sides can do what `capability` says.
    pub(super) fn has(&self, capability: u64) -> bool {
        self.agreed.load(Ordering::Relaxed) & capability != 0
    }
}

/// The capabilities that make the kernel ask less, or more of it at a time. Not
/// `FUSE_ATOMIC_O_TRUNC`, with which the kernel would let a program that runs be emptied; nor
/// locks, which work among the programs of one kernel without us.
fn wanted(options: &ClientOptions, judge: PermissionChecks) -> u64 {
    let mut wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::HANDLE_KILLPRIV_V2
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP;
    if options.readdirplus {
        wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
    }
    if options.data == DataCache::Kept {
        wanted |= init::NO_OPENDIR_SUPPORT | init::CACHE_SYMLINKS;
        if !options.asks_at_open() {
            wanted |= init::NO_OPEN_SUPPORT;
        }
        wanted |= match options.has_external_writers {
            true => init::AUTO_INVAL_DATA,
            // By itself the kernel would take a new time of modification for a change by others,
            // and drop the pages that it has just written.
            false => init::EXPLICIT_INVAL_DATA,
        };
        if options.writeback {
            wanted |= init::WRITEBACK_CACHE;
        }
    }
    match judge {
        // The kernel asks for ACLs, heeds them, and checks permissions.
        PermissionChecks::ByClient => wanted | init::POSIX_ACL,
        PermissionChecks::Off => wanted,
    }
}
