//! Revalidation: attributes of an inode, asked for again when they have expired.

use super::attributes::Attributes;
use super::inode::Inode;
use crate::base::Result;

/// Asks the backing store, unless attributes and data are valid.
#[inline]
pub(crate) fn revalidate(inode: &dyn Inode) -> Result<()> {
    if inode.common().is_valid() {
        Ok(())
    } else {
        inode.revalidate()
    }
}

/// Returns the attributes.
pub(crate) fn attributes(inode: &dyn Inode) -> Result<Attributes> {
    revalidate(inode)?;
    Ok(inode.common().attributes())
}
