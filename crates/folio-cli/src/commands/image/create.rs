//! `folio image create`: creates an image that reads as zeros, or as its backing file.

use super::formatting::{formatting_line, option_help};
use super::new_image::NewImageOptions;
use crate::arguments::image_options::{
    BackingOptions, beside, image_failure, new_image_failure, whole_sectors,
};
use crate::exit::{Failure, Outcome};
use crate::image_name::NameOptions;
use crate::image_path::{refuse_partition, refuse_protocol};
use crate::qemu_words;
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block::{self, ImageFormat, NewImage};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  folio image create disk.qcow2 10G
  folio image create --preallocation falloc --cluster-size 2M disk.qcow2 10G
  folio image create -b base.qcow2 -F qcow2 overlay.qcow2     as large as base.qcow2
  folio image create -f qcow2 -o compat=0.10,cluster_size=4k old.qcow2 1G";

/// Create an image
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Create {
    /// The image; it must not exist unless --force is given
    #[arg(value_parser = crate::image_name::value_parser())]
    file: Option<PathBuf>,
    /// Size of the disk; the default is the size of the backing file
    #[arg(value_parser = size)]
    size: Option<u64>,
    /// Format; the default follows from the name: qcow2 for .qcow2, else raw
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    #[command(flatten)]
    new_image: NewImageOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
    /// Do not open the backing file; requires SIZE
    #[arg(short = 'u', requires = "size")]
    unsafe_backing: bool,
}

/// Runs the command.
pub(crate) fn run(create: &Create, session: &Session) -> Outcome {
    let has_file = create.file.is_some();
    let name = create.file.as_deref().unwrap_or(Path::new(""));
    let named = create.name.resolve(name, create.format)?;
    let file = named.path.as_path();
    let format = named.format.unwrap_or_else(|| ImageFormat::of_name(file));
    if create.new_image.asks_for_help() {
        return Ok(std::io::stdout().write_all(option_help(format, has_file).as_bytes())?);
    }
    if !has_file {
        return Err(Failure::usage("missing FILE: expected an image file name"));
    }
    let (mut options, size) = create.new_image.create_options(format)?;
    if create.size.is_some() && size.is_some() {
        return Err(Failure::usage("-o size: the size is given twice"));
    }
    let mut size = create.size.or(size);
    if let Some(backing) = &mut options.backing
        && !create.unsafe_backing
    {
        let path = beside(file, Path::new(&backing.name));
        refuse_protocol(Path::new(&backing.name)).map_err(Failure::usage)?;
        // Shared, as qemu-img does: a virtual machine may write the file until it moves on to the
        // new image.
        let device = create.backing.open(&path, backing.format, true);
        let device = device.map_err(|failure| at_new_image(failure, session, file))?;
        size.get_or_insert(device.len_bytes());
        if session.is_qemu_img() && backing.format.is_none() {
            return Err(without_format(file, &path));
        }
        if backing.format.is_none() {
            // The format is stored, so that later opens need not trust the file's first bytes.
            backing.format =
                Some(block::format_of(&path).map_err(|error| image_failure(error, &path))?);
        }
    }
    let Some(mut size) = size else {
        return Err(Failure::usage(
            "missing SIZE: required without a backing file",
        ));
    };
    session.check_interrupt()?;
    refuse_partition(file)?;
    if session.is_qemu_img() {
        if !session.quiet {
            let given = create.new_image.given();
            let line = formatting_line(name, format, size, &options, &given);
            std::io::stdout().write_all(line.as_bytes())?;
        }
        size = whole_sectors(size)?;
    }
    let replaces = create.new_image.force;
    let create_file = || {
        NewImage::create(file, format, size, &options, replaces)
            .and_then(NewImage::finish)
            .map_err(|error| new_image_failure(error, file))
    };
    if file.exists() {
        return create_file();
    }
    // Preallocation takes long. The file is new and incomplete, so its removal loses nothing.
    let clean = || drop(std::fs::remove_file(file));
    session.until_interrupt(clean, create_file)
}

/// Returns the failure of qemu-img for a backing file without a format.
fn without_format(file: &Path, backing: &Path) -> Failure {
    let file = file.display();
    let found = block::format_of(backing).map_or("unknown".to_owned(), |format| format.to_string());
    Failure::usage(format!(
        "{file}: Backing file specified without backing format\nDetected format of {found}."
    ))
}

/// Names the new image in a failure to open its backing file, as qemu-img does.
fn at_new_image(failure: Failure, session: &Session, file: &Path) -> Failure {
    if !session.is_qemu_img() {
        return failure;
    }
    let why = qemu_words::of_backing(&failure);
    let message = format!("{}: {why}\nCould not open backing image.", file.display());
    Failure::exiting(failure.exit, message)
}
