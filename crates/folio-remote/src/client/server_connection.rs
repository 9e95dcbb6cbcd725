//! The connection to the server: receives replies and changes, and reconnects after a loss.

use super::notices::RemoteCall;
use super::relay::Relay;
use crate::frame::{Frame, FrameKind, FrameReader};
use crate::handshake::{
    self, SessionAnswer, SessionGrant, SessionId, SessionRequest, TimedTransport,
};
use crate::key::Key;
use crate::link::{Link, ProtocolViolation};
use crate::message::{u32_at, u64_at};
use crate::stream;
use folio::{Errno, Error, Result};
use folio_net::{Address, Stream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest message of a server, in bytes: a read's data, and its header.
const MESSAGE_BYTES_MAX: usize = (1 << 20) + 4096;
/// Time between attempts to connect: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time without a connection after which all that the kernel has cached is invalidated.
const CACHE_VALIDITY: Duration = Duration::from_secs(1);
/// Longest time for the first reply.
const FIRST_REPLY: Duration = Duration::from_secs(30);
/// Offset of the longest write in the reply to `FUSE_INIT`: header and `struct fuse_init_out`.
const WRITE_MAX_AT: usize = 16 + 20;
/// Bytes of a write request beside its data.
const WRITE_HEAD_BYTES: usize = 4096;

/// Sends a message to the operator.
pub(super) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// A session with a server, over one stream after another.
pub(super) struct ServerConnection {
    address: Address,
    key: Option<Key>,
    /// How long calls wait for a lost connection.
    retry: Duration,
    wants_events: bool,
    report: Report,
    /// The last grant.
    grant: SessionGrant,
    link: Arc<Link>,
    generation: u64,
    reader: FrameReader,
    /// `FUSE_INIT`, and the first server's reply to it.
    init: Vec<u8>,
    init_reply: Vec<u8>,
}

/// A failed attempt to connect.
enum ConnectError {
    /// A later attempt may succeed.
    Transient(Error),
    /// No later attempt can succeed.
    Permanent(Error),
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self::Transient(error)
    }
}

fn connect(
    address: &Address,
    key: Option<&Key>,
    request: SessionRequest,
) -> Result<(Arc<Stream>, FrameReader, SessionGrant)> {
    let at_address = |error: Error| error.at(address.to_string());
    let stream = Arc::new(stream::connect(address)?);
    let mut transport = TimedTransport::new(&stream);
    match handshake::greet(&mut transport, key, request).map_err(at_address)? {
        SessionAnswer::Refused(why) => Err(at_address(Error::new(
            Errno::ACCESS,
            format!("the server refuses: {why}"),
        ))),
        SessionAnswer::Granted(grant) => {
            let reader =
                FrameReader::new(transport.finish().map_err(at_address)?, MESSAGE_BYTES_MAX);
            Ok((stream, reader, grant))
        }
    }
}

/// Creates the link of a new session. It has no limit: the relay limits the requests under way.
fn new_link(stream: &Arc<Stream>) -> Result<(Arc<Link>, u64)> {
    let link = Arc::new(Link::new(usize::MAX));
    let generation = link.attach(stream.clone(), 0)?;
    Ok((link, generation))
}

impl ServerConnection {
    pub(super) fn connect(
        address: Address,
        key: Option<Key>,
        retry: Duration,
        wants_events: bool,
        report: Report,
    ) -> Result<Self> {
        let request = SessionRequest {
            wants_events,
            ..SessionRequest::default()
        };
        let (stream, reader, grant) = connect(&address, key.as_ref(), request)?;
        if wants_events && !grant.sends_events {
            let text = "option events=on: the server sends no events: it needs a directory with \
                        change notifications, or an image, and a release of folio as new as this \
                        one";
            return Err(Error::new(Errno::OPNOTSUPP, text).at(address.to_string()));
        }
        let (link, generation) = new_link(&stream)?;
        let (init, init_reply) = (Vec::new(), Vec::new());
        Ok(Self {
            address,
            key,
            retry,
            wants_events,
            report,
            grant,
            link,
            generation,
            reader,
            init,
            init_reply,
        })
    }

