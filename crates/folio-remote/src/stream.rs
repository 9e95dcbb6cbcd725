//! Timeouts of a session's streams.

use crate::Address;
use folio::{Error, Result};
use folio_net::{Keepalive, Stream};
use std::io;
use std::time::Duration;

/// Longest time in which a peer may take no bytes; after it, the stream counts as lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Detects a TCP peer that fails silently, within about 11 seconds.
const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(2),
    probes: 3,
};

/// Connects to a server, and sets the timeouts of the stream.
///
/// # Errors
/// The host's error, with the address.
pub(crate) fn connect(address: &Address) -> Result<Stream> {
    let stream = Stream::connect(address)?;
    set_timeouts(&stream).map_err(|error| Error::io("connect", error).at(address.to_string()))?;
    Ok(stream)
}

/// Sets send timeout and keepalive.
pub(crate) fn set_timeouts(stream: &Stream) -> io::Result<()> {
    stream.set_keepalive(KEEPALIVE)?;
    stream.set_write_timeout(Some(SEND_TIMEOUT))
}
