//! Progress bars of long operations: bytes, rate and time left, on a terminal only.

use crate::percent::Percent;
use crate::session::Session;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

const UNKNOWN: &str = "{spinner} {bytes} copied, {bytes_per_sec}, {elapsed}";
const KNOWN: &str = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const INPUT: &str = "{bar:30} {percent}%, {bytes} of {total_bytes} read, {eta} left";
const FLUSHING: &str = "{spinner} {bytes} copied, flushing to disk, {elapsed}";
const FILES: &str = "{spinner} {pos} files, {per_sec}, {elapsed}";
const STEPS: &str = "{bar:30} {pos} of {len} {msg}, {eta} left";
const STEP: &str = "{spinner} {msg}, {elapsed}";
const REDRAW: Duration = Duration::from_millis(50);

/// The progress bar of one command.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// In the place of qemu-img.
    percent: Option<Percent>,
}

impl Progress {
    /// Creates a bar if the user wants one and a terminal can show it.
    pub(crate) fn new(session: &Session) -> Self {
        if !session.shows_progress() {
            return Self {
                bar: None,
                percent: None,
            };
        }
        let bar = session.screen.add(ProgressBar::no_length());
        bar.set_style(style(UNKNOWN));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self {
            bar: Some(bar),
            percent: None,
        }
    }

    /// Creates a bar, or qemu-img's percentages if this run takes its place and `-p` was given.
    pub(crate) fn requested(session: &Session, is_requested: bool) -> Self {
        if !session.is_qemu_img() {
            return Self::new(session);
        }
        Self {
            bar: None,
            percent: (is_requested && !session.quiet).then(Percent::start),
        }
    }

    /// Creates a bar that counts files, not bytes.
    pub(crate) fn counting(session: &Session) -> Self {
        let this = Self::new(session);
        this.bar.iter().for_each(|bar| bar.set_style(style(FILES)));
        this
    }

    /// Shows a counter while `work` runs, then removes the bar.
    pub(crate) fn follow<T>(&self, counter: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let Some(bar) = &self.bar else { return work() };
        let (ended, end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while end.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                    bar.set_position(counter.load(Ordering::Relaxed));
                }
                bar.finish_and_clear();
            });
            let done = work();
            drop(ended);
            done
        })
    }

    /// Whether the bar is visible.
    pub(crate) fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Sets the total, in bytes.
    pub(crate) fn expect(&self, len_bytes: u64) {
        if let Some(percent) = &self.percent {
            percent.expect(len_bytes);
        }
        if let Some(bar) = &self.bar
            && bar.position() < len_bytes
        {
            bar.set_length(len_bytes);
            bar.set_style(style(KNOWN));
        }
    }

    /// Shows bytes read of an archive of this size; [`Progress::reach`] sets them.
    pub(crate) fn expect_input(&self, len_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_style(style(INPUT));
            bar.set_length(len_bytes);
        }
    }

    /// Shows the present step of work whose length is unknown.
    pub(crate) fn step(&self, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_style(style(STEP));
            bar.set_message(message);
        }
    }

    /// Sets the bytes that are done.
    pub(crate) fn reach(&self, done_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done_bytes);
        }
    }

    /// Shows the number of files that are done, if the number of bytes is unknown. `message`
    /// describes the progress so far.
    pub(crate) fn files(&self, done: u64, all: u64, message: &str) {
        self.steps(done, all, format!("files, {message}"));
    }

    /// Shows that `done` of `all` steps are done; `message` begins with what they are.
    pub(crate) fn steps(&self, done: u64, all: u64, message: String) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(all) {
                bar.set_length(all);
                bar.set_style(style(STEPS));
            }
            bar.set_position(done);
            bar.set_message(message);
        }
    }

    /// Adds completed bytes.
    pub(crate) fn add(&self, len_bytes: u64) {
        if let Some(percent) = &self.percent {
            percent.add(len_bytes);
        }
        if let Some(bar) = &self.bar {
            bar.inc(len_bytes);
            // Files that grow or are compressed have more bytes than expected.
            if bar.length().is_some_and(|total| bar.position() > total) {
                bar.unset_length();
                bar.set_style(style(UNKNOWN));
            }
        }
    }

    /// Shows that all bytes are copied, and wait for the disk.
    pub(crate) fn flushing(&self) {
        if let Some(bar) = &self.bar {
            bar.set_style(style(FLUSHING));
        }
    }

    /// Shows that the work is done; of the two, only percentages stay.
    pub(crate) fn complete(&self) {
        if let Some(percent) = &self.percent {
            percent.complete();
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
