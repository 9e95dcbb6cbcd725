//! Byte streams and where they come from: Unix, vsock and TCP sockets alike.

use crate::address::{Address, HOST_CID};
use folio::{Errno, Error, Result};
use folio_socket::Socket;
use nix::sys::socket as vsock;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};
use std::io::{self, IoSlice, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a peer may take no bytes before it counts as gone.
const SEND: Duration = Duration::from_secs(30);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// TCP alone: how long there is silence before the peer is asked whether it lives, how long between
/// questions, and how many stay without an answer. The other kinds are told by their kernels.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
/// Clients that wait to be accepted.
const BACKLOG: i32 = 64;
/// Any context id of this machine (vsock(7), `VMADDR_CID_ANY`).
const ANY_CID: u32 = u32::MAX;

/// Who is at the other end, as far as the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this user.
    User(u32),
    /// A virtual machine.
    Machine(u32),
    /// An address.
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

/// A connection.
pub(crate) struct Stream(OwnedFd);

impl Stream {
    /// Connects.
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        let failed = |error| Error::io("connect", error).at(address.to_string());
        let fd: OwnedFd = match address {
            Address::Unix(path) => UnixStream::connect(path).map_err(failed)?.into(),
            Address::Tcp { host, port } => connect_tcp(&Address::host(host.as_deref()), *port)
                .map_err(failed)?
                .into(),
            Address::Vsock { cid, port } => {
                let socket = vsock_socket().map_err(failed)?;
                let address = vsock::VsockAddr::new(cid.unwrap_or(HOST_CID), *port);
                vsock::connect(socket.as_raw_fd(), &address)
                    .map_err(|errno| failed(errno.into()))?;
                socket
            }
        };
        let this = Self(fd);
        this.prepare(matches!(address, Address::Tcp { .. }))
            .map_err(failed)?;
        Ok(this)
    }

    fn prepare(&self, is_tcp: bool) -> io::Result<()> {
        if is_tcp {
            // A message is sent as one piece, and somebody waits for it.
            sockopt::set_tcp_nodelay(&self.0, true)?;
            sockopt::set_socket_keepalive(&self.0, true)?;
            let (idle, interval, count) = KEEPALIVE;
            sockopt::set_tcp_keepidle(&self.0, idle)?;
            sockopt::set_tcp_keepintvl(&self.0, interval)?;
            sockopt::set_tcp_keepcnt(&self.0, count)?;
        }
        sockopt::set_socket_timeout(&self.0, Timeout::Send, Some(SEND))?;
        Ok(())
    }

    /// A stream over any connected socket.
    #[cfg(test)]
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let this = Self(fd);
        this.prepare(false)?;
        Ok(this)
    }

    /// How long a read may wait.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(
            &self.0,
            Timeout::Recv,
            patience,
        )?)
    }

    /// Sends all of these, one behind the other.
    pub(crate) fn write_all(&self, pieces: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let mut none = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.0, rest, &mut none, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut rest, count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Ends both directions; who waits in either comes back.
    pub(crate) fn close(&self) {
        // One that is closed already needs no more.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Reads of a shared stream.
pub(crate) struct Reader(pub(crate) Arc<Stream>);

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| {
            rustix::io::read(&self.0.0, &mut *buf)
        })?)
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn vsock_socket() -> io::Result<OwnedFd> {
    let flags = vsock::SockFlag::SOCK_CLOEXEC;
    Ok(vsock::socket(
        vsock::AddressFamily::Vsock,
        vsock::SockType::Stream,
        flags,
        None,
    )?)
}

/// A socket that clients connect to. A Unix socket's file goes with it.
pub struct Listener {
    place: Place,
    /// Closed to end waiting: shutdown(2) of a socket that listens does so for some kinds and not
    /// for vsock.
    wake: (UnixStream, UnixStream),
    /// Guests that may connect; all if there are none.
    allowed_cids: Vec<u32>,
}

enum Place {
    Unix(Socket),
    Tcp {
        listener: TcpListener,
        address: SocketAddr,
    },
    Vsock {
        listener: OwnedFd,
        address: Address,
    },
}

