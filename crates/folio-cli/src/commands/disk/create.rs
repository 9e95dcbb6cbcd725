//! `folio disk create`: a disk image with partitions, by a specification.

use super::layout::{DiskLayout, in_partition};
use super::spec::DiskSpec;
use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::image_path::{ImagePath, refuse_partition, refuse_protocol};
use crate::objects::refuse_new;
use crate::output::printable;
use crate::session::Session;
use crate::verity::WrittenTree;
use clap::Args;
use folio::block::partition::PartitionName;
use folio::block::{self, Device, ImageFormat};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER_HELP: &str = "\
The specification is TOML; docs/disk.md describes all of it. One [[partition]] with type = \"linux\", format = \"ext4\" and
source = \"root\" is a whole specification: the disk is as small as the tree root needs. Paths are below the directory of
the specification. With SOURCE_DATE_EPOCH, two disks from the same specification and trees are identical byte for byte.

A partition with format = \"verity\" has the hash tree of the one that verity-data names. Its root hash is printed, with
the argument of the kernel command line, and the UUIDs of both partitions are its halves, as systemd expects.

Examples:
  folio disk create disk.qcow2 spec.toml
  SOURCE_DATE_EPOCH=1700000000 folio disk create disk.img spec.toml";

/// Create a disk image with partitions by a specification
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Create {
    /// The new image
    image: PathBuf,
    /// The specification
    #[arg(value_name = "SPEC")]
    specification: PathBuf,
    /// Format of the image; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Print JSON: the partitions with hash trees, and their root hashes
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(create: &Create, session: &Session) -> Outcome {
    let path = create.image.as_path();
    let name = path.display();
    refuse_protocol(path).map_err(Failure::usage)?;
    refuse_new(path).map_err(Failure::usage)?;
    refuse_partition(path)?;
    if path.exists() {
        return Err(Failure::new(format!("{name}: already exists")));
    }
    let (spec, text) = DiskSpec::read(&create.specification)?;
    let spec_name = create.specification.display();
    let in_spec = |failure: Failure| Failure {
        message: format!("{spec_name}: {}", failure.message),
        ..failure
    };
    let mut layout = DiskLayout::new(session, &spec, &text).map_err(in_spec)?;
    session.check_interrupt()?;
    let format = create.format.unwrap_or_else(|| ImageFormat::of_name(path));
    let failed = |error: folio::Error| Failure::new(format!("{name}: {error}"));
    let device = block::create(path, format, layout.len_bytes).map_err(failed)?;
    let written = write(session, &device, path, &mut layout, &text).and_then(|trees| {
        session.check_interrupt()?;
        device.flush().map_err(failed)?;
        Ok(trees)
    });
    drop(device);
    if written.is_err() || session.has_failures() {
        // The cause of the failure is reported, and an incomplete disk is useless.
        let _ = std::fs::remove_file(path);
        return written.map(drop);
    }
    report(create, session, &layout, &written?)
}

/// Prints the root hashes of hash trees.
fn report(
    create: &Create,
    session: &Session,
    layout: &DiskLayout,
    written: &[WrittenTree],
) -> Outcome {
    let (path, table) = (&create.image, &layout.table);
    let trees = layout.trees.iter().flatten().zip(written);
    if create.json {
        let trees: Vec<_> = trees
            .map(|(tree, written)| tree.to_json(table, written))
            .collect();
        return session.print_json(&json!({
            "image": path.display().to_string(),
            "len_bytes": layout.len_bytes,
            "verity": trees,
        }));
    }
    let texts = trees.map(|(tree, written)| tree.to_text(path, table, written));
    let text: String = texts.collect();
    if !session.quiet {
        std::io::stdout().write_all(printable(&text).as_bytes())?;
    }
    Ok(())
}

fn write(
    session: &Session,
    device: &Arc<dyn Device>,
    path: &Path,
    layout: &mut DiskLayout,
    text: &str,
) -> Outcome<Vec<WrittenTree>> {
    let written = layout.table.write(&**device);
    written.map_err(|error| Failure::usage(error.to_string()))?;
    let mut trees = Vec::new();
    for (content, number) in layout.contents.iter().zip(1_usize..) {
        let mut identity = IdentitySource::new(text, number);
        let done = match &layout.trees[number - 1] {
            Some(tree) => tree
                .write(session, device, &mut layout.table, &mut identity)
                .map(|tree| trees.push(tree)),
            None => {
                let place = ImagePath {
                    image: path.to_owned(),
                    partition: u32::try_from(number).ok().map(PartitionName::Number),
                    path: "/".into(),
                };
                let partition = &layout.table.partitions[number - 1];
                content.write(session, device, &place, partition, &mut identity)
            }
        };
        done.map_err(|failure| in_partition(failure, number))?;
    }
    if !trees.is_empty() {
        // With the UUIDs that are halves of root hashes.
        layout.table.write(&**device)?;
    }
    let partitions = layout.table.partitions.iter();
    let ids: Vec<_> = partitions.map(|partition| partition.uuid).collect();
    for (content, number) in layout.contents.iter().zip(1..) {
        let signed = content.check_signed(&ids);
        signed.map_err(|failure| in_partition(failure, number))?;
    }
    Ok(trees)
}
