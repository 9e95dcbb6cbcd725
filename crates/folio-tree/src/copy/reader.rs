//! The reading side of a copy: walks a tree on the host or in an image, and sends it through the
//! channel.

use super::batch_channel::{BatchSender, FileMeta, LinkId, TreeItem, WriterStopped, Xattrs};
use super::options::CopyOptions;
use crate::exit::explain;
use crate::session::Session;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error};
use std::collections::HashMap;

/// The names in a directory, with their types if the directory records them.
pub(crate) type EntryNames = Vec<(Vec<u8>, Option<FileType>)>;

/// Files up to this size are read at once and sent in one item.
const SMALL_BYTES: u64 = 256 << 10;
/// The smallest free space of a batch for a read of a large file.
const CHUNK_BYTES: usize = 512 << 10;

/// Attributes, and the device of the file system (`st_dev`).
pub(crate) type SourceStat = (Attributes, u64);

/// The source of a copy: the files of the host or of an image.
pub(crate) trait Source: Sync {
    /// An open file or directory.
    type Node: Send;

    /// Returns the directory where paths start.
    fn start(&self) -> Self::Node;
    /// Returns the attributes of a file: stat(2), or lstat(2) without `follow`.
    fn stat(&self, dir: &Self::Node, name: &[u8], follow: bool) -> Result<SourceStat, Error>;
    /// Opens a file or directory for reading.
    fn open(
        &self,
        dir: &Self::Node,
        name: &[u8],
        follow: bool,
        is_directory: bool,
    ) -> Result<(Self::Node, SourceStat), Error>;
    /// Lists the names in a directory, with types if the directory records them.
    fn list(&self, dir: &Self::Node) -> Result<EntryNames, Error>;
    /// Reads bytes of a file; returns 0 at its end.
    fn read_at(&self, file: &Self::Node, buf: &mut [u8], offset: u64) -> Result<usize, Error>;
    /// Returns the next data range at or after `offset`: start and end, in bytes.
    fn next_data(&self, file: &Self::Node, offset: u64) -> Result<Option<(u64, u64)>, Error>;
    /// Returns the target of a symbolic link.
    fn read_link(&self, dir: &Self::Node, name: &[u8]) -> Result<Vec<u8>, Error>;
    /// Returns the extended attributes of an open file.
    fn xattrs(&self, node: &Self::Node, found: &SourceStat) -> Result<Xattrs, Error>;
    /// Returns the extended attributes of a file that cannot be opened.
    fn link_xattrs(
        &self,
        dir: &Self::Node,
        name: &[u8],
        found: &SourceStat,
    ) -> Result<Xattrs, Error>;
    /// Whether this file is an open image. To copy it would never end.
    fn is_own_image(&self, found: &SourceStat) -> bool;
    /// Formats a path for messages.
    fn describe(&self, path: &[u8]) -> String;
    /// Returns the existing path that is nearest to a missing one, formatted for messages.
    fn meant(&self, path: &[u8]) -> Option<String>;
}

/// One source of the command line, and its destination.
#[derive(Debug, Clone)]
pub(crate) struct CopyJob {
    /// The path of the source.
    pub(crate) from: Vec<u8>,
    /// The directory to copy into.
    pub(crate) parent: Vec<u8>,
    /// The name of the copy in it; "." is the directory itself.
    pub(crate) name: Vec<u8>,
}

/// Reads all sources of a copy.
pub(crate) struct Reader<'a, S: Source> {
    source: &'a S,
    options: CopyOptions,
    session: &'a Session,
    sender: BatchSender,
    links: HashMap<(u64, u64), LinkId>,
    /// The source path of the current file, for messages.
    path: Vec<u8>,
    /// Bytes of `path` that name the source.
    source_len: usize,
}

struct Frame<N> {
    node: N,
    names: std::vec::IntoIter<(Vec<u8>, Option<FileType>)>,
    path_len: usize,
}

