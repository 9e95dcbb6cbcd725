//! Tables in memory: lookups of guest clusters, allocation of host clusters, and their cache.
//!
//! ```text
//!   cluster_alloc.rs   guest clusters to host clusters; the plan of a write
//!        |
//!   refcounts.rs       free and used host clusters
//!        |
//!   table_cache.rs     L2 tables and refcount blocks, dirty or clean
//!        |
//!   published.rs       what threads know without the lock
//! ```
//!
//! Neighbors: `disk/` calls all of it under the metadata lock and writes dirty tables back; below,
//! `layout/`.

mod cluster_alloc;
mod published;
mod refcounts;
mod table_cache;

pub(crate) use cluster_alloc::{
    ClearResult, MappingRuns, Metadata, NewClusters, Release, WritePlan,
};
pub(crate) use published::Published;
pub(crate) use refcounts::Refcounts;
pub(crate) use table_cache::TableWrite;
