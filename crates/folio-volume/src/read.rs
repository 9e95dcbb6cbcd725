//! Reads of stored blocks: neighbors in one request, several requests in flight.

use crate::format::{BLOCK_BYTES, BlockRef, Place, SegmentId};
use crate::layer::{Source, block_range};
use crate::place::StorePlace;
use crate::read_cache::ReadCache;
use crate::segment;
use bytes::Bytes;
use folio::{Errno, Error, Result};
use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::io::IoSliceMut;

/// Requests in flight for one read.
const READS_IN_FLIGHT: usize = 16;
/// Blocks of the largest request: 1 MiB.
const REQUEST_BLOCKS: usize = 256;

/// Blocks of the largest run that the cache keeps.
const CACHED_BLOCKS: u32 = 32;

/// Neighboring blocks of a segment that one request reads.
struct Run {
    segment: SegmentId,
    index: u32,
    /// The first block in the buffer.
    at: usize,
    checksums: Vec<u32>,
}

/// Fills `out` with the blocks of `sources`.
///
/// # Errors
///
/// The store's; ENOENT for a missing segment; EIO for a block whose bytes do not match their
/// checksum.
pub(crate) fn read_sources(
    place: &StorePlace,
    cache: &ReadCache,
    origins: &[Path],
    sources: Vec<Source>,
    out: &mut [u8],
) -> Result<()> {
    let mut runs: Vec<Run> = Vec::new();
    for (n, source) in sources.into_iter().enumerate() {
        match source {
            Source::Zero => out[block_range(n)].fill(0),
            Source::Bytes(bytes) => out[block_range(n)].copy_from_slice(&bytes),
            Source::Stored(stored) => add(&mut runs, n, stored),
        }
    }
    if runs.is_empty() {
        return Ok(());
    }
    place.wait(async {
        let mut reads = futures_util::stream::iter(runs)
            .map(|run| async move {
                let origin = origins.get(run.segment.origin as usize).ok_or_else(|| {
                    Error::corrupt("map: a segment of an unknown volume").at(place.name())
                })?;
                let path = run.segment.path(origin);
                let bytes = read_run(place, cache, &path, &run).await?;
                Ok::<_, Error>((run.at, bytes))
            })
            .buffer_unordered(READS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            let (at, bytes) = read?;
            let start = at * BLOCK_BYTES;
            out[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    })
}

/// Returns the error of a read: what is in the map and not in the store is lost.
pub(crate) fn lost(place: &StorePlace, error: Error) -> Error {
    if error.errno() != Errno::NOENT {
        return error;
    }
    let why = "data of the volume is missing (a reader that stays at one flush point for longer \
               than folio volume gc --min-age loses it: open the volume again)";
    Error::new(Errno::IO, why).at(place.name()).caused_by(error)
}

/// Reads a run, a short one through the cache.
async fn read_run(place: &StorePlace, cache: &ReadCache, path: &Path, run: &Run) -> Result<Bytes> {
    let count = run.checksums.len() as u32;
    if count <= CACHED_BLOCKS {
        if let Some(bytes) = cache.get(run.segment, run.index, count)
            && segment::is_intact(&bytes, &run.checksums)
        {
            return Ok(bytes);
        }
        let range = ReadCache::byte_range(run.index, count);
        let parts = place.store.get_range(path, range.clone()).await;
        let parts = parts.map_err(|e| place.error(&format!("read {path} at {range:?}"), e))?;
        cache.insert(run.segment, run.index, &parts);
        let start = u64::from(run.index) * BLOCK_BYTES as u64 - range.start;
        let end = start as usize + count as usize * BLOCK_BYTES;
        if parts.len() >= end {
            let bytes = parts.slice(start as usize..end);
            if segment::is_intact(&bytes, &run.checksums) {
                return Ok(bytes);
            }
        }
    }
    // Long runs, and blocks that may be damaged on the way only, are read past the cache.
    segment::read(place, path, run.index, &run.checksums).await
}

fn add(runs: &mut Vec<Run>, at: usize, stored: BlockRef) {
    let Place::Segment { segment, index } = stored.place else {
        return;
    };
    if let Some(run) = runs.last_mut()
        && run.segment == segment
        && run.checksums.len() < REQUEST_BLOCKS
        && run.at + run.checksums.len() == at
        && run.index as usize + run.checksums.len() == index as usize
    {
        run.checksums.push(stored.crc);
        return;
    }
    runs.push(Run {
        segment,
        index,
        at,
        checksums: vec![stored.crc],
    });
}

/// Reads `bufs` at `offset` through `read_blocks(first, count, out)`, which reads whole blocks.
pub(crate) fn read_bytes(
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    mut read_blocks: impl FnMut(u64, u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    if len == 0 {
        return Ok(());
    }
    let block = BLOCK_BYTES as u64;
    let first = offset / block;
    let count = (offset + len as u64).div_ceil(block) - first;
    let mut out = vec![0; count as usize * BLOCK_BYTES];
    read_blocks(first, count, &mut out)?;
    let mut from = (offset % block) as usize;
    for buf in bufs {
        let len = buf.len();
        buf.copy_from_slice(&out[from..from + len]);
        from += len;
    }
    Ok(())
}

/// Rejects a range that leaves a volume of `size_bytes` bytes.
pub(crate) fn check_range(size_bytes: u64, offset: u64, len_bytes: u64) -> Result<()> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(Error::new(
            Errno::IO,
            format!("bytes {offset}+{len_bytes} are beyond the end of the volume at {size_bytes}"),
        )),
    }
}

/// Returns the roots of the volumes whose segments a map names.
pub(crate) fn origin_paths(meta: &crate::format::VolumeMeta) -> Vec<Path> {
    meta.origins
        .iter()
        .map(|root| Path::from(root.as_str()))
        .collect()
}
