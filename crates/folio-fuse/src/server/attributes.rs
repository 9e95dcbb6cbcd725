//! Operations on attributes, extended attributes and file system statistics.

use super::Server;
use super::call::Call;
use crate::client_options::PermissionChecks;
use crate::local::LocalClient;
use crate::wire::abi::{
    AttrOut, FITRIM, FSGETXATTR, FlagsArgument, FsXattr, GETFLAGS, GetxattrIn, GetxattrOut,
    IoctlIn, IoctlOut, NOTIFY, REMOUNT, SETFLAGS, SETXATTR_ACL_KILL_SGID, SetattrIn,
    SetxattrExtension, SetxattrIn, StatfsOut, StatxOut, TrimRange, XFLAGS, init, set,
};
use crate::wire::encode::{permission_bits, statx};
use folio::syscall::{Caller, Handle};
use folio::vfs::{Attributes, FileType, InodeFlags, SetTime, XattrFlags};
use folio::{Errno, Result, Timespec};

pub(super) const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// Linux: `XATTR_NAME_CAPS`.
const CAPABILITIES: &[u8] = b"security.capability";

impl Server {
    /// `FUSE_GETATTR`.
    pub(super) fn getattr(&self, call: &mut Call<'_>) -> Result<()> {
        let (handle, attributes) = self.current_attributes(call.node())?;
        call.send(&self.attr_out(&attributes, handle.ttl()))
    }

    /// Returns a node and its attributes. The local kernel, whose pages come from the host, gets
    /// the host's size of now: a page that is newer than the size would be cut.
    fn current_attributes(&self, node: u64) -> Result<(Handle, Attributes)> {
        let handle = self.nodes.handle(node)?;
        let is_pushed = self.local.as_ref().is_some_and(LocalClient::is_pushed);
        if is_pushed && handle.attributes().file_type == FileType::Regular {
            handle.invalidate();
        }
        let attributes = self.nodes.stat(&handle)?;
        Ok((handle, attributes))
    }

    /// `FUSE_STATX`.
    pub(super) fn statx(&self, call: &mut Call<'_>) -> Result<()> {
        let (handle, attributes) = self.current_attributes(call.node())?;
        let ttl = self.attributes_ttl(&attributes, handle.ttl());
        call.send(&StatxOut {
            valid: ttl.as_secs(),
            valid_nanos: ttl.subsec_nanos(),
            ..statx(&self.presented(&attributes))
        })
    }

