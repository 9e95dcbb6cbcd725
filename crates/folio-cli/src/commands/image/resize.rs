//! `folio image resize`: a disk of another size.

use super::new_image::Allocate;
use super::shared_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome};
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block::{self, ImageFormat, ResizeImage};
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
What is in the image does not know of its new size: see folio resize for a file system, which makes the image larger by
itself. With --shrink, what lies behind the new end is lost: make the file system smaller before.

Examples:
  folio image resize disk.qcow2 20G
  folio image resize disk.qcow2 +10G
  folio image resize --shrink disk.img -512M";

/// Make an image larger, or smaller
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Resize {
    /// The image
    file: PathBuf,
    /// The new size, or how much more (+) or less (-)
    #[arg(allow_hyphen_values = true, value_parser = new_size, value_name = "[+|-]SIZE")]
    size: NewSize,
    /// Format; found by the first bytes if not given
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Allow a smaller size: what lies behind it is lost
    #[arg(long)]
    shrink: bool,
    /// What to allocate for the new part
    #[arg(long, value_enum, default_value = "off")]
    preallocation: Allocate,
    #[command(flatten)]
    backing: BackingOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewSize {
    Whole(u64),
    More(u64),
    Less(u64),
}

fn new_size(text: &str) -> Result<NewSize, String> {
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(more), _) => Ok(NewSize::More(size(more)?)),
        (_, Some(less)) => Ok(NewSize::Less(size(less)?)),
        _ => Ok(NewSize::Whole(size(text)?)),
    }
}

/// Runs the command.
pub(crate) fn run(resize: &Resize, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let path = &resize.file;
    let now =
        || -> Outcome<u64> { Ok(resize.backing.open(path, resize.format, false)?.len_bytes()) };
    let len_bytes = match resize.size {
        NewSize::Whole(size) => Some(size),
        NewSize::More(more) => now()?.checked_add(more),
        NewSize::Less(less) => now()?.checked_sub(less),
    };
    let len_bytes = len_bytes.ok_or_else(|| Failure::usage("no image can have this size"))?;
    let options = ResizeImage {
        format: resize.format,
        may_shrink: resize.shrink,
        preallocation: resize.preallocation.into(),
        backing: resize.backing.policy(),
    };
    block::resize(path, len_bytes, &options).map_err(|error| {
        let mut failure = image_failure(error, path);
        if failure.message.contains("would be lost") {
            failure.message.push_str(": --shrink allows it");
        }
        failure
    })?;
    if !session.quiet {
        writeln!(std::io::stdout(), "Image resized.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_signs() {
        assert_eq!(new_size("+1K"), Ok(NewSize::More(1024)));
        assert_eq!(new_size("-2"), Ok(NewSize::Less(2)));
        assert_eq!(new_size("3M"), Ok(NewSize::Whole(3 << 20)));
        assert!(new_size("+-1").is_err());
    }
}
