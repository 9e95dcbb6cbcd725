//! The frame of every call: refuses children of fork(2), catches panics, keeps errors.

use crate::{fork, last_error};
use folio::{Errno, Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The type that a call returns: a value of 0 or more, or -errno.
pub(crate) trait Returned {
    fn of_errno(errno: i32) -> Self;
}

impl Returned for i32 {
    fn of_errno(errno: i32) -> Self {
        -errno
    }
}

impl Returned for i64 {
    fn of_errno(errno: i32) -> Self {
        -i64::from(errno)
    }
}

impl Returned for isize {
    fn of_errno(errno: i32) -> Self {
        -(errno as isize)
    }
}

/// A new handle; null after a failure.
impl<T> Returned for Option<Box<T>> {
    fn of_errno(_: i32) -> Self {
        None
    }
}

/// Makes a call; an error is kept for `folio_last_error`, which names it by `operation`.
#[inline(always)]
pub(crate) fn call<T: Returned>(operation: &'static str, body: impl FnOnce() -> Result<T>) -> T {
    if fork::is_child() {
        return fail(operation, in_child());
    }
    // Unwind safe: the library's own state survives panics of its callers' devices, and the result
    // of an interrupted call is dropped.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => fail(operation, error),
        Err(payload) => fail(operation, panicked(&*payload)),
    }
}

#[cold]
fn fail<T: Returned>(operation: &'static str, error: Error) -> T {
    let errno = error.errno().raw_os_error();
    last_error::set(operation, error);
    T::of_errno(errno)
}

fn in_child() -> Error {
    Error::new(
        Errno::INVAL,
        "this process was forked from one that uses libfolio: only _exit and exec are possible here",
    )
}

fn panicked(payload: &(dyn Any + Send)) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    Error::new(Errno::IO, format!("libfolio panicked: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_error::folio_last_error;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the result is a C string, and this thread makes no other call meanwhile.
        let text = unsafe { CStr::from_ptr(folio_last_error()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn panic_becomes_eio_with_its_message() {
        let number = 7;
        let result = call::<i32>("read", || panic!("block {number}"));
        assert_eq!(result, -Errno::IO.raw_os_error());
        assert_eq!(last(), "read: libfolio panicked: block 7");
        let handle = call::<Option<Box<u8>>>("kernel_new", || panic!("no memory"));
        assert!(handle.is_none());
        assert_eq!(last(), "kernel_new: libfolio panicked: no memory");
    }

    #[test]
    fn last_error_belongs_to_the_thread() {
        let error = || Err(Error::from(Errno::NOENT).at("/a"));
        assert_eq!(call::<isize>("open", error), -2);
        assert_eq!(call("open", || Ok(3)), 3);
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
        assert_eq!(last(), "open: /a: No such file or directory");
    }
}
