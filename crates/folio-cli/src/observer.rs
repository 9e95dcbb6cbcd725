//! The observer of a copy between archives and images: a progress bar, failures as messages.

use crate::image::Image;
use crate::progress::Progress;
use crate::session::Session;
use folio::Error;
use folio_archive::{InputProgress, Observer};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shows the events of a copy in a session.
pub(crate) struct SessionObserver<'a> {
    session: &'a Session,
    progress: &'a Progress,
    image: &'a Image,
    created: AtomicU64,
    /// Of the archive that the files come from, if its size is known.
    input: Option<InputProgress>,
    copied_bytes: AtomicU64,
}

impl<'a> SessionObserver<'a> {
    pub(crate) fn new(session: &'a Session, progress: &'a Progress, image: &'a Image) -> Self {
        Self {
            session,
            progress,
            image,
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
        self.session
            .count_created(self.created.load(Ordering::Relaxed));
        self.progress.flushing();
    }

    fn place(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.image.name.clone();
        }
        self.image.at(Path::new(OsStr::from_bytes(path)))
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

    fn failed(&self, path: &[u8], error: &Error) {
        self.session.fail_at(self.place(path), error);
    }

    fn note(&self, path: &[u8], remark: &str) {
        if !self.session.quiet {
            self.session
                .note(format_args!("{}: {remark}", self.place(path)));
        }
    }

    fn is_stopped(&self) -> bool {
        self.session.is_interrupted()
    }
}
