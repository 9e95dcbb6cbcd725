//! An open image as a disk: [`Qcow2Device`], its reads, writes and write-back.
//!
//! ```text
//!   calls.rs                             the Device trait, and the close at drop
//!   preallocate.rs  append.rs  rebase.rs  pull.rs      whole-image work on an open device
//!   zero.rs  map.rs
//!   write.rs
//!   read.rs
//!   room.rs                              limits of the tables in memory
//!   parts.rs                             the files under a device, to open it once more
//!   open.rs   flush.rs
//!   device.rs                            the state
//!   lazy.rs autoclear.rs reserve.rs data_file.rs backing.rs compressed.rs codec.rs    parts
//! ```
//!
//! `codec.rs` is the only file that names the crates libdeflater and zstd. `no_codec.rs` takes its
//! place in a build without the Cargo feature `compress`.
//!
//! Neighbors: above, `offline/` and `tools/`; below, `metadata/`, `check/` (stale refcounts at
//! open) and `layout/`.

mod append;
mod autoclear;
pub(crate) mod backing;
mod calls;
#[cfg_attr(not(feature = "compress"), path = "no_codec.rs")]
mod codec;
mod compressed;
mod data_file;
mod device;
mod flush;
mod lazy;
mod map;
mod open;
mod parts;
mod preallocate;
mod pull;
mod read;
mod rebase;
mod reserve;
mod room;
mod write;
mod zero;

pub(crate) use append::{Appender, PackedCluster};
pub use device::Qcow2Device;
pub(crate) use parts::Qcow2Parts;
