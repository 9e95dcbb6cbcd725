//! Reads of compressed clusters, by any number of threads, and the clusters decompressed last.

use super::codec::Unpacker;
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::image::Compression;
use crate::block::iov;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Memory in bytes for the clusters decompressed last.
const RECENT_BYTES: usize = 4 << 20;
/// Least and largest number of such clusters.
const RECENT_COUNT: std::ops::RangeInclusive<usize> = 2..=16;

/// The decompressor, and the clusters decompressed last: readers return for the next pages of a
/// cluster.
pub(crate) struct Decompressor {
    compression: Compression,
    cluster_bytes: usize,
    /// Contexts that no thread uses at the moment.
    idle: Mutex<Vec<Unpacker>>,
    /// Offset in the file and content, the latest last.
    recent: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
}

impl Decompressor {
    /// Returns a decompressor for an image's clusters.
    pub(crate) fn new(compression: Compression, cluster_bytes: u64) -> Self {
        Self {
            compression,
            cluster_bytes: cluster_bytes as usize,
            idle: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// Fills `bufs` with the bytes from `skip` on of the cluster compressed into `len_bytes` at
    /// `host`.
    pub(crate) fn read(
        &self,
        file: &dyn ImageFile,
        host: u64,
        len_bytes: u64,
        bufs: &mut [IoSliceMut<'_>],
        skip: usize,
    ) -> Result<()> {
        let cached = self
            .recent
            .lock()
            .iter()
            .find(|(at, _)| *at == host)
            .map(|(_, cluster)| cluster.clone());
        if let Some(cluster) = cached {
            iov::copy_into(bufs, &cluster[skip..]);
            return Ok(());
        }
        let unpacker = self.idle.lock().pop();
        let mut unpacker = unpacker.map_or_else(|| Unpacker::new(self.compression), Ok)?;
        let at_cluster = |error: Error| error.at(format!("compressed cluster at {host:#x}"));
        if let [buf] = bufs
            && buf.len() == self.cluster_bytes
        {
            // The reader wants all of it, so it will not return for more.
            unpacker
                .read(file, host, len_bytes, buf)
                .map_err(at_cluster)?;
        } else {
            let mut cluster = vec![0; self.cluster_bytes];
            unpacker
                .read(file, host, len_bytes, &mut cluster)
                .map_err(at_cluster)?;
            iov::copy_into(bufs, &cluster[skip..]);
            self.remember(host, cluster);
        }
        self.idle.lock().push(unpacker);
        Ok(())
    }

    /// Drops the cached clusters: new compressed clusters may reuse their offsets.
    pub(crate) fn invalidate(&self) {
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
