//! The writing side of a copy: receives a tree from the channel, and creates it on the host or in
//! an image.

use super::batch_channel::{Batch, BatchReceiver, FileMeta, LinkId, TreeItem};
use crate::exit::{Failure, Outcome, explain, is_final};
use crate::progress::Progress;
use crate::session::Session;
use folio::Error;
use std::collections::HashMap;

/// The target of a copy: the host or an image.
pub(crate) trait Target {
    /// An open directory.
    type Dir;
    /// A file being written.
    type File;

    /// Opens an existing directory.
    fn open_parent(&self, path: &[u8]) -> Result<Self::Dir, Error>;
    /// Creates a directory, or opens an existing one.
    fn make_dir(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<Self::Dir, Error>;
    /// Sets the attributes of a directory, after all files below it are created.
    fn finish_dir(&self, dir: Self::Dir, meta: &FileMeta) -> Result<(), Error>;
    /// Creates a file, or truncates an existing one.
    fn create(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<Self::File, Error>;
    /// Writes all `bytes` at `offset`.
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> Result<(), Error>;
    /// Extends the file to its size if it ends in a hole, sets the attributes, and closes it.
    fn finish(
        &self,
        file: Self::File,
        meta: &FileMeta,
        written: u64,
        size_bytes: u64,
    ) -> Result<(), Error>;
    /// Creates a symbolic link.
    fn symlink(
        &self,
        at: &Self::Dir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
    ) -> Result<(), Error>;
    /// Creates a device node, FIFO or socket.
    fn special(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<(), Error>;
    /// Creates a hard link to the file at the path `first`.
    fn link(&self, first: &[u8], at: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Removes a file that could not be written.
    fn remove(&self, at: &Self::Dir, name: &[u8]);
    /// Formats a path for messages.
    fn describe(&self, path: &[u8]) -> String;
}

/// Creates all files of a copy.
pub(crate) struct Writer<'a, T: Target> {
    target: &'a T,
    session: &'a Session,
    progress: &'a Progress,
    frames: Vec<Frame<T::Dir>>,
    file: Option<OpenFile<T::File>>,
    links: HashMap<LinkId, Vec<u8>>,
    /// Depth below a directory that could not be created.
    skipped: usize,
    /// The number of created files.
    pub(crate) created: u64,
}

struct Frame<D> {
    dir: D,
    /// `None` for a directory that existed before.
    meta: Option<FileMeta>,
    path: Vec<u8>,
}

struct OpenFile<F> {
    file: F,
    meta: FileMeta,
    name: Vec<u8>,
    written: u64,
}

impl<'a, T: Target> Writer<'a, T> {
    pub(crate) fn new(target: &'a T, session: &'a Session, progress: &'a Progress) -> Self {
        let (frames, links) = (Vec::new(), HashMap::new());
        Self {
            target,
            session,
            progress,
            frames,
            file: None,
            links,
            skipped: 0,
            created: 0,
        }
    }

    /// Creates all files from the channel. Ends early at a failure that would affect all other
    /// files too.
    pub(crate) fn run(&mut self, receiver: &BatchReceiver) -> Outcome {
        let mut result = Ok(());
        while let Some(mut batch) = receiver.next() {
            result = self.batch(&mut batch);
            if result.is_err() {
                break;
            }
            receiver.recycle(batch);
        }
        // After an early stop the open directories get their attributes nevertheless.
        if let Some(open) = self.file.take()
            && let Some(frame) = self.frames.last()
        {
            drop(
                self.target
                    .finish(open.file, &open.meta, open.written, open.written),
            );
            self.target.remove(&frame.dir, &open.name);
        }
        while let Some(frame) = self.frames.pop() {
            self.finish(frame);
        }
        result
    }

    fn batch(&mut self, batch: &mut Batch) -> Outcome {
        for item in batch.items.drain(..) {
            self.item(item, &batch.data)?;
        }
        self.session.check_interrupt()
    }

    fn item(&mut self, item: TreeItem, bytes: &[u8]) -> Outcome {
        match item {
            TreeItem::Start { parent } => return self.start(parent),
            TreeItem::Directory { name, meta } => return self.enter(&name, meta),
            TreeItem::Leave if self.skipped > 0 => self.skipped -= 1,
            TreeItem::Leave => {
                if let Some(frame) = self.frames.pop() {
                    self.finish(frame);
                }
            }
            _ if self.skipped > 0 => {}
            TreeItem::File {
                name,
                meta,
                link,
                data,
                is_whole,
            } => {
                self.remember(link, &name);
                return self.file(name, meta, &bytes[data], is_whole);
            }
            TreeItem::Data { offset, data } => return self.data(&bytes[data], offset),
            TreeItem::End { size_bytes } => return self.end(size_bytes),
            TreeItem::Link { name, first } => {
                let made = match (self.links.get(&first), self.frames.last()) {
                    (Some(first), Some(frame)) => self.target.link(first, &frame.dir, &name),
                    _ => return Ok(()),
                };
                return self.check(&name, made);
            }
            TreeItem::Symlink {
                name,
                meta,
                link,
                target,
            } => {
                self.remember(link, &name);
                let Some(frame) = self.frames.last() else {
                    return Ok(());
                };
                let made = self.target.symlink(&frame.dir, &name, &meta, &target);
                return self.check(&name, made);
            }
            TreeItem::Special { name, meta, link } => {
                self.remember(link, &name);
                let Some(frame) = self.frames.last() else {
                    return Ok(());
                };
                let made = self.target.special(&frame.dir, &name, &meta);
                return self.check(&name, made);
            }
        }
        Ok(())
    }

    fn start(&mut self, parent: Vec<u8>) -> Outcome {
        while let Some(frame) = self.frames.pop() {
            self.finish(frame);
        }
        self.skipped = 0;
        match self.target.open_parent(&parent) {
            Ok(dir) => {
                self.frames.push(Frame {
                    dir,
                    meta: None,
                    path: parent,
                });
                Ok(())
            }
            Err(error) => Err(Failure::new(self.message(&parent, &error))),
        }
    }

    fn enter(&mut self, name: &[u8], meta: FileMeta) -> Outcome {
        let Some(frame) = self.frames.last().filter(|_| self.skipped == 0) else {
            self.skipped += 1;
            return Ok(());
        };
        let path = join(&frame.path, name);
        match self.target.make_dir(&frame.dir, name, &meta) {
            Ok(dir) => {
                self.created += 1;
                self.frames.push(Frame {
                    dir,
                    meta: Some(meta),
                    path,
                });
                Ok(())
            }
            Err(error) => {
                self.skipped = 1;
                self.fail(&path, &error)
            }
        }
    }

    fn finish(&mut self, frame: Frame<T::Dir>) {
        let Some(meta) = frame.meta else { return };
        if let Err(error) = self.target.finish_dir(frame.dir, &meta) {
            self.session.fail(self.message(&frame.path, &error));
        }
    }

    fn file(&mut self, name: Vec<u8>, meta: FileMeta, bytes: &[u8], is_whole: bool) -> Outcome {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let file = match self.target.create(&frame.dir, &name, &meta) {
            Ok(file) => file,
            Err(error) => return self.check(&name, Err(error)),
        };
        self.file = Some(OpenFile {
            file,
            meta,
            name,
            written: 0,
        });
        if !bytes.is_empty() {
            self.data(bytes, 0)?;
        }
        if is_whole {
            self.end(bytes.len() as u64)
        } else {
            Ok(())
        }
    }

    fn data(&mut self, bytes: &[u8], offset: u64) -> Outcome {
        let Some(open) = &mut self.file else {
            return Ok(());
        };
        self.progress.add(bytes.len() as u64);
        match self.target.write(&open.file, bytes, offset) {
            Ok(()) => {
                open.written = offset + bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                let Some(open) = self.file.take() else {
                    return Ok(());
                };
                // The file is removed next, so a failure of close is irrelevant.
                drop(self.target.finish(open.file, &open.meta, 0, 0));
                if let Some(frame) = self.frames.last() {
                    self.target.remove(&frame.dir, &open.name);
                }
                self.check(&open.name, Err(error))
            }
        }
    }

    fn end(&mut self, size_bytes: u64) -> Outcome {
        let Some(open) = self.file.take() else {
            return Ok(());
        };
        let finished = self
            .target
            .finish(open.file, &open.meta, open.written, size_bytes);
        self.check(&open.name, finished)
    }

    fn remember(&mut self, link: Option<LinkId>, name: &[u8]) {
        if let (Some(link), Some(frame)) = (link, self.frames.last()) {
            self.links.insert(link, join(&frame.path, name));
        }
    }

    fn check(&mut self, name: &[u8], made: Result<(), Error>) -> Outcome {
        match made {
            Ok(()) => {
                self.created += 1;
                Ok(())
            }
            Err(error) => {
                let path = self
                    .frames
                    .last()
                    .map_or_else(|| name.to_vec(), |f| join(&f.path, name));
                self.fail(&path, &error)
            }
        }
    }

    fn fail(&self, path: &[u8], error: &Error) -> Outcome {
        let text = self.message(path, error);
        if is_final(error) {
            return Err(Failure::new(text));
        }
        self.session.fail(text);
        Ok(())
    }

    fn message(&self, path: &[u8], error: &Error) -> String {
        let plain = Error::from(error.errno());
        // The error names the argument of the call, which is only the last part of the path.
        let is_named = error.kind() == folio::ErrorKind::Errno && !error.to_string().contains(' ');
        let is_call = error.kind() == folio::ErrorKind::Errno
            && error.to_string().ends_with(&format!(": {plain}"));
        format!(
            "{}: {}",
            self.target.describe(path),
            explain(if is_named || is_call { &plain } else { error })
        )
    }
}

/// Returns `path/name`.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if name == b"." {
        return path.to_vec();
    }
    let slash: &[u8] = if path.is_empty() || path.last() == Some(&b'/') {
        b""
    } else {
        b"/"
    };
    [path, slash, name].concat()
}
