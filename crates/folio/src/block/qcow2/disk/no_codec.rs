//! The codecs of a build without the Cargo feature `compress`: every compressed cluster is refused.

use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::image::Compression;
use std::convert::Infallible;

/// A decompressor; it cannot be created.
pub(super) struct Unpacker(Infallible);

impl Unpacker {
    /// Fails.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP.
    pub(super) fn new(compression: Compression) -> Result<Self> {
        Err(without_compression(compression))
    }

    pub(super) fn read(
        &mut self,
        _file: &dyn ImageFile,
        _host: u64,
        _len_bytes: u64,
        _cluster: &mut [u8],
    ) -> Result<()> {
        match self.0 {}
    }
}

/// A compressor; it cannot be created.
pub(crate) struct Packer(Infallible);

impl Packer {
    /// Fails.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP.
    pub(crate) fn new(compression: Compression) -> Result<Self> {
        Err(without_compression(compression))
    }

    pub(crate) fn pack(&mut self, _cluster: &[u8], _out: &mut [u8]) -> Option<usize> {
        match self.0 {}
    }
}

fn without_compression(compression: Compression) -> Error {
    let what =
        format!("{compression:?} compression; this build lacks the Cargo feature `compress`");
    Error::unsupported(what)
}
