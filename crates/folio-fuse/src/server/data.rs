//! Operations on open files and their data.
//!
//! Where the client sends no `FUSE_OPEN`, requests have file 0, and the node's implicit file serves
//! them ([`NodeTable::implicit_file`](crate::nodes::NodeTable::implicit_file)).

use super::attributes::clear_set_id_always;
use super::call::Call;
use super::{Done, Server};
use crate::client_options::DataCache;
use crate::wire::TRANSFER_MAX;
use crate::wire::abi::{
    self, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, FsyncIn, LseekIn, LseekOut, OpenIn,
    OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut, init, open,
};
use crate::wire::encode::permission_bits;
use folio::syscall::{Credentials, OpenFlags, OpenHandle};
use folio::vfs::{FallocateMode, SeekKind};
use folio::{Errno, Result};
use std::time::Duration;

/// lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// fallocate(2): `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE`, `_ZERO_RANGE` and so on.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const PUNCH_HOLE_KEEP_SIZE: u32 = PUNCH_HOLE | KEEP_SIZE;
const COLLAPSE_RANGE: u32 = 0x08;
const ZERO_RANGE: u32 = 0x10;
const ZERO_RANGE_KEEP_SIZE: u32 = ZERO_RANGE | KEEP_SIZE;
const INSERT_RANGE: u32 = 0x20;

/// Most bytes that one `FUSE_COPY_FILE_RANGE` copies; the client asks again for more.
const COPY_MAX: u64 = 64 << 20;

impl Server {
    /// `FUSE_OPEN`.
    pub(super) fn open(&self, call: &mut Call<'_>) -> Result<()> {
        if self.has(init::NO_OPEN_SUPPORT) {
            // The kernel does not send it again: it checks permissions itself, and keeps data.
            return Err(Errno::NOSYS.into());
        }
        call.check_room(size_of::<OpenOut>())?;
        let args: OpenIn = call.arguments.take()?;
        let node = call.node();
        let handle = self.nodes.handle(node)?;
        let flags = self.open_flags(args.flags);
        let file = self.caller(call.credentials, 0).open(&handle, flags)?;
        let opened = self.opened(node, file, args.flags, || {
            !self.options.has_external_writers || self.nodes.is_unchanged_since_open(node)
        });
        call.send(&opened)
    }

