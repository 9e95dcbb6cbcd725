//! `folio disk list`: the partition table of an image.

use crate::arguments::force_share::ForceShare;
use crate::exit::{Failure, Outcome};
use crate::image::open_to_read;
use crate::image_path::{ImagePath, contents_name};
use crate::output::human;
use crate::session::Session;
use crate::verity::{FoundTree, hex};
use clap::Args;
use folio::block::partition::{Partition, PartitionDevice, PartitionTable};
use folio::block::{self, Device, FileSystemKind};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

/// List the partitions of a disk image
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio disk list disk.qcow2\n  folio disk list disk.img --json"
)]
pub(super) struct List {
    /// The image
    image: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    share: ForceShare,
}

/// Runs the command.
pub(super) fn run(list: &List, session: &Session) -> Outcome {
    let place = ImagePath::parse(&list.image)?;
    if place.partition.is_some() || place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole disk is listed; omit partition and path");
        return Err(Failure::usage(text));
    }
    let name = place.image_name();
    let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
    list.share.apply(session);
    let disk = open_to_read(session, &place.image)?;
    let Some(table) = block::partition::partition_table(&*disk).map_err(failed)? else {
        return Err(Failure::new(format!(
            "{name}: the disk has no partition table"
        )));
    };
    let mut contents = Vec::new();
    for partition in &table.partitions {
        contents.push(PartitionContent::of(&disk, partition).map_err(failed)?);
    }
    if list.json {
        return session.print_json(&to_json(&name, &*disk, &table, &contents));
    }
    let mut out = std::io::stdout().lock();
    let size = human(disk.len_bytes());
    let type_widths = table.partitions.iter().map(|entry| entry.type_name.len());
    let type_width = type_widths.max().unwrap_or(0).max(22);
    writeln!(out, "{name}: {size}, {} {}", table.scheme, table.id)?;
    writeln!(
        out,
        "{:>3} {:>14} {:>9} {:<13} {:<type_width$} LABEL",
        "NR", "START", "SIZE", "CONTENT", "TYPE"
    )?;
    for (partition, content) in table.partitions.iter().zip(&contents) {
        let line = format!(
            "{:>3} {:>14} {:>9} {:<13} {:<type_width$} {}",
            partition.number,
            partition.start_bytes,
            human(partition.len_bytes),
            content.name.unwrap_or("-"),
            partition.type_name,
            crate::output::printable(&partition.label),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    for (partition, content) in table.partitions.iter().zip(&contents) {
        if let Some(root) = content.tree.as_ref().and_then(|tree| tree.root_hash) {
            let number = partition.number;
            writeln!(out, "{name}@{number}: root hash {}", hex(&root))?;
        }
    }
    Ok(())
}

/// What a partition holds.
struct PartitionContent {
    name: Option<&'static str>,
    tree: Option<FoundTree>,
}

impl PartitionContent {
    fn of(disk: &Arc<dyn Device>, partition: &Partition) -> folio::Result<Self> {
        let window: Arc<dyn Device> = Arc::new(PartitionDevice::new(
            disk.clone(),
            partition.start_bytes,
            partition.len_bytes,
        )?);
        if FileSystemKind::of(&*window)? == Some(FileSystemKind::Ext4) {
            let name = Some("ext4");
            return Ok(Self { name, tree: None });
        }
        let name = contents_name(&window)?.filter(|name| *name != "only zeros");
        let tree = FoundTree::of(&*window);
        Ok(Self { name, tree })
    }
}

fn to_json(
    name: &str,
    disk: &dyn Device,
    table: &PartitionTable,
    contents: &[PartitionContent],
) -> Value {
    let partitions: Vec<Value> = table
        .partitions
        .iter()
        .zip(contents)
        .map(|(partition, content)| {
            json!({
                "number": partition.number,
                "start_bytes": partition.start_bytes,
                "len_bytes": partition.len_bytes,
                "type_id": partition.type_id,
                "type_name": partition.type_name,
                "uuid": partition.uuid,
                "label": partition.label,
                "is_bootable": partition.is_bootable,
                "content": content.name,
                "verity": content.tree.as_ref().map(FoundTree::to_json),
            })
        })
        .collect();
    json!({
        "image": name,
        "len_bytes": disk.len_bytes(),
        "table": table.scheme.name(),
        "id": table.id,
        "partitions": partitions,
    })
}
