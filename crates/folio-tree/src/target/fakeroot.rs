//! Detection of fakeroot(1) and pseudo(1), and of a fakeroot that this program cannot see.
//!
//! libfakeroot replaces functions of libc, and the copy calls these. In a statically linked program
//! libfakeroot is not loaded, so the copy would record the real owners and kinds of files.

use folio::{Errno, Error, Result};

/// Fails if fakeroot is in use, but cannot change what this program sees.
///
/// # Errors
///
/// EPERM.
pub fn check() -> Result<()> {
    if std::env::var_os("FAKEROOTKEY").is_some() && !is_loaded() {
        return Err(Error::new(
            Errno::PERM,
            "cannot keep owners under fakeroot: libfakeroot is not loaded into this program; use a \
             dynamically linked folio, or copy without -a and -p",
        ));
    }
    Ok(())
}

/// Whether libfakeroot or libpseudo records the owners of the files that this program makes.
pub(super) fn is_loaded() -> bool {
    let names: [&[u8]; 2] = [b"libfakeroot", b"libpseudo"];
    std::fs::read("/proc/self/maps").is_ok_and(|maps| {
        let is_mapped = |name: &[u8]| maps.windows(name.len()).any(|part| part == name);
        names.into_iter().any(is_mapped)
    })
}
