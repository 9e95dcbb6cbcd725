//! Entries and attributes in replies, with their validity.

use super::Server;
use super::attributes::{SET_GID, SET_UID};
use super::call::Call;
use crate::nodes::NodeEntry;
use crate::wire::abi::{AttrOut, EntryOut};
use crate::wire::encode;
use folio::Result;
use folio::syscall::{Caller, Handle};
use folio::vfs::{Attributes, FileType};
use std::time::Duration;

/// Longest validity in the client. It knows its own changes, so only changes that no request made
/// (blocks that writeback allocated) are seen late.
const TTL_MAX: Duration = Duration::from_secs(3600);

impl Server {
    /// Returns the validity to grant for what the file system holds valid for `ttl`.
    pub(super) fn ttl(&self, ttl: Duration) -> Duration {
        let ttl = ttl.min(TTL_MAX).min(self.options.ttl_max);
        self.local.as_ref().map_or(ttl, |local| local.ttl(ttl))
    }

    /// Returns the validity to grant for attributes that the file system holds valid for `ttl`.
    ///
    /// Always expired for set-user-ID and set-group-ID: under `FUSE_HANDLE_KILLPRIV_V2` the server
    /// clears them at a write, after which the kernel keeps its cached mode. execve(2) would honor
    /// it, unless the kernel asks again when it opens the program.
    pub(super) fn attributes_ttl(&self, attributes: &Attributes, ttl: Duration) -> Duration {
        if attributes.file_type == FileType::Regular && attributes.mode & (SET_UID | SET_GID) != 0 {
            Duration::ZERO
        } else {
            self.ttl(ttl)
        }
    }

    /// Counts a lookup of `handle`, whose name is valid for `name_ttl`, and returns the entry for
    /// the reply, for which there is room (S2).
    pub(super) fn entry(&self, handle: Handle, name_ttl: Duration) -> Result<EntryOut> {
        if self.skips_host_open() {
            // The client may open it now, and read it after an external writer has unlinked it.
            handle.hold();
        }
        let inode_generation = handle.generation();
        let found = self.nodes.look_up(handle)?;
        Ok(self.entry_of(&found, inode_generation, name_ttl))
    }

    /// Returns the entry of an inode that was looked up.
    pub(super) fn entry_of(
        &self,
        found: &NodeEntry,
        inode_generation: u32,
        name_ttl: Duration,
    ) -> EntryOut {
        let (name_ttl, attributes_ttl) = (
            self.ttl(name_ttl),
            self.attributes_ttl(&found.attributes, found.attributes_ttl),
        );
        let generation = self.options.generation.wrapping_add(inode_generation);
        EntryOut {
            node: found.id,
            // The kernel keeps 32 bits of it.
            generation: generation.wrapping_add(found.generation as u32).into(),
            entry_valid: name_ttl.as_secs(),
            entry_valid_nanos: name_ttl.subsec_nanos(),
            attr_valid: attributes_ttl.as_secs(),
            attr_valid_nanos: attributes_ttl.subsec_nanos(),
            attr: encode::attr(found.id, &self.presented(&found.attributes)),
        }
    }

    /// Sends the entry of a new inode, called `name` in `parent`.
    pub(super) fn send_entry(
        &self,
        call: &mut Call<'_>,
        caller: &Caller<'_>,
        parent: &Handle,
        name: &[u8],
        made: Handle,
    ) -> Result<()> {
        let entry = self.entry(made, caller.name_ttl(parent, name))?;
        self.note_place(call.node(), name, &entry);
        call.send(&entry)
    }

    /// Returns the negative entry of a name whose absence is valid for `ttl`; `None` for no time.
    pub(super) fn negative_entry(&self, ttl: Duration) -> Option<EntryOut> {
        let ttl = match &self.local {
            Some(local) => local.negative_ttl(ttl),
            None => ttl,
        };
        let ttl = self.ttl(ttl);
        (!ttl.is_zero()).then(|| EntryOut {
            entry_valid: ttl.as_secs(),
            entry_valid_nanos: ttl.subsec_nanos(),
            ..EntryOut::default()
        })
    }

    /// Returns the attributes as the client is to see them.
    pub(super) fn presented(&self, attributes: &Attributes) -> Attributes {
        let mut attributes = *attributes;
        if self.options.hides_owners {
            (attributes.uid, attributes.gid) = (0, 0);
        }
        // The kernel ends the watches of a directory without links when it drops the name, before
        // the removals in it are raised.
        if attributes.link_count == 0
            && let Some(calls) = self.event_calls()
            && calls.places.contains(self.node_of(attributes.number))
        {
            attributes.link_count = 1;
        }
        attributes
    }

    /// Returns the reply with attributes that are valid for `ttl`.
    pub(super) fn attr_out(&self, attributes: &Attributes, ttl: Duration) -> AttrOut {
        let ttl = self.attributes_ttl(attributes, ttl);
        AttrOut {
            valid: ttl.as_secs(),
            valid_nanos: ttl.subsec_nanos(),
            unused: 0,
            attr: encode::attr(attributes.number.0, &self.presented(attributes)),
        }
    }
}
