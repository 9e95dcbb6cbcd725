//! Requests about names: looked up, made, moved, taken away, listed.

use super::abi::{
    BatchForgetIn, Dirent, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In,
    RenameIn, op,
};
use super::call::Call;
use super::{Server, encode};
use crate::adapter::{DirectoryEntry, Entry};
use folio::{Errno, Result};
use zerocopy::IntoBytes;

/// Entries that one look into a directory fetches.
const ENTRIES: usize = 128;

/// Permission bits and umask are the low 12 bits.
pub(super) fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

impl Server {
    /// `FUSE_LOOKUP`.
    pub(super) fn lookup(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>())?;
        let name = call.body.name()?;
        if let Some(entry) = self.adapter.lookup(call.client(), call.node(), name)? {
            return self.tell(call, &entry);
        }
        let ttl = self.adapter.name_ttl(call.node(), name);
        call.send(&self.missing_out(ttl).ok_or(Errno::NOENT)?)
    }

    /// Tells an entry, for which there is room (W3).
    pub(super) fn tell(&self, call: &mut Call<'_>, entry: &Entry) -> Result<()> {
        call.send(&self.entry_out(entry))
    }

    /// `FUSE_FORGET` and `FUSE_BATCH_FORGET`.
    pub(super) fn forget(&self, call: &mut Call<'_>) -> Result<()> {
        if call.header.opcode == op::FORGET {
            let told: ForgetIn = call.body.take()?;
            self.adapter.forget(call.node(), told.lookups);
            return Ok(());
        }
        let told: BatchForgetIn = call.body.take()?;
        for _ in 0..told.count {
            let one: ForgetOne = call.body.take()?;
            self.adapter.forget(one.node, one.lookups);
        }
        Ok(())
    }

    /// `FUSE_MKNOD`.
    pub(super) fn mknod(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>())?;
        let told: MknodIn = call.body.take()?;
        let place = (call.node(), call.body.name()?);
        let device = encode::device(told.device);
        let made = self
            .adapter
            .mknod(call.client(), place, told.mode, bits(told.umask), device)?;
        self.tell(call, &made)
    }

    /// `FUSE_MKDIR`.
    pub(super) fn mkdir(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>())?;
        let told: MkdirIn = call.body.take()?;
        let name = call.body.name()?;
        let made = self.adapter.mkdir(
            call.client(),
            call.node(),
            name,
            bits(told.mode),
            bits(told.umask),
        )?;
        self.tell(call, &made)
    }

    /// `FUSE_SYMLINK`.
    pub(super) fn symlink(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>())?;
        let (name, target) = (call.body.name()?, call.body.name()?);
        let made = self
            .adapter
            .symlink(call.client(), target, call.node(), name)?;
        self.tell(call, &made)
    }

    /// `FUSE_LINK`.
    pub(super) fn link(&self, call: &mut Call<'_>) -> Result<()> {
        call.needs(size_of::<EntryOut>())?;
        let told: LinkIn = call.body.take()?;
        let name = call.body.name()?;
        let made = self
            .adapter
            .link(call.client(), told.node, call.node(), name)?;
        self.tell(call, &made)
    }

    /// `FUSE_UNLINK`.
    pub(super) fn unlink(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.body.name()?;
        self.adapter.unlink(call.client(), call.node(), name)
    }

    /// `FUSE_RMDIR`.
    pub(super) fn rmdir(&self, call: &mut Call<'_>) -> Result<()> {
        let name = call.body.name()?;
        self.adapter.rmdir(call.client(), call.node(), name)
    }

    /// `FUSE_RENAME` and `FUSE_RENAME2`.
    pub(super) fn rename(&self, call: &mut Call<'_>) -> Result<()> {
        let (new_parent, flags) = if call.header.opcode == op::RENAME {
            (call.body.take::<RenameIn>()?.new_parent, 0)
        } else {
            let told: Rename2In = call.body.take()?;
            (told.new_parent, told.flags)
        };
        let from = (call.node(), call.body.name()?);
        let to = (new_parent, call.body.name()?);
        self.adapter.rename(call.client(), from, to, flags)
    }

    /// `FUSE_READLINK`.
    pub(super) fn readlink(&self, call: &mut Call<'_>) -> Result<()> {
        let target = self.adapter.read_link(call.client(), call.node())?;
        call.send_bytes(&target)
    }

    /// `FUSE_READDIR`.
    pub(super) fn readdir(&self, call: &mut Call<'_>) -> Result<()> {
        let limit = listed_max(call)?;
        self.list(call, |_, call, entry| {
            let len = padded(size_of::<Dirent>() + entry.name.len());
            if call.reply.body_len() + len > limit {
                return Ok(false);
            }
            send_dirent(call, entry, entry.number)?;
            Ok(true)
        })
    }

    /// `FUSE_READDIRPLUS`.
    pub(super) fn readdirplus(&self, call: &mut Call<'_>) -> Result<()> {
        let limit = listed_max(call)?;
        self.list(call, |server, call, entry| {
            let len = size_of::<EntryOut>() + padded(size_of::<Dirent>() + entry.name.len());
            // Before it is looked up (W3).
            if call.reply.body_len() + len > limit {
                return Ok(false);
            }
            // No node: the kernel takes the name alone. So it is with `.` and `..`, which count as
            // no lookup, and with what cannot be looked up: whoever wants that one hears why.
            let nameless = EntryOut::default();
            if entry.is_dot() {
                call.send(&nameless)?;
                send_dirent(call, entry, entry.number)?;
                return Ok(true);
            }
            match server
                .adapter
                .lookup(call.client(), call.node(), &entry.name)
            {
                Ok(Some(found)) => {
                    server.tell(call, &found)?;
                    send_dirent(call, entry, found.id)?;
                }
                // Somebody has taken the name away meanwhile.
                Ok(None) => {}
                Err(_) => {
                    call.send(&nameless)?;
                    send_dirent(call, entry, entry.number)?;
                }
            }
            Ok(true)
        })
    }

    /// Calls `add` for the entries from the cookie on until it says that one does not fit.
    fn list(
        &self,
        call: &mut Call<'_>,
        mut add: impl FnMut(&Self, &mut Call<'_>, &DirectoryEntry) -> Result<bool>,
    ) -> Result<()> {
        let told: super::abi::ReadIn = call.body.take()?;
        let mut cookie = told.offset;
        loop {
            let entries =
                self.adapter
                    .read_directory(call.client(), call.node(), cookie, ENTRIES)?;
            for entry in &entries {
                if !add(self, call, entry)? {
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

/// Bytes that a list of entries may have: as asked, as fit, and no more than anybody needs.
fn listed_max(call: &Call<'_>) -> Result<usize> {
    let mut body = call.body;
    let told: super::abi::ReadIn = body.take()?;
    Ok((told.size as usize)
        .min(call.reply.room())
        .min(super::TRANSFER_MAX))
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

fn send_dirent(call: &mut Call<'_>, entry: &DirectoryEntry, number: u64) -> Result<()> {
    let name_len = entry.name.len();
    let dirent = Dirent {
        number,
        next_cookie: entry.next_cookie,
        name_len: name_len as u32,
        kind: encode::kind(entry.file_type),
    };
    call.send_bytes(dirent.as_bytes())?;
    call.send_bytes(&entry.name)?;
    call.send_bytes(&[0; 8][..padded(name_len) - name_len])
}
