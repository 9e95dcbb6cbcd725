//! Attributes, extended attributes, and what statfs(2) tells.

use super::{Adapter, Client, PermissionChecks, TTL_MAX};
use folio::syscall::{Caller, Handle};
use folio::vfs::{Attributes, FileSystemStatistics, FileType, SetTime, XattrFlags};
use folio::{Errno, Result};
use std::time::Duration;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Attributes to change (`FUSE_SETATTR`); `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub accessed: Option<SetTime>,
    /// Modification time.
    pub modified: Option<SetTime>,
    /// The open file by which the size is changed: ftruncate(2) rather than truncate(2).
    pub file: Option<u64>,
}

impl Adapter {
    /// stat(2).
    pub fn attributes(&self, node: u64) -> Result<Attributes> {
        self.stat(node, &self.handle(node)?)
    }

    /// For how long the kernel may believe them.
    pub fn attributes_ttl(&self, node: u64) -> Duration {
        self.handle(node)
            .map_or(Duration::ZERO, |handle| handle.ttl().min(TTL_MAX))
    }

    /// chown(2), chmod(2), truncate(2) and utimensat(2), one after another; what was done before a
    /// failure stays.
    pub fn set_attributes(&self, client: Client, node: u64, change: &Change) -> Result<Attributes> {
        let handle = self.handle(node)?;
        self.stat(node, &handle)?;
        self.act(client, 0, |caller| {
            if change.uid.is_some() || change.gid.is_some() {
                caller.chown(&handle, change.uid, change.gid)?;
            }
            if let Some(mode) = change.mode {
                caller.chmod(&handle, mode)?;
            }
            if let Some(size_bytes) = change.size_bytes {
                self.set_size(&caller, &handle, change, size_bytes)?;
                self.clear_set_id(client, &caller, &handle)?;
            }
            caller.set_times(&handle, change.accessed, change.modified)
        })?;
        self.note_own(&handle);
        handle.stat()
    }

    /// truncate(2) or ftruncate(2). The kernel empties a file that is opened with O_TRUNC by the
    /// former, which leaves the times of an empty file alone; the latter sets them.
    fn set_size(
        &self,
        caller: &Caller<'_>,
        handle: &Handle,
        change: &Change,
        size_bytes: u64,
    ) -> Result<()> {
        if let Some(file) = change.file {
            return caller.ftruncate(&self.file(file)?, size_bytes);
        }
        let was_empty = handle.stat()?.size_bytes == 0;
        caller.truncate(handle, size_bytes)?;
        match was_empty && size_bytes == 0 && change.modified.is_none() {
            true => caller.set_times(handle, None, Some(SetTime::Now)),
            false => Ok(()),
        }
    }

    /// Clears setuid and setgid as Linux does when somebody other than the superuser changes a
    /// file's contents. Under `FUSE_HANDLE_KILLPRIV_V2` that is the server's to do; setgid without
    /// group execute means nothing and stays.
    pub(super) fn clear_set_id(
        &self,
        client: Client,
        caller: &Caller<'_>,
        handle: &Handle,
    ) -> Result<()> {
        if client.uid == 0 || self.judge == PermissionChecks::Off {
            return Ok(());
        }
        self.clear_set_id_always(caller, handle)
    }

    /// The same for whoever changed the contents, because the kernel said so.
    pub(super) fn clear_set_id_always(&self, caller: &Caller<'_>, handle: &Handle) -> Result<()> {
        let attributes = handle.stat()?;
        let mut kept = attributes.mode & !SET_UID;
        if kept & GROUP_EXECUTE != 0 {
            kept &= !SET_GID;
        }
        match attributes.file_type == FileType::Regular && kept != attributes.mode {
            true => caller.chmod(handle, kept),
            false => Ok(()),
        }
    }

    /// statfs(2).
    pub fn statistics(&self, client: Client, node: u64) -> Result<FileSystemStatistics> {
        let handle = self.handle(node)?;
        self.act(client, 0, |caller| caller.statfs(&handle))
    }

    /// getxattr(2).
    pub fn xattr(&self, client: Client, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let handle = self.handle(node)?;
        self.act(client, 0, |caller| caller.getxattr(&handle, name))
    }

    /// setxattr(2).
    pub fn set_xattr(
        &self,
        client: Client,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        let handle = self.handle(node)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        self.act(client, 0, |caller| {
            caller.setxattr(&handle, name, value, flags)
        })
    }

    /// removexattr(2).
    pub fn remove_xattr(&self, client: Client, node: u64, name: &[u8]) -> Result<()> {
        let handle = self.handle(node)?;
        self.act(client, 0, |caller| caller.removexattr(&handle, name))
    }

    /// listxattr(2): each name with a zero byte after it. `trusted.*` is the superuser's to see,
    /// which no kernel checks for its server.
    pub fn list_xattrs(&self, client: Client, node: u64) -> Result<Vec<u8>> {
        let handle = self.handle(node)?;
        let names = self.act(client, 0, |caller| caller.listxattr(&handle))?;
        let sees_all = client.uid == 0 || self.judge == PermissionChecks::Off;
        let seen = names
            .into_iter()
            .filter(|name| sees_all || !name.starts_with(b"trusted."));
        Ok(seen.fold(Vec::new(), |mut list, name| {
            list.extend_from_slice(&name);
            list.push(0);
            list
        }))
    }
}
