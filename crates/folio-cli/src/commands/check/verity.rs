//! `folio check --root-hash`: data and hash tree of dm-verity against a root hash.

use super::findings::FindingRecord;
use crate::exit::{Exit, Failure, Outcome};
use crate::image::open_to_read;
use crate::image_path::ImagePath;
use crate::output::color::{self, FAILURE, paint};
use crate::output::counted;
use crate::session::Session;
use crate::verity;
use clap::Args;
use folio::block::partition::{Partition, PartitionDevice, partitions};
use folio::block::tools::verity::{
    BLOCK_BYTES, RootHash, VerityArea, VerityMismatch, VerityReport, VeritySuperblock,
    appended_data_blocks, verify,
};
use folio::block::{Device, FileSystemKind};
use folio::{Errno, Error};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Options about a hash tree.
#[derive(Args)]
#[group(skip)]
pub(super) struct VerityOptions {
    /// Verify all data against this root hash of dm-verity, instead of the file system. The hash
    /// tree is found by the UUIDs of partitions, or behind the data
    #[arg(long, value_name = "HASH", value_parser = verity::root_hash,
        conflicts_with_all = ["repair", "undo", "no_replay"])]
    pub(super) root_hash: Option<RootHash>,
    /// The hash tree is in this file or image
    #[arg(long, value_name = "FILE", requires = "root_hash")]
    hash_file: Option<PathBuf>,
    /// Offset of the tree's superblock, in the hash file or the image
    #[arg(long, value_name = "BYTES", requires = "root_hash")]
    hash_offset: Option<u64>,
}

/// The data and the place of its hash tree.
struct VerifiedData {
    data: Arc<dyn Device>,
    hash: Arc<dyn Device>,
    offset: u64,
}

/// A check of an image against a root hash.
pub(super) struct VerityCheck<'a> {
    pub(super) options: &'a VerityOptions,
    pub(super) place: &'a ImagePath,
    pub(super) root: &'a RootHash,
    pub(super) findings_max: u64,
    pub(super) prints_json: bool,
}

impl VerityCheck<'_> {
    /// Runs the check.
    pub(super) fn run(&self, session: &Session, disk: &Arc<dyn Device>) -> Outcome {
        let verified = self.verify(session, disk);
        let report = verified.map_err(|failure| match failure.exit {
            Exit::Failed | Exit::Image => Failure {
                exit: Exit::NotChecked,
                ..failure
            },
            _ => failure,
        })?;
        self.print(session, &report)?;
        if report.is_clean() {
            return Ok(());
        }
        Err(Failure::exiting(Exit::ErrorsLeft, String::new()))
    }

    fn verify(&self, session: &Session, disk: &Arc<dyn Device>) -> Outcome<VerityReport> {
        let found = self.find(session, disk)?;
        let blocks = found.data.len_bytes() / BLOCK_BYTES;
        verity::hashing(session, blocks, |options| {
            verify(&*found.data, &*found.hash, found.offset, self.root, options)
                .map_err(|error| error.at(self.place.image_name()))
        })
    }

    fn print(&self, session: &Session, report: &VerityReport) -> Outcome {
        let name = self.place.image_name();
        let shown = usize::try_from(self.findings_max).unwrap_or(usize::MAX);
        let shown = report.mismatches.iter().take(shown);
        if self.prints_json {
            let records: Vec<_> = shown.map(record).collect();
            return session.print_json_alone(&to_json(&name, self.root, report, &records));
        }
        let mut out = std::io::stdout().lock();
        let severity = paint(color::on_stdout(), FAILURE, "error");
        for mismatch in shown {
            writeln!(out, "{severity}: {}", text(mismatch))?;
        }
        if !session.quiet {
            writeln!(out, "{name}: {}", summary(report))?;
        }
        Ok(())
    }

    /// Finds the data, and its hash tree: where the options say, by the UUIDs of partitions, in the
    /// only partition with a tree, or behind the data.
    fn find(&self, session: &Session, disk: &Arc<dyn Device>) -> Outcome<VerifiedData> {
        let name = self.place.image_name();
        let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
        let number = self.place.partition_number(&**disk).map_err(failed)?;
        // A file system without a table may have bytes of a boot record before its superblock.
        let is_whole = number.is_none() && FileSystemKind::of(&**disk).map_err(failed)?.is_some();
        let table = if is_whole {
            Vec::new()
        } else {
            partitions(&**disk).map_err(failed)?
        };
        let data = match number {
            Some(number) => {
                let found = table.iter().find(|partition| partition.number == number);
                let text = || format!("{name}: there is no partition {number}");
                Some(found.ok_or_else(|| Failure::new(text()))?)
            }
            None => with_uuid(&table, &self.root[..16]),
        };
        let data = match data {
            Some(partition) => window(disk, partition).map_err(failed)?,
            None if table.is_empty() => disk.clone(),
            None => {
                return Err(Failure::new(format!(
                    "{name}: the UUID of no partition is the first half of the root hash; name \
                     the partition, as {name}@1"
                )));
            }
        };
        let (hash, offset) = match (&self.options.hash_file, self.options.hash_offset) {
            (Some(path), offset) => (open_to_read(session, path)?, offset.unwrap_or(0)),
            (None, Some(offset)) => (data.clone(), offset),
            (None, None) => self.find_tree(disk, &table, &data).map_err(failed)?,
        };
        Ok(VerifiedData { data, hash, offset })
    }

    /// Returns the device with the hash tree of `data`, and the offset of its superblock.
    fn find_tree(
        &self,
        disk: &Arc<dyn Device>,
        table: &[Partition],
        data: &Arc<dyn Device>,
    ) -> folio::Result<(Arc<dyn Device>, u64)> {
        if let Some(partition) = with_uuid(table, &self.root[16..]) {
            return Ok((window(disk, partition)?, 0));
        }
        let blocks = appended_data_blocks(data.len_bytes());
        if let Some(offset) = blocks.map(|blocks| blocks * BLOCK_BYTES)
            && VeritySuperblock::read(&**data, offset)?.is_some()
        {
            return Ok((data.clone(), offset));
        }
        if let Some(hash) = only_tree(disk, table)? {
            return Ok((hash, 0));
        }
        let what = "found no hash tree; use --hash-file or --hash-offset";
        Err(Error::new(Errno::NODATA, what))
    }
}

