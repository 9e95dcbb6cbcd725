//! Answers as JSON.

use super::answer::Answer;
use crate::output::{PathRecord, stamp, type_name};
use folio::ext4::{
    BlockRun, InodeContent, InodeFields, JournalDump, LogRecordKind, RawDirectoryEntry, RunKind,
};
use folio::vfs::DeviceNumber;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns an answer as one object, whose member `request` is the request's name.
pub(super) fn of(answer: &Answer) -> Value {
    match answer {
        Answer::Stat(fields) => json!({ "request": "stat", "inode": inode(fields) }),
        Answer::Blocks(runs) => json!({ "request": "blocks", "blocks": runs_json(runs) }),
        Answer::Bmap(block) => json!({ "request": "bmap", "block": block }),
        Answer::Icheck(blocks, owners) => {
            let owner = |block: &u64| json!({ "block": block, "inode": owners.get(block) });
            let owners: Vec<_> = blocks.iter().map(owner).collect();
            json!({ "request": "icheck", "owners": owners })
        }
        Answer::Ncheck(inodes, paths) => {
            let found = |inode: &u32| {
                let paths = paths.get(inode).into_iter().flatten();
                let paths: Vec<_> = paths.map(|path| name(path)).collect();
                json!({ "inode": inode, "paths": paths })
            };
            let found: Vec<_> = inodes.iter().map(found).collect();
            json!({ "request": "ncheck", "names": found })
        }
        Answer::Ls(entries, _) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(entry, fields)| entry_json(entry, fields.as_ref()))
                .collect();
            json!({ "request": "ls", "entries": entries })
        }
        Answer::Testb(used) => {
            let used = used
                .iter()
                .map(|(block, used)| json!({ "block": block, "used": used }));
            json!({ "request": "testb", "used": used.collect::<Vec<_>>() })
        }
        Answer::Testi(number, used) => {
            json!({ "request": "testi", "used": [{ "inode": number, "used": used }] })
        }
        Answer::Logdump(dump) => json!({ "request": "logdump", "journal": journal(dump) }),
    }
}

/// Returns a name or path as an object, with its bytes if they are not UTF-8.
fn name(bytes: &[u8]) -> Value {
    json!(PathRecord::new(Path::new(OsStr::from_bytes(bytes))))
}

fn inode(fields: &InodeFields) -> Value {
    let xattr = |(name, len): &(Vec<u8>, u64)| json!({ "name": String::from_utf8_lossy(name), "size": len });
    let mut object = json!({
        "number": fields.number,
        "type": fields.file_type.map(type_name),
        "mode": format!("{:04o}", fields.mode & 0o7777),
        "flags": fields.flags,
        "generation": fields.generation,
        "version": fields.version,
        "uid": fields.uid,
        "gid": fields.gid,
        "project": fields.project,
        "size": fields.size_bytes,
        "links": fields.links,
        "block_count": fields.block_count,
        "xattr_block": fields.xattr_block,
        "changed": stamp(fields.changed.time()),
        "accessed": stamp(fields.accessed.time()),
        "modified": stamp(fields.modified.time()),
        "created": fields.created.map(|created| stamp(created.time())),
        "deleted": fields.deleted,
        "extra_size": fields.extra_len,
        "checksum": fields.checksum.map(|(sum, _)| sum),
        "checksum_valid": fields.checksum.map(|(_, is_right)| is_right),
        "xattrs": fields.xattrs.iter().map(xattr).collect::<Vec<_>>(),
    });
    match &fields.content {
        InodeContent::Extents(runs) => object["extents"] = runs_json(runs),
        InodeContent::Pointers(runs) => object["blocks"] = runs_json(runs),
        InodeContent::Inline(len) => object["inline_size"] = (*len).into(),
        InodeContent::Target(target) => {
            object["target"] = String::from_utf8_lossy(target).into();
        }
        InodeContent::Device(DeviceNumber { major, minor }) => {
            object["device"] = json!([major, minor])
        }
    }
    object
}

fn runs_json(runs: &[BlockRun]) -> Value {
    let run = |run: &BlockRun| {
        let mut object = json!({
            "physical": run.physical,
            "length": run.len,
        });
        let kind = match run.kind {
            RunKind::Data => "data",
            RunKind::Unwritten => "unwritten",
            RunKind::TreeNode(level) => {
                object["level"] = level.into();
                "tree-node"
            }
            RunKind::Pointers(level) => {
                object["level"] = level.into();
                "pointers"
            }
        };
        if !matches!(run.kind, RunKind::Pointers(_)) {
            object["logical"] = run.logical.into();
        }
        object["kind"] = kind.into();
        object
    };
    runs.iter().map(run).collect()
}

fn entry_json(entry: &RawDirectoryEntry, fields: Option<&InodeFields>) -> Value {
    let mut object = name(&entry.name);
    object["inode"] = entry.inode.into();
    object["length"] = entry.len.into();
    object["file_type"] = entry.file_type.into();
    object["offset"] = entry.offset.into();
    object["logical"] = entry.logical.into();
    object["block"] = entry.block.into();
    if let Some(fields) = fields {
        object["fields"] = inode(fields);
    }
    object
}

fn journal(dump: &JournalDump) -> Value {
    let record = |record: &folio::ext4::LogRecord| {
        let mut object = json!({
            "block": record.block,
            "sequence": record.sequence,
            "checksum_valid": record.has_valid_checksum,
        });
        match &record.kind {
            LogRecordKind::Descriptor(copies) => {
                let copies = copies.iter().map(
                    |copy| json!({ "target": copy.target, "copy": copy.copy, "flags": copy.flags }),
                );
                object["type"] = "descriptor".into();
                object["blocks"] = copies.collect();
            }
            LogRecordKind::Revoke(blocks) => {
                object["type"] = "revoke".into();
                object["revoked"] = blocks.clone().into();
            }
            LogRecordKind::Commit(time) => {
                object["type"] = "commit".into();
                object["committed"] = stamp(*time).into();
            }
        }
        object
    };
    json!({
        "start": dump.start,
        "sequence": dump.sequence,
        "records": dump.records.iter().map(record).collect::<Vec<_>>(),
        "end": dump.end.map(|(block, _)| block),
    })
}
