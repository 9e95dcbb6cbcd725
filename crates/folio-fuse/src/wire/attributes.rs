//! Requests about attributes, extended attributes and the file system as a whole.

use super::Server;
use super::abi::{AttrOut, GetxattrIn, GetxattrOut, SetattrIn, SetxattrIn, StatfsOut, set};
use super::call::Call;
use super::names::bits;
use crate::adapter::Change;
use folio::vfs::SetTime;
use folio::{Errno, Result, Timespec};

impl Server {
    /// `FUSE_GETATTR`.
    pub(super) fn getattr(&self, call: &mut Call<'_>) -> Result<()> {
        let found = self.adapter.attributes(call.node())?;
        let ttl = self.adapter.attributes_ttl(call.node());
        call.send(&self.attr_out(&found, ttl))
    }

    /// `FUSE_STATX`.
    pub(super) fn statx(&self, call: &mut Call<'_>) -> Result<()> {
        let found = self.adapter.attributes(call.node())?;
        let ttl = self.adapter.attributes_ttl(call.node());
        call.send(&self.statx_out(&found, ttl))
    }

    /// `FUSE_SETATTR`.
    pub(super) fn setattr(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<AttrOut>())?;
        let told: SetattrIn = call.body.take()?;
        let has = |flag| told.valid & flag != 0;
        let time = |flag, now, secs, nanos| match (has(flag), has(now)) {
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::To(Timespec { secs, nanos })),
            (false, _) => None,
        };
        let by_file = has(set::FH) && has(set::SIZE);
        let change = Change {
            mode: has(set::MODE).then(|| bits(told.mode)),
            uid: has(set::UID).then_some(told.uid),
            gid: has(set::GID).then_some(told.gid),
            size_bytes: has(set::SIZE).then_some(told.size),
            accessed: time(set::ATIME, set::ATIME_NOW, told.atime, told.atime_nanos),
            modified: time(set::MTIME, set::MTIME_NOW, told.mtime, told.mtime_nanos),
            file: None,
        };
        let (client, node) = (call.client(), call.node());
        let now = match by_file {
            false => self.adapter.set_attributes(client, node, &change)?,
            true => self.on_file((node, told.file), true, |file| {
                let change = Change {
                    file: Some(file),
                    ..change
                };
                self.adapter.set_attributes(client, node, &change)
            })?,
        };
        let ttl = self.adapter.attributes_ttl(call.node());
        call.send(&self.attr_out(&now, ttl))
    }

    /// `FUSE_STATFS`.
    pub(super) fn statfs(&self, call: &mut Call<'_>) -> Result<()> {
        let told = self.adapter.statistics(call.client(), call.node())?;
        call.send(&StatfsOut {
            blocks: told.blocks,
            blocks_free: told.blocks_free,
            blocks_available: told.blocks_available,
            inodes: told.inodes,
            inodes_free: told.inodes_free,
            block_size: told.block_size,
            name_max: told.name_max,
            fragment_size: told.block_size,
            ..StatfsOut::default()
        })
    }

    /// `FUSE_GETXATTR`.
    pub(super) fn getxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let told: GetxattrIn = call.body.take()?;
        let name = call.body.name()?;
        let value = self.adapter.xattr(call.client(), call.node(), name)?;
        send_value(call, told, &value)
    }

    /// `FUSE_LISTXATTR`.
    pub(super) fn listxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let told: GetxattrIn = call.body.take()?;
        let names = self.adapter.list_xattrs(call.client(), call.node())?;
        send_value(call, told, &names)
    }

    /// `FUSE_SETXATTR`.
    pub(super) fn setxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let told: SetxattrIn = call.body.take()?;
        let name = call.body.name()?;
        let value = call.body.bytes(told.size as usize)?;
        self.adapter
            .set_xattr(call.client(), call.node(), name, value, told.flags)
    }

    /// `FUSE_REMOVEXATTR`.
    pub(super) fn removexattr(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.body.name()?;
        self.adapter.remove_xattr(call.client(), call.node(), name)
    }
}

/// Who asks with size 0 wants to know the size; ERANGE if it is larger than asked for.
fn send_value(call: &mut Call<'_>, told: GetxattrIn, value: &[u8]) -> Result<()> {
    match told.size as usize {
        0 => call.send(&GetxattrOut {
            size: value.len() as u32,
            padding: 0,
        }),
        size if size < value.len() => Err(Errno::RANGE.into()),
        _ => call.send_bytes(value),
    }
}
