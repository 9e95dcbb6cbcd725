//! Requests about open files and their data.
//!
//! Where files need not be opened, requests have file 0, and the adapter opens the node when it is
//! first read or written ([`crate::adapter::Adapter::node_file`]).

use super::abi::{
    self, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, FsyncIn, LseekIn, LseekOut, OpenIn,
    OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut, init, open,
};
use super::call::Call;
use super::names::bits;
use super::{DataCache, Done, Server};
use folio::vfs::SeekKind;
use folio::{Errno, Result};

/// lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// open(2): the access mode, and its values.
const ACCESS_MODE: u32 = 3;
const WRITE_ONLY: u32 = 1;
const READ_WRITE: u32 = 2;
/// `O_EXCL`.
const EXCLUSIVE: u32 = 0o200;

impl Server {
    /// `FUSE_OPEN`.
    pub(super) fn open(&self, call: &mut Call<'_>) -> Result<()> {
        if self.has(init::NO_OPEN_SUPPORT) {
            // Not asked again: the kernel judges who may open what, and keeps data.
            return Err(Errno::NOSYS.into());
        }
        call.needs(size_of::<OpenOut>())?;
        let told: OpenIn = call.body.take()?;
        let file = self
            .adapter
            .open(call.client(), call.node(), self.access(told.flags))?;
        let opened = self.opened((call.node(), file), told.flags, || {
            !self.options.has_external_writers || self.adapter.is_unchanged(call.node())
        });
        call.send(&opened)
    }

