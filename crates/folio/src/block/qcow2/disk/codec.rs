//! The codecs of compressed clusters: deflate and Zstandard.
//!
//! "zlib" is a deflate stream (RFC 1951) without a header. QEMU's compressor uses a window of 4
//! KiB; Folio's uses the format's 32 KiB, which compresses better. QEMU decompresses a cluster with
//! one call into a buffer of the cluster's size. Then zlib, zlib-ng and zlib-rs find all earlier
//! bytes in that buffer, whatever window they were given.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Compressed Clusters Descriptor", "compression_type").

use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::image::Compression;
use std::io::IoSliceMut;
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

/// Largest zstd window in bytes, as a power of two: a cluster has at most 2 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Deflate level: a smaller result than QEMU's in a quarter of its time.
const DEFLATE_LEVEL: i32 = 4;
/// Zstandard level, the same as QEMU's.
const ZSTD_LEVEL: i32 = 3;

/// A decompressor and its buffer, for one thread at a time.
pub(super) struct Unpacker {
    packed: Vec<u8>,
    codec: Decoder,
}

enum Decoder {
    Deflate(libdeflater::Decompressor),
    Zstd(ZstdDecoder<'static>),
}

impl Unpacker {
    /// Returns a decompressor of a compression type.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub(super) fn new(compression: Compression) -> Result<Self> {
        let codec = match compression {
            Compression::Zlib => Decoder::Deflate(libdeflater::Decompressor::new()),
            Compression::Zstd => {
                let mut decoder = ZstdDecoder::new().map_err(out_of_memory)?;
                let limit = DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(limit).map_err(out_of_memory)?;
                Decoder::Zstd(decoder)
            }
        };
        Ok(Self {
            packed: Vec::new(),
            codec,
        })
    }

    /// Reads the `len_bytes` at `host` and decompresses them into `cluster`.
    ///
    /// # Errors
    ///
    /// EUCLEAN if they are not the stream of a whole cluster, else the file's errors.
    pub(super) fn read(
        &mut self,
        file: &dyn ImageFile,
        host: u64,
        len_bytes: u64,
        cluster: &mut [u8],
    ) -> Result<()> {
        // The length counts whole sectors; the last may end beyond the end of the file.
        self.packed.resize(len_bytes as usize, 0);
        file.read_or_zeros(&mut [IoSliceMut::new(&mut self.packed)], host)?;
        let count = match &mut self.codec {
            Decoder::Deflate(decoder) => match decoder.deflate_decompress(&self.packed, cluster) {
                Ok(count) => count,
                Err(_) => return Err(Error::corrupt("not a deflate stream of a cluster")),
            },
            Decoder::Zstd(decoder) => unpack_zstd(decoder, &self.packed, cluster)?,
        };
        if count != cluster.len() {
            return Err(Error::corrupt(format!(
                "{count} bytes of {}",
                cluster.len()
            )));
        }
        Ok(())
    }
}

fn unpack_zstd(decoder: &mut ZstdDecoder<'_>, packed: &[u8], cluster: &mut [u8]) -> Result<usize> {
    let failed = |error: std::io::Error| Error::corrupt("not a zstd stream").caused_by(error);
    decoder.reinit().map_err(failed)?;
    let mut from = InBuffer::around(packed);
    let mut to = OutBuffer::around(cluster);
    loop {
        let (was_read, was_written) = (from.pos(), to.pos());
        let hint = decoder.run(&mut from, &mut to).map_err(failed)?;
        // Ends with the frame, the cluster or the input; an iteration without progress ends it too.
        if hint == 0
            || to.pos() == to.capacity()
            || (from.pos(), to.pos()) == (was_read, was_written)
        {
            return Ok(to.pos());
        }
    }
}

fn out_of_memory(error: std::io::Error) -> Error {
    Error::new(Errno::NOMEM, "zstd").caused_by(error)
}

/// A compressor, for one thread at a time.
pub(crate) enum Packer {
    Deflate(libdeflater::Compressor),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Packer {
    /// Returns a compressor of a compression type.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub(crate) fn new(compression: Compression) -> Result<Self> {
        Ok(match compression {
            Compression::Zlib => {
                // The level is valid, so the default is never used.
                let level = libdeflater::CompressionLvl::new(DEFLATE_LEVEL).unwrap_or_default();
                Self::Deflate(libdeflater::Compressor::new(level))
            }
            Compression::Zstd => {
                Self::Zstd(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(out_of_memory)?)
            }
        })
    }

    /// Compresses a cluster into `out`; returns its compressed size in bytes, or none if it does
    /// not fit.
    pub(crate) fn pack(&mut self, cluster: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Deflate(packer) => packer.deflate_compress(cluster, out).ok(),
            Self::Zstd(packer) => packer.compress_to_buffer(cluster, out).ok(),
        }
    }
}
