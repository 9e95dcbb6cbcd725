//! `folio image measure`: computes the size of an image file before it is created.

use super::new_image::NewImageOptions;
use crate::arguments::image_options::{
    BackingOptions, OutputOptions, image_failure, snapshot_selector,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::image_name::NameOptions;
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block::tools::MeasuredContent;
use folio::block::{self, Compat, ImageFormat, OpenOptions, SnapshotSelector};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// Largest size in bytes, as in qemu-img.
const SIZE_MAX: u64 = i64::MAX as u64;

const AFTER_HELP: &str = "\
Two sizes are printed: with the content of FILE, or none for --size, and after every byte of the disk was written. For a
copy of a qcow2 image there is also the size of its bitmaps, which convert copies with --bitmaps.

Examples:
  folio image measure -O qcow2 disk.img
  folio image measure -O qcow2 --size 10G
  folio image measure -O qcow2 -o cluster_size=4k --json disk.img";

/// Compute the size of an image file before it is created
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Measure {
    /// The image to copy
    #[arg(value_parser = crate::image_name::value_parser())]
    file: Option<PathBuf>,
    /// Size of a new, empty disk, in place of an image to copy
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Format of the image to copy; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Format of the new image; the default is raw
    #[arg(short = 'O', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    output_format: Option<ImageFormat>,
    /// Options of the new image, as for create
    #[arg(short = 'o', value_name = "KEY=VALUE,...")]
    options: Vec<String>,
    /// Copy an internal snapshot: its ID or tag, or snapshot.id=ID,snapshot.name=TAG
    #[arg(short = 'l', value_name = "SNAPSHOT", value_parser = snapshot_selector)]
    snapshot: Option<SnapshotSelector>,
    /// Read the image even if another process writes it
    #[arg(short = 'U', long)]
    force_share: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// Runs the command.
pub(crate) fn run(measure: &Measure, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let format = measure.output_format.unwrap_or(ImageFormat::Raw);
    let (options, _) = NewImageOptions::of(&measure.options).create_options(format)?;
    let mut bitmaps_bytes = None;
    let measured = match (&measure.file, measure.size) {
        (Some(file), None) => {
            let named = measure.name.resolve(file, measure.format)?;
            let device = measure.backing.open_at(
                &named.path,
                named.format,
                measure.force_share,
                measure.snapshot.clone(),
            )?;
            let info = OpenOptions {
                format: named.format,
                is_shared: measure.force_share,
                ..OpenOptions::default()
            };
            let info = block::tools::info(&named.path, &info);
            let info = info.map_err(|error| image_failure(error, &named.path))?;
            let can_copy = format == ImageFormat::Qcow2 && options.compat == Compat::V1_1;
            if can_copy && info.qcow2.is_some_and(|qcow2| qcow2.compat == Compat::V1_1) {
                bitmaps_bytes = Some(block::tools::measure_bitmaps(
                    &info.bitmaps,
                    device.len_bytes(),
                    options.cluster_bytes.into(),
                ));
            }
            block::tools::measure(MeasuredContent::CopyOf(&*device), format, &options)
        }
        (None, Some(size)) if size <= SIZE_MAX => {
            if measure.format.is_some() || measure.snapshot.is_some() || measure.name.has_options()
            {
                let why = "--image-opts, -f and -l require FILE";
                return Err(Failure::usage(why));
            }
            block::tools::measure(MeasuredContent::Empty(size), format, &options)
        }
        (None, Some(_)) => return Err(Failure::usage("--size: expected less than 8E")),
        _ => return Err(Failure::usage("expected either FILE or --size SIZE")),
    };
    let measured = measured.map_err(|error| Failure {
        exit: Exit::Usage,
        ..Failure::from(error)
    })?;
    let (required, full) = (measured.required_bytes, measured.fully_allocated_bytes);
    if measure.output.is_json() {
        let mut keys = json!({ "required": required, "fully-allocated": full });
        if let Some(bytes) = bitmaps_bytes {
            keys["bitmaps"] = bytes.into();
        }
        return session.print_json(&keys);
    }
    let mut text = format!("required size: {required}\nfully allocated size: {full}\n");
    if let Some(bytes) = bitmaps_bytes {
        text.push_str(&format!("bitmaps size: {bytes}\n"));
    }
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
