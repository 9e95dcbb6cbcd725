//! Partitions that verify another one: hash trees of dm-verity, and signatures of root hashes.
//!
//! Source: the Discoverable Partitions Specification.

use super::spec::{ContentFormat, DataPartition, PartitionSpec};
use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::output::io_reason;
use crate::session::Session;
use crate::value_parsers::uuid;
use crate::verity::{self, Salt, TreeIdentity, WrittenTree};
use folio::block::Device;
use folio::block::partition::{NewPartition, NewPartitionTable, PartitionDevice};
use folio::block::tools::verity::{BLOCK_BYTES, RootHash, hash_area_bytes};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Size of a partition for a signature, as of systemd-repart(8).
pub(super) const SIGNATURE_BYTES: u64 = 16 << 10;
/// Largest signature that systemd reads.
pub(super) const SIGNATURE_BYTES_MAX: u64 = 4 << 20;

/// A partition with the hash tree of an earlier one.
pub(super) struct TreePartition {
    /// Index of the partition with the data.
    pub(super) data: usize,
    /// Index of its own.
    hash: usize,
    salt: Option<Salt>,
    uuid: Option<[u8; 16]>,
    /// Partitions whose UUID is that of the specification.
    fixed: [bool; 2],
}

impl TreePartition {
    /// Reads the specification of partition `hash`; returns `None` for another format.
    pub(super) fn new(partitions: &[PartitionSpec], hash: usize) -> Outcome<Option<Self>> {
        let spec = &partitions[hash];
        if spec.format != ContentFormat::Verity {
            if spec.verity_data.is_some() || spec.salt.is_some() {
                let text = "verity-data and salt need format \"verity\"";
                return Err(Failure::usage(text));
            }
            return Ok(None);
        }
        let Some(name) = &spec.verity_data else {
            let text = "format \"verity\" needs verity-data, the label or number of the partition \
                        that it verifies";
            return Err(Failure::usage(text));
        };
        let data = data_partition(&partitions[..hash], name)?;
        let salt = spec.salt.as_deref().map(verity::salt).transpose();
        let id = spec.filesystem_uuid.as_deref().map(uuid).transpose();
        Ok(Some(Self {
            data,
            hash,
            salt: salt.map_err(Failure::usage)?,
            uuid: id.map_err(Failure::usage)?,
            fixed: [data, hash].map(|index| partitions[index].uuid.is_some()),
        }))
    }

    /// Returns the size of superblock and tree in bytes.
    pub(super) fn len_bytes(&self, partitions: &[NewPartition]) -> Outcome<u64> {
        let data_bytes = partitions[self.data].len_bytes;
        if !data_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(Failure::usage(format!(
                "partition {} has {data_bytes} bytes: a hash tree needs whole blocks of \
                 {BLOCK_BYTES}",
                self.data + 1
            )));
        }
        Ok(hash_area_bytes(data_bytes / BLOCK_BYTES))
    }

    /// Refuses a partition of `len_bytes` bytes before it is made.
    pub(super) fn check_len(&self, partitions: &[NewPartition], len_bytes: u64) -> Outcome {
        let needed = self.len_bytes(partitions)?;
        if len_bytes < needed {
            return Err(Failure::usage(format!(
                "size {len_bytes}: the hash tree needs {needed} bytes"
            )));
        }
        Ok(())
    }

    /// Writes superblock and tree, and sets the UUIDs of both partitions in `table`: the first and
    /// the last half of the root hash.
    pub(super) fn write(
        &self,
        session: &Session,
        disk: &Arc<dyn Device>,
        table: &mut NewPartitionTable,
        identity: &mut IdentitySource<'_>,
    ) -> Outcome<WrittenTree> {
        let window = |index: usize| -> folio::Result<Arc<dyn Device>> {
            let NewPartition {
                start_bytes,
                len_bytes,
                ..
            } = table.partitions[index];
            let window = PartitionDevice::new(disk.clone(), start_bytes, len_bytes)?;
            Ok(Arc::new(window))
        };
        let (data, hash) = (window(self.data)?, window(self.hash)?);
        let given = TreeIdentity {
            salt: self.salt.as_ref(),
            uuid: self.uuid,
        };
        let blocks = data.len_bytes() / BLOCK_BYTES;
        let tree = verity::write_tree(session, &data, blocks, &*hash, 0, &given, identity)?;
        let halves = uuids(&tree.root_hash);
        for (at, index) in [self.data, self.hash].into_iter().enumerate() {
            if !self.fixed[at] {
                table.partitions[index].uuid = halves[at];
            }
        }
        Ok(tree)
    }

    fn kernel_argument(&self, table: &NewPartitionTable, root: &RootHash) -> Option<String> {
        verity::kernel_argument(table.partitions[self.data].partition_type, root)
    }

    /// Returns the lines about the written tree.
    pub(super) fn to_text(
        &self,
        disk: &Path,
        table: &NewPartitionTable,
        tree: &WrittenTree,
    ) -> String {
        let place = format!("{}@{}", disk.display(), self.hash + 1);
        let root = verity::hex(&tree.root_hash);
        let mut text = format!(
            "{place}: root hash of partition {}: {root}\n",
            self.data + 1
        );
        if let Some(argument) = self.kernel_argument(table, &tree.root_hash) {
            text.push_str(&format!("{place}: kernel command line: {argument}\n"));
        }
        text
    }

    pub(super) fn to_json(&self, table: &NewPartitionTable, tree: &WrittenTree) -> Value {
        let mut object = verity::to_json(&tree.superblock, Some(&tree.root_hash));
        object["data_partition"] = json!(self.data + 1);
        object["hash_partition"] = json!(self.hash + 1);
        object["kernel_command_line"] = json!(self.kernel_argument(table, &tree.root_hash));
        object
    }
}

