//! Images as disks of virtual machines: `folio serve vhost-user-blk`, a real guest, a driver of
//! our own, and drivers that break the rules.
//!
//! ```text
//!   activation.rs sockets of a service manager               --.
//!   control.rs    orders by folio ctl                          |
//!   guest.rs      QEMU, a Linux kernel, four queues            |
//!   guest_fio.rs  fio in that guest, over a backing file       |
//!   driver.rs     requests of all kinds on 16 queues, a model  +-->  folio serve  -->  qemu-img check
//!   killed.rs     servers that are killed and started anew   --'
//!   hostile.rs    messages, rings and memory that no driver may send
//! ```

mod activation;
mod control;
mod driver;
mod guest;
mod guest_fio;
mod hostile;
mod killed;

use crate::support::tools::start_server;
use folio_export::vhost_user_blk::client::{Client, ClientOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A running server; dropping it kills it.
struct BlockServer {
    child: Child,
    sockets: Vec<PathBuf>,
    ready: serde_json::Value,
}

impl BlockServer {
    /// Serves images, each on a socket next to it.
    #[track_caller]
    fn new(images: &[&Path], words: &[&str]) -> Self {
        let sockets: Vec<_> = images
            .iter()
            .map(|image| image.with_extension("sock"))
            .collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command.args(["serve", "vhost-user-blk", "--json"]);
        command.args(images).args(words);
        for socket in &sockets {
            command.arg("--socket").arg(socket);
        }
        let (child, line) = start_server(&mut command);
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        Self {
            child,
            sockets,
            ready,
        }
    }

    #[track_caller]
    fn connect(&self, queues: usize, depth: u16) -> Client {
        connect(&self.sockets[0], queues, depth)
    }

    /// Stops the server by SIGTERM, as an operator does.
    #[track_caller]
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        for socket in &self.sockets {
            assert!(!socket.exists(), "the socket file still exists");
        }
    }

    /// Kills the server, as the kernel does when memory is short.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for BlockServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn connect(socket: &Path, queues: usize, depth: u16) -> Client {
    let options = ClientOptions {
        queues,
        depth,
        data_len_max: 256 << 10,
    };
    Client::connect(socket, options).unwrap()
}
