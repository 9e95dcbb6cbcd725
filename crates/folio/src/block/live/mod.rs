//! Images that stay open for a long time: forked, snapshotted, resized and compacted while other
//! threads use them.
//!
//! ```text
//!   a server, a mount                                   folio fork, folio ctl
//!         | requests                                         |
//!         |                fork.rs   change.rs   compact.rs  v
//!         v                    |  \       |       /
//!      image.rs  <-------------+---+------+------+
//!         |                    v
//!      slot.rs            new_file.rs   generation.rs       files beside the image, their names
//!         v
//!      the open device
//! ```
//!
//! Neighbors: below, `tools/` opens images, and the formats change them. Nothing in `block/` is
//! above.
//!
//! Lock order: the compaction, then the file (one operation at a time), then the slot (shared by
//! requests, exclusive for a switch), then the chain; a device takes its own locks below them.
//!
//! Invariants:
//! 1. An operation that fails leaves the image open as it was, or every later request fails with
//!    EIO.
//! 2. At each moment a power cut leaves the image's path naming a complete image, with all that
//!    was flushed.
//! 3. The file that requests write is locked without a break.
//!
//! docs/design/qcow2.md ("Live images") has the order of a fork.

mod change;
mod compact;
mod fork;
mod generation;
mod image;
mod new_file;
mod slot;

pub use compact::CompactOptions;
pub use fork::{Fork, GENERATIONS_MAX};
pub use image::LiveImage;
