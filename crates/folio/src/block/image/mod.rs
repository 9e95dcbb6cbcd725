//! The common parts of all image formats: names, options to open and create images, and the chain
//! of backing files.
//!
//! ```text
//!   options.rs, create_options.rs   how a caller opens or creates an image
//!   foreign.rs                      formats that are only recognized
//!   format.rs                       the formats; detection by the file's first bytes
//!   chain.rs                        images opened from the top one down; [seam: Opener]
//!   qcow2_info.rs                   the facts that a qcow2 header states
//! ```
//!
//! Neighbors: below, `file/`. Above, the formats open their backing files through [`Opener`],
//! which `tools/open.rs` implements; so no format knows another one.

mod chain;
mod create_options;
mod foreign;
mod format;
mod options;
mod qcow2_info;

pub use chain::ChainImage;
pub(crate) use chain::{Chain, Opener};
pub use create_options::{
    BackingName, Compat, Compression, CreateOptions, DataFileName, Preallocation,
};
pub(crate) use foreign::read as read_foreign;
pub use foreign::{ForeignFormat, ForeignImage};
pub(crate) use format::detect;
#[cfg(not(feature = "qcow2"))]
pub(crate) use format::without_qcow2;
pub use format::{ImageFormat, format_of};
pub use options::{BackingPolicy, OpenOptions, SnapshotSelector};
pub use qcow2_info::Qcow2Info;
