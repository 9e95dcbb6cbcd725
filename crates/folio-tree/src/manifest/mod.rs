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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_exceed_the_memory_are_refused() {
        let long = "n".repeat(1_000_000);
        let nodes = format!("/{long} c 644 0 0 1 1 0 1 4096\n");
        assert!(parse(nodes.as_bytes()).is_err());
        let nested = format!("{} type=dir\n", "d".repeat(1000)).repeat(1000);
        assert!(parse(nested.as_bytes()).is_err());
        let default = format!("/set type=file uname={long}\n{}", "a\n".repeat(100_000));
        assert!(parse(default.as_bytes()).is_err());
        // What real tables have.
        let nodes = "/dev/tty c 666 0 0 4 0 0 1 4096\n".repeat(8);
        assert_eq!(parse(nodes.as_bytes()).unwrap().len(), 8 * 4096);
    }

    #[test]
    fn many_defaults_are_parsed_in_a_short_time() {
        let defaults: String = (0..50_000).map(|number| format!(" k{number}=v")).collect();
        let text = format!("/set type=file{defaults}\n{}", "a\n".repeat(50_000));
        assert_eq!(parse(text.as_bytes()).unwrap().len(), 50_000);
    }
}
