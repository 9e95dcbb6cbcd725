//! The adapter behind the crate fuser: requests decoded, replies encoded. Protocol: linux/fuse.h.

use crate::adapter::{Adapter, Change, Client, DirectoryEntry, Entry, Judge};
use crate::backing::Backings;
use crate::keeping::{self, Keeping, Sharing, in_ticks};
use crate::options::Passthrough;
use folio::vfs::{Attributes, FileType, SeekKind, SetTime};
use folio::{Error, Result, Timespec};
use fuser::{
    AccessFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, Version, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes in one read or write request; the kernel's own limit is 256 pages (`fs.fuse.max_pages_limit`).
const TRANSFER_MAX: u32 = 1 << 20;
/// Requests that the kernel has under way in the background, mostly readahead.
const BACKGROUND_MAX: u16 = 64;
/// Entries that one look into a directory fetches.
const ENTRIES: usize = 128;

/// The protocol from which on the kernel can forget all names at once (Linux 6.16).
const EPOCHS: Version = Version(7, 44);
/// How long another kernel may believe that there is no such name: of those it knows it is told one by one, but nobody
/// knows what it was told was missing.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// What fuser calls.
pub(crate) struct Transport {
    adapter: Arc<Adapter>,
    judge: Judge,
    keeping: Keeping,
    backings: Backings,
    opens_directories: bool,
    missing_ttl_max: Duration,
}

impl Transport {
    pub(crate) fn new(adapter: Arc<Adapter>, judge: Judge, keeping: Keeping) -> Self {
        Self {
            adapter,
            judge,
            keeping,
            backings: Backings::default(),
            opens_directories: true,
            missing_ttl_max: Duration::MAX,
        }
    }
}

thread_local! {
    /// What a read is answered with, kept for the next one.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The capabilities that make the kernel ask less, or more of it at a time. Not `FUSE_ATOMIC_O_TRUNC`, with which
/// the kernel would let a program that runs be emptied.
fn wanted(judge: Judge, keeping: Keeping) -> InitFlags {
    let mut wanted = InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | keeping.flags();
    if judge == Judge::Kernel {
        // The kernel asks for ACLs, heeds them, and checks permissions.
        wanted |= InitFlags::FUSE_POSIX_ACL;
    }
    wanted
}

fn client(request: &Request) -> Client {
    Client { uid: request.uid(), gid: request.gid() }
}

fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno().raw_os_error())
}

/// Permission bits and umask are the low 12 bits.
fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// Replies with what a call returned: the value as told, an error as its errno.
macro_rules! answer {
    ($result:expr, $reply:ident, $value:pat => $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno(&error)),
        }
    };
}

fn time(time: Timespec) -> SystemTime {
    let since = Duration::new(time.secs.unsigned_abs(), 0);
    let nanos = Duration::new(0, time.nanos);
    // Every time that an inode can hold is one that SystemTime can.
    let whole = if time.secs < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::To(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec::new(since.as_secs() as i64, since.subsec_nanos()),
        // fuser counts the nanoseconds of times before 1970 backwards.
        Err(before) => {
            let before = before.duration();
            Timespec::new(-(before.as_secs() as i64), before.subsec_nanos())
        }
    })
}

fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// The kernel's 32 bits of a device number. Linux: `new_encode_dev`.
fn encode_device((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, device & 0xff | device >> 12 & 0xf_ff00)
}

fn attr(id: u64, attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: attributes.size_bytes,
        blocks: attributes.blocks_512,
        atime: time(attributes.accessed),
        mtime: time(attributes.modified),
        ctime: time(attributes.changed),
        crtime: time(attributes.created.unwrap_or_default()),
        kind: kind(attributes.file_type),
        perm: attributes.mode,
        nlink: attributes.link_count,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: encode_device(attributes.device),
        blksize: attributes.block_size,
        flags: 0,
    }
}

