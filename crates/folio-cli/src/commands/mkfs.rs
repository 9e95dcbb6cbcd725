//! `folio mkfs`: creates an image with an empty ext4.

use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::new_file_system::{create, format_device};
use crate::session::{Session, clock};
use crate::value_parsers::disk_size;
use crate::volumes;
use clap::Args;
use folio::base::Owner;
use folio::block::partition::select;
use folio::block::{ImageFormat, contents};
use folio::ext4::FormatOptions;
use std::ffi::OsString;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  folio mkfs disk.img --size 10G
  folio mkfs disk.qcow2 --size 10G -L data --root-owner 1000:1000
  folio mkfs --force disk.img                      overwrite an existing image
  folio mkfs disk.img@2                            its second partition, if that is empty; else with --force";

/// Create an image with an empty ext4
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mkfs {
    /// The image; it must not exist unless --force is given. IMAGE@2 is its second partition
    image: OsString,
    /// Size of the disk
    #[arg(long, value_parser = disk_size)]
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
    root_owner: Option<Owner>,
    /// Overwrite an existing image
    #[arg(long)]
    force: bool,
}

fn owner(text: &str) -> Result<Owner, String> {
    let numbers = text
        .split_once(':')
        .and_then(|(uid, gid)| Some(Owner::new(uid.parse().ok()?, gid.parse().ok()?)));
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
        root_owner: mkfs.root_owner.unwrap_or(Owner::ROOT),
        reserved_percent: mkfs.reserved,
        clock: clock(),
        ..FormatOptions::default()
    };
    session.refuse_options()?;
    session.check_interrupt()?;
    let place = ImagePath::parse(&mkfs.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole file system is created; omit the path");
        return Err(Failure::usage(text));
    }
    let name = place.image_name();
    let is_volume = volumes::len_bytes(&place.image)?.is_some();
    if !place.image.exists() && !is_volume {
        let Some(size) = mkfs.size else {
            let text = format!("{name}: does not exist; give --size to create it");
            return Err(Failure::usage(text));
        };
        let format = mkfs
            .format
            .unwrap_or_else(|| ImageFormat::of_name(&place.image));
        return create(session, &place, format, size, &options).map(drop);
    }
    let mut device = open_device(&place.image, Access::Write)?;
    if place.partition.is_some() {
        let selected = place
            .partition_number(&*device)
            .and_then(|number| select(device, number));
        device = selected.map_err(|error| Failure::image(error.at(name.clone())))?;
    }
    // A new volume, or a partition of a new disk, is there to be formatted.
    let is_made_for_it = is_volume || place.partition.is_some();
    let is_empty = || is_made_for_it && matches!(contents(&*device), Ok(Some("only zeros")));
    if !mkfs.force && !is_empty() {
        let text = format!("{name}: already exists; use --force to overwrite it");
        return Err(Failure::new(text));
    }
    if mkfs.size.is_some_and(|size| size != device.len_bytes()) {
        let text = format!(
            "{name}: has {} bytes, and --force keeps the size; omit --size",
            device.len_bytes()
        );
        return Err(Failure::usage(text));
    }
    format_device(session, Path::new(&name), &*device, &options).map_err(|mut failure| {
        if failure.exit == Exit::Interrupted {
            failure.message = format!("{name}: interrupted: holds no file system now; repeat mkfs");
        }
        failure
    })
}
