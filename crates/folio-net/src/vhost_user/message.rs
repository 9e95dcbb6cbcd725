//! The messages of vhost-user: their numbers, and how one is received with its descriptors.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Bytes of a header: request, flags and the payload's length, 32 bits each.
const HEADER_LEN: usize = 12;
/// Most payload bytes of a message; the longest is a configuration of 4 KiB with its header.
const PAYLOAD_LEN_MAX: usize = 8 << 10;
/// Most descriptors of a message, one for each region of memory.
pub(super) const FDS_MAX: usize = 32;

const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;
/// A queue's file message without a file: the low byte is the queue.
const NO_FD: u64 = 1 << 8;

/// Bits of `VHOST_USER_GET_PROTOCOL_FEATURES`.
pub(super) mod protocol_feature {
    pub(crate) const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQ: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(crate) const RESET_DEVICE: u64 = 1 << 13;
    pub(crate) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// Requests of the front end. QEMU: hw/virtio/vhost-user.c, `VhostUserRequest`.
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, which the device sends.
const CONFIG_CHANGE: u32 = 2;

/// A received message.
pub(super) struct Message {
    pub(super) request: u32,
    pub(super) needs_reply: bool,
    payload: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// The numbers of a payload, one after the other.
pub(super) struct Fields<'a>(&'a [u8]);

/// A queue and its file, as three messages carry them.
pub(super) struct QueueFile {
    pub(super) queue: usize,
    pub(super) file: Option<OwnedFd>,
}

/// Returns an error for a message that the protocol does not allow.
pub(super) fn invalid(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| invalid("a message is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u16(&mut self) -> io::Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_ne_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_ne_bytes(bytes))
    }

    pub(super) fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_ne_bytes(bytes))
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}

impl Message {
    /// Receives the next message; `None` at the end of the connection between two messages.
    pub(super) fn receive(mut stream: &UnixStream) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_LEN];
        let mut fds = Vec::new();
        let received = receive_with_fds(stream, &mut header, &mut fds)?;
        if received == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut header[received..])?;
        let mut fields = Fields(&header);
        let (request, flags, len) = (fields.u32()?, fields.u32()?, fields.u32()? as usize);
        if flags & 3 != VERSION || flags & FLAG_REPLY != 0 {
            return Err(invalid("a message has an unknown version"));
        }
        if len > PAYLOAD_LEN_MAX {
            return Err(invalid("a message is too long"));
        }
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload)?;
        Ok(Some(Self {
            request,
            needs_reply: flags & FLAG_NEED_REPLY != 0,
            payload,
            fds,
        }))
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        Fields(&self.payload)
    }

    /// Returns the only number of the payload.
    pub(super) fn number(&self) -> io::Result<u64> {
        self.fields().u64()
    }

    /// Returns a queue, and a number of it.
    pub(super) fn queue_number(&self) -> io::Result<(usize, u32)> {
        let mut fields = self.fields();
        Ok((fields.u32()? as usize, fields.u32()?))
    }

    /// Returns the only descriptor of the message.
    pub(super) fn take_fd(&mut self) -> io::Result<OwnedFd> {
        let fd = self.fds.pop();
        fd.filter(|_| self.fds.is_empty())
            .ok_or_else(|| invalid("a message needs one descriptor"))
    }

    /// Returns a queue and its file.
    pub(super) fn queue_file(&mut self) -> io::Result<QueueFile> {
        let number = self.number()?;
        let file = if number & NO_FD == 0 {
            let file = self.take_fd()?;
            // A front end that leaves its events unread, or drains ours, must not block a thread.
            fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
            Some(file)
        } else {
            None
        };
        let queue = (number & 0xff) as usize;
        Ok(QueueFile { queue, file })
    }
}

/// Fills the start of `buf`, and returns its length; 0 at the end of the connection.
fn receive_with_fds(
    stream: &UnixStream,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut *buf)];
        match recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(message) => {
                for part in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = part {
                        fds.extend(rights);
                    }
                }
                return Ok(message.bytes);
            }
        }
    }
}

/// Sends the reply to a request.
pub(super) fn reply(
    stream: &UnixStream,
    request: u32,
    payload: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    send(stream, [request, VERSION | FLAG_REPLY], payload, fd)
}

/// Informs the front end that the device's configuration has changed.
pub(super) fn send_config_change(stream: &UnixStream) -> io::Result<()> {
    send(stream, [CONFIG_CHANGE, VERSION], &[], None)
}

fn send(
    mut stream: &UnixStream,
    [request, flags]: [u32; 2],
    payload: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    for number in [request, flags, payload.len() as u32] {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    let Some(fd) = fd else {
        return stream.write_all(&bytes);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    stream.write_all(&bytes[sent..])
}
