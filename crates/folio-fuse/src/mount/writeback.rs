//! The writeback thread: bounds how long the kernel delays writes (`-o writeback`).
//!
//! The kernel writes its dirty pages back when they are 30 s old. A server that is killed loses
//! them, and the bound that the file system gives for its own caches (`commit=`) begins only when
//! it receives them. So the thread syncs the mount once in a second, as a program would by sync(2).

use super::sync_device::SyncDevice;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two syncs.
const PERIOD: Duration = Duration::from_secs(1);

/// The thread of one mount.
pub(super) struct WritebackThread {
    /// Dropped to end the thread.
    end: Sender<()>,
    thread: JoinHandle<()>,
    /// Last: closed in the table of the session's threads, once the thread has ended.
    _device: Arc<SyncDevice>,
}

impl WritebackThread {
    /// Starts the thread.
    pub(super) fn start(device: SyncDevice) -> io::Result<Self> {
        let device = Arc::new(device);
        let (end, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("folio-writeback".to_owned())
            .spawn({
                let device = Arc::clone(&device);
                move || run(&device, &ended)
            })?;
        Ok(Self {
            end,
            thread,
            _device: device,
        })
    }

    /// Ends the thread, after the session.
    pub(super) fn stop(self) -> io::Result<()> {
        drop(self.end);
        let ended = self.thread.join();
        ended.map_err(|_| io::Error::other("the writeback thread panicked"))
    }
}

fn run(device: &SyncDevice, ended: &Receiver<()>) {
    // In a shared table the thread could wait for itself.
    if device.leave_shared_table().is_err() {
        return;
    }
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        // Writers receive the errors of their files at fsync(2).
        let _ = device.sync();
    }
}
