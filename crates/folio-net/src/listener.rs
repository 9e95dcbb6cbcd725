//! A listening Unix, vsock or TCP socket, whose accept another thread can end.

use crate::address::Address;
use crate::socket::Socket;
use crate::stream::{Stream, vsock_socket};
use folio::{Error, Result};
use nix::sys::socket as vsock;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Clients that may wait to be accepted on a vsock port.
const BACKLOG: i32 = 64;
/// Every context id of this machine (vsock(7), `VMADDR_CID_ANY`).
const ANY_CID: u32 = u32::MAX;

/// The client of an accepted connection, as far as the host identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this user id (Unix socket).
    User(u32),
    /// The virtual machine of this context id (vsock).
    Machine(u32),
    /// A TCP address.
    Network(SocketAddr),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(out, "user {uid}"),
            Self::Machine(cid) => write!(out, "CID {cid}"),
            Self::Network(address) => write!(out, "{address}"),
        }
    }
}

/// A socket that clients connect to. The file of a Unix socket is removed on drop.
pub struct Listener {
    socket: ListeningSocket,
    address: Address,
    /// [`Listener::close`] shuts this pair down. shutdown(2) of the listening socket itself ends
    /// accept(2) for Unix and TCP, but not for vsock.
    wake: (UnixStream, UnixStream),
    /// Guests that may connect; empty allows all.
    allowed_cids: Vec<u32>,
}

enum ListeningSocket {
    Unix(Socket),
    Tcp(TcpListener),
    Vsock(OwnedFd),
}

impl Listener {
    /// Listens at `address`. A Unix socket is accessible to its owner only (mode 0600).
    ///
    /// # Errors
    /// EADDRINUSE if a server listens there or a file of another kind is there, else the host's
    /// error. Linux: bind(2), listen(2).
    pub fn bind(address: &Address) -> Result<Self> {
        match address {
            Address::Unix(path) => Self::unix(path),
            Address::Tcp { host, port } => {
                Self::tcp(&Address::host_or_localhost(host.as_deref()), *port)
            }
            Address::Vsock { cid, port } => {
                let bound = bind_vsock(cid.unwrap_or(ANY_CID), *port)
                    .map_err(|error| listen_error(address, error))?;
                Self::new(ListeningSocket::Vsock(bound), address.clone())
            }
        }
    }

    /// Listens on a new Unix socket at `path`, which is accessible to its owner only (mode 0600).
    /// Replaces a socket file that no server listens on.
    ///
    /// # Errors
    /// EADDRINUSE if a server listens there or a file of another kind is there, else the host's
    /// error. Linux: bind(2), listen(2).
    pub fn unix(path: &Path) -> Result<Self> {
        let failed = |error| listen_error(&Address::Unix(path.to_owned()), error);
        let socket = Socket::bind(path).map_err(failed)?;
        let address = Address::Unix(socket.path().to_owned());
        Self::new(ListeningSocket::Unix(socket), address)
    }

    /// Listens on a TCP port of `host`, a name or an address; port 0 takes any free port.
    ///
    /// # Errors
    /// EADDRINUSE if the port is taken, else the host's error. Linux: bind(2), listen(2).
    pub fn tcp(host: &str, port: u16) -> Result<Self> {
        let wanted = Address::Tcp {
            host: Some(host.to_owned()),
            port,
        };
        let failed = |error| listen_error(&wanted, error);
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Self::new(
            ListeningSocket::Tcp(listener),
            Address::Tcp {
                host: Some(bound.ip().to_string()),
                port: bound.port(),
            },
        )
    }

    fn new(socket: ListeningSocket, address: Address) -> Result<Self> {
        let wake = UnixStream::pair().map_err(|error| listen_error(&address, error))?;
        let this = Self {
            socket,
            address,
            wake,
            allowed_cids: Vec::new(),
        };
        // A client that poll(2) reports may have disconnected before accept(2), which would block.
        rustix::io::ioctl_fionbio(this.fd(), true)
            .map_err(|errno| listen_error(&this.address, errno.into()))?;
        Ok(this)
    }

    /// Accepts only the guests with these context ids; an empty list allows all.
    #[must_use]
    pub fn with_allowed_cids(self, allowed_cids: Vec<u32>) -> Self {
        Self {
            allowed_cids,
            ..self
        }
    }

    /// Returns the bound address: with the chosen port instead of 0, and with an absolute path.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for a client; `None` after [`Listener::close`]. Closes connections of guests that are
    /// not allowed.
    ///
    /// # Errors
    /// The host's; [`AcceptFailure::of`] classifies it. Linux: accept(2).
    pub fn accept(&self) -> io::Result<Option<(Stream, Peer)>> {
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(self.fd(), PollFlags::IN),
                PollFd::new(&self.wake.0, PollFlags::IN),
            ];
            rustix::event::poll(&mut ready, None)?;
            if !ready[1].revents().is_empty() {
                return Ok(None);
            }
            let (stream, peer) = self.accept_ready()?;
            if self.is_allowed(peer) {
                return Ok(Some((stream, peer)));
            }
        }
    }

    fn accept_ready(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            ListeningSocket::Unix(socket) => {
                let stream = socket.listener().accept()?.0;
                let uid = sockopt::socket_peercred(&stream)?.uid.as_raw();
                Ok((stream.into(), Peer::User(uid)))
            }
            ListeningSocket::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Ok((Stream::tcp(stream.into())?, Peer::Network(address)))
            }
            ListeningSocket::Vsock(listener) => {
                let flags = rustix::net::SocketFlags::CLOEXEC;
                let fd = rustix::net::accept_with(listener, flags)?;
                let peer: vsock::VsockAddr = vsock::getpeername(fd.as_raw_fd())?;
                Ok((Stream::local(fd), Peer::Machine(peer.cid())))
            }
        }
    }

    fn is_allowed(&self, peer: Peer) -> bool {
        match peer {
            Peer::Machine(cid) => self.allowed_cids.is_empty() || self.allowed_cids.contains(&cid),
            Peer::User(_) | Peer::Network(_) => true,
        }
    }

    /// Ends [`Listener::accept`] in all threads, permanently.
    pub fn close(&self) {
        // A second close may fail; the first one holds.
        let _ = self.wake.1.shutdown(Shutdown::Both);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            ListeningSocket::Unix(socket) => socket.listener().as_fd(),
            ListeningSocket::Tcp(listener) => listener.as_fd(),
            ListeningSocket::Vsock(listener) => listener.as_fd(),
        }
    }
}

fn listen_error(address: &Address, error: io::Error) -> Error {
    Error::io("listen", error).at(address.to_string())
}

fn bind_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let listener = vsock_socket()?;
    vsock::bind(listener.as_raw_fd(), &vsock::VsockAddr::new(cid, port))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_listener_accepts_no_client() {
        let folder = tempfile::TempDir::new().unwrap();
        let unix = Listener::unix(&folder.path().join("socket")).unwrap();
        for listener in [unix, Listener::tcp("127.0.0.1", 0).unwrap()] {
            std::thread::scope(|scope| {
                let waiting =
                    scope.spawn(|| listener.accept().is_ok_and(|client| client.is_none()));
                listener.close();
                assert!(waiting.join().unwrap());
            });
            assert!(listener.accept().unwrap().is_none());
        }
    }
}
