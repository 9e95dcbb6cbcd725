//! The writing side of a copy: receives a tree from the channel, and creates it on the host or in
//! an image.

use super::batch_channel::{Batch, BatchReceiver, FileMeta, LinkId, TreeItem};
use super::options::CopyOptions;
use crate::exit::{Failure, Outcome, explain};
use crate::progress::Progress;
use crate::session::Session;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error};
use folio_archive::AttributeFailures;
use std::collections::HashMap;

/// What a copy does with an existing file that has the name of a copied one.
pub(crate) enum Existing {
    /// Its content is replaced, through links.
    Written,
    /// Its name gets a new file.
    Replaced,
}

/// Decides about an existing file, as cp(1) does: it is written in place, unless the copy keeps
/// hard links and it has several names. `there` is what a symbolic link leads to.
pub(crate) fn existing(there: &Attributes, options: &CopyOptions) -> Result<Existing, Error> {
    let what = match there.file_type {
        FileType::Regular if options.keeps_links && there.link_count > 1 => {
            return Ok(Existing::Replaced);
        }
        FileType::Regular => return Ok(Existing::Written),
        FileType::Directory => {
            return Err(Error::new(
                Errno::ISDIR,
                "cannot overwrite a directory with a non-directory",
            ));
        }
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Fifo => "a FIFO",
        _ => "a socket",
    };
    let what = format!("cannot overwrite {what} with a file; remove it first, or use folio cat");
    Err(Error::new(Errno::EXIST, what))
}

/// Returns the error of a write through a symbolic link to nothing.
pub(crate) fn dangling_link(error: Error) -> Error {
    match error.errno() {
        Errno::NOENT => Error::new(
            Errno::NOENT,
            "cannot write through a dangling symbolic link; remove it first",
        ),
        _ => error,
    }
}

/// Refuses a name that only a directory may have: `file/`.
fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.ends_with(b"/") {
        return Err(Errno::NOTDIR.into());
    }
    Ok(())
}

/// The target of a copy: the host or an image.
pub(crate) trait Target {
    /// An open directory.
    type Dir;
    /// A file being written.
    type File;

