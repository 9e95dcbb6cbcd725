//! The engine of a copy: one thread reads a source, the calling thread writes a target.
//!
//! ```text
//!   fs.rs            copies between a directory of the host and a mounted file system
//!   survey.rs        what a copy will read and write
//!   reader.rs   walks and reads ahead --- batch_channel.rs ---> writer.rs   creates the files
//!   job.rs           one tree to copy, and its place in the target
//! ```
//!
//! Neighbors: `source` and `target` below.

mod batch_channel;
mod fs;
mod job;
mod reader;
mod survey;
mod writer;

pub use fs::{CopyTree, copy_in, copy_out};
pub use job::CopyJob;
pub use survey::CopiedContent;

use crate::observer::{CopyFailure, Observer};
use crate::options::CopyOptions;
use crate::source::Source;
use crate::target::Target;
use reader::Reader;
use std::sync::atomic::{AtomicBool, Ordering};
use writer::Writer;

/// Copies all jobs. Failures of single files go to the observer, and the copy continues.
///
/// # Errors
///
/// The parent directory of a job does not exist; failures that would affect all further files
/// ([`folio::Error::is_final`]); EINTR if the observer stops the copy.
pub fn copy<S: Source, T: Target>(
    source: &S,
    target: &T,
    jobs: &[CopyJob],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<(), CopyFailure> {
    let (sender, receiver) = batch_channel::channel();
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| Reader::new(source, options, observer, sender).run(jobs));
        if observer.wants_total() {
            scope.spawn(|| {
                if let Some(total) = survey::total_bytes(source, jobs, options, &is_over) {
                    observer.expect(total);
                }
            });
        }
        let written = Writer::new(target, observer).run(&receiver);
        // Without its receiver the reader stops too.
        drop(receiver);
        over.store(true, Ordering::Relaxed);
        written?;
        if observer.is_stopped() {
            return Err(CopyFailure::of_target(b"", folio::Errno::INTR));
        }
        Ok(())
    })
}
