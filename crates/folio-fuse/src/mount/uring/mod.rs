//! FUSE over io_uring: each request is served on the CPU that made it, with one system call for a
//! reply and the next request.
//!
//! ```text
//!   program on CPU n --> the kernel's queue n --> the thread of queue n, bound to CPU n
//!                                                  |  queue.rs: Server::handle_at_once
//!                                                  |  slot.rs:  the memory of one request
//!                                                  v
//!                             at once:  commit the reply, fetch the next request
//!                             else:     workers.rs, then back to the thread of queue n
//! ```
//!
//! /dev/fuse carries what the queues do not: the first request, forgets, interrupts, and notices.
//! Linux: fs/fuse/dev_uring.c, since 6.14; the administrator permits it by the parameter
//! `enable_uring` of the module `fuse`.
//!
//! Neighbors: `transport.rs` above, `server/` below.
//!
//! Locks: the list of finished requests of a queue, and the workers' queue; never both, none while
//! a request is handled.
//!
//! Invariants:
//! - U1: the kernel owns the memory of a slot from its registration or commit to its completion;
//!   the queue's thread has it otherwise.
//! - U2: one thread uses a ring: the one that created it.
//! - U3: no request in a slot waits for another request, which might find no slot.
//! - U4: the kernel sends requests only when every possible CPU has a queue, and blocks all
//!   programs until then. So the capability is negotiated only if a ring could be created, and the
//!   session ends if a queue cannot be.

mod queue;
mod slot;
mod workers;

use crate::server::Server;
use queue::{Queue, Ring};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use workers::Workers;

/// Checks that this process may create rings and knows the number of CPUs. The kernel decides about
/// the rest.
///
/// # Errors
/// Those of io_uring_setup(2).
pub(super) fn probe() -> io::Result<()> {
    queue_count().ok_or(io::ErrorKind::Unsupported)?;
    Ring::new().map(drop)
}

/// Starts the queues of all CPUs of the session `device`; `has_push` if changes are pushed to the
/// kernel; and `workers` threads for requests that wait for devices. The
/// threads end after the unmount.
///
/// # Errors
/// Those of creating rings and threads; no thread is left then.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server,
    device: &Arc<OwnedFd>,
    has_push: bool,
    workers: usize,
) -> io::Result<Vec<ScopedJoinHandle<'scope, io::Result<()>>>> {
    let count = queue_count().ok_or(io::ErrorKind::Unsupported)?;
    let (slow, slow_requests) = channel();
    let slow_requests = Arc::new(Mutex::new(slow_requests));
    let (created, creations) = channel();
    let mut begin = Vec::new();
    let mut threads = Vec::new();
    for number in 0..count {
        let (begins, beginning) = channel::<()>();
        let (created, slow, device) = (created.clone(), slow.clone(), Arc::clone(device));
        let thread = Builder::new().name(format!("folio-uring-{number}"));
        threads.push(thread.spawn_scoped(scope, move || {
            let queue = Queue::new(number, device, has_push);
            let _ = created.send(queue.as_ref().err().map(io::Error::kind));
            // Else another queue could not be created.
            match beginning.recv() {
                Ok(()) => queue?.serve(server, &slow),
                Err(_) => Ok(()),
            }
        })?);
        begin.push(begins);
    }
    // A thread that panics sends nothing: without this sender the channel then ends.
    drop(created);
    if let Some(error) = creations.iter().take(usize::from(count)).flatten().next() {
        return Err(error.into());
    }
    for number in 0..workers {
        let requests = Workers::new(Arc::clone(&slow_requests));
        let thread = Builder::new().name(format!("folio-fuse-slow-{number}"));
        threads.push(thread.spawn_scoped(scope, move || {
            requests.serve(server);
            Ok(())
        })?);
    }
    // Only now: the kernel blocks all programs from the first queue to the last (U4).
    for begins in begin {
        let _ = begins.send(());
    }
    Ok(threads)
}

/// Returns the number of queues that the kernel expects: one for each CPU that may ever exist.
/// Linux: `num_possible_cpus`.
fn queue_count() -> Option<u16> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    last_cpu(&possible)?.checked_add(1)
}

/// Returns the last CPU in a list like `0-3,8`.
fn last_cpu(list: &str) -> Option<u16> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::last_cpu;

    #[test]
    fn last_cpu_ends_the_list() {
        assert_eq!(last_cpu("0\n"), Some(0));
        assert_eq!(last_cpu("0-63\n"), Some(63));
        assert_eq!(last_cpu("0-3,8"), Some(8));
        assert_eq!(last_cpu(""), None);
    }
}
