//! One request: its header and arguments, every length checked.

use super::abi::InHeader;
use super::reply::Reply;
use crate::adapter::Client;
use folio::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A request that is being handled.
pub(super) struct Call<'a> {
    pub(super) header: InHeader,
    pub(super) body: Body<'a>,
    pub(super) reply: &'a mut dyn Reply,
    /// Whether the thread may wait for a device.
    pub(super) may_wait: bool,
}

impl Call<'_> {
    /// Who asks.
    pub(super) fn client(&self) -> Client {
        Client {
            uid: self.header.uid,
            gid: self.header.gid,
        }
    }

    /// The node that is asked about.
    pub(super) fn node(&self) -> u64 {
        self.header.node
    }

    /// Checks that `len` bytes of a reply fit, before something is done that must be told.
    pub(super) fn needs(&self, len: usize) -> Result<()> {
        if self.reply.room() < len {
            Err(Errno::INVAL.into())
        } else {
            Ok(())
        }
    }

    /// Appends a struct to the reply.
    pub(super) fn send(&mut self, message: &(impl IntoBytes + Immutable)) -> Result<()> {
        self.send_bytes(message.as_bytes())
    }

    /// Appends bytes to the reply.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.needs(bytes.len())?;
        self.reply.append(bytes);
        Ok(())
    }
}

/// What of the arguments is not taken yet.
#[derive(Clone, Copy)]
pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl<'a> Body<'a> {
    /// Takes a struct; EINVAL if there is less.
    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// Takes a name, which ends in a zero byte; EINVAL if there is none.
    pub(super) fn name(&mut self) -> Result<&'a [u8]> {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// Takes exactly `len` bytes; EINVAL if there are less.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Header and arguments of a request, without the extensions that may follow them; `None` if it is
/// not as long as it says.
pub(super) fn split(request: &[u8]) -> Option<(InHeader, &[u8])> {
    let (header, body) = InHeader::read_from_prefix(request).ok()?;
    if header.len as usize != request.len() || request.len() > super::REQUEST_MAX {
        return None;
    }
    let arguments_len = body
        .len()
        .checked_sub(usize::from(header.extensions_8) * 8)?;
    Some((header, &body[..arguments_len]))
}
