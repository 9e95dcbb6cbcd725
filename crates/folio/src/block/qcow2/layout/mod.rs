//! Bytes in the file: the header, its extensions, and the entries of all tables, checked when read.
//!
//! ```text
//!   header.rs                roots.rs            bitmaps.rs, backing_name.rs, header_cluster.rs
//!     strict: what a device    lenient: what a     change parts of the file
//!     needs to run             check walks
//!          \                   /
//!   extensions.rs  snapshot_table.rs  l2_entry.rs  refcount_block.rs
//!          \          |          /
//!   raw_header.rs  features.rs  table.rs
//! ```
//!
//! Invariant: no number from the file leaves this folder unchecked, but for those that `roots.rs`
//! says are unchecked.

pub(crate) mod backing_name;
pub(crate) mod bitmaps;
pub(crate) mod extensions;
pub(crate) mod features;
pub(crate) mod header;
pub(crate) mod header_cluster;
pub(crate) mod l2_entry;
pub(crate) mod raw_header;
pub(crate) mod refcount_block;
pub(crate) mod roots;
pub(crate) mod snapshot_table;
pub(crate) mod table;
