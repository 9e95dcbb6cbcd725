//! The fuzz target's entry: a client's bytes to the server of a small disk. Not public API.

use super::client::Client;
use super::command::WorkBuffers;
use super::connection::ConnectionTask;
use super::state::{Export, Limits, ServerState};
use folio::block::MemoryDevice;
use folio_net::{Stopper, Stream, Task, WorkerPool, WorkerPoolOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Size of the disk: longer than a piece, so that reads and writes are split.
const DISK_BYTES: u64 = 2 << 20;
/// Most bytes of one input. Each request may read the whole disk.
const INPUT_BYTES_MAX: usize = 8 << 10;
/// First bytes that a server sends.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// Serves a client that sends `data`, and takes all replies. The first byte selects the export.
pub fn server(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let Ok((client, own)) = UnixStream::pair() else {
        return;
    };
    let received = std::thread::scope(|scope| {
        let client = &client;
        let sent = &rest[..rest.len().min(INPUT_BYTES_MAX)];
        let replies = scope.spawn(move || {
            let mut start = Vec::new();
            let _ = client.take(GREETING.len() as u64).read_to_end(&mut start);
            let _ = std::io::copy(&mut &*client, &mut std::io::sink());
            start
        });
        // The socket's buffer holds an input. The server may disconnect before it has read all.
        let _ = { client }.write_all(sent);
        let _ = client.shutdown(Shutdown::Write);
        serve(own.into(), first);
        replies.join()
    });
    let received = received.unwrap_or_default();
    assert_eq!(received, GREETING, "the server sends no greeting");
}

/// Serves one connection in this thread.
fn serve(stream: Stream, choice: u8) {
    let export = Export {
        device: Arc::new(MemoryDevice::new(DISK_BYTES)),
        name: if choice & 1 == 0 { "" } else { "disk" }.to_owned(),
        description: (choice & 2 != 0).then(|| "a description".to_owned()),
        read_only: choice & 4 != 0,
    };
    let limits = Limits {
        send_timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    let state = ServerState::new(export, limits, Stopper::new(|| {}), Box::new(|_| {}));
    let client = Arc::new(Client::new(Arc::new(stream), Arc::new(state), 1));
    // Without threads of the pool, all requests run in this one, and so do their panics.
    let pool = WorkerPool::new(WorkerPoolOptions {
        thread_name: "fuzz",
        threads_max: 0,
        idle_timeout: Duration::ZERO,
    });
    ConnectionTask::Greet(client).run(&mut WorkBuffers::default(), &pool);
}

#[cfg(test)]
#[path = "../../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_server_inputs_do_not_panic() {
        replay::run("nbd_server", server);
    }
}
