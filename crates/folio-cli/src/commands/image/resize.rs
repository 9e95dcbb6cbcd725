//! `folio image resize`: changes the size of a disk.

use super::new_image::PreallocationMode;
use crate::arguments::image_options::{BackingOptions, image_failure};
use crate::arguments::size_change::{SizeChange, size_change};
use crate::exit::{Failure, Outcome};
use crate::image_name::NameOptions;
use crate::session::Session;
use clap::Args;
use folio::Detail;
use folio::block::tools::ResizeImage;
use folio::block::{self, ImageFormat};
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
The content of the image does not adapt to the new size. To enlarge a file system use folio resize, which enlarges the
image itself. With --shrink, data beyond the new end is lost: shrink the file system first.

Examples:
  folio image resize disk.qcow2 20G
  folio image resize disk.qcow2 +10G
  folio image resize --shrink disk.img -512M";

/// Enlarge or shrink an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Resize {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// The new size, or the difference to the old one (+ or -)
    #[arg(allow_hyphen_values = true, value_parser = size_change, value_name = "[+|-]SIZE")]
    size: SizeChange,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Allow a smaller size; data beyond it is lost
    #[arg(long)]
    shrink: bool,
    /// Space to allocate in advance for the new part
    #[arg(long, value_enum, default_value = "off")]
    preallocation: PreallocationMode,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// Runs the command.
pub(crate) fn run(resize: &Resize, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let named = resize.name.resolve(&resize.file, resize.format)?;
    let path = &named.path;
    let len_bytes = match resize.size {
        SizeChange::Whole(size) => Some(size),
        change => change.of(resize.backing.open(path, named.format, false)?.len_bytes()),
    };
    let len_bytes =
        len_bytes.ok_or_else(|| Failure::usage("invalid size: the new size is out of range"))?;
    if len_bytes == 0 {
        return Err(Failure::usage("invalid size: expected more than 0 bytes"));
    }
    if session.is_qemu_img() && !len_bytes.is_multiple_of(512) {
        return Err(Failure::new("the new size must be a multiple of 512"));
    }
    let options = ResizeImage {
        format: named.format,
        may_shrink: resize.shrink,
        preallocation: resize.preallocation.into(),
        backing: resize.backing.policy(),
    };
    // Preallocation takes long. After an end in the middle the image is as after a crash: valid.
    let resized =
        session.until_interrupt(|| (), || block::tools::resize(path, len_bytes, &options));
    resized.map_err(|error| {
        image_failure(error, path).hint(&Detail::WouldShrink, "; use --shrink to allow that")
    })?;
    if !session.quiet {
        writeln!(std::io::stdout(), "Image resized.")?;
    }
    Ok(())
}
