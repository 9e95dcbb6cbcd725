//! Directory listings: `FUSE_READDIR` and `FUSE_READDIRPLUS`.

use super::Server;
use super::call::Call;
use crate::wire::TRANSFER_MAX;
use crate::wire::abi::{Dirent, EntryOut, ReadIn};
use crate::wire::encode::dirent_type;
use folio::Result;
use folio::syscall::{Caller, Credentials, Handle};
use folio::vfs::FileType;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

/// Entries read from a directory at a time.
const ENTRIES: usize = 128;

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
}

impl Server {
    /// `FUSE_READDIR`.
    pub(super) fn readdir(&self, call: &mut Call<'_>) -> Result<()> {
        let listing = self.listing(call.credentials, call)?;
        let len_max = listing.len_max;
        listing.for_each(|entry| {
            if call.reply.body_len() + entry.dirent_len() > len_max {
                return Ok(ControlFlow::Break(()));
            }
            send_dirent(call, entry, entry.number)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// `FUSE_READDIRPLUS`.
    pub(super) fn readdirplus(&self, call: &mut Call<'_>) -> Result<()> {
        let listing = self.listing(call.credentials, call)?;
        let (caller, directory) = (listing.caller, listing.directory.clone());
        let (len_max, directory_node) = (listing.len_max, call.node());
        listing.for_each(|entry| {
            // Checked before the lookup (S2).
            let len = size_of::<EntryOut>() + entry.dirent_len();
            if call.reply.body_len() + len > len_max {
                return Ok(ControlFlow::Break(()));
            }
            // Node 0: the client takes the name alone. `.` and `..` count as no lookup. If a lookup
            // fails, the client repeats it when it needs the inode, and gets the error then.
            let found = if entry.is_dot() {
                Ok(None)
            } else {
                match caller.lookup(&directory, &entry.name) {
                    // Unlinked meanwhile.
                    Ok(None) => return Ok(ControlFlow::Continue(())),
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
            Ok(ControlFlow::Continue(()))
        })
    }

    fn listing<'a>(
        &'a self,
        credentials: &'a Credentials,
        call: &mut Call<'_>,
    ) -> Result<Listing<'a>> {
        let args: ReadIn = call.arguments.take()?;
        Ok(Listing {
            caller: self.caller(credentials, 0),
            directory: self.nodes.handle(call.node())?,
            cookie: args.offset,
            len_max: (args.size as usize)
                .min(call.reply.room())
                .min(TRANSFER_MAX),
        })
    }
}

impl Listing<'_> {
    /// Calls `add` for each entry until it breaks, which means that the entry does not fit.
    fn for_each(
        mut self,
        mut add: impl FnMut(&ListedEntry) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        loop {
            let entries = self.next_entries()?;
            for entry in &entries {
                if add(entry)?.is_break() {
                    return Ok(());
                }
                self.cookie = entry.next_cookie;
            }
            if entries.len() < ENTRIES {
                return Ok(());
            }
        }
    }

    /// Returns the next entries; fewer than [`ENTRIES`] at the end.
    fn next_entries(&self) -> Result<Vec<ListedEntry>> {
        let mut entries = Vec::new();
        let mut untyped = Vec::new();
        self.caller
            .read_directory(&self.directory, self.cookie, &mut |entry| {
                if entry.file_type.is_none() {
                    untyped.push(entries.len());
                }
                entries.push(ListedEntry {
                    name: entry.name.to_vec(),
                    number: entry.number.0,
                    file_type: entry.file_type.unwrap_or(FileType::Directory),
                    next_cookie: entry.next_cookie,
                });
                if entries.len() < ENTRIES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        // The directory is unlocked now. `.` and `..` are directories, as assumed above.
        for index in untyped {
            let entry: &mut ListedEntry = &mut entries[index];
            if !entry.is_dot()
                && let Some(found) = self.caller.lookup(&self.directory, &entry.name)?
            {
                entry.file_type = found.attributes().file_type;
            }
        }
        Ok(entries)
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
