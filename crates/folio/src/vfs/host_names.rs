//! Names of a mount that belong to the host. A walk to one ends with the path at which the host
//! continues, for a face whose programs see both trees.

/// The names in a mount that belong to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNames {
    /// All names but those of mount points, and of the directories on the way to them.
    Rest,
    /// These names in the root directory, whether the mount has them or not.
    InRoot(Vec<Vec<u8>>),
}

impl HostNames {
    /// Returns whether `name` in the root directory belongs to the host.
    pub(super) fn has_in_root(&self, name: &[u8]) -> bool {
        matches!(self, Self::InRoot(names) if names.iter().any(|known| known == name))
    }
}
