//! `folio resize`: enlarges or shrinks an ext4, and its image if the image is that file system.

use crate::exit::{Failure, Outcome};
use crate::file_system_resize::{options, resize_file_system, summary, to_json};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::session::Session;
use crate::value_parsers::disk_size;
use clap::Args;
use folio::Error;
use folio::block::tools::ResizeImage;
use folio::block::{self, Device};
use folio::ext4::{self, ResizeReport};
use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

const AFTER_HELP: &str = "\
Without SIZE the file system gets the size of its image, or of its partition. If SIZE is beyond the end of the image,
the image is enlarged first. folio disk grow enlarges a partition together with its file system.

A smaller SIZE and --minimum move blocks and inodes below the new end. The image is cut then, unless the file system is
in a partition, which keeps its size.

After a power cut at any moment the file system is consistent, with the old size, the new size, or one in between. The
exceptions are the move of the journal and file systems without a journal: e2fsck -p may have to correct bitmaps. It
must not be mounted meanwhile.

Examples:
  folio resize disk.img 20G
  folio resize disk.qcow2@2                        fill the partition
  folio resize disk.img --minimum                  as small as the content allows
  folio resize --json disk.qcow2 1.5T";

/// Resize the file system in an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Resize {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// New size of the file system, in bytes or with K, M, G or T
    #[arg(value_parser = disk_size)]
    size: Option<u64>,
    /// Shrink to the least size that holds the content
    #[arg(long, conflicts_with = "size")]
    minimum: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(resize: &Resize, session: &Session) -> Outcome {
    let place = ImagePath::parse(&resize.image)?;
    if place.path.as_os_str() != "/" {
        return Err(Failure::usage(format!(
            "{place}: a whole file system is resized; omit the path"
        )));
    }
    let name = place.image_name();
    let failed = |error: Error| Failure::image(error.at(name.clone()));
    let mut options = options(resize.size);
    options.to_minimum = resize.minimum;
    let mut device = open(&place)?;
    if let Some(size) = resize
        .size
        .filter(|size| *size > device.file_system.len_bytes())
    {
        if device.is_partition {
            let text = format!(
                "{name}: the partition has only {} bytes; enlarge it with folio disk grow",
                device.file_system.len_bytes()
            );
            return Err(Failure::new(text));
        }
        // Refuse an impossible size before the first change.
        ext4::plan_resize(&*device.file_system, size, &options).map_err(failed)?;
        session.check_interrupt()?;
        drop(device);
        block::tools::resize(&place.image, size, &ResizeImage::default())
            .map_err(Failure::image)?;
        device = open(&place)?;
    }
    let report = resize_file_system(session, &device.file_system, &options, &name)?;
    if report.new.blocks < report.old.blocks && !device.is_partition {
        drop(device);
        cut(&place, resize.size, &report)?;
    }
    if resize.json {
        session.print_json_alone(&to_json(&name, &report))?;
    } else if !session.quiet {
        writeln!(std::io::stdout(), "{name}: {}", summary(&report))?;
    }
    Ok(())
}

/// Cuts the image behind its file system. A block device keeps its size.
fn cut(place: &ImagePath, size: Option<u64>, report: &ResizeReport) -> Outcome {
    let is_file = std::fs::metadata(&place.image).is_ok_and(|found| found.is_file());
    if !is_file {
        return Ok(());
    }
    let end = report.new.blocks.saturating_mul(report.block_size.into());
    let options = ResizeImage {
        may_shrink: true,
        ..ResizeImage::default()
    };
    block::tools::resize(&place.image, size.unwrap_or(end).max(end), &options)
        .map_err(Failure::image)
}

/// An open image.
struct OpenImage {
    file_system: Arc<dyn Device>,
    is_partition: bool,
}

fn open(place: &ImagePath) -> Outcome<OpenImage> {
    let disk = open_device(&place.image, Access::Write)?;
    let file_system = place
        .select(disk.clone())
        .map_err(|error| Failure::image(error.at(place.image_name())))?;
    let is_partition = !Arc::ptr_eq(&disk, &file_system);
    Ok(OpenImage {
        file_system,
        is_partition,
    })
}
