//! Manifests: owners, modes and device nodes of a tree, for builders without root.
//!
//! ```text
//!   apply.rs          a manifest onto the files of an image
//!   mtree.rs          mtree(5), read and written
//!   device_table.rs   tables of makedevs and genext2fs, pseudo files of mksquashfs
//!   capabilities.rs   capabilities of files, as text
//!   entry.rs          one line
//! ```

mod apply;
mod capabilities;
mod device_table;
mod entry;
mod mtree;

pub use apply::apply;
pub use entry::{ManifestEntry, ManifestKind, Owner};
pub use mtree::{MTREE_HEADER, mtree_line};

use folio::Result;

/// Parses a manifest: mtree(5) if a line of it begins with `#mtree`, `/set` or has `KEY=VALUE`
/// words, else a device table or pseudo file, which may be mixed.
///
/// # Errors
///
/// EINVAL, with the number of the line.
pub fn parse(text: &[u8]) -> Result<Vec<ManifestEntry>> {
    if mtree::is_mtree(text) {
        mtree::parse(text)
    } else {
        device_table::parse(text)
    }
}
