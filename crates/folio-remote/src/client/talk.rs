//! The stream to the server: replies and changes come in; when it is lost, another one is looked
//! for.

use super::relay::Relay;
use crate::address::Address;
use crate::frame::{Frame, Input, Kind};
use crate::handshake::{self, Answer, Grant, SessionId, Timed, Wish};
use crate::key::Key;
use crate::link::Link;
use crate::message::{number32, number64};
use crate::stream::Stream;
use folio::{Errno, Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest message of a server: a read's data, and its header.
const MESSAGE_BYTES_MAX: usize = (1 << 20) + 4096;
/// Between tries to connect, at first and at most.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long without a connection until what the kernel has cached is not believed any more.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long the first reply may take.
const FIRST_REPLY: Duration = Duration::from_secs(30);
/// `struct fuse_init_out`: where the longest write stands, behind the reply's header.
const WRITE_MAX_AT: usize = 16 + 20;
/// What a write has beside its data.
const WRITE_HEAD_BYTES: usize = 4096;

/// Tells the operator.
pub(super) type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// One side of the talk with a server.
pub(super) struct Talker {
    address: Address,
    key: Option<Key>,
    patience: Duration,
    tell: Tell,
    /// What the server granted last.
    grant: Grant,
    link: Arc<Link>,
    generation: u64,
    input: Input,
    /// `FUSE_INIT` and what the first server made of it.
    init: Vec<u8>,
    init_reply: Vec<u8>,
}

/// Why a try to connect came to nothing.
enum Trouble {
    /// It may be over soon.
    Passing(Error),
    /// It will not.
    Lasting(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Passing(error)
    }
}

fn connect(
    address: &Address,
    key: Option<&Key>,
    wish: Wish,
) -> Result<(Arc<Stream>, Input, Grant)> {
    let place = |error: Error| error.at(address.to_string());
    let stream = Arc::new(Stream::connect(address)?);
    let mut talk = Timed::new(&stream);
    match handshake::greet(&mut talk, key, wish).map_err(place)? {
        Answer::Refused(why) => Err(place(Error::new(
            Errno::ACCESS,
            format!("the server refuses: {why}"),
        ))),
        Answer::Granted(grant) => {
            let input = Input::new(talk.finish().map_err(place)?, MESSAGE_BYTES_MAX);
            Ok((stream, input, grant))
        }
    }
}

/// A link for a new session. What waits in it is bounded by what the kernel may have under way.
fn new_link(stream: &Arc<Stream>) -> Result<(Arc<Link>, u64)> {
    let link = Arc::new(Link::new(usize::MAX));
    let generation = link.attach(stream.clone(), 0)?;
    Ok((link, generation))
}

impl Talker {
    pub(super) fn connect(
        address: Address,
        key: Option<Key>,
        patience: Duration,
        tell: Tell,
    ) -> Result<Self> {
        let (stream, input, grant) = connect(&address, key.as_ref(), Wish::default())?;
        let (link, generation) = new_link(&stream)?;
        let (init, init_reply) = (Vec::new(), Vec::new());
        Ok(Self {
            address,
            key,
            patience,
            tell,
            grant,
            link,
            generation,
            input,
            init,
            init_reply,
        })
    }

    pub(super) fn share(&self) -> &str {
        &self.grant.share
    }

    pub(super) fn kernel_judges(&self) -> bool {
        self.grant.kernel_judges
    }

    pub(super) fn limits(&self) -> &Grant {
        &self.grant
    }

    /// Has the server answer the kernel's first request.
    pub(super) fn begin(&mut self, relay: &Relay, init: Vec<u8>) -> Result<()> {
        let link = self.link.clone();
        let reply = first_reply(&link, self.generation, &mut self.input, &init)?;
        let write_max = number32(&reply, WRITE_MAX_AT).unwrap_or(0) as usize;
        if number32(&reply, 4) != Some(0)
            || write_max + WRITE_HEAD_BYTES > self.grant.message_bytes_max as usize
        {
            return Err(
                Error::new(Errno::PROTO, "the server does not agree with this kernel")
                    .at(self.address.to_string()),
            );
        }
        relay.begin(&reply, link);
        (self.init, self.init_reply) = (init, reply);
        Ok(())
    }

    /// Takes what the server sends, over one stream after another, until all is over.
    ///
    /// Errors: if the server shares something else by now.
    pub(super) fn talk(&mut self, relay: &Relay) -> Result<()> {
        loop {
            let why = self.receive(relay);
            if relay.is_over() {
                return Ok(());
            }
            (self.tell)(&format!(
                "the connection is lost: {why}; trying to connect again"
            ));
            if !self.connect_again(relay)? {
                return Ok(());
            }
        }
    }

    /// Takes frames until the stream is of no use any more; tells why.
    fn receive(&mut self, relay: &Relay) -> String {
        loop {
            let frame = match self.input.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return "the server has closed it".to_owned(),
                Err(error) => return error.to_string(),
            };
            match self.link.receive(
                self.generation,
                (frame.kind, frame.body.len()),
                frame.acknowledged,
            ) {
                Ok(true) => {}
                Ok(false) => return "it cannot be sent to".to_owned(),
                Err(breach) => {
                    self.grant.session = SessionId::default();
                    return breach.words().to_owned();
                }
            }
            match frame.kind {
                Kind::Acknowledge => {}
                Kind::DropNames => relay.notices().drop_names(),
                Kind::Message if number64(&frame.body, 8) == Some(0) => {
                    relay.notices().add(frame.body)
                }
                Kind::Message => {
                    if !relay.reply(&frame.body) {
                        self.grant.session = SessionId::default();
                        return "a reply that is none".to_owned();
                    }
                }
                Kind::Goodbye => {
                    self.grant.session = SessionId::default();
                    return String::from_utf8_lossy(&frame.body).replace(char::is_control, " ");
                }
            }
        }
    }

    /// Connects again; false if all is over.
    fn connect_again(&mut self, relay: &Relay) -> Result<bool> {
        let lost = Instant::now();
        let mut pause = PAUSE;
        let mut is_believed = true;
        let mut told = String::new();
        while !relay.is_over() {
            match self.try_to_connect(relay) {
                Ok(is_connected) => return Ok(is_connected),
                Err(Trouble::Lasting(error)) => return Err(error),
                Err(Trouble::Passing(error)) => {
                    let why = error.to_string();
                    if why != told {
                        (self.tell)(&why);
                        told = why;
                    }
                }
            }
            if is_believed && lost.elapsed() >= BELIEVED {
                is_believed = false;
                relay.notices().drop_everything();
            }
            if lost.elapsed() >= self.patience && !relay.is_failing() {
                let seconds = self.patience.as_secs();
                (self.tell)(&format!(
                    "no connection for {seconds} s: calls fail with EIO until there is one again"
                ));
                self.grant.session = SessionId::default();
                relay.start_failing(Errno::IO);
            }
            relay.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(false)
    }

    fn try_to_connect(&mut self, relay: &Relay) -> Result<bool, Trouble> {
        let wish = Wish {
            session: self.grant.session,
            received: self.link.detach(),
        };
        let (stream, mut input, grant) = connect(&self.address, self.key.as_ref(), wish)?;
        if grant.share != self.grant.share || grant.kernel_judges != self.grant.kernel_judges {
            let why = format!(
                "the server shares {:?} now, not {:?}",
                grant.share, self.grant.share
            );
            return Err(Trouble::Lasting(
                Error::new(Errno::STALE, why).at(self.address.to_string()),
            ));
        }
        if grant.is_resumed && grant.session == self.grant.session {
            let attached = self.link.attach(stream, grant.received);
            self.generation =
                attached.inspect_err(|_| self.grant.session = SessionId::default())?;
            (self.grant, self.input) = (grant, input);
            (self.tell)("connected again; nothing was lost");
            return Ok(true);
        }
        let (link, generation) = new_link(&stream)?;
        let reply = first_reply(&link, generation, &mut input, &self.init)?;
        if reply != self.init_reply {
            let why = "the server offers other capabilities than before; mount the share again";
            return Err(Trouble::Lasting(
                Error::new(Errno::STALE, why).at(self.address.to_string()),
            ));
        }
        // What is under way, the old server may have done; nobody can know.
        relay.start_failing(Errno::STALE);
        (self.link, self.generation, self.input, self.grant) =
            (link.clone(), generation, input, grant);
        (self.tell)(
            "connected again, to a server that does not know this mount: files that are open fail with ESTALE or EIO \
             from now on, open them again",
        );
        Ok(relay.begin_anew(link))
    }
}

/// Sends `FUSE_INIT` as a session's first request, and waits for the reply.
fn first_reply(link: &Link, generation: u64, input: &mut Input, init: &[u8]) -> Result<Vec<u8>> {
    let lost = |why: &str| Error::new(Errno::PROTO, format!("first request: {why}"));
    link.push(Frame::message(init.to_vec()))
        .map_err(|breach| lost(breach.words()))?;
    let until = Instant::now() + FIRST_REPLY;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        input.set_patience(left.max(Duration::from_millis(1)))?;
        let frame = input
            .next()
            .map_err(|error| Error::io("first request", error))?;
        let frame = frame.ok_or_else(|| lost("the server has closed the connection"))?;
        let size = (frame.kind, frame.body.len());
        if !link
            .receive(generation, size, frame.acknowledged)
            .map_err(|breach| lost(breach.words()))?
        {
            return Err(lost("the connection is lost"));
        }
        match frame.kind {
            Kind::Goodbye => return Err(lost(&String::from_utf8_lossy(&frame.body))),
            Kind::Message if number64(&frame.body, 8) == number64(init, 8) => {
                input.end_patience()?;
                return Ok(frame.body);
            }
            // Nothing is cached yet.
            _ if left.is_zero() => return Err(lost("no reply")),
            _ => {}
        }
    }
}
