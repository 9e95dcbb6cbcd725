//! Shared libraries that are found at run time.

#![expect(unsafe_code, reason = "dlopen(3) and dlsym(3)")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A shared library, never unloaded: its functions are valid for the life of the process.
pub(super) struct Library(NonNull<c_void>);

// SAFETY: a handle of dlopen(3) may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above; dlsym(3) is thread-safe.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the library `name`, searched as ld.so(8) does, or at a path.
    ///
    /// # Errors
    /// The reason, in the words of dlerror(3).
    pub(super) fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: the name ends in a zero byte. Constructors of the library run: the caller names a
        // library of the system, or one that it compiled.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        NonNull::new(handle).map(Self).ok_or_else(|| {
            // SAFETY: called by the thread whose dlopen(3) failed.
            let reason = unsafe { libc::dlerror() };
            if reason.is_null() {
                return "unknown reason".to_owned();
            }
            // SAFETY: dlerror(3) returns a string that is valid until the thread's next call.
            let reason = unsafe { CStr::from_ptr(reason) };
            reason.to_string_lossy().into_owned()
        })
    }

    /// Returns the address of a function, if the library has it.
    pub(super) fn function(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}
