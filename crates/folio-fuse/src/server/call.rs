//! One request in progress: its decoded header, arguments, credentials and reply.

use crate::wire::Reply;
use crate::wire::abi::InHeader;
use crate::wire::request::Arguments;
use folio::syscall::Credentials;
use folio::{Errno, Result};
use zerocopy::{Immutable, IntoBytes};

/// A request that is being handled.
pub(super) struct Call<'a> {
    pub(super) header: InHeader,
    pub(super) arguments: Arguments<'a>,
    /// The requesting user's, or the superuser's.
    pub(super) credentials: &'a Credentials,
    pub(super) reply: &'a mut dyn Reply,
    /// Whether the thread may wait for a device.
    pub(super) may_wait: bool,
}

impl Call<'_> {
    /// Returns the id of the node that the request is about.
    pub(super) fn node(&self) -> u64 {
        self.header.node
    }

    /// Checks that `len` bytes of reply fit, before a change that must be reported; EINVAL if not.
    pub(super) fn check_room(&self, len: usize) -> Result<()> {
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
        self.check_room(bytes.len())?;
        self.reply.append(bytes);
        Ok(())
    }
}
