//! `folio disk grow`: a partition that takes the free space behind it, and its file system.

use crate::exit::{Failure, Outcome};
use crate::file_system_resize as resize;
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::output::human;
use crate::session::Session;
use clap::Args;
use folio::block::partition::{Partition, PartitionDevice};
use folio::block::{self, Device, FileSystemKind};
use folio::ext4::{self, ResizeReport};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

const AFTER_HELP: &str = "\
The partition ends at the next one, or at the end of the disk. An ext4 in it is enlarged too; another file system keeps
its size. Enlarge the disk first:

Examples:
  folio image resize disk.qcow2 +10G
  folio disk grow disk.qcow2                       the last partition
  folio disk grow disk.qcow2@root                  the partition with this label";

/// Enlarge a partition and its ext4 to the free space behind it
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Grow {
    /// The image; IMAGE@2 is its second partition, without a number the last one on the disk
    image: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(grow: &Grow, session: &Session) -> Outcome {
    let place = ImagePath::parse(&grow.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole partition is enlarged; omit the path");
        return Err(Failure::usage(text));
    }
    let name = place.image_name();
    let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
    let disk = open_device(&place.image, Access::Write)?;
    let wanted = place.partition_number(&*disk).map_err(failed)?;
    let old = match find(&*disk, wanted).map_err(failed)? {
        Some(old) => old,
        None if wanted.is_none() => {
            return Err(Failure::new(format!("{name}: the disk has no partition")));
        }
        // The error lists the partitions.
        None => {
            return Err(block::partition::select(disk, wanted)
                .err()
                .map_or_else(|| Failure::new(name.clone()), failed));
        }
    };
    let window = window(&disk, &old).map_err(failed)?;
    let kind = FileSystemKind::of(&*window).map_err(failed)?;
    let has_ext4 = kind == Some(FileSystemKind::Ext4);
    if has_ext4 {
        // Refuse a file system that cannot grow before the first change.
        ext4::plan_resize(&*window, old.len_bytes, &resize::options(None)).map_err(failed)?;
    }
    drop(window);
    session.check_interrupt()?;
    let len_bytes = block::partition::grow_partition(&*disk, old.number).map_err(failed)?;
    disk.flush().map_err(failed)?;
    let new = Partition {
        len_bytes,
        ..old.clone()
    };
    let report = has_ext4
        .then(|| grow_ext4(session, &disk, &new, &name))
        .transpose()?;
    disk.flush().map_err(failed)?;
    print(grow, session, &old, &new, report.as_ref(), &name)
}

/// Returns the partition with this number, or the last one on the disk.
fn find(disk: &dyn Device, number: Option<u32>) -> folio::Result<Option<Partition>> {
    let mut found = block::partition::partitions(disk)?;
    if let Some(number) = number {
        found.retain(|partition| partition.number == number);
    }
    let last = found
        .into_iter()
        .max_by_key(|partition| partition.start_bytes);
    Ok(last)
}

fn window(disk: &Arc<dyn Device>, partition: &Partition) -> folio::Result<Arc<dyn Device>> {
    let (start, len) = (partition.start_bytes, partition.len_bytes);
    Ok(Arc::new(PartitionDevice::new(disk.clone(), start, len)?))
}

fn grow_ext4(
    session: &Session,
    disk: &Arc<dyn Device>,
    partition: &Partition,
    name: &str,
) -> Outcome<ResizeReport> {
    let failed = |error: folio::Error| Failure::image(error.at(name.to_owned()));
    let window = window(disk, partition).map_err(failed)?;
    resize::resize_file_system(session, &window, &resize::options(None), name)
}

fn print(
    grow: &Grow,
    session: &Session,
    old: &Partition,
    new: &Partition,
    report: Option<&ResizeReport>,
    name: &str,
) -> Outcome {
    if grow.json {
        return session.print_json(&json!({
            "image": name,
            "partition": old.number,
            "old_len_bytes": old.len_bytes,
            "new_len_bytes": new.len_bytes,
            "file_system": report.map(|report| resize::to_json(name, report)),
        }));
    }
    if session.quiet {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let number = old.number;
    if new.len_bytes == old.len_bytes {
        let size = human(old.len_bytes);
        writeln!(
            out,
            "{name}: partition {number} has {size}, and no free space behind it"
        )?;
    } else {
        let (before, now) = (human(old.len_bytes), human(new.len_bytes));
        writeln!(
            out,
            "{name}: partition {number}: {before} before, {now} now"
        )?;
    }
    match report {
        Some(report) => writeln!(out, "{name}: {}", resize::summary(report))?,
        None => writeln!(
            out,
            "{name}: partition {number} holds no ext4; what it holds keeps its size"
        )?,
    }
    Ok(())
}
