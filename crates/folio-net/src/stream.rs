//! A byte stream over a Unix, vsock or TCP socket.

use crate::address::{Address, HOST_CID};
use folio::{Errno, Error, Result};
use nix::sys::socket as vsock;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Longest time to connect to one TCP address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected stream socket. Several threads may use it at a time.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    is_tcp: bool,
}

/// Probes that detect a dead TCP peer (tcp(7)).
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Time between probes (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Unanswered probes after which the connection fails (`TCP_KEEPCNT`).
    pub probes: u32,
}

impl Stream {
    /// Connects to `address`. A vsock address without a context id is the host's.
    ///
    /// # Errors
    /// The host's error, with the address. Linux: connect(2).
    pub fn connect(address: &Address) -> Result<Self> {
        let failed = |error| Error::io("connect", error).at(address.to_string());
        match address {
            Address::Unix(path) => Ok(UnixStream::connect(path).map_err(failed)?.into()),
            Address::Tcp { host, port } => {
                let stream = connect_tcp(&Address::host_or_localhost(host.as_deref()), *port);
                Self::tcp(stream.map_err(failed)?.into()).map_err(failed)
            }
            Address::Vsock { cid, port } => {
                let fd = vsock_socket().map_err(failed)?;
                let peer = vsock::VsockAddr::new(cid.unwrap_or(HOST_CID), *port);
                vsock::connect(fd.as_raw_fd(), &peer).map_err(|errno| failed(errno.into()))?;
                Ok(Self::local(fd))
            }
        }
    }

    /// Wraps a connected TCP socket, and turns Nagle's algorithm off: each message is one write,
    /// and its receiver waits for it.
    pub(crate) fn tcp(fd: OwnedFd) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        Ok(Self { fd, is_tcp: true })
    }

    /// Wraps a connected Unix or vsock socket.
    pub(crate) fn local(fd: OwnedFd) -> Self {
        Self { fd, is_tcp: false }
    }

    /// Reads up to `buf.len()` bytes; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` after the read timeout, else the host's error. Linux: read(2).
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| {
            rustix::io::read(&self.fd, &mut *buf)
        })?)
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// `WouldBlock` after the write timeout, else the host's error. Linux: send(2).
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends all of `pieces`, in their order.
    ///
    /// # Errors
    /// `WouldBlock` after the write timeout, else the host's error. Linux: sendmsg(2).
    pub fn write_all_vectored(&self, pieces: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let mut no_ancillary_data = SendAncillaryBuffer::default();
            let sent =
                rustix::net::sendmsg(&self.fd, rest, &mut no_ancillary_data, SendFlags::NOSIGNAL);
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut rest, count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Ends one direction or both. Threads that wait in it return. Linux: shutdown(2).
    pub fn shutdown(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // It fails only if the peer has disconnected already.
        let _ = rustix::net::shutdown(&self.fd, how);
    }

    /// Limits how long a read waits; `None` waits without a limit (`SO_RCVTIMEO`).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(
            &self.fd,
            Timeout::Recv,
            timeout,
        )?)
    }

    /// Limits how long a write waits; `None` waits without a limit (`SO_SNDTIMEO`).
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(
            &self.fd,
            Timeout::Send,
            timeout,
        )?)
    }

    /// Turns keepalive probes on for TCP. Other sockets need none: the kernel that connects both
    /// sides reports the end of either.
    pub fn set_keepalive(&self, keepalive: Keepalive) -> io::Result<()> {
        if self.is_tcp {
            sockopt::set_socket_keepalive(&self.fd, true)?;
            sockopt::set_tcp_keepidle(&self.fd, keepalive.idle)?;
            sockopt::set_tcp_keepintvl(&self.fd, keepalive.interval)?;
            sockopt::set_tcp_keepcnt(&self.fd, keepalive.probes)?;
        }
        Ok(())
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::local(stream.into())
    }
}

/// Reads from a shared stream.
pub struct StreamReader(pub Arc<Stream>);

impl Read for StreamReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Creates a vsock stream socket that is neither bound nor connected.
pub(crate) fn vsock_socket() -> io::Result<OwnedFd> {
    let flags = vsock::SockFlag::SOCK_CLOEXEC;
    Ok(vsock::socket(
        vsock::AddressFamily::Vsock,
        vsock::SockType::Stream,
        flags,
        None,
    )?)
}
