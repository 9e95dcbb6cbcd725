//! Offsets and sizes of partitions, and identities that are not specified.

use super::content::{Content, with_extra};
use super::spec::{ALIGNMENT, DiskSpec, PartitionSpec};
use super::verity::TreePartition;
use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::session::Session;
use crate::value_parsers::uuid;
use folio::block::partition::{NewPartition, NewPartitionTable, TableScheme};
use folio::ext4::ExtraSpace;
use folio_tree::NewSize;

/// Partitions have whole pages, as file systems.
const SIZE_UNIT: u64 = 4096;

/// A disk, ready to be written.
pub(super) struct DiskLayout {
    pub(super) len_bytes: u64,
    pub(super) table: NewPartitionTable,
    pub(super) contents: Vec<Content>,
    /// The hash tree of each partition that is one.
    pub(super) trees: Vec<Option<TreePartition>>,
}

impl DiskLayout {
    /// Places all partitions of a specification, whose text is `text`.
    pub(super) fn new(session: &Session, spec: &DiskSpec, text: &str) -> Outcome<Self> {
        let (scheme, sector, alignment) = (spec.scheme(), spec.sector_size()?, spec.alignment()?);
        let disk_len = spec.size()?;
        let mut at = alignment.max(NewPartitionTable::usable(scheme, sector, 0).start);
        at = at.next_multiple_of(alignment);
        let (mut partitions, mut contents) = (Vec::new(), Vec::new());
        let trees = trees(&spec.partitions)?;
        for (index, partition) in spec.partitions.iter().enumerate() {
            let of = |failure: Failure| in_partition(failure, index + 1);
            let mut content = Content::new(session, partition).map_err(of)?;
            if trees.iter().flatten().any(|tree| tree.data == index) {
                content = content.verified().map_err(of)?;
            }
            let tree = &trees[index];
            let auto = |partitions: &[NewPartition], extra| match tree {
                Some(tree) => Ok(with_extra(tree.len_bytes(partitions)?, extra)),
                None => content.size(session, extra),
            };
            let start = partition.start().map_err(of)?.unwrap_or(at);
            let is_last = index + 1 == spec.partitions.len();
            let has_own_size = partition.format.has_own_size();
            let rest = disk_len.filter(|_| is_last).map(|len| {
                NewPartitionTable::usable(scheme, sector, len).end / SIZE_UNIT * SIZE_UNIT
            });
            let len = match (partition.size().map_err(of)?, rest) {
                (Some(NewSize::Bytes(bytes)), _) => bytes.next_multiple_of(sector),
                (Some(NewSize::Auto(extra)), _) => auto(&partitions, extra).map_err(of)?,
                (None, Some(end)) if !has_own_size && end > start => end - start,
                (None, Some(_)) if !has_own_size => {
                    return Err(of(Failure::usage("no space is left on the disk")));
                }
                (None, _) => auto(&partitions, ExtraSpace::None).map_err(of)?,
            };
            let is_exact = matches!(partition.size(), Ok(Some(NewSize::Bytes(_))));
            let len = if is_exact {
                len
            } else {
                len.next_multiple_of(SIZE_UNIT)
            };
            content.check_len(len).map_err(of)?;
            if let Some(tree) = tree {
                tree.check_len(&partitions, len).map_err(of)?;
            }
            partitions.push(new_partition(partition, start, len, text, index + 1).map_err(of)?);
            contents.push(content);
            at = start.saturating_add(len).next_multiple_of(alignment);
        }
        let id = match (&spec.uuid, scheme) {
            (Some(text), TableScheme::Gpt) => uuid(text).map_err(Failure::usage)?,
            (Some(text), TableScheme::Mbr) => mbr_id(text)?,
            (None, _) => IdentitySource::new(text, 0).next("disk"),
        };
        let table = NewPartitionTable {
            scheme,
            sector_bytes: sector,
            id,
            partitions,
        };
        // The backup of a GPT follows the last partition.
        let least = match scheme {
            TableScheme::Gpt => at.saturating_add(alignment.max(ALIGNMENT)),
            TableScheme::Mbr => at,
        };
        Ok(Self {
            len_bytes: disk_len.unwrap_or(least),
            table,
            contents,
            trees,
        })
    }
}

/// Returns the hash tree of each partition that is one.
fn trees(specs: &[PartitionSpec]) -> Outcome<Vec<Option<TreePartition>>> {
    (0..specs.len())
        .map(|index| {
            let tree = TreePartition::new(specs, index);
            tree.map_err(|failure| in_partition(failure, index + 1))
        })
        .collect()
}

/// Returns a partition at its place.
pub(super) fn new_partition(
    spec: &PartitionSpec,
    start_bytes: u64,
    len_bytes: u64,
    text: &str,
    number: usize,
) -> Outcome<NewPartition> {
    let uuid = match &spec.uuid {
        Some(text) => uuid(text).map_err(Failure::usage)?,
        None => IdentitySource::new(text, number).next("partition"),
    };
    Ok(NewPartition {
        start_bytes,
        len_bytes,
        partition_type: spec.partition_type()?,
        uuid,
        label: spec.label.clone(),
        attributes: spec.attributes()?,
        is_bootable: spec.bootable,
    })
}

fn mbr_id(text: &str) -> Outcome<[u8; 16]> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let number = u32::from_str_radix(digits, 16).map_err(|_| {
        Failure::usage(format!(
            "invalid disk number {text:?}: an MBR has 8 hexadecimal digits (e.g. 0x1a2b3c4d)"
        ))
    })?;
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Ok(id)
}

/// Adds the partition to a message.
pub(super) fn in_partition(failure: Failure, number: usize) -> Failure {
    if failure.message.is_empty() {
        // An interrupt has nothing to say.
        return failure;
    }
    Failure {
        message: format!("partition {number}: {}", failure.message),
        ..failure
    }
}
