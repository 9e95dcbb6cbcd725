//! Compressed clusters: a cluster packed and unpacked, by whichever thread asks.
//!
//! "zlib" is a deflate stream (RFC 1951) without a header. QEMU packs with a window of 4 KiB; ours
//! is the format's 32 KiB, which packs better. QEMU unpacks a cluster with one call into a buffer
//! of its size, and zlib, zlib-ng and zlib-rs then find all that went before in that buffer,
//! whatever window they were told.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Compressed Clusters Descriptor", "compression_type").

use super::super::image_file::ImageFile;
use super::super::iov;
use super::header::Compression;
use crate::base::{Errno, Error, Result};
use parking_lot::Mutex;
use std::io::IoSliceMut;
use std::sync::Arc;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

/// Largest zstd window, as a power of two: a cluster has at most 2 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Levels: smaller than QEMU's result in a quarter of its time; the same as QEMU's.
const DEFLATE_LEVEL: i32 = 4;
const ZSTD_LEVEL: i32 = 3;
/// Memory for clusters that were unpacked last.
const RECENT_BYTES: usize = 4 << 20;
/// Most and least such clusters.
const RECENT_COUNT: std::ops::RangeInclusive<usize> = 2..=16;

/// The decompressor, and the clusters it saw last: readers come back for their next pages.
pub(super) struct Decompressor {
    compression: Compression,
    cluster_bytes: usize,
    /// Contexts that nobody uses at the moment.
    idle: Mutex<Vec<Unpacker>>,
    /// Place in the file and content, the latest last.
    recent: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
}

impl Decompressor {
    /// A decompressor for an image's clusters.
    pub(super) fn new(compression: Compression, cluster_bytes: u64) -> Self {
        Self {
            compression,
            cluster_bytes: cluster_bytes as usize,
            idle: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// Fills `bufs` from byte `skip` on of the cluster that lies compressed in `len_bytes` at
    /// `host`.
    pub(super) fn read(
        &self,
        file: &dyn ImageFile,
        (host, len_bytes): (u64, u64),
        bufs: &mut [IoSliceMut<'_>],
        skip: usize,
    ) -> Result<()> {
        let known = self
            .recent
            .lock()
            .iter()
            .find(|(at, _)| *at == host)
            .map(|(_, cluster)| cluster.clone());
        if let Some(cluster) = known {
            iov::copy_into(bufs, &cluster[skip..]);
            return Ok(());
        }
        let unpacker = self.idle.lock().pop();
        let mut unpacker = unpacker.map_or_else(|| Unpacker::new(self.compression), Ok)?;
        let place = |error: Error| error.at(format!("compressed cluster at {host:#x}"));
        if let [buf] = bufs
            && buf.len() == self.cluster_bytes
        {
            // Wanted whole: nobody comes back for it.
            unpacker.read(file, host, len_bytes, buf).map_err(place)?;
        } else {
            let mut cluster = vec![0; self.cluster_bytes];
            unpacker
                .read(file, host, len_bytes, &mut cluster)
                .map_err(place)?;
            iov::copy_into(bufs, &cluster[skip..]);
            self.remember(host, cluster);
        }
        self.idle.lock().push(unpacker);
        Ok(())
    }

    /// Compressed clusters are about to be written, perhaps where others were.
    pub(super) fn forget(&self) {
        self.recent.lock().clear();
    }

    fn remember(&self, host: u64, cluster: Vec<u8>) {
        let count_max =
            (RECENT_BYTES / self.cluster_bytes).clamp(*RECENT_COUNT.start(), *RECENT_COUNT.end());
        let mut recent = self.recent.lock();
        if recent.len() >= count_max {
            recent.remove(0);
        }
        recent.push((host, Arc::new(cluster)));
    }
}

/// What one thread needs to unpack a cluster.
struct Unpacker {
    packed: Vec<u8>,
    codec: Unpack,
}

enum Unpack {
    Deflate(libdeflater::Decompressor),
    Zstd(Decoder<'static>),
}

impl Unpacker {
    fn new(compression: Compression) -> Result<Self> {
        let codec = match compression {
            Compression::Zlib => Unpack::Deflate(libdeflater::Decompressor::new()),
            Compression::Zstd => {
                let mut decoder = Decoder::new().map_err(out_of_memory)?;
                let limit = DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(limit).map_err(out_of_memory)?;
                Unpack::Zstd(decoder)
            }
        };
        Ok(Self {
            packed: Vec::new(),
            codec,
        })
    }

    fn read(
        &mut self,
        file: &dyn ImageFile,
        host: u64,
        len_bytes: u64,
        cluster: &mut [u8],
    ) -> Result<()> {
        // The length counts whole sectors; the last may go beyond the end of the file.
        self.packed.resize(len_bytes as usize, 0);
        file.read_or_zeros(&mut [IoSliceMut::new(&mut self.packed)], host)?;
        let count = match &mut self.codec {
            Unpack::Deflate(decoder) => match decoder.deflate_decompress(&self.packed, cluster) {
                Ok(count) => count,
                Err(_) => return Err(Error::corrupt("not a deflate stream of a cluster")),
            },
            Unpack::Zstd(decoder) => unpack_zstd(decoder, &self.packed, cluster)?,
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

fn unpack_zstd(decoder: &mut Decoder<'_>, packed: &[u8], cluster: &mut [u8]) -> Result<usize> {
    let failed = |error: std::io::Error| Error::corrupt("not a zstd stream").caused_by(error);
    decoder.reinit().map_err(failed)?;
    let mut from = InBuffer::around(packed);
    let mut to = OutBuffer::around(cluster);
    loop {
        let (was_read, was_written) = (from.pos(), to.pos());
        let hint = decoder.run(&mut from, &mut to).map_err(failed)?;
        // The end of the frame, or of the cluster, or of what there is: each turn must come nearer
        // to one of them.
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

/// What one thread needs to pack clusters.
pub(in crate::block) enum Packer {
    Deflate(libdeflater::Compressor),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Packer {
    /// A compressor.
    pub(super) fn new(compression: Compression) -> Result<Self> {
        Ok(match compression {
            Compression::Zlib => {
                // The level is one that there is.
                let level = libdeflater::CompressionLvl::new(DEFLATE_LEVEL).unwrap_or_default();
                Self::Deflate(libdeflater::Compressor::new(level))
            }
            Compression::Zstd => {
                Self::Zstd(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(out_of_memory)?)
            }
        })
    }

    /// Packs a cluster into `out`; returns how long it became, or nothing if it does not fit there.
    pub(in crate::block) fn pack(&mut self, cluster: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Deflate(packer) => packer.deflate_compress(cluster, out).ok(),
            Self::Zstd(packer) => packer.compress_to_buffer(cluster, out).ok(),
        }
    }
}
