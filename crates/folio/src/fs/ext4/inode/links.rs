//! Link counts: their limit, and directories with more subdirectories than the field can count.

use super::state::InodeState;
use crate::base::{Errno, Result};
use crate::fs::ext4::layout::features::RoCompat;
use crate::fs::ext4::volume::Volume;

/// The link count that a directory shows once it has too many to count (`dir_nlink`).
const LINKS_UNCOUNTED: u16 = 1;
/// The most links a file may have. With `dir_nlink` a directory may have more, uncounted.
const LINKS_MAX: u16 = 65_000;

/// Checks that one more link can be made to the inode with `state`.
///
/// # Errors
/// EMLINK.
pub(crate) fn check_links(volume: &Volume, state: &InodeState, is_directory: bool) -> Result<()> {
    let may_exceed = is_directory && volume.has_ro_compat(RoCompat::DIR_NLINK);
    if state.link_count() >= LINKS_MAX.into() && !may_exceed {
        Err(Errno::MLINK.into())
    } else {
        Ok(())
    }
}

/// Counts the `..` of a new subdirectory.
pub(crate) fn add_directory_link(state: &mut InodeState) {
    let links = state.raw.links_count.get();
    let counted = if links == LINKS_UNCOUNTED || links >= LINKS_MAX {
        LINKS_UNCOUNTED
    } else {
        links + 1
    };
    state.raw.links_count = counted.into();
}

/// Takes the `..` of a removed subdirectory off the count.
pub(crate) fn drop_directory_link(state: &mut InodeState) {
    let links = state.raw.links_count.get();
    // A directory that once had too many to count never counts again.
    let counted = if links > 2 { links - 1 } else { links };
    state.raw.links_count = counted.into();
}
