//! Directory listings: `FUSE_READDIR` and `FUSE_READDIRPLUS`.

use super::Server;
use super::call::Call;
use crate::local::LocalClient;
use crate::wire::TRANSFER_MAX;
use crate::wire::abi::{Dirent, EntryOut, ReadIn};
use crate::wire::encode::dirent_type;
use folio::Result;
use folio::syscall::{Caller, Credentials, Handle};
use folio::vfs::FileType;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

/// One name in a directory.
struct ListedEntry {
    name: Vec<u8>,
    /// Inode number.
    number: u64,
    /// Looked up where the directory does not record it.
    file_type: FileType,
    /// The position after this entry.
    next_cookie: u64,
}

impl ListedEntry {
    /// Returns whether it is `.` or `..`.
    fn is_dot(&self) -> bool {
        matches!(&self.name[..], b"." | b"..")
    }

    /// Bytes of its `struct fuse_dirent`.
    fn dirent_len(&self) -> usize {
        padded(size_of::<Dirent>() + self.name.len())
    }
}

/// A listing in progress.
struct Listing<'a> {
    caller: Caller<'a>,
    directory: Handle,
    /// The position of the next entry; 0 at the start.
    cookie: u64,
    /// Longest body: as requested, as fits, and no more than any client needs.
    len_max: usize,
    /// Bytes before the `struct fuse_dirent` of each entry.
    prefix_len: usize,
}

impl Server {
    /// `FUSE_READDIR`.
    pub(super) fn readdir(&self, call: &mut Call<'_>) -> Result<()> {
        let is_unreported = self.is_unreported_listing(call.node());
        let listing = self.listing(call.credentials, call, 0)?;
        listing.send_entries(|entry| {
            send_dirent(call, entry, entry.number)?;
            Ok(true)
        })?;
        self.limit_listing(call.node(), is_unreported);
        Ok(())
    }

    /// `FUSE_READDIRPLUS`.
    pub(super) fn readdirplus(&self, call: &mut Call<'_>) -> Result<()> {
        let is_unreported = self.is_unreported_listing(call.node());
        let listing = self.listing(call.credentials, call, size_of::<EntryOut>())?;
        let (caller, directory) = (listing.caller, listing.directory.clone());
        let directory_node = call.node();
        // There is room for each entry (S2).
        listing.send_entries(|entry| {
            // Node 0: the client takes the name alone. `.` and `..` count as no lookup. If a lookup
            // fails, the client repeats it when it needs the inode, and gets the error then.
            let found = if entry.is_dot() {
                Ok(None)
            } else {
                match caller.lookup(&directory, &entry.name) {
                    // Unlinked meanwhile.
                    Ok(None) => return Ok(false),
                    Ok(Some(handle)) => {
                        let ttl = self.name_ttl(&caller, &directory, &entry.name);
                        let found = self.entry(handle, ttl);
                        found.map(|found| {
                            self.note_place(directory_node, &entry.name, &found);
                            Some(found)
                        })
                    }
                    Err(error) => Err(error),
                }
            };
            let found = found.ok().flatten();
            call.send(&found.unwrap_or_default())?;
            send_dirent(call, entry, found.map_or(entry.number, |found| found.node))?;
            Ok(true)
        })?;
        self.limit_listing(directory_node, is_unreported);
        Ok(())
    }

    /// Returns whether the client keeps a listing whose changes are not reported. Before the
    /// listing is read: the question begins to watch the directory.
    fn is_unreported_listing(&self, node: u64) -> bool {
        self.local.as_ref().is_some_and(LocalClient::skips_opendir)
            && !self.nodes.has_change_notifications(node)
    }

    /// Limits how long the client keeps an unreported listing. After it was read: the client
    /// stores entries also after a notice. The last, empty request makes the decisive note: it
    /// comes after all entries were stored.
    fn limit_listing(&self, node: u64, is_unreported: bool) {
        if is_unreported {
            self.changes.note_unreported(node);
        }
    }

    fn listing<'a>(
        &'a self,
        credentials: &'a Credentials,
        call: &mut Call<'_>,
        prefix_len: usize,
    ) -> Result<Listing<'a>> {
        let args: ReadIn = call.arguments.take()?;
        Ok(Listing {
            caller: self.caller(credentials, 0),
            directory: self.nodes.handle(call.node())?,
            cookie: args.offset,
            len_max: (args.size as usize)
                .min(call.reply.room())
                .min(TRANSFER_MAX),
            prefix_len,
        })
    }
}

impl Listing<'_> {
    /// Sends the entries that fit in a reply by `send`, which returns whether the entry exists. If
    /// none does, sends those after them: an empty reply would mean the end.
    fn send_entries(mut self, mut send: impl FnMut(&ListedEntry) -> Result<bool>) -> Result<()> {
        loop {
            let (entries, is_end) = self.next_entries()?;
            let mut is_any_sent = false;
            for entry in &entries {
                is_any_sent |= send(entry)?;
                self.cookie = entry.next_cookie;
            }
            if is_any_sent || is_end || entries.is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the next entries, as many as fit in a reply, and whether no entry follows.
    fn next_entries(&self) -> Result<(Vec<ListedEntry>, bool)> {
        let mut entries: Vec<ListedEntry> = Vec::new();
        let mut untyped = Vec::new();
        let (mut len, mut is_end) = (0, true);
        self.caller
            .read_directory(&self.directory, self.cookie, &mut |entry| {
                let listed = ListedEntry {
                    name: entry.name.to_vec(),
                    number: entry.number.0,
                    file_type: entry.file_type.unwrap_or(FileType::Directory),
                    next_cookie: entry.next_cookie,
                };
                len += self.prefix_len + listed.dirent_len();
                if len > self.len_max {
                    is_end = false;
                    return ControlFlow::Break(());
                }
                if entry.file_type.is_none() {
                    untyped.push(entries.len());
                }
                entries.push(listed);
                ControlFlow::Continue(())
            })?;
        // The directory is unlocked now. `.` and `..` are directories, as assumed above.
        for index in untyped {
            let entry = &mut entries[index];
            if !entry.is_dot()
                && let Some(found) = self.caller.lookup(&self.directory, &entry.name)?
            {
                entry.file_type = found.attributes().file_type;
            }
        }
        Ok((entries, is_end))
    }
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

fn send_dirent(call: &mut Call<'_>, entry: &ListedEntry, number: u64) -> Result<()> {
    let name_len = entry.name.len();
    let dirent = Dirent {
        number,
        next_cookie: entry.next_cookie,
        name_len: name_len as u32,
        kind: dirent_type(entry.file_type),
    };
    call.send_bytes(dirent.as_bytes())?;
    call.send_bytes(&entry.name)?;
    call.send_bytes(&[0; 8][..padded(name_len) - name_len])
}
