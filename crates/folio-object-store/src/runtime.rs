//! The runtime of all requests: one a process, started by the first request. Callers are
//! synchronous: the calling thread waits.

use folio::{Error, Result};
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that serve sockets; TLS of one fast connection keeps one of them busy.
const WORKER_THREADS: usize = 2;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Returns the runtime of this process. Its threads do not survive fork(2).
///
/// # Errors
///
/// EAGAIN if the host allows no more threads.
pub fn handle() -> Result<Handle> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle().clone());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("object-store")
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the threads of the object store", error))?;
    // Another thread may have been faster: its runtime stays, and this one stops.
    if let Err(surplus) = RUNTIME.set(started) {
        surplus.shutdown_background();
    }
    Ok(RUNTIME.wait().handle().clone())
}

/// Runs a future to its end on the calling thread, which must not be a thread of a runtime.
///
/// # Errors
///
/// Those of [`handle`], and those of the future.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    handle()?.block_on(future)
}
