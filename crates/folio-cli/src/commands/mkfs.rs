//! `folio mkfs`: creates an image with an empty ext4.

use crate::exit::{Failure, Outcome};
use crate::image::{Access, create, format_of, open_device};
use crate::session::{Session, clock};
use crate::value_parsers::disk_size;
use clap::Args;
use folio::block::ImageFormat;
use folio::kernel::{FormatOptions, format_ext4};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  folio mkfs disk.img --size 10G
  folio mkfs disk.qcow2 --size 10G -L data --root-owner 1000:1000
  folio mkfs --force disk.img                      overwrite an existing image";

/// Create an image with an empty ext4
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mkfs {
    /// The image; it must not exist unless --force is given
    image: PathBuf,
    /// Size of the disk
    #[arg(long, value_parser = disk_size, required_unless_present = "force")]
    size: Option<u64>,
    /// Format of the image; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// UUID; the default is random
    #[arg(short = 'U', long, value_parser = crate::value_parsers::uuid)]
    uuid: Option<[u8; 16]>,
    /// Bytes per block: 1024, 2048 or 4096
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = crate::value_parsers::size)]
    block_size: Option<u64>,
    /// Bytes of disk per inode
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = crate::value_parsers::size)]
    inode_ratio: Option<u64>,
    /// Percentage of blocks reserved for root
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5.0)]
    reserved: f64,
    /// Owner and group of the root directory
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    root_owner: Option<(u32, u32)>,
    /// Overwrite an existing image
    #[arg(long)]
    force: bool,
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let numbers = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("invalid owner {text:?}: expected UID:GID (e.g. 1000:1000)"))
}

/// Runs the command.
pub(crate) fn run(mkfs: &Mkfs, session: &Session) -> Outcome {
    let number = |value: Option<u64>| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let options = FormatOptions {
        label: mkfs.label.clone().unwrap_or_default(),
        uuid: mkfs.uuid,
        block_size: number(mkfs.block_size),
        inode_ratio: number(mkfs.inode_ratio),
        root_owner: mkfs.root_owner.unwrap_or((0, 0)),
        reserved_percent: mkfs.reserved,
        clock: clock(),
        ..FormatOptions::default()
    };
    session.refuse_options()?;
    session.check_interrupt()?;
    if !mkfs.image.exists() {
        let Some(size) = mkfs.size else {
            return Err(Failure::usage(format!(
                "{}: does not exist; give --size to create it",
                mkfs.image.display()
            )));
        };
        return create(
            &mkfs.image,
            format_of(&mkfs.image, mkfs.format),
            size,
            &options,
        )
        .map(drop);
    }
    if !mkfs.force {
        return Err(Failure::new(format!(
            "{}: already exists; use --force to overwrite it",
            mkfs.image.display()
        )));
    }
    let device = open_device(&mkfs.image, Access::Write)?;
    if mkfs.size.is_some_and(|size| size != device.len_bytes()) {
        let text = format!(
            "{}: has {} bytes, and --force keeps the size; omit --size",
            mkfs.image.display(),
            device.len_bytes()
        );
        return Err(Failure::usage(text));
    }
    format_ext4(&*device, &options)?;
    Ok(())
}
