//! The data of files: pages, delayed allocation and the map from file blocks to device blocks.

pub(super) mod auto_da_alloc;
pub(super) mod block_map;
mod collapse_range;
pub(super) mod delalloc;
pub(super) mod extent;
mod fallocate;
pub(super) mod pages;
