//! Encrypted inodes: each has a context with its policy, and encrypted directories hold only files
//! of the same policy, under names of at least 16 bytes.
//!
//! Source: the kernel's Documentation/filesystems/fscrypt.rst; Linux: fs/crypto/policy.c.

use super::checker::Checker;
use super::directories::DirectoryScan;
use super::facts::{EncryptionPolicies, EncryptionPolicy};
use super::inode_view::InodeView;
use super::report::{CheckedStructure, FindingLocation};
use super::sets::InodeKind;
use crate::fs::ext4::directory::block::Entry;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::layout::features::Incompat;

/// Name index of the attribute with the context (`EXT4_XATTR_INDEX_ENCRYPTION`).
pub(super) const INDEX_ENCRYPTION: u8 = 9;
/// The rest of the attribute's name.
pub(super) const CONTEXT_SUFFIX: &[u8] = b"c";
/// Length of the context of each version; the last 16 bytes are the inode's own nonce.
const CONTEXT_LENS: [(u8, usize); 2] = [(1, 28), (2, 40)];
const NONCE_LEN: usize = 16;
/// Names are padded to the length of a cipher block.
const NAME_LEN_MIN: usize = 16;

impl EncryptionPolicies {
    /// Returns the policy of a context's bytes; `None` if they are invalid.
    pub(super) fn of_context(&mut self, context: &[u8]) -> Option<EncryptionPolicy> {
        let version = *context.first()?;
        let Some((_, len)) = CONTEXT_LENS.iter().find(|(known, _)| *known == version) else {
            // A later version, whose length is unknown.
            return (version != 0).then_some(EncryptionPolicy::Unknown);
        };
        if context.len() != *len {
            return None;
        }
        // At most as many as there are inodes.
        let next = self.numbers.len() as u32;
        let policy = context[..len - NONCE_LEN].to_vec();
        Some(EncryptionPolicy::Known(
            *self.numbers.entry(policy).or_insert(next),
        ))
    }
}

impl Checker<'_> {
    /// Stores an inode's policy, and reports an encrypted inode without a valid context.
    pub(super) fn note_encryption(
        &mut self,
        view: &InodeView<'_>,
        context: Option<EncryptionPolicy>,
    ) {
        let has_feature = self.sb.features.incompat.contains(Incompat::ENCRYPT);
        if !has_feature || !view.has(inode_flags::ENCRYPT) {
            return;
        }
        let what = match context {
            None => "encrypted, but has no encryption context",
            Some(EncryptionPolicy::Invalid) => "invalid encryption context",
            Some(_) => "",
        };
        if !what.is_empty() {
            self.report.error(
                CheckedStructure::Inode,
                FindingLocation::inode(view.number),
                format_args!("{what}"),
            );
        }
        let policy = context.unwrap_or(EncryptionPolicy::Invalid);
        self.encryption.inodes.insert(view.number, policy);
    }

    /// Checks an entry of an encrypted directory: the length of its name, and the policy of the
    /// inode it names.
    pub(super) fn check_encrypted_entry(
        &mut self,
        scan: &DirectoryScan<'_>,
        location: FindingLocation,
        entry: &Entry<'_>,
        kind: InodeKind,
    ) {
        let name = entry.name.escape_ascii();
        let mut error = |what: std::fmt::Arguments<'_>| {
            self.report
                .error(CheckedStructure::Directory, location, what);
        };
        if entry.name.len() < NAME_LEN_MIN {
            error(format_args!(
                "encrypted name {name} has {} bytes, fewer than {NAME_LEN_MIN}",
                entry.name.len()
            ));
        }
        if !matches!(
            kind,
            InodeKind::Regular | InodeKind::Directory | InodeKind::Symlink
        ) {
            return;
        }
        let policies = &self.encryption.inodes;
        let own = policies.get(&scan.number);
        match (own, policies.get(&entry.number)) {
            (_, None) => error(format_args!(
                "encrypted name {name} names inode {}, which is not encrypted",
                entry.number
            )),
            (Some(EncryptionPolicy::Known(own)), Some(EncryptionPolicy::Known(other)))
                if own != other =>
            {
                error(format_args!(
                    "{name} names inode {}, which is encrypted by another policy",
                    entry.number
                ));
            }
            _ => {}
        }
    }
}
