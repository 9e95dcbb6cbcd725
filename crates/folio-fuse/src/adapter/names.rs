//! Names: looked up, made, moved, taken away, listed.

use super::{Adapter, Client, Entry};
use folio::vfs::{Attributes, FileType, RenameFlags};
use folio::{Errno, Result};
use std::ops::ControlFlow;
use std::time::Duration;

/// One name in a directory.
#[derive(Debug, Clone)]
pub struct DirectoryEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub number: u64,
    /// Type; looked up where the directory does not record it.
    pub file_type: FileType,
    /// Continue from here to get the entry after this one.
    pub next_cookie: u64,
}

impl DirectoryEntry {
    /// Whether it is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(&self.name[..], b"." | b"..")
    }
}

impl Adapter {
    /// The inode called `name`; `None` if there is no such name.
    pub fn lookup(&self, client: Client, parent: u64, name: &[u8]) -> Result<Option<Entry>> {
        let parent = self.handle(parent)?;
        let found = self.act(client, 0, |caller| caller.lookup(&parent, name))?;
        found
            .map(|handle| self.tell(handle, self.ttl_of(&parent, name)))
            .transpose()
    }

    /// For how long the kernel may believe what [`Adapter::lookup`] found, or that it found
    /// nothing.
    pub fn name_ttl(&self, parent: u64, name: &[u8]) -> Duration {
        self.handle(parent)
            .map_or(Duration::ZERO, |parent| self.ttl_of(&parent, name))
    }

    /// mkdir(2).
    pub fn mkdir(
        &self,
        client: Client,
        parent: u64,
        name: &[u8],
        mode: u16,
        umask: u16,
    ) -> Result<Entry> {
        let parent = self.handle(parent)?;
        let made = self.act(client, umask, |caller| caller.mkdir(&parent, name, mode))?;
        self.tell(made, self.ttl_of(&parent, name))
    }

    /// mknod(2); `mode` is type and permission bits.
    pub fn mknod(
        &self,
        client: Client,
        (parent, name): (u64, &[u8]),
        mode: u32,
        umask: u16,
        device: (u32, u32),
    ) -> Result<Entry> {
        let parent = self.handle(parent)?;
        let file_type = file_type(mode).ok_or(Errno::INVAL)?;
        let made = self.act(client, umask, |caller| {
            caller.mknod(&parent, name, file_type, (mode & 0o7777) as u16, device)
        })?;
        self.tell(made, self.ttl_of(&parent, name))
    }

    /// symlink(2).
    pub fn symlink(
        &self,
        client: Client,
        target: &[u8],
        parent: u64,
        name: &[u8],
    ) -> Result<Entry> {
        let parent = self.handle(parent)?;
        let made = self.act(client, 0, |caller| caller.symlink(target, &parent, name))?;
        self.tell(made, self.ttl_of(&parent, name))
    }

    /// link(2).
    pub fn link(&self, client: Client, node: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        let (node, parent) = (self.handle(node)?, self.handle(parent)?);
        let made = self.act(client, 0, |caller| caller.link(&node, &parent, name))?;
        self.tell(made, self.ttl_of(&parent, name))
    }

    /// unlink(2).
    pub fn unlink(&self, client: Client, parent: u64, name: &[u8]) -> Result<()> {
        let parent = self.handle(parent)?;
        self.act(client, 0, |caller| caller.unlink(&parent, name))
    }

    /// rmdir(2).
    pub fn rmdir(&self, client: Client, parent: u64, name: &[u8]) -> Result<()> {
        let parent = self.handle(parent)?;
        self.act(client, 0, |caller| caller.rmdir(&parent, name))
    }

    /// renameat2(2); EINVAL for flags that Folio does not know.
    pub fn rename(
        &self,
        client: Client,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (from, to) = (self.handle(parent)?, self.handle(new_parent)?);
        self.act(client, 0, |caller| {
            caller.rename((&from, name), (&to, new_name), flags)
        })
    }

    /// readlink(2).
    pub fn read_link(&self, client: Client, node: u64) -> Result<Vec<u8>> {
        let node = self.handle(node)?;
        self.act(client, 0, |caller| caller.read_link(&node))
    }

    /// The next entries of a directory from `cookie` on (0 starts), at most `count` of them; empty
    /// at the end.
    pub fn read_directory(
        &self,
        client: Client,
        node: u64,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let node = self.handle(node)?;
        self.act(client, 0, |caller| {
            let mut entries = Vec::new();
            let mut unknown = Vec::new();
            caller.read_directory(&node, cookie, &mut |entry| {
                if entry.file_type.is_none() {
                    unknown.push(entries.len());
                }
                entries.push(DirectoryEntry {
                    name: entry.name.to_vec(),
                    number: entry.number.0,
                    file_type: entry.file_type.unwrap_or(FileType::Directory),
                    next_cookie: entry.next_cookie,
                });
                if entries.len() < count {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            // Now that the directory is not locked. `.` and `..` are what was assumed.
            for index in unknown {
                let entry = &mut entries[index];
                if !entry.is_dot()
                    && let Some(found) = caller.lookup(&node, &entry.name)?
                {
                    entry.file_type = found.attributes().file_type;
                }
            }
            Ok(entries)
        })
    }

    /// The attributes to tell beside `.` and `..`, which count as no lookup.
    pub fn dot_attributes(&self, node: u64, entry: &DirectoryEntry) -> Result<Attributes> {
        let mut attributes = self.handle(node)?.attributes();
        attributes.number.0 = entry.number;
        Ok(attributes)
    }
}

/// The type in a mode; `None` for directories and links, which have calls of their own, and for
/// nonsense.
fn file_type(mode: u32) -> Option<FileType> {
    match mode & 0o170000 {
        0 | 0o100000 => Some(FileType::Regular),
        0o020000 => Some(FileType::CharacterDevice),
        0o060000 => Some(FileType::BlockDevice),
        0o010000 => Some(FileType::Fifo),
        0o140000 => Some(FileType::Socket),
        _ => None,
    }
}
