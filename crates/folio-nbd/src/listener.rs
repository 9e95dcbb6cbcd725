//! Where the server listens, and the byte streams of its clients: Unix sockets and TCP alike.

use folio::{Error, Result};
use folio_socket::Socket;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A socket that clients connect to. A Unix socket's file goes with it.
pub struct Listener(Place);

enum Place {
    Unix(Socket),
    Tcp {
        listener: TcpListener,
        address: SocketAddr,
    },
}

impl Listener {
    /// Listens on a new Unix socket at `path`; a socket that a server left behind there is
    /// replaced.
    ///
    /// Errors: EADDRINUSE if a server listens there or a file of another kind is there, else the
    /// host's.
    pub fn unix(path: &Path) -> Result<Self> {
        let bound = Socket::bind(path).map_err(|error| Error::io("listen", error));
        Ok(Self(Place::Unix(
            bound.map_err(|error| error.at(path.display().to_string()))?,
        )))
    }

    /// Listens on a TCP port; port 0 takes any that is free.
    pub fn tcp(address: IpAddr, port: u16) -> Result<Self> {
        let failed =
            |error| Error::io("listen", error).at(SocketAddr::new(address, port).to_string());
        let listener = TcpListener::bind((address, port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self(Place::Tcp { listener, address }))
    }

    /// The URI of an export that is served here (NBD project, doc/uri.md).
    pub fn uri(&self, export: &str) -> String {
        let export = escape(export.as_bytes());
        match &self.0 {
            Place::Unix(socket) => {
                format!(
                    "nbd+unix:///{export}?socket={}",
                    escape(socket.path().as_os_str().as_bytes())
                )
            }
            Place::Tcp { address, .. } => format!("nbd://{address}/{export}"),
        }
    }

    /// Waits for a client.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Place::Unix(socket) => Ok(Stream::Unix(socket.listener().accept()?.0)),
            Place::Tcp { listener, .. } => {
                let stream = listener.accept()?.0;
                // A reply is sent as one piece, and somebody waits for it.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Ends [`Listener::accept`], now and for ever.
    pub(crate) fn close(&self) {
        let how = rustix::net::Shutdown::Both;
        // One that is closed already needs no more.
        let _ = match &self.0 {
            Place::Unix(socket) => rustix::net::shutdown(socket.listener(), how),
            Place::Tcp { listener, .. } => rustix::net::shutdown(listener, how),
        };
    }
}

/// Everything that may mean something in a URI as its hexadecimal number.
fn escape(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}

/// A client's bytes, in both directions.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = match self {
                Self::Unix(stream) => (&mut &*stream).read(buf),
                Self::Tcp(stream) => (&mut &*stream).read(buf),
            };
            match got {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => return got,
            }
        }
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// Ends one direction or both; who waits in it comes back.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // A client that has gone needs no more.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// How long a read waits; `None` for ever.
    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// How long a write waits; `None` for ever.
    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_export_has_an_address() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("a b.sock");
        let listener = Listener::unix(&path).unwrap();
        assert!(listener.uri("x/y").starts_with("nbd+unix:///x/y?socket=/"));
        assert!(listener.uri("").ends_with("/a%20b.sock"));
        assert_eq!(
            Listener::unix(&path).err().unwrap().errno(),
            folio::Errno::ADDRINUSE
        );
    }

    #[test]
    fn a_closed_listener_accepts_nobody() {
        let folder = tempfile::TempDir::new().unwrap();
        let unix = Listener::unix(&folder.path().join("socket")).unwrap();
        for listener in [unix, Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).unwrap()] {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| listener.accept().is_err());
                listener.close();
                assert!(waiting.join().unwrap());
            });
        }
    }
}
