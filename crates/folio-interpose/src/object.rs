//! The preloaded library as a file, and the environment that loads it.

use crate::layout::VARIABLE;
use crate::ring::Ring;
use std::io::{self, Write};
use std::process::Command;
use tempfile::NamedTempFile;

#[cfg(folio_preload)]
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));
#[cfg(not(folio_preload))]
const OBJECT: &[u8] = &[];

/// Returns whether this build has the library: it is for Linux on x86-64 and aarch64.
pub fn is_supported() -> bool {
    !OBJECT.is_empty()
}

/// The library in a temporary file, removed when dropped.
#[derive(Debug)]
pub struct Preload {
    file: NamedTempFile,
}

impl Preload {
    /// Writes the library into the folder of temporary files.
    ///
    /// # Errors
    /// If the folder cannot be written, or this build has no library.
    pub fn create() -> io::Result<Self> {
        if !is_supported() {
            let why = "this build has no preloaded library: it needs Linux on x86-64 or aarch64";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut file = tempfile::Builder::new()
            .prefix("folio-doctor-")
            .suffix(".so")
            .tempfile()?;
        file.write_all(OBJECT)?;
        // Programs of other users load it, too.
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        rustix::fs::fchmod(file.as_file(), mode)?;
        Ok(Self { file })
    }

    /// Sets the environment of a command, so that it and its children record into `ring`.
    pub fn apply(&self, ring: &Ring, command: &mut Command) {
        let mut all = self.file.path().as_os_str().to_owned();
        if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
            all.push(":");
            all.push(more);
        }
        command.env("LD_PRELOAD", all).env(VARIABLE, ring.path());
    }
}
