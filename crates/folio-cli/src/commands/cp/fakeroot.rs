//! Detection of a fakeroot(1) that this program cannot see.
//!
//! libfakeroot replaces functions of libc, and the copy calls these. In a statically linked program
//! libfakeroot is not loaded, so the copy would record the real owners and kinds of files.

use crate::exit::{Failure, Outcome};

/// Fails if fakeroot is in use, but cannot change what this program sees.
pub(super) fn check() -> Outcome {
    let is_loaded = || {
        std::fs::read("/proc/self/maps").is_ok_and(|maps| {
            let name = b"libfakeroot";
            maps.windows(name.len()).any(|part| part == name)
        })
    };
    if std::env::var_os("FAKEROOTKEY").is_some() && !is_loaded() {
        return Err(Failure::new(
            "cannot keep owners under fakeroot: libfakeroot is not loaded into this program; use a \
             dynamically linked folio, or copy without -a and -p",
        ));
    }
    Ok(())
}
