//! Segments: immutable objects of up to 8 MiB of blocks, created if absent.

use crate::format::{BLOCK_BYTES, BlockRef, Place, RawTrailer, SegmentId, TRAILER_BYTES, crc32c};
use crate::place::StorePlace;
use bytes::Bytes;
use folio::{Errno, Error, Result};
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::IntoBytes;

/// Attempts to read a range that arrives damaged: the network may be at fault.
const READS: u32 = 3;

/// The writer's source of segment names, and its mark in each segment.
pub(crate) struct SegmentNames {
    pub(crate) volume: uuid::Uuid,
    pub(crate) epoch: u64,
    nonce: uuid::Uuid,
    next: AtomicU32,
}

impl SegmentNames {
    /// Returns the names of a writer's segments.
    pub(crate) fn new(volume: uuid::Uuid, epoch: u64) -> Self {
        Self {
            volume,
            epoch,
            nonce: uuid::Uuid::new_v4(),
            next: AtomicU32::new(0),
        }
    }

    fn next(&self) -> SegmentId {
        SegmentId {
            origin: 0,
            epoch: self.epoch,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Uploads `blocks` as one segment and returns the reference of each.
///
/// # Errors
///
/// The store's.
pub(crate) async fn upload(
    place: &StorePlace,
    names: &SegmentNames,
    blocks: &[Bytes],
) -> Result<Vec<BlockRef>> {
    loop {
        let id = names.next();
        let trailer = RawTrailer::new(names.volume, names.nonce, id, blocks.len() as u32);
        if create(place, id, blocks, &trailer).await? {
            let place_of = |(n, bytes): (usize, &Bytes)| BlockRef {
                place: Place::Segment {
                    segment: id,
                    index: n as u32,
                },
                crc: crc32c(bytes),
            };
            return Ok(blocks.iter().enumerate().map(place_of).collect());
        }
        // The name is taken: the volume was deleted and created again, and a segment is left.
    }
}

/// Creates the object of a segment. Returns false if another object has the name.
async fn create(
    place: &StorePlace,
    id: SegmentId,
    blocks: &[Bytes],
    trailer: &RawTrailer,
) -> Result<bool> {
    let path = id.path(&place.root);
    let parts = blocks
        .iter()
        .cloned()
        .chain([Bytes::copy_from_slice(trailer.as_bytes())]);
    let payload: PutPayload = parts.collect();
    let options = PutOptions::from(PutMode::Create);
    let len = payload.content_length();
    match place.store.put_opts(&path, payload, options).await {
        Ok(_) => Ok(true),
        Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
            // The answer to an earlier attempt may be lost; then the object is ours.
            let found = read_trailer(place, &path, len).await;
            let found = found.map_err(|e| place.error(&format!("read back {path}"), e))?;
            Ok(found.as_deref() == Some(trailer.as_bytes()))
        }
        Err(error) => Err(place.error(&format!("create {path}"), error)),
    }
}

/// Reads the trailer of an object that should have `len` bytes; none if it has another length.
async fn read_trailer(
    place: &StorePlace,
    path: &object_store::path::Path,
    len: usize,
) -> object_store::Result<Option<Bytes>> {
    if place.store.head(path).await?.size != len as u64 {
        return Ok(None);
    }
    let range = (len - TRAILER_BYTES) as u64..len as u64;
    place.store.get_range(path, range).await.map(Some)
}

/// Reads `count` blocks of a segment from `index` on, and verifies each checksum.
///
/// # Errors
///
/// EIO for a segment that is missing, cut short or damaged, and the store's errors.
pub(crate) async fn read(
    place: &StorePlace,
    path: &object_store::path::Path,
    index: u32,
    checksums: &[u32],
) -> Result<Bytes> {
    let start = u64::from(index) * BLOCK_BYTES as u64;
    let len = checksums.len() * BLOCK_BYTES;
    let failed = |error| place.error(&format!("read {path} at {start}+{len}"), error);
    let mut attempt = 1;
    loop {
        let found = place.store.get_range(path, start..start + len as u64).await;
        let bytes = found.map_err(failed)?;
        let problem = if bytes.len() == len {
            match first_damaged(&bytes, checksums) {
                None => return Ok(bytes),
                Some(block) => format!("{path}: bad checksum of block {}", index as usize + block),
            }
        } else {
            format!("{path}: {} bytes instead of {len}", bytes.len())
        };
        if attempt == READS {
            return Err(Error::new(Errno::IO, problem).at(place.name()));
        }
        attempt += 1;
    }
}

/// Returns whether every block matches its checksum.
pub(crate) fn is_intact(bytes: &[u8], checksums: &[u32]) -> bool {
    first_damaged(bytes, checksums).is_none()
}

fn first_damaged(bytes: &[u8], checksums: &[u32]) -> Option<usize> {
    bytes
        .chunks_exact(BLOCK_BYTES)
        .zip(checksums)
        .position(|(block, &crc)| crc32c(block) != crc)
}
