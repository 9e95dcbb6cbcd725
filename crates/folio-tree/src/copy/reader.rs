//! The reading side of a copy: walks a source, and sends it through the channel.

use super::batch_channel::{BatchSender, LinkId, TreeItem, WriterStopped};
use super::job::CopyJob;
use crate::attributes::Xattrs;
use crate::observer::{CopyFailure, Observer, Side};
use crate::options::CopyOptions;
use crate::source::{FileId, FoundFile, OpenMode, Source, SourceName, is_plain_name};
use crate::target::FileMeta;
use folio::vfs::FileType;
use folio::{Detail, Errno, Error};
use std::collections::HashMap;

/// Files up to this size are read at once and sent in one item.
const SMALL_BYTES: u64 = 256 << 10;
/// The smallest free space of a batch for a read of a large file.
const CHUNK_BYTES: usize = 512 << 10;

/// Reads all sources of a copy.
pub(crate) struct Reader<'a, S: Source> {
    source: &'a S,
    options: &'a CopyOptions,
    observer: &'a dyn Observer,
    sender: BatchSender,
    links: HashMap<FileId, LinkId>,
    /// The source path of the current file, for messages.
    path: Vec<u8>,
    /// Bytes of `path` that name the source.
    source_len: usize,
}

struct Frame<N> {
    node: N,
    names: std::vec::IntoIter<SourceName>,
    path_len: usize,
}

type Walked<T = ()> = Result<T, WriterStopped>;

impl<'a, S: Source> Reader<'a, S> {
    pub(crate) fn new(
        source: &'a S,
        options: &'a CopyOptions,
        observer: &'a dyn Observer,
        sender: BatchSender,
    ) -> Self {
        Self {
            source,
            options,
            observer,
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
            if self.observer.is_stopped() {
                return Err(WriterStopped);
            }
            self.path.truncate(frame.path_len);
            let Some(SourceName { name, file_type }) = frame.names.next() else {
                self.sender.put(TreeItem::Leave);
                frames.pop();
                continue;
            };
            if self.path.last() != Some(&b'/') {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            if !is_plain_name(&name) {
                let reason = "skipped: the name would lead out of its directory";
                self.fail(Error::new(Errno::PERM, reason));
                continue;
            }
            let is_directory = file_type == Some(FileType::Directory);
            let relative = &self.path[self.source_len..];
            if self.options.excludes(relative, is_directory) {
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
        let follows_links = self.options.follows_links;
        let mut known = None;
        let file_type = match file_type {
            Some(FileType::Regular | FileType::Directory) => file_type,
            _ => match self.source.stat(dir, name, follows_links) {
                Ok(found) => {
                    known = Some(found);
                    Some(found.attributes.file_type)
                }
                Err(error) => return Ok(self.fail_with(error)),
            },
        };
        match (file_type, known) {
            (Some(FileType::Directory), _) if !self.options.is_recursive => {
                self.fail(not_recursive(Errno::ISDIR, "is a directory"));
            }
            (Some(file_type @ (FileType::Regular | FileType::Directory)), _) => {
                let is_directory = file_type == FileType::Directory;
                let mode = OpenMode {
                    follows_links,
                    is_directory,
                };
                let opened = self.source.open(dir, name, mode);
                return match opened {
                    Ok((node, found)) if is_directory => Ok(self.directory(node, &found, new_name)),
                    Ok((node, found)) if found.attributes.file_type == FileType::Regular => {
                        self.file(&node, &found, new_name).map(|()| None)
                    }
                    // Replaced since, or fakeroot's substitute for a device node.
                    Ok((_, found)) => {
                        self.other(dir, name, &found, new_name);
                        Ok(None)
                    }
                    Err(error) => Ok(self.fail_with(error)),
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
        found: &FoundFile,
        name: Vec<u8>,
    ) -> Option<Frame<S::Node>> {
        let mut names = match self.source.list(&node) {
            Ok(names) => names,
            Err(error) => return self.fail_with(error),
        };
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let xattrs = self.xattrs(|source| source.xattrs(&node, found));
        self.sender.put(TreeItem::Directory {
            name,
            meta: FileMeta {
                attributes: found.attributes,
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
    fn link(&mut self, found: &FoundFile) -> Result<Option<LinkId>, LinkId> {
        if !self.options.keeps_links || found.attributes.link_count < 2 {
            return Ok(None);
        }
        let next = self.links.len();
        match self.links.entry(found.id()) {
            std::collections::hash_map::Entry::Occupied(seen) => Err(*seen.get()),
            std::collections::hash_map::Entry::Vacant(vacant) => Ok(Some(*vacant.insert(next))),
        }
    }

    fn file(&mut self, node: &S::Node, found: &FoundFile, name: Vec<u8>) -> Walked {
        if self.source.is_own_image(found) {
            let remark = "skipped: this is an image in use";
            self.observer.note(Side::Source, &self.path, remark);
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
            attributes: found.attributes,
            xattrs,
        };
        let size = found.attributes.size_bytes;
        // Fewer blocks than bytes: the file has holes, or the file system compresses. SEEK_DATA
        // decides.
        let is_sparse = found.attributes.blocks_512.saturating_mul(512) < size;
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
                // At most its size now: an image that the copy itself writes would never end.
                self.rest(node, 0, size)
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
                    self.fail(error);
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
            if self.observer.is_stopped() {
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
                    self.fail(error);
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
                Ok(Some(data)) => {
                    let (start, end) = (data.start, data.end.min(size_bytes));
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
                Err(error) => return Ok(self.fail_with(error)),
            }
        }
        Ok(Some(()))
    }

    /// Reads a symbolic link, device node, FIFO or socket.
    fn other(&mut self, dir: &S::Node, name: &[u8], found: &FoundFile, new_name: Vec<u8>) {
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
            attributes: found.attributes,
            xattrs,
        };
        if found.attributes.file_type != FileType::Symlink {
            if !self.options.is_recursive {
                let reason = "not a file, directory or symbolic link";
                return self.fail(not_recursive(Errno::OPNOTSUPP, reason));
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
            Err(error) => self.fail(error),
        }
    }

    fn xattrs(&self, read: impl FnOnce(&S) -> Result<Xattrs, Error>) -> Xattrs {
        if !self.options.keeps_xattrs {
            return Vec::new();
        }
        read(self.source).unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        })
    }

    fn fail(&self, error: Error) {
        self.observer
            .failed(CopyFailure::of_source(&*self.path, error));
    }

    fn fail_with<T>(&self, error: Error) -> Option<T> {
        self.fail(error);
        None
    }
}

fn not_recursive(errno: Errno, reason: &'static str) -> Error {
    Error::new(errno, reason).about(Detail::CopyNotRecursive)
}
