//! Messages between the server and the first process of the namespace: packets of a Unix socket.

use crate::failure::Failure;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a packet; a longer text is cut.
const PACKET_MAX: usize = 4096;

/// A message.
#[derive(Debug)]
pub(crate) enum Message {
    /// To init: the id maps are complete.
    Mapped,
    /// To init: the mount of a `--bind`, in the order of the options.
    Bind(OwnedFd),
    /// The device of the FUSE mount.
    Device(OwnedFd),
    /// To init: the mount is served.
    Serving,
    /// The controlling side of the command's terminal.
    Terminal(OwnedFd),
    /// A note for the user.
    Note(String),
    /// The command runs.
    Started,
    /// The command does not run.
    Failed(Failure),
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends.
    pub(crate) fn pair() -> Result<(Self, Self), Errno> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// EPIPE if the other end is closed.
    pub(crate) fn send(&self, message: &Message) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        let mut fds = Vec::new();
        match message {
            Message::Mapped => bytes.push(b'm'),
            Message::Serving => bytes.push(b's'),
            Message::Started => bytes.push(b'r'),
            Message::Bind(fd) => {
                bytes.push(b'b');
                fds.push(fd.as_fd());
            }
            Message::Device(fd) => {
                bytes.push(b'd');
                fds.push(fd.as_fd());
            }
            Message::Terminal(fd) => {
                bytes.push(b't');
                fds.push(fd.as_fd());
            }
            Message::Note(text) => {
                bytes.push(b'n');
                bytes.extend(text.bytes());
            }
            Message::Failed(failure) => {
                bytes.extend([b'f', failure.exit, u8::from(failure.is_unsupported)]);
                bytes.extend(failure.message.bytes());
            }
        }
        bytes.truncate(PACKET_MAX);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        retry_on_intr(|| {
            let slices = [IoSlice::new(&bytes)];
            rustix::net::sendmsg(&self.0, &slices, &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    /// Receives a message; `None` if the other end is closed.
    ///
    /// # Errors
    /// EPROTO for an unknown message, else those of recvmsg(2).
    pub(crate) fn receive(&self) -> Result<Option<Message>, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; PACKET_MAX];
        let len = retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(
                &self.0,
                &mut slices,
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?
        .bytes;
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let message = match (&bytes[..len], fd) {
            ([], _) => return Ok(None),
            ([b'm'], _) => Message::Mapped,
            ([b's'], _) => Message::Serving,
            ([b'r'], _) => Message::Started,
            ([b'b'], Some(fd)) => Message::Bind(fd),
            ([b'd'], Some(fd)) => Message::Device(fd),
            ([b't'], Some(fd)) => Message::Terminal(fd),
            ([b'n', rest @ ..], _) => Message::Note(text(rest)),
            ([b'f', exit, unsupported, rest @ ..], _) => Message::Failed(Failure {
                message: text(rest),
                exit: *exit,
                is_unsupported: *unsupported != 0,
            }),
            _ => return Err(Errno::PROTO),
        };
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_message_is_received() {
        let (one, other) = Channel::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        one.send(&Message::Device(write)).unwrap();
        let failure = Failure {
            exit: 127,
            message: "x: not found".to_owned(),
            is_unsupported: true,
        };
        one.send(&Message::Failed(failure.clone())).unwrap();
        let Some(Message::Device(write)) = other.receive().unwrap() else {
            panic!("no descriptor");
        };
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 2][..]), Ok(1));
        let received = other.receive().unwrap();
        assert!(matches!(received, Some(Message::Failed(received)) if received == failure));
        drop(one);
        assert!(other.receive().unwrap().is_none());
    }
}