    /// Returns the last grant.
    pub(super) fn grant(&self) -> &SessionGrant {
        &self.grant
    }

    /// Returns whether the server's calls raise events.
    pub(super) fn raises_events(&self) -> bool {
        self.wants_events && self.grant.sends_events
    }

    /// Returns the receiver of messages for the operator.
    pub(super) fn report(&self) -> Report {
        Arc::clone(&self.report)
    }

    /// Forwards the kernel's first request, and starts the relay with the reply.
    ///
    /// # Errors
    /// EPROTO if the server does not support this kernel, else the host's error.
    pub(super) fn begin(&mut self, relay: &Relay, init: Vec<u8>) -> Result<()> {
        let link = self.link.clone();
        let reply = first_reply(&link, self.generation, &mut self.reader, &init)?;
        let write_max = u32_at(&reply, WRITE_MAX_AT).unwrap_or(0) as usize;
        if u32_at(&reply, 4) != Some(0)
            || write_max + WRITE_HEAD_BYTES > self.grant.message_bytes_max as usize
        {
            return Err(
                Error::new(Errno::PROTO, "the server does not support this kernel")
                    .at(self.address.to_string()),
            );
        }
        relay.begin(&reply, link);
        (self.init, self.init_reply) = (init, reply);
        Ok(())
    }

    /// Receives frames, over one stream after another, until the relay ends.
    ///
    /// # Errors
    /// ESTALE if the server shares another tree by now.
    pub(super) fn receive_until_end(&mut self, relay: &Relay) -> Result<()> {
        loop {
            let reason = self.receive(relay);
            if relay.has_ended() {
                return Ok(());
            }
            (self.report)(&format!("the connection is lost: {reason}; reconnecting"));
            if !self.reconnect(relay)? {
                return Ok(());
            }
        }
    }

