//! The side of a command that serves: a thread accepts connections, each with one order.

use super::disk::ControlledDisk;
use super::protocol::{Answer, LINE_LEN_MAX, Request};
use crate::exit::Outcome;
use folio_net::{Socket, accept_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Duration;

/// Longest time for a client to send its order, and to take its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most orders at a time.
const ORDERS_MAX: usize = 16;

/// Runs `work`, and obeys orders for `disks` meanwhile, if there is a control socket.
pub(crate) fn obey_while<T>(
    control: Option<&ControlServer>,
    disks: &[ControlledDisk<'_>],
    work: impl FnOnce() -> T,
) -> T {
    match control {
        Some(control) => control.obey_while(disks, work),
        None => work(),
    }
}

/// A listening control socket.
pub(crate) struct ControlServer {
    socket: Socket,
    is_stopping: AtomicBool,
    orders: AtomicUsize,
}

impl ControlServer {
    /// Listens on a new socket at `path`, if one is given.
    pub(crate) fn bind(path: Option<&Path>) -> Outcome<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let socket = Socket::bind(path);
        let socket = socket
            .map_err(|error| folio::Error::io("listen", error).at(path.display().to_string()))?;
        Ok(Some(Self {
            socket,
            is_stopping: AtomicBool::new(false),
            orders: AtomicUsize::new(0),
        }))
    }

    fn obey_while<T>(&self, disks: &[ControlledDisk<'_>], work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| self.accept(disks, scope));
            let _stop = StopGuard {
                server: self,
                disks,
            };
            work()
        })
    }

    fn accept<'scope>(
        &'scope self,
        disks: &'scope [ControlledDisk<'scope>],
        scope: &'scope Scope<'scope, '_>,
    ) {
        let is_stopping = || self.is_stopping.load(Ordering::Relaxed);
        while let Ok(Some(stream)) = accept_until(self.socket.listener(), is_stopping) {
            if self.orders.fetch_add(1, Ordering::Relaxed) >= ORDERS_MAX {
                self.orders.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            scope.spawn(move || {
                // A client that is not interested in its answer has it all the same.
                let _ = self.serve(&stream, disks, scope);
                self.orders.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn serve<'scope>(
        &'scope self,
        mut stream: &UnixStream,
        disks: &'scope [ControlledDisk<'scope>],
        scope: &'scope Scope<'scope, '_>,
    ) -> std::io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(stream.take(LINE_LEN_MAX)).read_line(&mut line)?;
        let answer = match serde_json::from_str::<Request>(&line) {
            Err(error) => Answer::invalid(format!("not an order: {error}")),
            Ok(request) => match select(disks, request.image.as_deref()) {
                Err(why) => Answer::invalid(why),
                Ok(disk) => {
                    let answer = Answer::of(disk.obey(&request.order));
                    if disk.should_compact() {
                        // In the background: the fork is done.
                        scope.spawn(|| disk.compact_by_itself());
                    }
                    answer
                }
            },
        };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        stream.write_all(&line)
    }
}

/// Ends the acceptance of orders, and those in progress, when the work has ended or panicked.
struct StopGuard<'a> {
    server: &'a ControlServer,
    disks: &'a [ControlledDisk<'a>],
}

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.server.is_stopping.store(true, Ordering::Relaxed);
        for disk in self.disks {
            disk.cancel();
        }
        // Ends accept(2).
        let listener = self.server.socket.listener();
        let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
    }
}

/// Returns the disk that an order names, or the only one.
fn select<'a, 'b>(
    disks: &'a [ControlledDisk<'b>],
    image: Option<&str>,
) -> Result<&'a ControlledDisk<'b>, String> {
    let names = || {
        let names: Vec<_> = disks.iter().map(ControlledDisk::name).collect();
        names.join(", ")
    };
    match (image, disks) {
        (None, [disk]) => Ok(disk),
        (None, _) => Err(format!("several images are served: {}; name one", names())),
        (Some(name), _) => disks
            .iter()
            .find(|disk| disk.name() == name)
            .ok_or_else(|| format!("{name} is not served: {}", names())),
    }
}
