//! Consistency of an image: counts the references in the file, compares them with the refcounts,
//! and repairs.
//!
//! ```text
//!   run.rs            the order: count, compare, repair, count again
//!     |
//!   count.rs          every table once       counts.rs         references by cluster
//!     |
//!   compare.rs        against               refcount_file.rs   refcounts by cluster
//!     |
//!   repair.rs         in place, or a new refcount tree behind the end
//!
//!   finding.rs        findings and their sums     width.rs   another width of refcounts
//! ```
//!
//! No code here is recursive, and no number is used unchecked: `count.rs` documents the bounds of
//! the work. Neighbors: snapshots and resize count with the same code, and change refcounts by the
//! difference between the counts before and after.

mod compare;
mod count;
mod counts;
mod finding;
mod refcount_file;
mod repair;
mod run;
mod width;

pub(crate) use count::{CountedReferences, count};
pub(crate) use finding::FindingSink;
pub use finding::{Finding, ImageCheck, Repair};
pub(crate) use refcount_file::RefcountFile;
pub(crate) use repair::{align_copied_flags, clear_unknown_autoclear, rebuild};
pub(crate) use run::{check_entries, check_tables, repair_stale_refcounts};
pub(crate) use width::set_refcount_order;