    /// Receives frames until the stream fails; returns the reason.
    fn receive(&mut self, relay: &Relay) -> String {
        loop {
            let frame = match self.reader.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return "the server has closed it".to_owned(),
                Err(error) => return error.to_string(),
            };
            match self.link.receive(
                self.generation,
                frame.kind,
                frame.body.len(),
                frame.acknowledged,
            ) {
                Ok(true) => {}
                Ok(false) => return "sending failed".to_owned(),
                Err(violation) => {
                    self.grant.session = SessionId::default();
                    return violation.message().to_owned();
                }
            }
            match frame.kind {
                FrameKind::Acknowledge => {}
                FrameKind::EventCall if self.wants_events => {
                    let call = RemoteCall {
                        link: self.link.clone(),
                        bytes: frame.body,
                    };
                    if let Err(violation) = relay.notices().add_call(call) {
                        self.grant.session = SessionId::default();
                        return violation.message().to_owned();
                    }
                }
                FrameKind::EventCall | FrameKind::EventResult => {
                    self.grant.session = SessionId::default();
                    return ProtocolViolation::MalformedMessage.message().to_owned();
                }
                FrameKind::DropNames => relay.notices().drop_names(),
                FrameKind::Message if u64_at(&frame.body, 8) == Some(0) => {
                    relay.notices().add(frame.body)
                }
                FrameKind::Message => {
                    if !relay.forward_reply(&frame.body) {
                        self.grant.session = SessionId::default();
                        return "malformed reply".to_owned();
                    }
                }
                FrameKind::Goodbye => {
                    self.grant.session = SessionId::default();
                    return String::from_utf8_lossy(&frame.body).replace(char::is_control, " ");
                }
            }
        }
    }

    /// Reconnects; returns false if the relay has ended.
    fn reconnect(&mut self, relay: &Relay) -> Result<bool> {
        let lost = Instant::now();
        let mut pause = PAUSE;
        let mut is_cache_valid = true;
        let mut reported = String::new();
        while !relay.has_ended() {
            match self.try_to_reconnect(relay) {
                Ok(is_connected) => return Ok(is_connected),
                Err(ConnectError::Permanent(error)) => return Err(error),
                Err(ConnectError::Transient(error)) => {
                    let why = error.to_string();
                    if why != reported {
                        (self.report)(&why);
                        reported = why;
                    }
                }
            }
            if is_cache_valid && lost.elapsed() >= CACHE_VALIDITY {
                is_cache_valid = false;
                relay.notices().drop_everything();
            }
            if lost.elapsed() >= self.retry && !relay.is_failing() {
                let seconds = self.retry.as_secs();
                (self.report)(&format!(
                    "no connection for {seconds} s: calls fail with EIO until there is one"
                ));
                self.grant.session = SessionId::default();
                relay.start_failing(Errno::IO);
            }
            relay.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(false)
    }

    fn try_to_reconnect(&mut self, relay: &Relay) -> Result<bool, ConnectError> {
        let request = SessionRequest {
            session: self.grant.session,
            // The number must not grow after it is sent: the server sends what follows it once
            // more.
            received: self.link.detach(),
            wants_events: self.wants_events,
        };
        let (stream, mut reader, grant) = connect(&self.address, self.key.as_ref(), request)?;
        if grant.share != self.grant.share
            || grant.kernel_checks_permissions != self.grant.kernel_checks_permissions
        {
            let why = format!(
                "the server now shares {:?} instead of {:?}",
                grant.share, self.grant.share
            );
            return Err(ConnectError::Permanent(
                Error::new(Errno::STALE, why).at(self.address.to_string()),
            ));
        }
        if grant.is_resumed && grant.session == self.grant.session {
            let attached = self.link.attach(stream, grant.received);
            self.generation =
                attached.inspect_err(|_| self.grant.session = SessionId::default())?;
            (self.grant, self.reader) = (grant, reader);
            (self.report)("reconnected; nothing was lost");
            return Ok(true);
        }
        // A new session numbers its frames from the start: the old link cannot go on.
        let (link, generation) = new_link(&stream)?;
        let reply = first_reply(&link, generation, &mut reader, &self.init)?;
        if reply != self.init_reply {
            let why = "the server's capabilities have changed: mount the share again";
            return Err(ConnectError::Permanent(
                Error::new(Errno::STALE, why).at(self.address.to_string()),
            ));
        }
        // The old server may have run some of the requests under way; which ones is unknown.
        relay.start_failing(Errno::STALE);
        (self.link, self.generation, self.reader, self.grant) =
            (link.clone(), generation, reader, grant);
        (self.report)(
            "reconnected to a server that does not know this mount: open files fail with ESTALE \
             or EIO from now on, open them again",
        );
        if self.wants_events {
            (self.report)(if self.grant.sends_events {
                "programs that watch the mount must watch it again"
            } else {
                "the server sends no events any more"
            });
        }
        Ok(relay.begin_new_session(link))
    }
}

/// Sends `FUSE_INIT` as a session's first request, and waits for the reply.
fn first_reply(
    link: &Link,
    generation: u64,
    reader: &mut FrameReader,
    init: &[u8],
) -> Result<Vec<u8>> {
    let lost = |why: &str| Error::new(Errno::PROTO, format!("first request: {why}"));
    link.push(Frame::message(init.to_vec()))
        .map_err(|violation| lost(violation.message()))?;
    let deadline = Instant::now() + FIRST_REPLY;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        reader.set_timeout(left.max(Duration::from_millis(1)))?;
        let frame = reader
            .next()
            .map_err(|error| Error::io("first request", error))?;
        let frame = frame.ok_or_else(|| lost("the server has closed the connection"))?;
        let body_len = frame.body.len();
        if !link
            .receive(generation, frame.kind, body_len, frame.acknowledged)
            .map_err(|violation| lost(violation.message()))?
        {
            return Err(lost("the connection is lost"));
        }
        match frame.kind {
            FrameKind::Goodbye => return Err(lost(&String::from_utf8_lossy(&frame.body))),
            FrameKind::Message if u64_at(&frame.body, 8) == u64_at(init, 8) => {
                reader.remove_timeout()?;
                return Ok(frame.body);
            }
            // Changes before the first reply: the kernel has cached nothing yet.
            _ if left.is_zero() => return Err(lost("no reply")),
            _ => {}
        }
    }
}