    /// `FUSE_CREATE`.
    pub(super) fn create(&self, call: &mut Call<'_>) -> Result<()> {
        // First: what was created must have its reply.
        call.check_room(size_of::<EntryOut>() + size_of::<OpenOut>())?;
        let args: CreateIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let parent = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, permission_bits(args.umask));
        let flags = self.open_flags(args.flags);
        let file = caller.create(&parent, name, flags, permission_bits(args.mode))?;
        let name_ttl = caller.name_ttl(&parent, name);
        self.send_created(call, file, args.flags, name_ttl)
    }

    /// `FUSE_TMPFILE`.
    pub(super) fn tmpfile(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<EntryOut>() + size_of::<OpenOut>())?;
        let args: CreateIn = call.arguments.take()?;
        let parent = self.nodes.handle(call.node())?;
        let caller = self.caller(call.credentials, permission_bits(args.umask));
        let flags = self.open_flags(args.flags);
        let file = caller.create_unnamed(&parent, flags, permission_bits(args.mode))?;
        self.send_created(call, file, args.flags, Duration::ZERO)
    }

    /// Sends entry and file of a new inode, opened with the client's `flags`.
    fn send_created(
        &self,
        call: &mut Call<'_>,
        file: OpenHandle,
        flags: u32,
        name_ttl: Duration,
    ) -> Result<()> {
        let entry = self.entry(file.handle(), name_ttl)?;
        call.send(&entry)?;
        let opened = self.opened(entry.node, file, flags, || true);
        call.send(&opened)
    }

    /// Returns the flags to open with: access mode, and those that change reads and writes.
    ///
    /// An implicit file serves every reader and writer. A client that writes back reads the rest of
    /// the page first. O_APPEND is dropped, because the kernel writes mapped pages through the same
    /// file: it has found the end before it writes, else [`Self::finds_end`]. So is O_TRUNC, which
    /// arrives as a change of size.
    fn open_flags(&self, flags: u32) -> OpenFlags {
        let access_mode = OpenFlags::WRONLY | OpenFlags::RDWR;
        let flags = OpenFlags::from_bits_truncate(flags);
        if self.has(init::NO_OPEN_SUPPORT) {
            return OpenFlags::RDWR | flags & OpenFlags::EXCL;
        }
        let flags = flags & (access_mode | OpenFlags::EXCL | OpenFlags::NOATIME | OpenFlags::SYNC);
        if self.has(init::WRITEBACK_CACHE) && flags & access_mode == OpenFlags::WRONLY {
            flags & !access_mode | OpenFlags::RDWR
        } else {
            flags
        }
    }

    /// Keeps a file that the client opened with `flags`, and returns the reply. The client drops
    /// its pages unless `is_unchanged` returns true.
    fn opened(
        &self,
        node: u64,
        file: OpenHandle,
        flags: u32,
        is_unchanged: impl FnOnce() -> bool,
    ) -> OpenOut {
        let writes = OpenFlags::from_bits_truncate(flags).is_writable();
        let (open_flags, backing) = match (&self.local, self.options.data) {
            (Some(local), _) => local.open(&self.nodes, node, &file, writes),
            (None, DataCache::None) => (open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES, 0),
            (None, DataCache::Kept) if is_unchanged() => (open::KEEP_CACHE, 0),
            (None, DataCache::Kept) => (0, 0),
        };
        let file = if self.skips_host_open() {
            0
        } else if self.has(init::NO_OPEN_SUPPORT) {
            // There will be no FUSE_RELEASE either, so the node keeps the file. Without the node,
            // the file is closed.
            let _ = self.nodes.add_implicit_file(node, true, file);
            0
        } else {
            self.nodes.add_file(file)
        };
        OpenOut {
            file,
            open_flags,
            backing,
        }
    }

    /// `FUSE_OPENDIR`.
    pub(super) fn opendir(&self, call: &mut Call<'_>) -> Result<()> {
        if self.has(init::NO_OPENDIR_SUPPORT) {
            // Each request has the node and the cookie, so nothing need be opened. The kernel does
            // not send it again.
            return Err(Errno::NOSYS.into());
        }
        let open_flags = match &self.local {
            Some(local) => local.open_directory(&self.nodes, call.node()),
            None if self.options.keeps_listings() => open::KEEP_CACHE | open::CACHE_DIR,
            None => 0,
        };
        call.send(&OpenOut {
            file: 0,
            open_flags,
            backing: 0,
        })
    }

    /// `FUSE_RELEASE`.
    pub(super) fn release(&self, call: &mut Call<'_>) -> Result<()> {
        let args: ReleaseIn = call.arguments.take()?;
        if args.file != 0 {
            let node = call.node();
            if let Some(local) = &self.local
                && local.close(&self.nodes, node)
            {
                self.report_node_change(node);
            }
            self.nodes.remove_file(args.file);
        }
        Ok(())
    }

    /// Returns the file that a request names, or the node's implicit file, to write with `writes`.
    /// The kernel has checked the user's permissions at open(2).
    pub(super) fn open_file(&self, node: u64, file: u64, writes: bool) -> Result<OpenHandle> {
        if file != 0 {
            return self.nodes.file(file);
        }
        if writes && self.skips_host_open() {
            // Not kept: while it is open, the host cannot execute the file (ETXTBSY).
            let handle = self.nodes.handle(node)?;
            return self
                .caller(&Credentials::root(), 0)
                .open(&handle, OpenFlags::RDWR);
        }
        self.nodes.implicit_file(node, writes, |handle| {
            let flags = if writes {
                OpenFlags::RDWR
            } else {
                OpenFlags::empty()
            };
            self.caller(&Credentials::root(), 0).open(handle, flags)
        })
    }

    /// `FUSE_READ`.
    pub(super) fn read(&self, call: &mut Call<'_>) -> Result<Done> {
        let args: ReadIn = call.arguments.take()?;
        let len = (args.size as usize)
            .min(call.reply.room())
            .min(TRANSFER_MAX);
        let file = self.open_file(call.node(), args.file, false)?;
        // Before the read: the time to live must not begin after the pages are read.
        self.limit_unreported_pages(call.node());
        let mut offset = args.offset;
        let mut is_complete = true;
        let may_wait = call.may_wait;
        call.reply.fill(len, &mut |buffer| {
            let count = if may_wait {
                read_full(&file, buffer, offset)?
            } else {
                file.read_nowait(buffer, offset).unwrap_or_else(|| {
                    is_complete = false;
                    0
                })
            };
            offset = offset.saturating_add(count as u64);
            Ok(count)
        })?;
        Ok(if is_complete {
            Done::Replied
        } else {
            Done::MustWait
        })
    }

    /// `FUSE_WRITE`.
    pub(super) fn write(&self, call: &mut Call<'_>) -> Result<()> {
        call.check_room(size_of::<WriteOut>())?;
        let args: WriteIn = call.arguments.take()?;
        let data = call.arguments.bytes(args.size as usize)?;
        let file = self.open_file(call.node(), args.file, true)?;
        let (caller, handle) = (self.caller(call.credentials, 0), file.handle());
        if args.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            // Before the write: no program with new contents may run with the old set-user-ID bit.
            clear_set_id_always(&caller, &handle, call.header.gid)?;
        }
        let written = if self.finds_end(&args) {
            caller.append(&file, data)
        } else {
            caller.write(&file, data, args.offset)
        };
        if args.write_flags & abi::WRITE_CACHE != 0 {
            let stored = written.as_ref().map_or(0, |count| *count as u64);
            let lost = u64::from(args.size).saturating_sub(stored);
            self.counts.add_lost(lost);
        }
        self.limit_unreported_pages(call.node());
        // Also after a failure, which may come after a part was written.
        self.note_own_change(&handle);
        call.send(&WriteOut {
            size: written? as u32,
            padding: 0,
        })
    }

    /// Whether an appending write goes to the end that this server knows. A client that caches no
    /// data does not ask for the size before it writes: its offset is where the end was. A page of
    /// a mapped file has its place, though.
    fn finds_end(&self, write: &WriteIn) -> bool {
        let flags = OpenFlags::from_bits_truncate(write.flags);
        self.options.data == DataCache::None
            && flags.contains(OpenFlags::APPEND)
            && write.write_flags & abi::WRITE_CACHE == 0
    }

    /// Limits how long the client keeps pages of a node that it has opened by itself, if their
    /// changes are not reported.
    fn limit_unreported_pages(&self, node: u64) {
        if self.skips_host_open() && !self.nodes.has_change_notifications(node) {
            self.changes.note_unreported(node);
        }
    }

    /// `FUSE_FSYNC`.
    pub(super) fn fsync(&self, call: &mut Call<'_>) -> Result<()> {
        let args: FsyncIn = call.arguments.take()?;
        // The file that was opened for writing reports write errors.
        let writes = self.nodes.has_implicit_writer(call.node());
        let data_only = args.flags & abi::FSYNC_FDATASYNC != 0;
        self.open_file(call.node(), args.file, writes)?
            .sync(data_only)
    }

    /// `FUSE_FSYNCDIR`.
    pub(super) fn fsyncdir(&self, call: &mut Call<'_>) -> Result<()> {
        let args: FsyncIn = call.arguments.take()?;
        let data_only = args.flags & abi::FSYNC_FDATASYNC != 0;
        let directory = self.nodes.handle(call.node())?;
        self.caller(call.credentials, 0).sync(&directory, data_only)
    }

    /// `FUSE_FALLOCATE`; EOPNOTSUPP for unknown modes.
    pub(super) fn fallocate(&self, call: &mut Call<'_>) -> Result<()> {
        let args: FallocateIn = call.arguments.take()?;
        let mode = match args.mode {
            0 => FallocateMode::Allocate,
            KEEP_SIZE => FallocateMode::AllocateKeepSize,
            PUNCH_HOLE_KEEP_SIZE => FallocateMode::PunchHole,
            ZERO_RANGE => FallocateMode::ZeroRange,
            ZERO_RANGE_KEEP_SIZE => FallocateMode::ZeroRangeKeepSize,
            COLLAPSE_RANGE => FallocateMode::CollapseRange,
            INSERT_RANGE => FallocateMode::InsertRange,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let file = self.open_file(call.node(), args.file, true)?;
        let (caller, handle) = (self.caller(call.credentials, 0), file.handle());
        self.nodes.invalidate_passed_through(&handle);
        caller.fallocate(&file, mode, args.offset, args.len)?;
        self.note_own_change(&handle);
        self.clear_set_id(call, &caller, &handle)
    }

    /// `FUSE_LSEEK`, sent for data and holes alone: the kernel does the other kinds itself.
    ///
    /// # Errors
    /// ENOSYS for a client that delays writes and cannot be asked to write them back: without
    /// notices, or because the slots of its queues may all be taken by such requests. It takes all
    /// bytes for data then.
    pub(super) fn lseek(&self, call: &mut Call<'_>) -> Result<()> {
        let has_notices = self.local.is_some() && !self.is_over_uring();
        if self.has(init::WRITEBACK_CACHE) && !has_notices {
            return Err(Errno::NOSYS.into());
        }
        let args: LseekIn = call.arguments.take()?;
        let kind = match args.whence {
            SEEK_DATA => SeekKind::Data,
            SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        if i64::try_from(args.offset).is_err() {
            return Err(Errno::NXIO.into());
        }
        let file = self.open_file(call.node(), args.file, false)?;
        self.nodes.invalidate_passed_through(&file.handle());
        let offset = file.seek(kind, args.offset)?;
        call.send(&LseekOut { offset })
    }

    /// `FUSE_COPY_FILE_RANGE`.
    pub(super) fn copy_file_range(&self, call: &mut Call<'_>) -> Result<()> {
        let args: CopyFileRangeIn = call.arguments.take()?;
        let input = self.open_file(call.node(), args.file, false)?;
        let output = self.open_file(args.node_out, args.file_out, true)?;
        self.nodes.invalidate_passed_through(&input.handle());
        let (caller, handle) = (self.caller(call.credentials, 0), output.handle());
        self.nodes.invalidate_passed_through(&handle);
        let copied = caller.copy_file_range(
            &input,
            args.offset,
            &output,
            args.offset_out,
            args.len.min(COPY_MAX) as usize,
        )?;
        self.note_own_change(&handle);
        self.clear_set_id(call, &caller, &handle)?;
        call.send(&WriteOut {
            size: copied as u32,
            padding: 0,
        })
    }
}

/// Reads until `buf` is full or the file ends; returns the bytes read.
fn read_full(file: &OpenHandle, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut count = 0;
    while count < buf.len() {
        match file.read(&mut buf[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}
