//! Extended attributes: their format on disk, where an inode keeps them, and ACLs.

mod acl;
pub(super) mod format;
mod store;

#[cfg(test)]
mod tests;
