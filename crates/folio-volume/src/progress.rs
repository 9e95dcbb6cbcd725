//! The progress of long work on a volume.

/// What a check or a garbage collection reports while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkProgress {
    /// There are this many bytes to read.
    Expected(u64),
    /// This many bytes more are read.
    Done(u64),
}

/// The receiver of reports.
pub(crate) type Report<'a> = &'a mut dyn FnMut(WorkProgress);
