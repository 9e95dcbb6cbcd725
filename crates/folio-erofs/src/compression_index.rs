//! The index behind a compressed file: for each block of the file, where its data are. Linux:
//! fs/erofs/zmap.c, `z_erofs_load_full_lcluster`.
//!
//! ```text
//!   header | HEAD, block | NONHEAD | NONHEAD ... | PLAIN, block | PLAIN, block ...
//!            one piece of the file                 a piece that is not compressed
//! ```

use crate::compress::{Compression, PIECE_BYTES};
use crate::format::{BLOCK_BITS, BLOCK_BYTES};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Pieces may have several blocks.
const ADVISE_BIG_PCLUSTER: u16 = 2;
const TYPE_PLAIN: u16 = 0;
const TYPE_HEAD: u16 = 1;
const TYPE_NONHEAD: u16 = 2;
/// The first distance is a number of blocks instead.
const BLOCK_COUNT_FLAG: u16 = 1 << 11;
/// Bits of the smallest window of zstd.
const ZSTD_WINDOW_BITS_MIN: u32 = 10;

/// Linux: `z_erofs_map_header`, and what is reserved after it.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawMapHeader {
    reserved: U32,
    advise: U16,
    algorithm: u8,
    cluster_bits: u8,
    reserved_end: [u8; 8],
}

const _: () = assert!(size_of::<RawMapHeader>() == 16);

/// Linux: `z_erofs_lcluster_index`.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawIndex {
    kind: U16,
    cluster_offset: U16,
    /// A block; or two distances of 16 bits.
    place: U32,
}

const _: () = assert!(size_of::<RawIndex>() == 8);

/// Returns the number of an algorithm.
fn algorithm(compression: Compression) -> u8 {
    match compression {
        Compression::Lz4 => 0,
        Compression::Zstd(_) => 3,
    }
}

/// Returns the set of algorithms, and their parameters, which follow the superblock.
pub(crate) fn parameters(compression: Compression) -> (u16, Vec<u8>) {
    let parameters = match compression {
        // The longest distance, and the most blocks.
        Compression::Lz4 => {
            let blocks = (PIECE_BYTES / BLOCK_BYTES) as u16;
            let mut bytes = [u16::MAX, blocks].map(u16::to_le_bytes).concat();
            bytes.resize(14, 0);
            bytes
        }
        Compression::Zstd(_) => {
            let bits = PIECE_BYTES.trailing_zeros() - ZSTD_WINDOW_BITS_MIN;
            vec![0, bits as u8, 0, 0, 0, 0]
        }
    };
    let mut bytes = (parameters.len() as u16).to_le_bytes().to_vec();
    bytes.extend(parameters);
    (1 << algorithm(compression), bytes)
}

/// Returns the number of blocks of a file.
fn block_count(size_bytes: u64) -> usize {
    usize::try_from(size_bytes.div_ceil(BLOCK_BYTES as u64)).unwrap_or(0)
}

/// Returns the length of the index of a file. `behind` bytes are between it and a multiple of 8.
pub(crate) fn len_bytes(size_bytes: u64, behind: usize) -> usize {
    let indexes = block_count(size_bytes) * size_of::<RawIndex>();
    padding(behind) + size_of::<RawMapHeader>() + indexes
}

fn padding(behind: usize) -> usize {
    behind.next_multiple_of(8) - behind
}

/// Adds the index of a file whose pieces start at `block`.
pub(crate) fn append(
    bytes: &mut Vec<u8>,
    compression: Compression,
    size_bytes: u64,
    mut block: u32,
    pieces: &[u16],
) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let header = RawMapHeader {
        reserved: U32::ZERO,
        advise: U16::new(ADVISE_BIG_PCLUSTER),
        algorithm: algorithm(compression),
        // Of a logical cluster, beyond those of a block.
        cluster_bits: BLOCK_BITS - 12,
        reserved_end: [0; 8],
    };
    bytes.extend_from_slice(header.as_bytes());
    let mut left = block_count(size_bytes);
    for blocks in pieces {
        let count = left.min(PIECE_BYTES / BLOCK_BYTES) as u16;
        left -= usize::from(count);
        for at in 0..count {
            let (kind, place) = match (*blocks, at) {
                (0, _) => (TYPE_PLAIN, block + u32::from(at)),
                (_, 0) => (TYPE_HEAD, block),
                (blocks, 1) => (
                    TYPE_NONHEAD,
                    distances(BLOCK_COUNT_FLAG | blocks, count - 1),
                ),
                (_, at) => (TYPE_NONHEAD, distances(at, count - at)),
            };
            let index = RawIndex {
                kind: U16::new(kind),
                cluster_offset: U16::ZERO,
                place: U32::new(place),
            };
            bytes.extend_from_slice(index.as_bytes());
        }
        block += u32::from(if *blocks == 0 { count } else { *blocks });
    }
}

/// Returns the distances to the head of the piece and to that of the next piece.
fn distances(back: u16, forward: u16) -> u32 {
    u32::from(back) | u32::from(forward) << 16
}