/// An entry without an inode: the kernel remembers that the name is not there.
fn missing() -> FileAttr {
    let never = UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn answer_xattr(result: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Tells an entry.
fn tell(reply: ReplyEntry, entry: &Entry) {
    let attr = attr(entry.id, &entry.attributes);
    let generation = Generation(entry.generation);
    reply.entry_with_ttls(&in_ticks(entry.attributes_ttl), &in_ticks(entry.name_ttl), &attr, generation);
}

impl Transport {
    /// What the kernel keeps of a file that is opened.
    fn kept(&self, node: u64) -> FopenFlags {
        let is_same = match self.keeping.sharing {
            Sharing::Alone => true,
            Sharing::Told => !self.adapter.take_rewritten(node),
            Sharing::Asked => self.adapter.is_as_opened_before(node),
        };
        self.keeping.pages(self.adapter.is_told_of(node), is_same)
    }

    /// For how long the kernel may believe a node's attributes.
    fn ttl(&self, node: u64) -> Duration {
        in_ticks(self.adapter.attributes_ttl(node))
    }

    /// Calls `add` for the entries from `cookie` on until it says that the reply is full.
    fn list(
        &self,
        client: Client,
        node: u64,
        mut cookie: u64,
        mut add: impl FnMut(&DirectoryEntry) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let entries = self.adapter.read_directory(client, node, cookie, ENTRIES)?;
            for entry in &entries {
                if add(entry)? {
                    return Ok(());
                }
                cookie = entry.next_cookie;
            }
            if entries.len() < ENTRIES {
                return Ok(());
            }
        }
    }
}

impl Filesystem for Transport {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for capability in wanted(self.judge, self.keeping).iter() {
            // What an older kernel does not know it does without.
            let _ = config.add_capabilities(capability);
        }
        let is_spared = config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.opens_directories = self.keeping.is_shared() || !is_spared;
        let _ = config.set_max_write(TRANSFER_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Some(len_min) = self.keeping.passed_through() {
            // What is behind is no stack of file systems, and the mount itself may be the bottom of one.
            let _ = config.set_max_stack_depth(1);
            let is_possible = rustix::process::geteuid().is_root()
                && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
            match self.keeping.passthrough {
                _ if is_possible => self.backings.enable(len_min),
                Passthrough::Always => return Err(rustix::io::Errno::OPNOTSUPP.into()),
                _ => {}
            }
        }
        if self.keeping.sharing == Sharing::Told && config.kernel_abi() < EPOCHS {
            self.missing_ttl_max = MISSING_TTL;
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _telling = self.adapter.telling();
        let found = self.adapter.lookup(client(request), parent.0, name.as_bytes());
        answer!(found, reply, found => match found {
            Some(found) => tell(reply, &found),
            None => {
                let ttl = self.adapter.name_ttl(parent.0, name.as_bytes());
                let ttl = in_ticks(ttl.min(self.missing_ttl_max));
                match ttl.is_zero() {
                    true => reply.error(Errno::ENOENT),
                    false => reply.entry(&ttl, &missing(), Generation(0)),
                }
            }
        });
    }

    fn forget(&self, _request: &Request, node: INodeNo, lookups: u64) {
        self.adapter.forget(node.0, lookups);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        let _telling = self.adapter.telling();
        answer!(self.adapter.attributes(node.0), reply, found => {
            reply.attr(&self.ttl(node.0), &attr(node.0, &found));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            mode: mode.map(bits),
            uid,
            gid,
            size_bytes: size,
            accessed: atime.map(set_time),
            modified: mtime.map(set_time),
            file: file.map(|file| file.0),
        };
        let _telling = self.adapter.telling();
        answer!(self.adapter.set_attributes(client(request), node.0, &change), reply, now => {
            reply.attr(&self.ttl(node.0), &attr(node.0, &now));
        });
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        answer!(self.adapter.read_link(client(request), node.0), reply, target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let _telling = self.adapter.telling();
        let place = (parent.0, name.as_bytes());
        let made = self.adapter.mknod(client(request), place, mode, bits(umask), decode_device(device));
        answer!(made, reply, made => tell(reply, &made));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _telling = self.adapter.telling();
        let made = self.adapter.mkdir(client(request), parent.0, name.as_bytes(), bits(mode), bits(umask));
        answer!(made, reply, made => tell(reply, &made));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(self.adapter.unlink(client(request), parent.0, name.as_bytes()), reply, () => reply.ok());
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(self.adapter.rmdir(client(request), parent.0, name.as_bytes()), reply, () => reply.ok());
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _telling = self.adapter.telling();
        let target = target.as_os_str().as_bytes();
        let made = self.adapter.symlink(client(request), target, parent.0, name.as_bytes());
        answer!(made, reply, made => tell(reply, &made));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        answer!(self.adapter.rename(client(request), from, to, flags.bits()), reply, () => reply.ok());
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _telling = self.adapter.telling();
        let made = self.adapter.link(client(request), node.0, parent.0, name.as_bytes());
        answer!(made, reply, made => tell(reply, &made));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.adapter.open(client(request), node.0, self.keeping.open_flags(flags.0 as u32));
        answer!(opened, reply, file => {
            let opened = (node.0, file, keeping::is_written(flags.0 as u32));
            let backing = self.backings.open(&self.adapter, opened, |fd| reply.open_backing(fd));
            match backing {
                Some(backing) => reply.opened_passthrough(FileHandle(file), FopenFlags::empty(), &backing),
                None => reply.opened(FileHandle(file), self.kept(node.0)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let place = (parent.0, name.as_bytes());
        let _telling = self.adapter.telling();
        let flags = self.keeping.open_flags(flags as u32);
        let made = self.adapter.create(client(request), place, flags, bits(mode), bits(umask));
        answer!(made, reply, (entry, file) => {
            let opened = (entry.id, file, keeping::is_written(flags));
            let backing = self.backings.open(&self.adapter, opened, |fd| reply.open_backing(fd));
            // There is one time for both.
            let ttl = in_ticks(entry.attributes_ttl.min(entry.name_ttl));
            let (attr, file) = (attr(entry.id, &entry.attributes), FileHandle(file));
            let (none, generation) = (FopenFlags::empty(), Generation(entry.generation));
            match backing {
                Some(backing) => reply.created_passthrough(&ttl, &attr, generation, file, none, &backing),
                None => reply.created(&ttl, &attr, generation, file, self.kept(entry.id)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let len = size.min(TRANSFER_MAX) as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            answer!(self.adapter.read(file.0, &mut buffer[..len], offset), reply, count => reply.data(&buffer[..count]));
        });
    }

    fn write(
        &self,
        request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let clears_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let written = self.adapter.write(client(request), file.0, data, offset, clears_set_id);
        answer!(written, reply, count => reply.written(count as u32));
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing happens at close(2): no locks are kept here, and errors are told by fsync(2). Not asked again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.backings.close(&self.adapter, node.0);
        self.adapter.release(file.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer!(self.adapter.sync(file.0, data_only), reply, () => reply.ok());
    }

    fn opendir(&self, _request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.opens_directories {
            let is_told = self.adapter.is_told_of(node.0);
            reply.opened(FileHandle(0), self.keeping.listing(is_told));
        } else {
            // A directory needs no opening: each request has the node and the cookie. Not asked again.
            reply.error(Errno::ENOSYS);
        }
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _file: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(client(request), node.0, cookie, |entry| {
            let name = OsStr::from_bytes(&entry.name);
            Ok(reply.add(INodeNo(entry.number), entry.next_cookie, kind(entry.file_type), name))
        });
        answer!(listed, reply, () => reply.ok());
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _file: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _telling = self.adapter.telling();
        let client = client(request);
        let listed = self.list(client, node.0, cookie, |entry| {
            let name = OsStr::from_bytes(&entry.name);
            let mut add = |attr: &FileAttr, ttl: Duration, generation| {
                reply.add(attr.ino, entry.next_cookie, name, &ttl, attr, Generation(generation))
            };
            if entry.is_dot() {
                let attributes = self.adapter.dot_attributes(node.0, entry)?;
                return Ok(add(&attr(entry.number, &attributes), Duration::ZERO, 0));
            }
            // Somebody may have taken the name away meanwhile.
            let Some(found) = self.adapter.lookup(client, node.0, &entry.name)? else { return Ok(false) };
            // There is one time for both.
            let ttl = in_ticks(found.attributes_ttl.min(found.name_ttl));
            let is_full = add(&attr(found.id, &found.attributes), ttl, found.generation);
            if is_full {
                self.adapter.forget(found.id, 1);
            }
            Ok(is_full)
        });
        answer!(listed, reply, () => reply.ok());
    }

    fn fsyncdir(
        &self,
        request: &Request,
        node: INodeNo,
        _file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer!(self.adapter.sync_directory(client(request), node.0, data_only), reply, () => reply.ok());
    }

    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs) {
        answer!(self.adapter.statistics(client(request), node.0), reply, told => reply.statfs(
            told.blocks,
            told.blocks_free,
            told.blocks_available,
            told.inodes,
            told.inodes_free,
            told.block_size,
            told.name_max,
            told.block_size,
        ));
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.adapter.set_xattr(client(request), node.0, name.as_bytes(), value, flags as u32);
        answer!(set, reply, () => reply.ok());
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(self.adapter.xattr(client(request), node.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(self.adapter.list_xattrs(client(request), node.0), size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.adapter.remove_xattr(client(request), node.0, name.as_bytes());
        answer!(removed, reply, () => reply.ok());
    }

    fn access(&self, _request: &Request, _node: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Asked only where nobody judges, so everything is allowed. Not asked again.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        len_bytes: u64,
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.adapter.fallocate(client(request), file.0, flags as u32, offset, len_bytes);
        answer!(done, reply, () => reply.ok());
    }

    fn lseek(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let kind = match whence {
            SEEK_DATA => SeekKind::Data,
            SEEK_HOLE => SeekKind::Hole,
            // The kernel does the others itself.
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        answer!(self.adapter.seek(file.0, kind, offset), reply, found => reply.offset(found as i64));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _node_in: INodeNo,
        file_in: FileHandle,
        offset_in: u64,
        _node_out: INodeNo,
        file_out: FileHandle,
        offset_out: u64,
        len_bytes: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((file_in.0, offset_in), (file_out.0, offset_out));
        let copied = self.adapter.copy_file_range(client(request), from, to, len_bytes);
        answer!(copied, reply, count => reply.written(count as u32));
    }
}

/// lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive() {
        for (secs, nanos) in [(0, 0), (5, 1), (-1, 0), (-1, 999_999_999), (-(1 << 31), 500), (1 << 34, 3)] {
            let told = time(Timespec::new(secs, nanos));
            let since = told.duration_since(UNIX_EPOCH);
            let exact = match since {
                Ok(since) => i128::from(since.as_secs()) * 1_000_000_000 + i128::from(since.subsec_nanos()),
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(exact, i128::from(secs) * 1_000_000_000 + i128::from(nanos));
        }
        // As fuser decodes -1 s + 0.25 s.
        let decoded = UNIX_EPOCH - Duration::new(1, 250_000_000);
        assert_eq!(set_time(TimeOrNow::SpecificTime(decoded)), SetTime::To(Timespec::new(-1, 250_000_000)));
    }

    #[test]
    fn device_numbers_survive() {
        for device in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}
