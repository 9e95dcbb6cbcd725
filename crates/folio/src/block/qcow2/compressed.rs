//! Compressed clusters: read by decompressing the whole cluster; never written.

use super::super::image_file::ImageFile;
use super::header::Compression;
use crate::base::{Error, Result};
use flate2::{Decompress, FlushDecompress, Status};
use parking_lot::Mutex;
use std::io::{IoSliceMut, Read};
use std::sync::Arc;

/// Largest zstd window, as a power of two: a cluster has at most 2 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The decompressor, and the cluster it saw last: readers come back for its next pages.
pub(super) struct Decompressor {
    compression: Compression,
    cluster_bytes: usize,
    last: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

impl Decompressor {
    /// A decompressor for an image's clusters.
    pub(super) fn new(compression: Compression, cluster_bytes: u64) -> Self {
        Self { compression, cluster_bytes: cluster_bytes as usize, last: Mutex::new(None) }
    }

    /// The whole cluster that lies compressed in `len_bytes` at `host`.
    pub(super) fn read(&self, file: &dyn ImageFile, host: u64, len_bytes: u64) -> Result<Arc<Vec<u8>>> {
        if let Some((at, cluster)) = &*self.last.lock()
            && *at == host
        {
            return Ok(cluster.clone());
        }
        // The length counts whole sectors; the last may go beyond the end of the file.
        let mut packed = vec![0; len_bytes as usize];
        file.read_or_zeros(&mut [IoSliceMut::new(&mut packed)], host)?;
        let cluster = match self.compression {
            Compression::Zlib => inflate(&packed, self.cluster_bytes),
            Compression::Zstd => unpack_zstd(&packed, self.cluster_bytes),
        };
        let cluster = cluster.map_err(|error| error.at(format!("compressed cluster at {host:#x}")))?;
        let cluster = Arc::new(cluster);
        *self.last.lock() = Some((host, cluster.clone()));
        Ok(cluster)
    }
}

/// A raw deflate stream (no zlib header), as QEMU writes it.
fn inflate(packed: &[u8], cluster_bytes: usize) -> Result<Vec<u8>> {
    let mut cluster = vec![0; cluster_bytes];
    let mut stream = Decompress::new(false);
    match stream.decompress(packed, &mut cluster, FlushDecompress::Finish) {
        Ok(Status::StreamEnd | Status::Ok | Status::BufError)
            if stream.total_out() == cluster_bytes as u64 =>
        {
            Ok(cluster)
        }
        Ok(_) => Err(Error::corrupt(format!("{} bytes of {cluster_bytes}", stream.total_out()))),
        Err(_) => Err(Error::corrupt("not a deflate stream")),
    }
}

fn unpack_zstd(packed: &[u8], cluster_bytes: usize) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| Error::corrupt("not a zstd stream").caused_by(error);
    let mut cluster = vec![0; cluster_bytes];
    let mut stream = zstd::stream::read::Decoder::with_buffer(packed).map_err(failed)?;
    stream.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(failed)?;
    stream.read_exact(&mut cluster).map_err(failed)?;
    Ok(cluster)
}
