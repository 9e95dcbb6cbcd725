//! UUIDs of disks, partitions and file systems that the specification leaves open.

use crate::session::fixed_time;
use sha2::{Digest, Sha256};

/// The source of UUIDs that are not specified: random, or with SOURCE_DATE_EPOCH derived from the
/// specification, so that two runs are identical.
pub(crate) struct IdentitySource<'a> {
    specification: &'a str,
    partition: usize,
}

impl<'a> IdentitySource<'a> {
    /// Returns the source for partition `partition`; 0 is the disk.
    pub(crate) fn new(specification: &'a str, partition: usize) -> Self {
        Self {
            specification,
            partition,
        }
    }

    /// Returns the salt of a hash tree.
    pub(crate) fn salt(&mut self) -> [u8; 32] {
        let halves = ["salt", "second half of the salt"].map(|purpose| self.next(purpose));
        Sha256::digest(halves.concat()).into()
    }

    /// Returns the UUID for a purpose.
    pub(crate) fn next(&mut self, purpose: &str) -> [u8; 16] {
        if fixed_time().is_none() {
            return uuid::Uuid::new_v4().into_bytes();
        }
        let text = format!("{purpose} {}\n{}", self.partition, self.specification);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
        uuid::Builder::from_random_bytes(bytes)
            .into_uuid()
            .into_bytes()
    }
}
