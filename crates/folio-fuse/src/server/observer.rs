//! An observer of the changes that a client makes, which may refuse them.

use folio::Errno;
use folio::syscall::Handle;
use std::ops::Range;

/// A request that changes files, or makes them durable.
pub struct ObservedCall {
    /// For people: `rename("/a", "/b")`, with paths from the root of the mount.
    pub text: String,
    /// The kind of request.
    pub kind: ObservedKind,
    /// The bytes that a request changes, if it names them.
    pub range: Option<Range<u64>>,
    /// The file or directory that it names first.
    pub file: Option<Handle>,
}

/// A kind of request that an observer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedKind {
    /// Changes the bytes of a file: write(2), fallocate(2), copy_file_range(2).
    Write,
    /// fsync(2) or fdatasync(2) of a file or a directory.
    Sync,
    /// Another change, or syncfs(2).
    Other,
}

/// Sees each request that changes files, or makes them durable, while it is served.
pub trait CallObserver: Send + Sync {
    /// Calls `serve` at most once, which serves the request. Returns the errno with which the
    /// request then fails, even if it was served. Called from any number of threads.
    fn observe(&self, call: &ObservedCall, serve: &mut dyn FnMut()) -> Option<Errno>;
}