type Walked<T = ()> = Result<T, WriterStopped>;

impl<'a, S: Source> Reader<'a, S> {
    pub(crate) fn new(
        source: &'a S,
        options: CopyOptions,
        session: &'a Session,
        sender: BatchSender,
    ) -> Self {
        Self {
            source,
            options,
            session,
            sender,
            links: HashMap::new(),
            path: Vec::new(),
            source_len: 0,
        }
    }

    /// Reads all jobs. Stops early if the user interrupts or the writer stops.
    pub(crate) fn run(mut self, jobs: &[CopyJob]) {
        for job in jobs {
            if self.job(job).is_err() {
                return;
            }
        }
        // A writer that has stopped has reported its failure.
        let _ = self.sender.flush();
    }

    fn job(&mut self, job: &CopyJob) -> Walked {
        self.sender.put(TreeItem::Start {
            parent: job.parent.clone(),
        });
        self.path.clear();
        self.path.extend_from_slice(&job.from);
        self.source_len = job.from.len();
        let start = self.source.start();
        let mut frames = Vec::new();
        if let Some(frame) = self.entry(&start, &job.from, job.name.clone(), None)? {
            frames.push(frame);
        }
        self.tree(frames)
    }

    fn tree(&mut self, mut frames: Vec<Frame<S::Node>>) -> Walked {
        while let Some(frame) = frames.last_mut() {
            if self.session.is_interrupted() {
                return Err(WriterStopped);
            }
            self.path.truncate(frame.path_len);
            let Some((name, file_type)) = frame.names.next() else {
                self.sender.put(TreeItem::Leave);
                frames.pop();
                continue;
            };
            if self.path.last() != Some(&b'/') {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            if !is_plain_name(&name) {
                self.fail("skipped: the name would lead out of its directory");
                continue;
            }
            let is_directory = file_type == Some(FileType::Directory);
            let relative = &self.path[self.source_len..];
            if self
                .options
                .excludes
                .is_some_and(|excludes| excludes.contains(relative, is_directory))
            {
                continue;
            }
            let entered = self.entry(&frame.node, &name, name.clone(), file_type)?;
            frames.extend(entered);
        }
        Ok(())
    }

    /// Reads `name` in `dir`, and names it `new_name`. Returns a directory, for the walk.
    fn entry(
        &mut self,
        dir: &S::Node,
        name: &[u8],
        new_name: Vec<u8>,
        file_type: Option<FileType>,
    ) -> Walked<Option<Frame<S::Node>>> {
        self.sender.reserve(1)?;
        let follow = self.options.follows;
        let mut known = None;
        let file_type = match file_type {
            Some(FileType::Regular | FileType::Directory) => file_type,
            _ => match self.source.stat(dir, name, follow) {
                Ok(found) => {
                    known = Some(found);
                    Some(found.0.file_type)
                }
                Err(error) => return Ok(self.fail_with(&error)),
            },
        };
        match (file_type, known) {
            (Some(FileType::Directory), _) if !self.options.is_recursive => {
                self.fail("is a directory; use -r to copy it");
            }
            (Some(file_type @ (FileType::Regular | FileType::Directory)), _) => {
                let is_directory = file_type == FileType::Directory;
                let opened = self.source.open(dir, name, follow, is_directory);
                return match opened {
                    Ok((node, found)) if is_directory => Ok(self.directory(node, &found, new_name)),
                    Ok((node, found)) if found.0.file_type == FileType::Regular => {
                        self.file(&node, &found, new_name).map(|()| None)
                    }
                    // Replaced since, or fakeroot's substitute for a device node.
                    Ok((_, found)) => {
                        self.other(dir, name, &found, new_name);
                        Ok(None)
                    }
                    Err(error) => Ok(self.fail_with(&error)),
                };
            }
            (_, Some(found)) => self.other(dir, name, &found, new_name),
            (_, None) => {}
        }
        Ok(None)
    }

    fn directory(
        &mut self,
        node: S::Node,
        found: &SourceStat,
        name: Vec<u8>,
    ) -> Option<Frame<S::Node>> {
        let mut names = match self.source.list(&node) {
            Ok(names) => names,
            Err(error) => return self.fail_with(&error),
        };
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let xattrs = self.xattrs(|source| source.xattrs(&node, found));
        self.sender.put(TreeItem::Directory {
            name,
            meta: FileMeta {
                attributes: found.0,
                xattrs,
            },
        });
        Some(Frame {
            node,
            names: names.into_iter(),
            path_len: self.path.len(),
        })
    }

    /// Returns the id of a file with several names; `Err` if an earlier item has it.
    fn link(&mut self, found: &SourceStat) -> Result<Option<LinkId>, LinkId> {
        if !self.options.keeps_links || found.0.link_count < 2 {
            return Ok(None);
        }
        let next = self.links.len();
        match self.links.entry((found.1, found.0.number.0)) {
            std::collections::hash_map::Entry::Occupied(seen) => Err(*seen.get()),
            std::collections::hash_map::Entry::Vacant(vacant) => Ok(Some(*vacant.insert(next))),
        }
    }

    fn file(&mut self, node: &S::Node, found: &SourceStat, name: Vec<u8>) -> Walked {
        if self.source.is_own_image(found) {
            let path = self.source.describe(&self.path);
            self.session
                .note(format_args!("{path}: skipped: this is an image in use"));
            return Ok(());
        }
        let link = match self.link(found) {
            Ok(link) => link,
            Err(first) => {
                self.sender.put(TreeItem::Link { name, first });
                return Ok(());
            }
        };
        let xattrs = self.xattrs(|source| source.xattrs(node, found));
        let meta = FileMeta {
            attributes: found.0,
            xattrs,
        };
        let size = found.0.size_bytes;
        // Fewer blocks than bytes: the file has holes, or the file system compresses. SEEK_DATA
        // decides.
        let is_sparse = found.0.blocks_512.saturating_mul(512) < size;
        if is_sparse || size > SMALL_BYTES {
            let data = self.sender.take(0);
            self.sender.put(TreeItem::File {
                name,
                meta,
                link,
                data,
                is_whole: false,
            });
            return if is_sparse {
                self.sparse(node, size)
            } else {
                self.rest(node, 0, u64::MAX)
            };
        }
        self.small(node, name, meta, link)
    }

    /// Reads a small file into the batch, together with its attributes.
    fn small(
        &mut self,
        node: &S::Node,
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
    ) -> Walked {
        let size = meta.attributes.size_bytes as usize;
        // One extra byte detects the end without another read.
        self.sender.reserve(size + 1)?;
        let mut have = 0;
        while have <= size {
            let room = &mut self.sender.room()[have..=size];
            match self.source.read_at(node, room, have as u64) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) => {
                    self.fail_with::<()>(&error);
                    return Ok(());
                }
            }
            if have == size {
                break;
            }
        }
        let data = self.sender.take(have);
        let is_whole = have <= size;
        self.sender.put(TreeItem::File {
            name,
            meta,
            link,
            data,
            is_whole,
        });
        if is_whole {
            Ok(())
        } else {
            self.rest(node, have as u64, u64::MAX)
        }
    }

    /// Reads from `offset` to the end of the file and sends that end.
    fn rest(&mut self, node: &S::Node, offset: u64, end: u64) -> Walked {
        let read = self.chunks(node, offset, end)?;
        self.sender.put(match read {
            Some(size_bytes) => TreeItem::End { size_bytes },
            None => TreeItem::Incomplete,
        });
        Ok(())
    }

    /// Reads from `offset` to `end` or the end of the file; returns where it stopped, `None` after
    /// a failure.
    fn chunks(&mut self, node: &S::Node, mut offset: u64, end: u64) -> Walked<Option<u64>> {
        while offset < end {
            if self.session.is_interrupted() {
                return Err(WriterStopped);
            }
            self.sender
                .reserve(CHUNK_BYTES.min(usize::try_from(end - offset).unwrap_or(CHUNK_BYTES)))?;
            let room = self.sender.room();
            let len = room
                .len()
                .min(usize::try_from(end - offset).unwrap_or(usize::MAX));
            match self.source.read_at(node, &mut room[..len], offset) {
                Ok(0) => break,
                Ok(count) => {
                    let data = self.sender.take(count);
                    self.sender.put(TreeItem::Data { offset, data });
                    offset += count as u64;
                }
                Err(error) => {
                    self.fail_with::<()>(&error);
                    return Ok(None);
                }
            }
        }
        Ok(Some(offset))
    }

    fn sparse(&mut self, node: &S::Node, size_bytes: u64) -> Walked {
        let read = self.ranges(node, size_bytes)?;
        self.sender.put(match read {
            Some(()) => TreeItem::End { size_bytes },
            None => TreeItem::Incomplete,
        });
        Ok(())
    }

    /// Reads all data ranges of a file with holes; returns `None` after a failure.
    fn ranges(&mut self, node: &S::Node, size_bytes: u64) -> Walked<Option<()>> {
        let mut offset = 0;
        while offset < size_bytes {
            match self.source.next_data(node, offset) {
                Ok(None) => break,
                Ok(Some((start, end))) => {
                    let end = end.min(size_bytes);
                    if end <= start || start < offset {
                        break;
                    }
                    match self.chunks(node, start, end)? {
                        None => return Ok(None),
                        // The file has become shorter.
                        Some(read) if read < end => break,
                        Some(_) => offset = end,
                    }
                }
                Err(error) => return Ok(self.fail_with(&error)),
            }
        }
        Ok(Some(()))
    }

    /// Reads a symbolic link, device node, FIFO or socket.
    fn other(&mut self, dir: &S::Node, name: &[u8], found: &SourceStat, new_name: Vec<u8>) {
        let link = match self.link(found) {
            Ok(link) => link,
            Err(first) => {
                return self.sender.put(TreeItem::Link {
                    name: new_name,
                    first,
                });
            }
        };
        let xattrs = self.xattrs(|source| source.link_xattrs(dir, name, found));
        let meta = FileMeta {
            attributes: found.0,
            xattrs,
        };
        if found.0.file_type != FileType::Symlink {
            if !self.options.is_recursive {
                return self
                    .fail("not a file, directory or symbolic link; use -r or -a to copy it");
            }
            return self.sender.put(TreeItem::Special {
                name: new_name,
                meta,
                link,
            });
        }
        match self.source.read_link(dir, name) {
            Ok(target) => self.sender.put(TreeItem::Symlink {
                name: new_name,
                meta,
                link,
                target,
            }),
            Err(error) => self.fail_with(&error).unwrap_or(()),
        }
    }

    fn xattrs(&self, read: impl FnOnce(&S) -> Result<Xattrs, Error>) -> Xattrs {
        if !self.options.keeps_xattrs {
            return Vec::new();
        }
        read(self.source).unwrap_or_else(|error| {
            self.fail_with::<()>(&error);
            Vec::new()
        })
    }

    fn fail(&self, what: &str) {
        self.session
            .fail(format_args!("{}: {what}", self.source.describe(&self.path)));
    }

    fn fail_with<T>(&self, error: &Error) -> Option<T> {
        // The error names the argument of the call. The message needs the full path instead.
        let plain = Error::from(error.errno());
        let is_plain = error.kind() == folio::ErrorKind::Errno;
        let mut what = explain(if is_plain { &plain } else { error });
        if error.errno() == Errno::NOENT
            && let Some(meant) = self.source.meant(&self.path)
        {
            what.push_str(&format!("; did you mean {meant}?"));
        }
        self.fail(&what);
        None
    }
}

/// Whether a name stays in its directory.
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