    /// `FUSE_SETATTR`: chown(2), chmod(2), truncate(2) and utimensat(2), one after another. What
    /// was done before a failure stays.
    pub(super) fn setattr(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<AttrOut>())?;
        let args: SetattrIn = call.arguments.take()?;
        let has = |flag| args.valid & flag != 0;
        // The client changes the size through an open file: ftruncate(2) rather than truncate(2).
        let file = if has(set::FH) && has(set::SIZE) {
            Some(self.open_file(call.node(), args.file, true)?)
        } else {
            None
        };
        let handle = self.nodes.handle(call.node())?;
        self.nodes.stat(&handle)?;
        let caller = self.caller(call.credentials, 0);
        let (uid, gid) = (
            has(set::UID).then_some(args.uid),
            has(set::GID).then_some(args.gid),
        );
        if uid.is_some() || gid.is_some() {
            caller.chown(&handle, uid, gid)?;
        }
        if has(set::MODE) {
            caller.chmod(&handle, permission_bits(args.mode))?;
        }
        if has(set::SIZE) {
            let sets_modified = has(set::MTIME);
            match &file {
                Some(file) => caller.ftruncate(file, args.size)?,
                None => truncate(&caller, &handle, args.size, sets_modified)?,
            }
            self.clear_set_id(call, &caller, &handle)?;
        }
        let time = |flag, now, secs, nanos| {
            let to = if has(now) {
                SetTime::Now
            } else {
                SetTime::To(Timespec { secs, nanos })
            };
            has(flag).then_some(to)
        };
        // Last: the truncation sets the times, too.
        caller.set_times(
            &handle,
            time(set::ATIME, set::ATIME_NOW, args.atime, args.atime_nanos),
            time(set::MTIME, set::MTIME_NOW, args.mtime, args.mtime_nanos),
        )?;
        self.note_own_change(&handle);
        let attributes = handle.stat()?;
        call.send(&self.attr_out(&attributes, handle.ttl()))
    }

    /// Clears setuid, setgid and file capabilities as Linux does when a user other than the
    /// superuser changes a file's contents. Under `FUSE_HANDLE_KILLPRIV_V2` that is the server's
    /// task.
    pub(super) fn clear_set_id(
        &self,
        call: &Call<'_>,
        caller: &Caller<'_>,
        handle: &Handle,
    ) -> Result<()> {
        if call.header.uid == 0 || self.permissions == PermissionChecks::Off {
            return Ok(());
        }
        clear_set_id_always(caller, handle, call.header.gid)
    }

    /// `FUSE_IOCTL`: flags of lsattr(1) and chattr(1), FITRIM, and two of Folio's own; ENOTTY for
    /// other requests.
    pub(super) fn ioctl(&self, call: &mut Call<'_>) -> Result<()> {
        let args: IoctlIn = call.arguments.take()?;
        match args.command {
            GETFLAGS => self.get_flags(call),
            SETFLAGS => self.set_flags(call),
            FSGETXATTR => self.get_fs_xattr(call),
            FITRIM => self.trim(call),
            REMOUNT => self.remount(call),
            NOTIFY => self.notify(call),
            _ => Err(Errno::NOTTY.into()),
        }
    }

    fn get_flags(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<IoctlOut>() + size_of::<FlagsArgument>())?;
        let handle = self.nodes.handle(call.node())?;
        let flags = self.caller(call.credentials, 0).flags(&handle)?.bits();
        call.send(&IoctlOut::default())?;
        call.send(&FlagsArgument { flags })
    }

    fn get_fs_xattr(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<IoctlOut>() + size_of::<FsXattr>())?;
        let handle = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, 0);
        let flags = caller.flags(&handle)?.bits();
        let set = XFLAGS.iter().filter(|(_, flag)| flags & flag != 0);
        let found = FsXattr {
            xflags: set.fold(0, |all, (xflag, _)| all | xflag),
            project: caller.project(&handle)?,
            ..FsXattr::default()
        };
        call.send(&IoctlOut::default())?;
        call.send(&found)
    }

    fn set_flags(&self, call: &mut Call<'_>) -> Result<()> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        call.check_room(size_of::<IoctlOut>())?;
        let FlagsArgument { flags } = call.arguments.take()?;
        let handle = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, 0);
        caller.set_flags(&handle, InodeFlags::from_bits_retain(flags))?;
        self.note_own_change(&handle);
        call.send(&IoctlOut::default())
    }

    /// Discards free space, for the superuser.
    fn trim(&self, call: &mut Call<'_>) -> Result<()> {
        if call.header.uid != 0 {
            return Err(Errno::PERM.into());
        }
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        call.check_room(size_of::<IoctlOut>() + size_of::<TrimRange>())?;
        let mut range: TrimRange = call.arguments.take()?;
        let handle = self.nodes.handle(call.node())?;
        let bytes = range.start..range.start.saturating_add(range.len);
        let caller = self.caller(call.credentials, 0);
        range.len = caller.fitrim(&handle, bytes, range.len_min)?;
        call.send(&IoctlOut::default())?;
        call.send(&range)
    }

    /// Changes an option of the mounted file system, for the superuser.
    fn remount(&self, call: &mut Call<'_>) -> Result<()> {
        if call.header.uid != 0 {
            return Err(Errno::PERM.into());
        }
        call.check_room(size_of::<IoctlOut>())?;
        let word = call.arguments.name()?;
        let word = std::str::from_utf8(word).map_err(|_| Errno::INVAL)?;
        match self.kernel.remount("/", word) {
            // An option of the mount, as it is.
            Err(error) if error.errno() == Errno::INVAL && self.was_given(word) => {}
            changed => changed?,
        }
        call.send(&IoctlOut::default())
    }

    /// `FUSE_STATFS`.
    pub(super) fn statfs(&self, call: &mut Call<'_>) -> Result<()> {
        let handle = self.nodes.handle(call.node())?;
        let statistics = self.caller(call.credentials, 0).statfs(&handle)?;
        call.send(&StatfsOut {
            blocks: statistics.blocks,
            blocks_free: statistics.blocks_free,
            blocks_available: statistics.blocks_available,
            inodes: statistics.inodes,
            inodes_free: statistics.inodes_free,
            block_size: statistics.block_size,
            name_max: statistics.name_max,
            fragment_size: statistics.block_size,
            ..StatfsOut::default()
        })
    }

    /// `FUSE_GETXATTR`.
    pub(super) fn getxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let args: GetxattrIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let handle = self.nodes.handle(call.node())?;
        let value = self.caller(call.credentials, 0).getxattr(&handle, name)?;
        send_value(call, args, &value)
    }

    /// `FUSE_LISTXATTR`: each name with a zero byte after it. Only the superuser sees `trusted.*`;
    /// no kernel filters them for its server.
    pub(super) fn listxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let args: GetxattrIn = call.arguments.take()?;
        let handle = self.nodes.handle(call.node())?;
        let sees_all = call.header.uid == 0 || self.permissions == PermissionChecks::Off;
        let mut list = Vec::new();
        for name in self.caller(call.credentials, 0).listxattr(&handle)? {
            if sees_all || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        send_value(call, args, &list)
    }

    /// `FUSE_SETXATTR`.
    pub(super) fn setxattr(&self, call: &mut Call<'_>) -> Result<()> {
        let args: SetxattrIn = call.arguments.take()?;
        let extension = if self.has(init::SETXATTR_EXT) {
            call.arguments.take()?
        } else {
            SetxattrExtension::default()
        };
        let name = call.arguments.name()?;
        let value = call.arguments.bytes(args.size as usize)?;
        let handle = self.nodes.handle(call.node())?;
        let flags = XattrFlags::from_bits(args.flags).ok_or(Errno::INVAL)?;
        let caller = self.caller(call.credentials, 0);
        caller.setxattr(&handle, name, value, flags)?;
        // The kernel, which has the user's groups, decides whether the bit may stay.
        let mode = handle.stat()?.mode;
        if extension.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 && mode & SET_GID != 0 {
            caller.chmod(&handle, mode & !SET_GID)?;
        }
        Ok(())
    }

    /// `FUSE_REMOVEXATTR`.
    pub(super) fn removexattr(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.arguments.name()?;
        let handle = self.nodes.handle(call.node())?;
        self.caller(call.credentials, 0).removexattr(&handle, name)
    }
}