/// Returns the index of the partition that a hash tree verifies, one of those before it.
fn data_partition(earlier: &[PartitionSpec], name: &DataPartition) -> Outcome<usize> {
    let refuse = |what: &str| Err(Failure::usage(format!("verity-data {name}: {what}")));
    let mut found = (0..earlier.len()).filter(|index| is_named(earlier, *index, name));
    let data = match (found.next(), found.next()) {
        (Some(only), None) => only,
        (Some(_), Some(_)) => return refuse("several partitions have this label"),
        (None, _) => return refuse("an earlier partition has no such label or number"),
    };
    // The UUID of a partition can be half of one root hash only.
    if earlier[data].format == ContentFormat::Verity {
        return refuse("the partition is a hash tree itself");
    }
    let mut trees = earlier.iter().filter_map(|tree| tree.verity_data.as_ref());
    if trees.any(|other| is_named(earlier, data, other)) {
        return refuse("the partition has a hash tree already");
    }
    Ok(data)
}

/// Whether `name` is that of partition `index`.
fn is_named(partitions: &[PartitionSpec], index: usize, name: &DataPartition) -> bool {
    match name {
        DataPartition::Number(number) => *number == index + 1,
        DataPartition::Label(label) => partitions[index].label == *label,
    }
}

/// Returns the UUIDs of the partitions with data and tree.
fn uuids(root: &RootHash) -> [[u8; 16]; 2] {
    [0, 16].map(|at| std::array::from_fn(|index| root[at + index]))
}

/// The content of a partition for a signature.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signature {
    root_hash: String,
    signature: String,
    #[serde(default)]
    certificate_fingerprint: Option<String>,
}

/// Reads a signature in JSON; returns the root hash that it signs.
pub(super) fn read_signature(path: &Path, len_bytes: u64) -> Outcome<RootHash> {
    let name = path.display();
    let refuse = |what: String| Failure::usage(format!("{name}: {what}"));
    if len_bytes > SIGNATURE_BYTES_MAX {
        return Err(refuse("is not a signature: larger than 4 MiB".to_owned()));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{name}: {}", io_reason(&error))))?;
    let parsed: Signature = serde_json::from_str(&text).map_err(|error| {
        refuse(format!(
            "is not a signature: {error}; expected JSON with rootHash, certificateFingerprint and \
             signature"
        ))
    })?;
    let is_fingerprint = |text: &String| verity::root_hash(text).is_ok();
    if !parsed
        .certificate_fingerprint
        .as_ref()
        .is_none_or(is_fingerprint)
    {
        let text = "invalid certificateFingerprint: expected 64 hexadecimal digits";
        return Err(refuse(text.to_owned()));
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    if parsed.signature.is_empty() || !parsed.signature.bytes().all(is_base64) {
        return Err(refuse("invalid signature: expected base64".to_owned()));
    }
    verity::root_hash(&parsed.root_hash).map_err(refuse)
}

/// Refuses a signature of a root hash that no pair of partitions has in its UUIDs.
pub(super) fn check_signed(root: &RootHash, ids: &[[u8; 16]]) -> Outcome {
    if uuids(root).iter().all(|half| ids.contains(half)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the signature is of root hash {}, which no partitions of the disk have",
        verity::hex(root)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_of_partitions_with_its_hash() {
        let mut root = [1; 32];
        root[16..].fill(2);
        assert!(check_signed(&root, &[[2; 16], [1; 16]]).is_ok());
        assert!(check_signed(&root, &[[1; 16]]).is_err());
    }
}
