//! `folio image snapshot`: lists, creates, applies and deletes internal snapshots.

use super::snapshot_table::{heading_row, row};
use crate::arguments::image_options::{OutputOptions, image_failure};
use crate::exit::Outcome;
use crate::image_name::{NameOptions, NamedImage};
use crate::output::color::heading;
use crate::session::{Session, clock};
use clap::Args;
use folio::block::qcow2::Snapshot as Found;
use folio::block::{self, ImageFormat};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A snapshot is part of the image and preserves the content of the disk; only later writes need space. Several snapshots
may have the same tag, but IDs are unique. After a power cut at any moment the snapshot either exists or does not.

Examples:
  folio image snapshot -c before-upgrade disk.qcow2
  folio image snapshot disk.qcow2                        the list
  folio image snapshot -a before-upgrade disk.qcow2      later writes are lost";

/// List, create, apply and delete internal snapshots
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Snapshot {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    #[command(flatten)]
    action: Action,
    /// List the snapshots even if another process writes the image
    #[arg(short = 'U', long, conflicts_with_all = ["create", "apply", "delete"])]
    force_share: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    name: NameOptions,
}

#[derive(Args)]
#[group(multiple = false)]
struct Action {
    /// List the snapshots, which is the default
    #[arg(short, long)]
    list: bool,
    /// Create a snapshot with this tag
    #[arg(short, long, value_name = "TAG")]
    create: Option<String>,
    /// Revert the disk to this snapshot
    #[arg(short, long, value_name = "ID|TAG")]
    apply: Option<String>,
    /// Delete this snapshot
    #[arg(short, long, value_name = "TAG|ID")]
    delete: Option<String>,
}

/// Runs the command.
pub(crate) fn run(snapshot: &Snapshot, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let named = snapshot.name.resolve(&snapshot.file, snapshot.format)?;
    let (path, format) = (&named.path, named.format);
    let done = match &snapshot.action {
        Action {
            create: Some(tag), ..
        } => block::tools::create_snapshot(path, format, tag, clock().now()),
        Action {
            apply: Some(which), ..
        } => block::tools::apply_snapshot(path, format, which),
        Action {
            delete: Some(which),
            ..
        } => block::tools::delete_snapshot(path, format, which),
        _ => return list(snapshot, &named, session),
    };
    done.map_err(|error| image_failure(error, path))
}

fn list(snapshot: &Snapshot, named: &NamedImage, session: &Session) -> Outcome {
    let found = block::tools::snapshots(&named.path, named.format, snapshot.force_share);
    let found = found.map_err(|error| image_failure(error, &named.path))?;
    if snapshot.output.is_json() {
        return session.print_json(&found.iter().map(to_json).collect::<Vec<_>>());
    }
    if found.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout();
    writeln!(out, "Snapshot list:")?;
    writeln!(out, "{}", heading(heading_row()))?;
    for found in &found {
        writeln!(out, "{}", row(found))?;
    }
    Ok(())
}

fn to_json(found: &Found) -> Value {
    json!({
        "id": found.id,
        "name": found.name,
        "vm-state-size": found.vm_state_bytes,
        "date-sec": found.date_secs,
        "date-nsec": found.date_nanos,
        "vm-clock-sec": found.vm_clock_nanos / 1_000_000_000,
        "vm-clock-nsec": found.vm_clock_nanos % 1_000_000_000,
        "disk-size": found.disk_bytes,
        "icount": found.instructions,
    })
}