impl Listener {
    /// Listens. A Unix socket is its owner's alone (mode 0600); one that a server left behind is
    /// replaced.
    ///
    /// Errors: EADDRINUSE if a server listens there or a file of another kind is there, else the
    /// host's.
    pub fn new(address: &Address, allowed_cids: Vec<u32>) -> Result<Self> {
        let failed = |error| Error::io("listen", error).at(address.to_string());
        let place = match address {
            Address::Unix(path) => Place::Unix(listen_privately(path).map_err(failed)?),
            Address::Tcp { host, port } => {
                let host = Address::host(host.as_deref());
                let listener = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                Place::Tcp { listener, address }
            }
            Address::Vsock { cid, port } => {
                let listener = vsock_socket().map_err(failed)?;
                let here = vsock::VsockAddr::new(cid.unwrap_or(ANY_CID), *port);
                vsock::bind(listener.as_raw_fd(), &here).map_err(|errno| failed(errno.into()))?;
                rustix::net::listen(&listener, BACKLOG).map_err(|errno| failed(errno.into()))?;
                Place::Vsock {
                    listener,
                    address: address.clone(),
                }
            }
        };
        let this = Self {
            place,
            wake: UnixStream::pair().map_err(failed)?,
            allowed_cids,
        };
        // A client that is there to be accepted may be gone by then.
        rustix::io::ioctl_fionbio(this.fd(), true).map_err(|errno| failed(errno.into()))?;
        Ok(this)
    }

    /// Where it listens: the port that was free instead of 0, and a path that means the same
    /// everywhere.
    pub fn address(&self) -> Address {
        match &self.place {
            Place::Unix(socket) => Address::Unix(socket.path().to_owned()),
            Place::Tcp { address, .. } => Address::Tcp {
                host: Some(address.ip().to_string()),
                port: address.port(),
            },
            Place::Vsock { address, .. } => address.clone(),
        }
    }

    /// Whether others than this machine and its guests could connect.
    pub(crate) fn needs_key(&self) -> bool {
        matches!(&self.place, Place::Tcp { address, .. } if !address.ip().is_loopback())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.place {
            Place::Unix(socket) => socket.listener().as_fd(),
            Place::Tcp { listener, .. } => listener.as_fd(),
            Place::Vsock { listener, .. } => listener.as_fd(),
        }
    }

    /// Waits for a client; `None` for one that may not connect, or if the waiting was ended.
    pub(crate) fn accept(&self) -> io::Result<Option<(Stream, Peer)>> {
        let mut ready = [
            PollFd::from_borrowed_fd(self.fd(), PollFlags::IN),
            PollFd::new(&self.wake.0, PollFlags::IN),
        ];
        rustix::event::poll(&mut ready, None)?;
        if !ready[1].revents().is_empty() {
            return Ok(None);
        }
        let (fd, peer): (OwnedFd, Peer) = match &self.place {
            Place::Unix(socket) => {
                let stream = socket.listener().accept()?.0;
                let user = sockopt::socket_peercred(&stream)?.uid.as_raw();
                (stream.into(), Peer::User(user))
            }
            Place::Tcp { listener, .. } => {
                let (stream, address) = listener.accept()?;
                (stream.into(), Peer::Network(address))
            }
            Place::Vsock { listener, .. } => {
                let flags = rustix::net::SocketFlags::CLOEXEC;
                let fd = rustix::net::accept_with(listener, flags)?;
                let peer: vsock::VsockAddr = vsock::getpeername(fd.as_raw_fd())?;
                (fd, Peer::Machine(peer.cid()))
            }
        };
        if let Peer::Machine(cid) = peer
            && !self.allowed_cids.is_empty()
            && !self.allowed_cids.contains(&cid)
        {
            return Ok(None);
        }
        let stream = Stream(fd);
        stream.prepare(matches!(peer, Peer::Network(_)))?;
        Ok(Some((stream, peer)))
    }

    /// Ends [`Listener::accept`], now and for ever.
    pub(crate) fn close(&self) {
        // One that is closed already needs no more.
        let _ = self.wake.1.shutdown(std::net::Shutdown::Both);
    }
}

/// A Unix socket that is its owner's alone, from the first moment on.
fn listen_privately(path: &Path) -> io::Result<Socket> {
    let umask = rustix::process::umask(Mode::from_bits_truncate(0o177));
    let bound = Socket::bind(path);
    rustix::process::umask(umask);
    bound
}
