//! Hash trees of dm-verity: values of options, the work with its progress bar, texts and JSON.
//!
//! Above: `commands`. Below: `identity`, `progress`, `session`.

use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::progress::Progress;
use crate::session::Session;
use folio::Errno;
use folio::block::partition::PartitionType;
use folio::block::tools::verity::{self, HashOptions, RootHash, VeritySuperblock};
use folio::block::{Device, FileSystemKind};
use folio::ext4::{self, FieldValue};
use serde_json::{Value, json};
use std::sync::Arc;

/// The salt of a hash tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Salt(Vec<u8>);

/// A hash tree that was written.
pub(crate) struct WrittenTree {
    pub(crate) superblock: VeritySuperblock,
    pub(crate) root_hash: RootHash,
}

/// A hash tree that a device starts with.
pub(crate) struct FoundTree {
    pub(crate) superblock: VeritySuperblock,
    /// The digest of the top block; `None` if it cannot be read, or if the tree is over a single
    /// block and has none.
    pub(crate) root_hash: Option<RootHash>,
}

impl FoundTree {
    /// Returns the tree of a device, unless it has none or one of another format.
    pub(crate) fn of(device: &dyn Device) -> Option<Self> {
        let superblock = VeritySuperblock::read(device, 0).ok()??;
        let root_hash = superblock.root_hash(device, 0).ok().flatten();
        Some(Self {
            superblock,
            root_hash,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        to_json(&self.superblock, self.root_hash.as_ref())
    }
}

/// Salt and UUID of a new hash tree, if they are given.
pub(crate) struct TreeIdentity<'a> {
    pub(crate) salt: Option<&'a Salt>,
    pub(crate) uuid: Option<[u8; 16]>,
}

/// Parses a salt: hexadecimal digits, or `-` for none.
pub(crate) fn salt(text: &str) -> Result<Salt, String> {
    let digits = if text == "-" { "" } else { text };
    from_hex(digits)
        .filter(|bytes| bytes.len() <= 256 && !text.is_empty())
        .map(Salt)
        .ok_or_else(|| {
            format!(
                "invalid salt {text:?}: expected up to 512 hexadecimal digits, two for each byte, \
                 or - for no salt"
            )
        })
}

/// Parses a root hash.
pub(crate) fn root_hash(text: &str) -> Result<RootHash, String> {
    let bytes = from_hex(text).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| {
        format!("invalid root hash {text:?}: expected 64 hexadecimal digits, a SHA-256")
    })
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let pairs = digits?;
    let bytes = pairs.chunks_exact(2);
    let is_whole = bytes.remainder().is_empty();
    is_whole.then(|| bytes.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// Writes the hash tree over the first `data_blocks` blocks of `data` to `offset` of `hash`.
pub(crate) fn write_tree(
    session: &Session,
    data: &Arc<dyn Device>,
    data_blocks: u64,
    hash: &dyn Device,
    offset: u64,
    given: &TreeIdentity<'_>,
    identity: &mut IdentitySource<'_>,
) -> Outcome<WrittenTree> {
    let salt = match given.salt {
        Some(salt) => salt.0.clone(),
        None => identity.salt().to_vec(),
    };
    let uuid = given.uuid.unwrap_or_else(|| identity.next("filesystem"));
    let superblock = VeritySuperblock::new(uuid, data_blocks, salt)?;
    note_small_blocks(session, data)?;
    let root_hash = hashing(session, data_blocks, |options| {
        verity::format(&**data, hash, offset, &superblock, options)
    })?;
    Ok(WrittenTree {
        superblock,
        root_hash,
    })
}

/// Warns of a file system that the kernel does not mount on dm-verity, for its small blocks.
fn note_small_blocks(session: &Session, data: &Arc<dyn Device>) -> Outcome {
    let block_bytes = match FileSystemKind::of(&**data)? {
        Some(FileSystemKind::Fat) => {
            // BPB_BytsPerSec.
            let mut bytes = [0; 2];
            data.read_at(&mut bytes, 11)?;
            u64::from(u16::from_le_bytes(bytes))
        }
        // A damaged one is as good for dm-verity.
        Some(FileSystemKind::Ext4) => match ext4::summarize(data) {
            Ok(found) => match found.field("Block size") {
                Some(FieldValue::Number(bytes)) => *bytes,
                _ => return Ok(()),
            },
            Err(_) => return Ok(()),
        },
        _ => return Ok(()),
    };
    let least = verity::BLOCK_BYTES;
    if block_bytes < least {
        session.note(format!(
            "the file system has blocks of {block_bytes} bytes: the kernel does not mount it on \
             dm-verity, whose blocks have {least}"
        ));
    }
    Ok(())
}

/// Runs work that hashes `blocks` blocks, with a progress bar, until Ctrl-C.
pub(crate) fn hashing<T>(
    session: &Session,
    blocks: u64,
    work: impl FnOnce(&HashOptions<'_>) -> folio::Result<T>,
) -> Outcome<T> {
    let bar = Progress::new(session);
    bar.expect(blocks.saturating_mul(verity::BLOCK_BYTES));
    let options = HashOptions {
        is_canceled: &|| session.is_interrupted(),
        progress: &|count| bar.add(count),
        ..HashOptions::default()
    };
    let done = work(&options);
    bar.finish();
    match done {
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        done => Ok(done?),
    }
}

/// Returns the argument of the kernel command line by which systemd finds the partition of this
/// type and its hash tree; `None` for other types than those of root and /usr.
pub(crate) fn kernel_argument(data: PartitionType, root_hash: &RootHash) -> Option<String> {
    let guid = data.guid().ok()?;
    let is_one_of = |prefix: &str| {
        PartitionType::names()
            .filter(|name| name.starts_with(prefix))
            .filter_map(|name| name.parse::<PartitionType>().ok()?.guid().ok())
            .any(|known| known == guid)
    };
    let name = if is_one_of("linux-root-") {
        "roothash"
    } else if is_one_of("linux-usr-") {
        "usrhash"
    } else {
        return None;
    };
    Some(format!("{name}={}", hex(root_hash)))
}

/// Returns the facts about a hash tree as JSON; the root hash of a tree over a single block is not
/// in it.
pub(crate) fn to_json(superblock: &VeritySuperblock, root_hash: Option<&RootHash>) -> Value {
    json!({
        "root_hash": root_hash.map(|hash| hex(hash)),
        "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(),
        "data_blocks": superblock.data_blocks,
        "data_block_size": superblock.data_block_bytes,
        "hash_block_size": superblock.hash_block_bytes,
        "salt": hex(&superblock.salt),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_and_root_hashes_are_whole_bytes() {
        assert_eq!(salt("00fF"), Ok(Salt(vec![0, 255])));
        assert_eq!(salt("-"), Ok(Salt(Vec::new())));
        for text in ["", "0", "0g", "-1", &"00".repeat(257)] {
            assert!(salt(text).is_err(), "{text}");
        }
        assert_eq!(root_hash(&"a1".repeat(32)), Ok([0xa1; 32]));
        assert!(root_hash(&"a1".repeat(31)).is_err());
    }

    #[test]
    fn kernel_argument_follows_partition_type() {
        let of = |name: &str| kernel_argument(name.parse().unwrap(), &[0; 32]);
        let zeros = "0".repeat(64);
        assert_eq!(of("linux-root-arm64"), Some(format!("roothash={zeros}")));
        assert_eq!(of("linux-usr-x86-64"), Some(format!("usrhash={zeros}")));
        assert_eq!(of("linux"), None);
        assert_eq!(of("0x83"), None);
    }
}
