//! Operations on names: look up, create, link, rename, unlink.

use super::Server;
use super::call::Call;
use crate::events::Place;
use crate::wire::abi::{
    BatchForgetIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
    init, op,
};
use crate::wire::encode::{device, mknod_type, permission_bits};
use folio::syscall::{Caller, Handle};
use folio::vfs::RenameFlags;
use folio::{Errno, Result};
use std::time::Duration;

impl Server {
    /// `FUSE_LOOKUP`.
    pub(super) fn lookup(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let name = call.arguments.name()?;
        let caller = self.caller(call.credentials, 0);
        if matches!(name, b"." | b"..") && self.has(init::EXPORT_SUPPORT) {
            let handle = self.forgotten(call.node(), &caller)?;
            let found = match name {
                b".." => handle.parent().ok_or(Errno::STALE)?,
                _ => handle,
            };
            return call.send(&self.entry(found, Duration::ZERO)?);
        }
        let parent = self.nodes.handle(call.node())?;
        let found = caller.lookup(&parent, name)?;
        let ttl = self.name_ttl(&caller, &parent, name);
        let entry = match found {
            Some(handle) => self.entry(handle, ttl)?,
            None => self.negative_entry(ttl).ok_or(Errno::NOENT)?,
        };
        self.note_place(call.node(), name, &entry);
        call.send(&entry)
    }

    /// Returns the validity of a name: none during a call that concerns it.
    pub(super) fn name_ttl(&self, caller: &Caller<'_>, parent: &Handle, name: &[u8]) -> Duration {
        if self.is_raised(self.nodes.id(parent), name) {
            Duration::ZERO
        } else {
            caller.name_ttl(parent, name)
        }
    }

    /// Returns the handle of a node that the client may have forgotten since, which names it by a
    /// file handle: open_by_handle_at(2), a server of NFS.
    fn forgotten(&self, node: u64, caller: &Caller<'_>) -> Result<Handle> {
        let handle = self.nodes.handle(node).or_else(|_| {
            let root = self.nodes.root();
            caller.by_number(root, self.nodes.number(node))
        })?;
        // A client that has an unlinked inode in use does not ask for it.
        if handle.attributes().link_count == 0 {
            return Err(Errno::STALE.into());
        }
        Ok(handle)
    }

    /// `FUSE_FORGET` and `FUSE_BATCH_FORGET`.
    pub(super) fn forget(&self, call: &mut Call<'_>) -> Result<()> {
        if call.header.opcode == op::FORGET {
            let args: ForgetIn = call.arguments.take()?;
            self.forget_node(call.node(), args.lookups);
            return Ok(());
        }
        let args: BatchForgetIn = call.arguments.take()?;
        for _ in 0..args.count {
            let one: ForgetOne = call.arguments.take()?;
            self.forget_node(one.node, one.lookups);
        }
        Ok(())
    }

    fn forget_node(&self, node: u64, lookups: u64) {
        if self.nodes.forget(node, lookups)
            && let Some(calls) = self.event_calls()
        {
            calls.places.forget(node, || self.nodes.is_known(node));
        }
    }

    /// `FUSE_MKNOD`.
    pub(super) fn mknod(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let args: MknodIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let parent = self.nodes.handle(call.node())?;
        let file_type = mknod_type(args.mode).ok_or(Errno::INVAL)?;
        let mode = permission_bits(args.mode);
        let caller = self.caller(call.credentials, permission_bits(args.umask));
        let made = caller.mknod(&parent, name, file_type, mode, device(args.device))?;
        self.send_entry(call, &caller, &parent, name, made)
    }

    /// `FUSE_MKDIR`.
    pub(super) fn mkdir(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let args: MkdirIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let parent = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, permission_bits(args.umask));
        let made = caller.mkdir(&parent, name, permission_bits(args.mode))?;
        self.send_entry(call, &caller, &parent, name, made)
    }

    /// `FUSE_SYMLINK`.
    pub(super) fn symlink(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let (name, target) = (call.arguments.name()?, call.arguments.name()?);
        let parent = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, 0);
        let made = caller.symlink(target, &parent, name)?;
        self.send_entry(call, &caller, &parent, name, made)
    }

    /// `FUSE_LINK`.
    pub(super) fn link(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>())?;
        let args: LinkIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let source = self.nodes.handle(args.node)?;
        let parent = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, 0);
        let made = caller.link(&source, &parent, name)?;
        self.send_entry(call, &caller, &parent, name, made)
    }

    /// `FUSE_UNLINK`.
    pub(super) fn unlink(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.arguments.name()?;
        let parent = self.nodes.handle(call.node())?;
        self.caller(call.credentials, 0).unlink(&parent, name)
    }

    /// `FUSE_RMDIR`.
    pub(super) fn rmdir(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.arguments.name()?;
        let parent = self.nodes.handle(call.node())?;
        self.caller(call.credentials, 0).rmdir(&parent, name)
    }

    /// `FUSE_RENAME` and `FUSE_RENAME2`; EINVAL for unknown flags.
    pub(super) fn rename(&self, call: &mut Call<'_>) -> Result<()> {
        let (new_parent, flags) = if call.header.opcode == op::RENAME {
            (call.arguments.take::<RenameIn>()?.new_parent, 0)
        } else {
            let args: Rename2In = call.arguments.take()?;
            (args.new_parent, args.flags)
        };
        let (name, new_name) = (call.arguments.name()?, call.arguments.name()?);
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let parent = self.nodes.handle(call.node())?;
        let new_directory = self.nodes.handle(new_parent)?;
        self.caller(call.credentials, 0)
            .rename(&parent, name, &new_directory, new_name, flags)?;
        if let Some(calls) = self.event_calls() {
            let place = |parent, name: &[u8]| Place {
                parent,
                name: name.into(),
            };
            let (from, to) = (place(call.node(), name), place(new_parent, new_name));
            let exchanges = flags.contains(RenameFlags::EXCHANGE);
            calls.places.note_move(&from, &to, exchanges);
        }
        Ok(())
    }

    /// `FUSE_READLINK`.
    pub(super) fn readlink(&self, call: &mut Call<'_>) -> Result<()> {
        let link = self.nodes.handle(call.node())?;
        let target = self.caller(call.credentials, 0).read_link(&link)?;
        call.send_bytes(&target)
    }
}
