//! Where a share is reached: `unix:PATH`, `vsock:CID:PORT`, `tcp:HOST:PORT`.

use folio::{Errno, Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The host as its guests call it (vsock(7), `VMADDR_CID_HOST`).
pub const HOST_CID: u32 = 2;

/// A place to listen at or to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port of a virtual machine's host or of a guest.
    Vsock {
        /// Whose: listening, all of this machine's if there is none; connecting, the host.
        cid: Option<u32>,
        /// Port.
        port: u32,
    },
    /// A TCP port.
    Tcp {
        /// Name or address; this machine alone if there is none.
        host: Option<String>,
        /// Port; 0 listens at one that is free.
        port: u16,
    },
}

impl Address {
    /// Whether `text` is meant as an address. A file of such a name is written `./unix:name`.
    pub fn is_meant(text: &str) -> bool {
        ["unix:", "vsock:", "tcp:"]
            .iter()
            .any(|kind| text.starts_with(kind))
    }

    /// Whether others than this machine can connect to it, as far as the words tell.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Vsock { .. } => false,
            Self::Tcp { host: None, .. } => true,
            Self::Tcp {
                host: Some(host), ..
            } => {
                host == "localhost"
                    || host
                        .parse::<IpAddr>()
                        .is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// The host of a TCP address.
    pub(crate) fn host(host: Option<&str>) -> String {
        host.map_or_else(|| Ipv4Addr::LOCALHOST.to_string(), str::to_owned)
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::new(Errno::INVAL, format!("{text}: {why}"));
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(wrong(
                "no address; write unix:PATH, vsock:CID:PORT or tcp:HOST:PORT",
            ));
        };
        match kind {
            "unix" if rest.is_empty() => Err(wrong("a path is missing: unix:/run/share.sock")),
            "unix" => Ok(Self::Unix(rest.into())),
            "vsock" => {
                let (cid, port) = match rest.split_once(':') {
                    None => (None, rest),
                    Some((cid, port)) => (Some(cid), port),
                };
                let number = |text: &str| {
                    text.parse()
                        .map_err(|_| wrong("write vsock:PORT or vsock:CID:PORT"))
                };
                Ok(Self::Vsock {
                    cid: cid.map(number).transpose()?,
                    port: number(port)?,
                })
            }
            "tcp" => {
                let (host, port) = match rest.rsplit_once(':') {
                    None => (None, rest),
                    Some(("", _)) => {
                        return Err(wrong("the host is missing: tcp:HOST:PORT, or tcp:PORT"));
                    }
                    Some((host, port)) => (Some(host), port),
                };
                let port = port
                    .parse()
                    .map_err(|_| wrong("write tcp:PORT or tcp:HOST:PORT"))?;
                Ok(Self::Tcp {
                    host: host.map(|host| bare(host).to_owned()),
                    port,
                })
            }
            _ => Err(wrong(
                "no such kind of address; there are unix:, vsock: and tcp:",
            )),
        }
    }
}

/// An IPv6 address stands in brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Vsock { cid: None, port } => write!(out, "vsock:{port}"),
            Self::Vsock {
                cid: Some(cid),
                port,
            } => write!(out, "vsock:{cid}:{port}"),
            Self::Tcp { host: None, port } => write!(out, "tcp:{port}"),
            Self::Tcp {
                host: Some(host),
                port,
            } if host.contains(':') => write!(out, "tcp:[{host}]:{port}"),
            Self::Tcp {
                host: Some(host),
                port,
            } => write!(out, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "unix:/run/a:b.sock",
            "vsock:5000",
            "vsock:2:5000",
            "tcp:5000",
            "tcp:example.org:1",
            "tcp:[::1]:9",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert!(Address::is_meant(text));
        }
        for text in [
            "",
            "unix:",
            "udp:1",
            "tcp:",
            "tcp::1",
            "tcp:70000",
            "tcp:a:b",
            "vsock:x",
            "vsock:1:2:3",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert!(!Address::is_meant("./unix:name") && !Address::is_meant("disk.img"));
    }

    #[test]
    fn who_can_connect_is_told() {
        let is_loopback = |text: &str| text.parse::<Address>().unwrap().is_loopback();
        assert!(
            is_loopback("tcp:1") && is_loopback("tcp:127.0.0.1:1") && is_loopback("tcp:[::1]:1")
        );
        assert!(
            !is_loopback("tcp:0.0.0.0:1")
                && !is_loopback("tcp:example.org:1")
                && !is_loopback("tcp:[::]:1")
        );
    }
}
