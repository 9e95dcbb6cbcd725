//! One request: its header and arguments, every length checked.

use super::abi::InHeader;
use super::reply::TRANSFER_MAX;
use folio::{Errno, Result};
use zerocopy::FromBytes;

/// Largest request in bytes: headers, and names or data.
pub const REQUEST_MAX: usize = TRANSFER_MAX + (128 << 10);

/// The arguments that are not decoded yet.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    /// Takes a struct; EINVAL if too few bytes are left.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// Takes a name, which ends in a zero byte; EINVAL if there is no zero byte.
    pub(crate) fn name(&mut self) -> Result<&'a [u8]> {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// Takes exactly `len` bytes; EINVAL if fewer are left.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Splits a request into header and arguments, without the extensions that may follow them; `None`
/// if the header states another length.
pub(crate) fn split(request: &[u8]) -> Option<(InHeader, Arguments<'_>)> {
    let (header, body) = InHeader::read_from_prefix(request).ok()?;
    if header.len as usize != request.len() || request.len() > REQUEST_MAX {
        return None;
    }
    let arguments_len = body
        .len()
        .checked_sub(usize::from(header.extensions_8) * 8)?;
    Some((header, Arguments(&body[..arguments_len])))
}