    /// Changes the attributes of a file before it is created.
    fn change(&self, _: &mut Attributes) {}
    /// Opens an existing directory.
    fn open_parent(&self, path: &[u8]) -> Result<Self::Dir, Error>;
    /// Creates a directory, or opens an existing one.
    fn make_dir(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<Self::Dir, Error>;
    /// Sets the attributes of a directory, after all files below it are created, and closes it.
    fn finish_dir(
        &self,
        dir: Self::Dir,
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
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
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a symbolic link.
    fn symlink(
        &self,
        at: &Self::Dir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a device node, FIFO or socket.
    fn special(
        &self,
        at: &Self::Dir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a hard link to the file at the path `first`.
    fn link(&self, first: &[u8], at: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Removes a file that could not be written.
    fn remove(&self, at: &Self::Dir, name: &[u8]);
    /// Formats a path for messages.
    fn describe(&self, path: &[u8]) -> String;
    /// Returns what to do after ENOSPC, for the end of a message; empty after another error.
    fn full_hint(&self, error: &Error) -> String;
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
    /// The number of extended attributes that the target or this user does not support.
    pub(crate) unsupported_xattrs: u64,
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
            unsupported_xattrs: 0,
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
        self.discard();
        while let Some(frame) = self.frames.pop() {
            self.finish(frame);
        }
        result
    }

    fn batch(&mut self, batch: &mut Batch) -> Outcome {
        for mut item in batch.items.drain(..) {
            if let Some(meta) = item.meta_mut() {
                self.target.change(&mut meta.attributes);
            }
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
            } => return self.file(name, meta, link, &bytes[data], is_whole),
            TreeItem::Data { offset, data } => return self.data(&bytes[data], offset),
            TreeItem::End { size_bytes } => return self.end(size_bytes),
            TreeItem::Incomplete => self.discard(),
            TreeItem::Link { name, first } => {
                let Some(frame) = self.frames.last() else {
                    return Ok(());
                };
                let made = match self.links.get(&first) {
                    Some(first) => self.target.link(first, &frame.dir, &name),
                    None => Err(Error::new(
                        Errno::NOENT,
                        "not linked: the first name of this file was not copied",
                    )),
                };
                return self.check(&name, made);
            }
            TreeItem::Symlink {
                name,
                meta,
                link,
                target,
            } => {
                let make = |dir: &T::Dir, failures: &mut AttributeFailures| {
                    self.target.symlink(dir, &name, &meta, &target, failures)
                };
                return self.unopened(&name, link, make);
            }
            TreeItem::Special { name, meta, link } => {
                let make = |dir: &T::Dir, failures: &mut AttributeFailures| {
                    self.target.special(dir, &name, &meta, failures)
                };
                return self.unopened(&name, link, make);
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
            Err(error) => {
                let mut text = self.message(&parent, &error);
                if error.errno() == Errno::NOENT {
                    text.push_str("; create the directory first, or name an existing one");
                }
                Err(Failure::new(text))
            }
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
        let mut failures = AttributeFailures::default();
        let finished = self.target.finish_dir(frame.dir, &meta, &mut failures);
        self.report(&frame.path, failures);
        if let Err(error) = finished {
            self.session.fail(self.message(&frame.path, &error));
        }
    }

    fn file(
        &mut self,
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
        bytes: &[u8],
        is_whole: bool,
    ) -> Outcome {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let created = check_name(&name).and_then(|()| self.target.create(&frame.dir, &name, &meta));
        let file = match created {
            Ok(file) => file,
            Err(error) => return self.check(&name, Err(error)),
        };
        self.remember(link, &name);
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
                let name = open.name.clone();
                self.discard();
                self.check(&name, Err(error))
            }
        }
    }

    fn end(&mut self, size_bytes: u64) -> Outcome {
        let Some(open) = self.file.take() else {
            return Ok(());
        };
        let mut failures = AttributeFailures::default();
        let (meta, written) = (&open.meta, open.written);
        let finished = self
            .target
            .finish(open.file, meta, written, size_bytes, &mut failures);
        self.report(&self.path(&open.name), failures);
        self.check(&open.name, finished)
    }

    /// Closes and removes the file that is being written. The cause is reported elsewhere.
    fn discard(&mut self) {
        let Some(open) = self.file.take() else {
            return;
        };
        let mut ignored = AttributeFailures::default();
        drop(
            self.target
                .finish(open.file, &open.meta, 0, 0, &mut ignored),
        );
        let path = self.path(&open.name);
        self.links.retain(|_, first| *first != path);
        if let Some(frame) = self.frames.last() {
            self.target.remove(&frame.dir, &open.name);
        }
    }

    /// Creates a file that is not opened.
    fn unopened(
        &mut self,
        name: &[u8],
        link: Option<LinkId>,
        make: impl FnOnce(&T::Dir, &mut AttributeFailures) -> Result<(), Error>,
    ) -> Outcome {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let mut failures = AttributeFailures::default();
        let made = check_name(name).and_then(|()| make(&frame.dir, &mut failures));
        if made.is_ok() {
            self.remember(link, name);
        }
        self.report(&self.path(name), failures);
        self.check(name, made)
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
            Err(error) => self.fail(&self.path(name), &error),
        }
    }

    /// Returns the path of `name` in the current directory, for messages.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let frame = self.frames.last();
        frame.map_or_else(|| name.to_vec(), |frame| join(&frame.path, name))
    }

    /// Prints the attributes of a file that could not be set.
    fn report(&mut self, path: &[u8], failures: AttributeFailures) {
        self.unsupported_xattrs += failures.unsupported_xattrs;
        for (what, error) in failures.failed {
            let (path, why) = (self.target.describe(path), reason(&error));
            self.session
                .fail(format_args!("{path}: cannot set the {what}: {why}"));
        }
    }

    fn fail(&self, path: &[u8], error: &Error) -> Outcome {
        let text = self.message(path, error);
        if error.is_final() {
            return Err(Failure::new(text));
        }
        self.session.fail(text);
        Ok(())
    }

    fn message(&self, path: &[u8], error: &Error) -> String {
        format!(
            "{}: {}{}",
            self.target.describe(path),
            reason(error),
            self.target.full_hint(error)
        )
    }
}

/// Returns the error without the argument of the call, which is only the last part of a path.
fn reason(error: &Error) -> String {
    match error.kind() {
        folio::ErrorKind::Errno => error.reason(),
        _ => explain(error),
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