/// Returns the partition whose UUID is half of a root hash.
fn with_uuid<'a>(table: &'a [Partition], half: &[u8]) -> Option<&'a Partition> {
    let id = uuid::Uuid::from_slice(half).ok()?.to_string();
    table.iter().find(|partition| partition.uuid == id)
}

fn window(disk: &Arc<dyn Device>, partition: &Partition) -> folio::Result<Arc<dyn Device>> {
    let (start, len) = (partition.start_bytes, partition.len_bytes);
    let window = PartitionDevice::new(disk.clone(), start, len)?;
    Ok(Arc::new(window))
}

/// Returns the only partition that has a hash tree.
fn only_tree(
    disk: &Arc<dyn Device>,
    table: &[Partition],
) -> folio::Result<Option<Arc<dyn Device>>> {
    let mut found = None;
    for partition in table {
        let window = window(disk, partition)?;
        // One that is not supported is not the tree of this data.
        let is_tree = matches!(VeritySuperblock::read(&*window, 0), Ok(Some(_)));
        if is_tree && found.replace(window).is_some() {
            return Ok(None);
        }
    }
    Ok(found)
}

fn structure(area: VerityArea) -> &'static str {
    match area {
        VerityArea::Root => "verity-root",
        VerityArea::Tree => "verity-tree",
        _ => "verity-data",
    }
}

fn text(mismatch: &VerityMismatch) -> String {
    let block = mismatch.offset_bytes / mismatch.block_bytes;
    let at = format!("block {block} at byte {}", mismatch.offset_bytes);
    match mismatch.area {
        VerityArea::Root => format!("top {at}: its digest is not the root hash"),
        VerityArea::Tree => format!("hash {at}: its digest is not the one in the tree"),
        _ => format!("data {at}: its digest is not the one in the tree"),
    }
}

fn record(mismatch: &VerityMismatch) -> FindingRecord {
    FindingRecord {
        severity: "error",
        structure: structure(mismatch.area),
        group: None,
        inode: None,
        block: Some(mismatch.offset_bytes / mismatch.block_bytes),
        message: text(mismatch),
    }
}

fn to_json(
    name: &str,
    root: &RootHash,
    report: &VerityReport,
    findings: &[FindingRecord],
) -> serde_json::Value {
    json!({
        "image": name,
        "clean": report.is_clean(),
        "complete": true,
        "errors": report.mismatch_count,
        "warnings": 0,
        "findings": findings,
        "findings_untold": report.mismatch_count - findings.len() as u64,
        "verity": verity::to_json(&report.superblock, Some(root)),
    })
}

fn summary(report: &VerityReport) -> String {
    let verdict = match report.mismatch_count {
        0 => "clean".to_owned(),
        count => counted(count, "error"),
    };
    let data = counted(report.superblock.data_blocks, "data block");
    let tree = counted(report.tree_blocks, "hash block");
    format!("{verdict}; {data}, {tree}")
}
