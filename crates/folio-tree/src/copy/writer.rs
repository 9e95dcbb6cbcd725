//! The writing side of a copy: receives a tree from the channel, and creates it on the host or in
//! a mounted file system.

use super::batch_channel::{Batch, BatchReceiver, LinkId, TreeItem};
use crate::attributes::AttributeFailures;
use crate::entry::join;
use crate::observer::{CopyFailure, Observer, Side};
use crate::target::{FileMeta, Target, WrittenFile};
use folio::{Errno, Error};
use std::collections::HashMap;

/// Refuses a name that only a directory may have: `file/`.
fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.ends_with(b"/") {
        return Err(Errno::NOTDIR.into());
    }
    Ok(())
}

/// Creates all files of a copy.
pub(crate) struct Writer<'a, T: Target> {
    target: &'a T,
    observer: &'a dyn Observer,
    frames: Vec<Frame<T::Dir>>,
    file: Option<OpenFile<T::File>>,
    links: HashMap<LinkId, Vec<u8>>,
    /// Depth below a directory that could not be created.
    skipped: usize,
    /// The number of extended attributes that the target or this user does not support.
    unsupported_xattrs: u64,
}

type Written = Result<(), CopyFailure>;

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
    pub(crate) fn new(target: &'a T, observer: &'a dyn Observer) -> Self {
        let (frames, links) = (Vec::new(), HashMap::new());
        Self {
            target,
            observer,
            frames,
            file: None,
            links,
            skipped: 0,
            unsupported_xattrs: 0,
        }
    }

    /// Creates all files from the channel. Ends early at a failure that would affect all other
    /// files too.
    pub(crate) fn run(&mut self, receiver: &BatchReceiver) -> Written {
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
        if self.unsupported_xattrs > 0 {
            let count = self.unsupported_xattrs;
            let remark = format!(
                "extended attributes not set: {count}; the target or this user does not support \
                 them"
            );
            self.observer.note(Side::Target, b"", &remark);
        }
        result
    }

    fn batch(&mut self, batch: &mut Batch) -> Written {
        for mut item in batch.items.drain(..) {
            if let Some(meta) = item.meta_mut() {
                self.target.change(&mut meta.attributes);
            }
            self.item(item, &batch.data)?;
        }
        if self.observer.is_stopped() {
            return Err(CopyFailure::of_target(b"", Errno::INTR));
        }
        Ok(())
    }

    fn item(&mut self, item: TreeItem, bytes: &[u8]) -> Written {
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

    fn start(&mut self, parent: Vec<u8>) -> Written {
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
            Err(error) => Err(CopyFailure::of_target(parent, error)),
        }
    }

    fn enter(&mut self, name: &[u8], meta: FileMeta) -> Written {
        let Some(frame) = self.frames.last().filter(|_| self.skipped == 0) else {
            self.skipped += 1;
            return Ok(());
        };
        let path = join(&frame.path, name);
        match self.target.make_dir(&frame.dir, name, &meta) {
            Ok(dir) => {
                self.observer.created();
                self.frames.push(Frame {
                    dir,
                    meta: Some(meta),
                    path,
                });
                Ok(())
            }
            Err(error) => {
                self.skipped = 1;
                self.fail(path, error)
            }
        }
    }

    fn finish(&mut self, frame: Frame<T::Dir>) {
        let Some(meta) = frame.meta else { return };
        let mut failures = AttributeFailures::default();
        let finished = self.target.finish_dir(frame.dir, &meta, &mut failures);
        self.report(&frame.path, failures);
        if let Err(error) = finished {
            self.observer
                .failed(CopyFailure::of_target(frame.path, error));
        }
    }

    fn file(
        &mut self,
        name: Vec<u8>,
        meta: FileMeta,
        link: Option<LinkId>,
        bytes: &[u8],
        is_whole: bool,
    ) -> Written {
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

    fn data(&mut self, bytes: &[u8], offset: u64) -> Written {
        let Some(open) = &mut self.file else {
            return Ok(());
        };
        self.observer.copied(bytes.len() as u64);
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

    fn end(&mut self, size_bytes: u64) -> Written {
        let Some(open) = self.file.take() else {
            return Ok(());
        };
        let mut failures = AttributeFailures::default();
        let written = WrittenFile {
            file: open.file,
            meta: &open.meta,
            written_bytes: open.written,
            size_bytes,
        };
        let finished = self.target.finish(written, &mut failures);
        self.report(&self.path(&open.name), failures);
        self.check(&open.name, finished)
    }

    /// Closes and removes the file that is being written. The cause is reported elsewhere.
    fn discard(&mut self) {
        let Some(open) = self.file.take() else {
            return;
        };
        let written = WrittenFile {
            file: open.file,
            meta: &open.meta,
            written_bytes: 0,
            size_bytes: 0,
        };
        let mut ignored = AttributeFailures::default();
        drop(self.target.finish(written, &mut ignored));
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
    ) -> Written {
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

    fn check(&mut self, name: &[u8], made: Result<(), Error>) -> Written {
        match made {
            Ok(()) => {
                self.observer.created();
                Ok(())
            }
            Err(error) => self.fail(self.path(name), error),
        }
    }

    /// Returns the path of `name` in the current directory, for messages.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let frame = self.frames.last();
        frame.map_or_else(|| name.to_vec(), |frame| join(&frame.path, name))
    }

    /// Passes the attributes of a file that could not be set to the observer.
    fn report(&mut self, path: &[u8], failures: AttributeFailures) {
        self.unsupported_xattrs += failures.unsupported_xattrs;
        for failure in failures.of_file(path) {
            self.observer.failed(failure);
        }
    }

    /// Passes the failure of one file to the observer; returns one that affects all other files.
    fn fail(&self, path: Vec<u8>, error: Error) -> Written {
        let failure = CopyFailure::of_target(path, error);
        if failure.error.is_final() {
            return Err(failure);
        }
        self.observer.failed(failure);
        Ok(())
    }
}
