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

/// Returns the attributes, if they are valid without asking the backing store.
#[inline]
pub(crate) fn cached_attributes(inode: &dyn Inode) -> Option<Attributes> {
    inode.common().is_valid().then(|| inode.attributes())
}

/// Returns the attributes.
pub(crate) fn attributes(inode: &dyn Inode) -> Result<Attributes> {
    revalidate(inode)?;
    Ok(inode.attributes())
}