    /// `FUSE_CREATE`.
    pub(super) fn create(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>() + size_of::<OpenOut>())?;
        let told: CreateIn = call.body.take()?;
        let place = (call.node(), call.body.name()?);
        let flags = self.access(told.flags);
        let (entry, file) = self.adapter.create(
            call.client(),
            place,
            flags,
            bits(told.mode),
            bits(told.umask),
        )?;
        self.tell(call, &entry)?;
        let opened = self.opened(
            (entry.id, self.hand_out(entry.id, file)),
            told.flags,
            || true,
        );
        call.send(&opened)
    }

    /// `FUSE_TMPFILE`.
    pub(super) fn tmpfile(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>() + size_of::<OpenOut>())?;
        let told: CreateIn = call.body.take()?;
        let flags = self.access(told.flags);
        let (entry, file) = self.adapter.create_unnamed(
            call.client(),
            call.node(),
            flags,
            bits(told.mode),
            bits(told.umask),
        )?;
        self.tell(call, &entry)?;
        let opened = self.opened(
            (entry.id, self.hand_out(entry.id, file)),
            told.flags,
            || true,
        );
        call.send(&opened)
    }

    /// The flags to open with. Where files are not opened, this one serves whoever comes; and who
    /// writes back reads the rest of the page first.
    fn access(&self, flags: u32) -> u32 {
        if self.has(init::NO_OPEN_SUPPORT) {
            return READ_WRITE | flags & EXCLUSIVE;
        }
        let needs_reads = self.has(init::WRITEBACK_CACHE) && flags & ACCESS_MODE == WRITE_ONLY;
        if needs_reads {
            flags & !ACCESS_MODE | READ_WRITE
        } else {
            flags
        }
    }

    /// The file as the kernel names it. One that needs no opening gets no release either, so the
    /// node keeps it.
    fn hand_out(&self, node: u64, file: u64) -> u64 {
        if self.has(init::NO_OPEN_SUPPORT) {
            self.adapter.keep_node_file(node, file);
            return 0;
        }
        file
    }

    /// What the kernel is told of a node's file that it opened with `flags`. It drops its pages
    /// unless they are of the same contents.
    fn opened(
        &self,
        (node, file): (u64, u64),
        flags: u32,
        is_same: impl FnOnce() -> bool,
    ) -> OpenOut {
        if let Some(local) = &self.local {
            return local.opened(&self.adapter, (node, file), flags & ACCESS_MODE != 0);
        }
        let open_flags = match self.options.data {
            DataCache::None => open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES,
            DataCache::Kept if is_same() => open::KEEP_CACHE,
            DataCache::Kept => 0,
        };
        OpenOut {
            file,
            open_flags,
            backing: 0,
        }
    }

    /// `FUSE_OPENDIR`.
    pub(super) fn opendir(&self, call: &mut Call<'_>) -> Result<()> {
        if self.has(init::NO_OPENDIR_SUPPORT) {
            // A directory needs no opening: each request has the node and the cookie. Not asked
            // again.
            return Err(Errno::NOSYS.into());
        }
        let open_flags = match (&self.local, self.options.data) {
            (Some(local), _) => local.listing(&self.adapter, call.node()),
            (None, DataCache::None) => 0,
            (None, DataCache::Kept) => open::KEEP_CACHE | open::CACHE_DIR,
        };
        call.send(&OpenOut {
            file: 0,
            open_flags,
            backing: 0,
        })
    }

    /// `FUSE_RELEASE`.
    pub(super) fn release(&self, call: &mut Call<'_>) -> Result<()> {
        let told: ReleaseIn = call.body.take()?;
        if told.file != 0 {
            if let Some(local) = &self.local {
                local.closed(&self.adapter, call.node());
            }
            self.adapter.release(told.file);
        }
        Ok(())
    }

    /// Acts on the file that a request names, or on the node's own, opened to write with `writes`.
    pub(super) fn on_file<T>(
        &self,
        (node, file): (u64, u64),
        writes: bool,
        mut act: impl FnMut(u64) -> Result<T>,
    ) -> Result<T> {
        if file != 0 {
            return act(file);
        }
        match act(self.adapter.node_file(node, writes)?) {
            // Closed a moment ago to make room for others.
            Err(error) if error.errno() == Errno::BADF => {
                act(self.adapter.node_file(node, writes)?)
            }
            done => done,
        }
    }

    /// `FUSE_READ`.
    pub(super) fn read(&self, call: &mut Call<'_>) -> Result<Done> {
        let told: ReadIn = call.body.take()?;
        let len = (told.size as usize)
            .min(call.reply.room())
            .min(super::TRANSFER_MAX);
        let mut offset = told.offset;
        let mut has_all = true;
        let (may_wait, place) = (call.may_wait, (call.node(), told.file));
        call.reply.fill(len, &mut |buffer| {
            let count = self.on_file(place, false, |file| match may_wait {
                true => self.adapter.read(file, buffer, offset),
                false => Ok(self
                    .adapter
                    .read_at_once(file, buffer, offset)?
                    .unwrap_or_else(|| {
                        has_all = false;
                        0
                    })),
            })?;
            offset = offset.saturating_add(count as u64);
            Ok(count)
        })?;
        Ok(if has_all { Done::Replied } else { Done::Slow })
    }

    /// `FUSE_WRITE`.
    pub(super) fn write(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<WriteOut>())?;
        let told: WriteIn = call.body.take()?;
        let data = call.body.bytes(told.size as usize)?;
        let clears_set_id = told.write_flags & abi::WRITE_KILL_SUIDGID != 0;
        let client = call.client();
        let count = self.on_file((call.node(), told.file), true, |file| {
            self.adapter
                .write(client, file, data, told.offset, clears_set_id)
        })?;
        call.send(&WriteOut {
            size: count as u32,
            padding: 0,
        })
    }

    /// `FUSE_FSYNC`.
    pub(super) fn fsync(&self, call: &mut Call<'_>) -> Result<()> {
        let told: FsyncIn = call.body.take()?;
        // Whoever has written has opened it for writing, and hears of what failed.
        let writes = self.adapter.node_writer(call.node()).is_some();
        let data_only = told.flags & abi::FSYNC_FDATASYNC != 0;
        self.on_file((call.node(), told.file), writes, |file| {
            self.adapter.sync(file, data_only)
        })
    }

    /// `FUSE_FSYNCDIR`.
    pub(super) fn fsyncdir(&self, call: &mut Call<'_>) -> Result<()> {
        let told: FsyncIn = call.body.take()?;
        let data_only = told.flags & abi::FSYNC_FDATASYNC != 0;
        self.adapter
            .sync_directory(call.client(), call.node(), data_only)
    }

    /// `FUSE_FALLOCATE`.
    pub(super) fn fallocate(&self, call: &mut Call<'_>) -> Result<()> {
        let told: FallocateIn = call.body.take()?;
        let client = call.client();
        self.on_file((call.node(), told.file), true, |file| {
            self.adapter
                .fallocate(client, file, told.mode, told.offset, told.len)
        })
    }

    /// `FUSE_LSEEK`, asked for data and holes alone: the kernel does the others itself.
    pub(super) fn lseek(&self, call: &mut Call<'_>) -> Result<()> {
        let told: LseekIn = call.body.take()?;
        let kind = match told.whence {
            SEEK_DATA => SeekKind::Data,
            SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        if i64::try_from(told.offset).is_err() {
            return Err(Errno::NXIO.into());
        }
        let place = (call.node(), told.file);
        let offset = self.on_file(place, false, |file| {
            self.adapter.seek(file, kind, told.offset)
        })?;
        call.send(&LseekOut { offset })
    }

    /// `FUSE_COPY_FILE_RANGE`.
    pub(super) fn copy_file_range(&self, call: &mut Call<'_>) -> Result<()> {
        let told: CopyFileRangeIn = call.body.take()?;
        let client = call.client();
        let count = self.on_file((call.node(), told.file), false, |from| {
            self.on_file((told.node_out, told.file_out), true, |to| {
                let (from, to) = ((from, told.offset), (to, told.offset_out));
                self.adapter.copy_file_range(client, from, to, told.len)
            })
        })?;
        call.send(&WriteOut {
            size: count as u32,
            padding: 0,
        })
    }
}
