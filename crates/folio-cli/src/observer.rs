//! The observer of a copy: a progress bar, failures as messages.

use crate::exit::{Failure, explain};
use crate::image::Image;
use crate::nearest::nearest_file;
use crate::progress::Progress;
use crate::session::Session;
use folio::{Detail, Errno, Error, ErrorKind};
use folio_tree::{CopyFailure, InputProgress, Observer, Side};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The files of one side of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Files<'a> {
    /// Of the host.
    Host,
    /// In an image.
    Image(&'a Image),
}

impl Files<'_> {
    /// Formats a path for messages.
    fn place(self, path: &[u8]) -> String {
        match self {
            Self::Host => String::from_utf8_lossy(path).into_owned(),
            Self::Image(image) if path.is_empty() => image.name.clone(),
            Self::Image(image) => image.at(Path::new(OsStr::from_bytes(path))),
        }
    }

    /// Returns the existing path that is nearest to a missing one, formatted for messages.
    fn meant(self, path: &[u8]) -> Option<String> {
        let path = Path::new(OsStr::from_bytes(path));
        match self {
            Self::Host => nearest_file(path),
            Self::Image(image) => image.meant(path),
        }
    }

    /// Returns what to do if there is no space left, for the end of a message.
    fn full_hint(self, error: &Error) -> String {
        match self {
            Self::Image(image) => image.full_hint(error),
            Self::Host if error.kind() != ErrorKind::Errno => String::new(),
            Self::Host => match error.errno() {
                Errno::NOSPC => "; the host's file system is full: free space there and repeat",
                Errno::DQUOT => "; the quota on the host is used up: free space there and repeat",
                _ => "",
            }
            .to_owned(),
        }
    }
}

/// Shows the events of a copy in a session.
pub(crate) struct SessionObserver<'a> {
    session: &'a Session,
    progress: &'a Progress,
    source: Files<'a>,
    target: Files<'a>,
    created: AtomicU64,
    /// Of the archive that the files come from, if its size is known.
    input: Option<InputProgress>,
    copied_bytes: AtomicU64,
}

impl<'a> SessionObserver<'a> {
    pub(crate) fn new(
        session: &'a Session,
        progress: &'a Progress,
        source: Files<'a>,
        target: Files<'a>,
    ) -> Self {
        Self {
            session,
            progress,
            source,
            target,
            created: AtomicU64::new(0),
            input: None,
            copied_bytes: AtomicU64::new(0),
        }
    }

    /// Shows the progress in bytes of the archive.
    pub(crate) fn with_input(mut self, input: Option<InputProgress>) -> Self {
        if let Some(input) = &input {
            self.progress.expect_input(input.total_bytes());
        }
        self.input = input;
        self
    }

    /// Adds the number of created files to the session, and shows that their bytes are flushed.
    pub(crate) fn finish(&self) {
        if self.input.is_some() {
            self.progress
                .reach(self.copied_bytes.load(Ordering::Relaxed));
        }
        self.count_created();
        self.progress.flushing();
    }

    /// Adds the number of created files to the session.
    pub(crate) fn count_created(&self) {
        self.session
            .count_created(self.created.swap(0, Ordering::Relaxed));
    }

    /// Turns the failure that ended a copy into that of the command.
    pub(crate) fn end(&self, failure: CopyFailure) -> Failure {
        if failure.error.errno() == Errno::INTR {
            return Failure::interrupted();
        }
        let mut text = self.message(&failure);
        if failure.side == Side::Target && failure.error.errno() == Errno::NOENT {
            text.push_str("; create the directory first, or name an existing one");
        }
        Failure::new(text).caused_by(failure.into())
    }

    fn files(&self, side: Side) -> Files<'a> {
        match side {
            Side::Source => self.source,
            Side::Target => self.target,
        }
    }

    fn message(&self, failure: &CopyFailure) -> String {
        let (files, error) = (self.files(failure.side), &failure.error);
        let is_not_recursive = error.detail() == Some(&Detail::CopyNotRecursive);
        let mut text = format!("{}: {}", files.place(&failure.path), explain(error));
        match failure.side {
            Side::Target => text.push_str(&files.full_hint(error)),
            Side::Source => match error.errno() {
                Errno::NOENT => {
                    let meant = files.meant(&failure.path);
                    text.extend(meant.map(|meant| format!("; did you mean {meant}?")));
                }
                Errno::ISDIR if is_not_recursive => text.push_str("; use -r to copy it"),
                _ if is_not_recursive => text.push_str("; use -r or -a to copy it"),
                _ => {}
            },
        }
        text
    }
}

impl Observer for SessionObserver<'_> {
    fn copied(&self, len_bytes: u64) {
        let Some(input) = &self.input else {
            return self.progress.add(len_bytes);
        };
        self.copied_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        self.progress.reach(input.done_bytes());
    }

    fn created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, failure: CopyFailure) {
        self.session.fail(self.message(&failure));
    }

    fn note(&self, side: Side, path: &[u8], remark: &str) {
        if self.session.quiet {
            return;
        }
        if path.is_empty() {
            return self.session.note(remark);
        }
        let place = self.files(side).place(path);
        self.session.note(format_args!("{place}: {remark}"));
    }

    fn wants_total(&self) -> bool {
        self.input.is_none() && self.progress.is_shown()
    }

    fn expect(&self, total_bytes: u64) {
        self.progress.expect(total_bytes);
    }

    fn is_stopped(&self) -> bool {
        self.session.is_interrupted()
    }
}