/// Truncates by truncate(2), which keeps the times of a file that stays empty. The kernel also
/// truncates by this request at open(2) with O_TRUNC, which sets them.
fn truncate(
    caller: &Caller<'_>,
    handle: &Handle,
    size_bytes: u64,
    sets_modified: bool,
) -> Result<()> {
    let was_empty = handle.stat()?.size_bytes == 0;
    caller.truncate(handle, size_bytes)?;
    if was_empty && size_bytes == 0 && !sets_modified {
        caller.set_times(handle, None, Some(SetTime::Now))
    } else {
        Ok(())
    }
}

/// Clears setuid, setgid and the capabilities of a regular file that a user of group `gid` changed.
/// Setgid without group execute stays if that is the file's group; requests do not carry the user's
/// other groups. Linux: `setattr_should_drop_sgid`, `cap_inode_killpriv`.
pub(super) fn clear_set_id_always(caller: &Caller<'_>, handle: &Handle, gid: u32) -> Result<()> {
    let attributes = handle.stat()?;
    if attributes.file_type != FileType::Regular {
        return Ok(());
    }
    if caller.getxattr(handle, CAPABILITIES).is_ok() {
        caller.removexattr(handle, CAPABILITIES)?;
    }
    let mut kept = attributes.mode & !SET_UID;
    if kept & GROUP_EXECUTE != 0 || attributes.gid != gid {
        kept &= !SET_GID;
    }
    if kept != attributes.mode {
        caller.chmod(handle, kept)
    } else {
        Ok(())
    }
}

/// Sends a value, or its size if the client asks with size 0; ERANGE if it is longer than asked.
fn send_value(call: &mut Call<'_>, args: GetxattrIn, value: &[u8]) -> Result<()> {
    match args.size as usize {
        0 => call.send(&GetxattrOut {
            size: value.len() as u32,
            padding: 0,
        }),
        size if size < value.len() => Err(Errno::RANGE.into()),
        _ => call.send_bytes(value),
    }
}
