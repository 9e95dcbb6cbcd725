//! The error that a thread's last failed call left behind.

use folio::Error;
use std::cell::RefCell;
use std::ffi::c_char;

/// Formatted only when a program asks for it, so that a failed lookup stays cheap.
struct LastError {
    operation: &'static str,
    error: Option<Error>,
    /// Ends in a zero byte, unless it is empty.
    text: String,
}

thread_local! {
    static LAST: RefCell<LastError> = const {
        RefCell::new(LastError {
            operation: "",
            error: None,
            text: String::new(),
        })
    };
}

/// Keeps the error of a call for the calling thread.
pub(crate) fn set(operation: &'static str, error: Error) {
    // A thread that ends has no last error any more.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.operation = operation;
        last.error = Some(error);
    });
}

/// Returns what the last failed call of the calling thread reports: operation, place and cause
/// ("open: /a/b: No such file or directory"). Empty if no call of the thread failed. A successful
/// call does not change it. Valid until the thread's next failed call, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn folio_last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some(error) = last.error.take() {
            let mut text = format!("{}: {error}", last.operation).replace('\0', "?");
            text.push('\0');
            last.text = text;
        }
        match last.text.as_str() {
            "" => c"".as_ptr(),
            text => text.as_ptr().cast(),
        }
    });
    text.unwrap_or(c"".as_ptr())
}
