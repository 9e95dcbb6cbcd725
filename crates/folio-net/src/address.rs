//! Socket addresses in words: `unix:PATH`, `vsock:CID:PORT`, `tcp:HOST:PORT`.

use folio::{Errno, Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The context id of the host, as seen by its guests (vsock(7), `VMADDR_CID_HOST`).
pub const HOST_CID: u32 = 2;

/// An address to listen at or to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// A vsock port of a host or a guest.
    Vsock {
        /// Context id. Without one, a server listens at all of this machine's, and a client
        /// connects to the host.
        cid: Option<u32>,
        /// Port number.
        port: u32,
    },
    /// A TCP port.
    Tcp {
        /// Name or IP address; 127.0.0.1 if there is none.
        host: Option<String>,
        /// Port number; a server that listens at 0 gets any free port.
        port: u16,
    },
}

impl Address {
    /// Returns whether `text` begins like an address. To name such a file, write `./unix:name`.
    pub fn has_scheme(text: &str) -> bool {
        ["unix:", "vsock:", "tcp:"]
            .iter()
            .any(|kind| text.starts_with(kind))
    }

    /// Returns whether only this machine can connect to the address. A host name other than
    /// `localhost` counts as reachable from the network; it is not resolved.
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

    /// Returns the host of a TCP address.
    pub(crate) fn host_or_localhost(host: Option<&str>) -> String {
        host.map_or_else(|| Ipv4Addr::LOCALHOST.to_string(), str::to_owned)
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| Error::new(Errno::INVAL, format!("{text}: {why}"));
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(invalid(
                "not an address: expected unix:PATH, vsock:CID:PORT or tcp:HOST:PORT",
            ));
        };
        match kind {
            "unix" if rest.is_empty() => Err(invalid(
                "missing path: expected unix:PATH (e.g. unix:/run/share.sock)",
            )),
            "unix" => Ok(Self::Unix(rest.into())),
            "vsock" => {
                let (cid, port) = match rest.split_once(':') {
                    None => (None, rest),
                    Some((cid, port)) => (Some(cid), port),
                };
                let number = |text: &str| {
                    text.parse().map_err(|_| {
                        invalid("invalid number: expected vsock:PORT or vsock:CID:PORT")
                    })
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
                        return Err(invalid("missing host: expected tcp:HOST:PORT or tcp:PORT"));
                    }
                    Some((host, port)) => (Some(host), port),
                };
                let port = port
                    .parse()
                    .map_err(|_| invalid("invalid port: expected tcp:PORT or tcp:HOST:PORT"))?;
                Ok(Self::Tcp {
                    host: host.map(|host| without_brackets(host).to_owned()),
                    port,
                })
            }
            _ => Err(invalid(
                "unknown kind of address: expected unix:, vsock: or tcp:",
            )),
        }
    }
}

/// Removes the brackets around an IPv6 address.
fn without_brackets(host: &str) -> &str {
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
    fn addresses_parse_and_print_alike() {
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
            assert!(Address::has_scheme(text));
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
        assert!(!Address::has_scheme("./unix:name") && !Address::has_scheme("disk.img"));
    }

    #[test]
    fn only_local_addresses_are_loopback() {
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
