//! Open files and their data.

use super::{Adapter, Client, Entry, Version};
use folio::syscall::{Credentials, OpenFlags, OpenHandle};
use folio::vfs::{FallocateMode, SeekKind};
use folio::{Errno, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that one copy moves at most; the kernel asks again for more.
const COPY_MAX: u64 = 64 << 20;

/// fallocate(2): `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE`, `_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
const COLLAPSE_RANGE: u32 = 0x08;
const INSERT_RANGE: u32 = 0x20;

/// The flags of open(2) that are a server's business: access mode, and how reads and writes go on.
/// O_APPEND is not: the kernel has found the end of the file before it writes, and writes mapped
/// pages back through the same file. Nor is O_TRUNC, which comes as a change of size.
fn kept(flags: u32) -> OpenFlags {
    let kept = OpenFlags::WRONLY
        | OpenFlags::RDWR
        | OpenFlags::EXCL
        | OpenFlags::NOATIME
        | OpenFlags::SYNC;
    OpenFlags::from_bits_truncate(flags) & kept
}

impl Adapter {
    /// open(2) of a regular file; returns its file id, to be released.
    pub fn open(&self, client: Client, node: u64, flags: u32) -> Result<u64> {
        let handle = self.handle(node)?;
        let file = self.act(client, 0, |caller| caller.open(&handle, kept(flags)))?;
        Ok(self.keep(file))
    }

    /// open(2) with O_CREAT; returns the entry, to be forgotten, and the file id, to be released.
    pub fn create(
        &self,
        client: Client,
        (parent, name): (u64, &[u8]),
        flags: u32,
        mode: u16,
        umask: u16,
    ) -> Result<(Entry, u64)> {
        let parent = self.handle(parent)?;
        let file = self.act(client, umask, |caller| {
            caller.create(&parent, name, kept(flags), mode)
        })?;
        Ok((
            self.tell(file.handle(), self.ttl_of(&parent, name))?,
            self.keep(file),
        ))
    }

    /// Whether the contents of a node are as they were when this was asked last, which is when the
    /// file was opened.
    pub fn is_as_opened_before(&self, node: u64) -> bool {
        let Ok(attributes) = self.attributes(node) else {
            return false;
        };
        let version = Version::of(&attributes);
        let before = self
            .nodes
            .change(node, |node| node.opened_as.replace(version));
        before == Some(Some(version))
    }

    /// The same, and what was known of it is not believed: whoever opens a file sees what others
    /// have written before.
    pub fn is_unchanged(&self, node: u64) -> bool {
        if let Ok(handle) = self.handle(node) {
            handle.invalidate();
        }
        self.is_as_opened_before(node)
    }

    /// A new descriptor of the file of the host behind an open file, if there is one.
    pub fn host_file(&self, file: u64) -> Option<OwnedFd> {
        self.file(file).ok()?.host_file()?.ok()
    }

    /// The kernel reads and writes a node by itself from now on, so what Folio knows of it is not
    /// believed.
    pub fn begin_direct(&self, node: u64) {
        let _ = self.direct.add(node, (), |(), ()| ());
    }

    /// The kernel has closed the node. What it remembers of it may be older than what it wrote
    /// through a mapping.
    pub fn end_direct(&self, node: u64) {
        let known = self.direct.remove_if(node, |()| true);
        if known.is_some()
            && let Ok(handle) = self.handle(node)
        {
            handle.invalidate();
            self.nodes.change(node, |node| node.is_rewritten = true);
            self.stale(node);
        }
    }

    /// Whether the kernel has written a node past its own pages since this was asked last.
    pub fn take_rewritten(&self, node: u64) -> bool {
        self.nodes
            .change(node, |node| std::mem::take(&mut node.is_rewritten))
            .unwrap_or(false)
    }

    /// Has Folio ask for what the kernel may have changed by itself.
    fn settle(&self, file: &OpenHandle) {
        let handle = file.handle();
        if self.direct.get(self.id(handle.number()), |()| ()).is_some() {
            handle.invalidate();
        }
    }

    /// open(2) with O_TMPFILE; returns the entry, to be forgotten, and the file id, to be released.
    pub fn create_unnamed(
        &self,
        client: Client,
        parent: u64,
        flags: u32,
        mode: u16,
        umask: u16,
    ) -> Result<(Entry, u64)> {
        let parent = self.handle(parent)?;
        let file = self.act(client, umask, |caller| {
            caller.create_unnamed(&parent, kept(flags), mode)
        })?;
        Ok((self.tell(file.handle(), Duration::ZERO)?, self.keep(file)))
    }

    /// Lets go of an open file.
    pub fn release(&self, file: u64) {
        drop(self.files.remove_if(file, |_| true));
    }

    /// pread(2): fills `buf`, but for the end of the file.
    pub fn read(&self, file: u64, buf: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.file(file)?;
        let mut count = 0;
        while count < buf.len() {
            match file.read(&mut buf[count..], offset + count as u64)? {
                0 => break,
                some => count += some,
            }
        }
        Ok(count)
    }

    /// The same of bytes that are all in memory; `None` if they are not, and [`Adapter::read`] may
    /// have to wait.
    pub fn read_at_once(&self, file: u64, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        Ok(self.file(file)?.read_nowait(buf, offset))
    }

    /// pwrite(2). With `clears_set_id` the kernel wants setuid and setgid cleared.
    pub fn write(
        &self,
        client: Client,
        file: u64,
        bytes: &[u8],
        offset: u64,
        clears_set_id: bool,
    ) -> Result<usize> {
        let file = self.file(file)?;
        self.act(client, 0, |caller| {
            if clears_set_id {
                self.clear_set_id_always(&caller, &file.handle())?;
            }
            let written = caller.write(&file, bytes, offset);
            self.note_own(&file.handle());
            written
        })
    }

    /// fsync(2), or fdatasync(2).
    pub fn sync(&self, file: u64, data_only: bool) -> Result<()> {
        self.file(file)?.sync(data_only)
    }

    /// fsync(2) of a directory.
    pub fn sync_directory(&self, client: Client, node: u64, data_only: bool) -> Result<()> {
        let handle = self.handle(node)?;
        self.act(client, 0, |caller| caller.sync(&handle, data_only))
    }

    /// sync(2): everything that was written.
    pub fn sync_all(&self) -> Result<()> {
        self.kernel.process(Credentials::root()).sync()
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE.
    pub fn seek(&self, file: u64, kind: SeekKind, offset: u64) -> Result<u64> {
        let file = self.file(file)?;
        self.settle(&file);
        file.seek(kind, offset)
    }

    /// fallocate(2) with the flags of that call; EOPNOTSUPP for those that Folio does not know.
    pub fn fallocate(
        &self,
        client: Client,
        file: u64,
        flags: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let mode = match flags {
            0 => FallocateMode::Allocate,
            KEEP_SIZE => FallocateMode::AllocateKeepSize,
            PUNCH => FallocateMode::PunchHole,
            ZERO_RANGE => FallocateMode::ZeroRange,
            ZERO_KEEP => FallocateMode::ZeroRangeKeepSize,
            COLLAPSE_RANGE => FallocateMode::CollapseRange,
            INSERT_RANGE => FallocateMode::InsertRange,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let file = self.file(file)?;
        self.settle(&file);
        self.act(client, 0, |caller| {
            caller.fallocate(&file, mode, offset, len_bytes)?;
            self.note_own(&file.handle());
            self.clear_set_id(client, &caller, &file.handle())
        })
    }

    /// copy_file_range(2); returns the bytes copied, fewer than asked if there are many.
    pub fn copy_file_range(
        &self,
        client: Client,
        (input, input_offset): (u64, u64),
        (out, out_offset): (u64, u64),
        len_bytes: u64,
    ) -> Result<usize> {
        let (input, out) = (self.file(input)?, self.file(out)?);
        self.settle(&input);
        self.settle(&out);
        self.act(client, 0, |caller| {
            let count = len_bytes.min(COPY_MAX) as usize;
            let copied =
                caller.copy_file_range((&input, input_offset), (&out, out_offset), count)?;
            self.note_own(&out.handle());
            self.clear_set_id(client, &caller, &out.handle())?;
            Ok(copied)
        })
    }
}
