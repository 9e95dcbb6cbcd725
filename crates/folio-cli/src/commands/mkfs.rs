//! `folio mkfs`: creates an image with an empty ext4, or with an EROFS of a tree.

use crate::arguments::new_image::{NewFileSystem, NewImage};
use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::new_erofs;
use crate::new_file_system::{create, format_device};
use crate::session::{Session, clock};
use crate::value_parsers::disk_size;
use crate::volumes;
use clap::Args;
use folio::base::Owner;
use folio::block::partition::select;
use folio::block::{ImageFormat, contents};
use folio::ext4::{ExtraSpace, FormatOptions};
use folio_erofs::Compression;
use folio_tree::NewSize;
use std::ffi::OsString;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  folio mkfs disk.img --size 10G
  folio mkfs disk.qcow2 --size 10G -L data --root-owner 1000:1000
  folio mkfs --force disk.img                      overwrite an existing image
  folio mkfs disk.img@2                            its second partition, if that is empty; else with --force
  folio mkfs --type erofs root.erofs ./root        a read-only file system with the files of a directory
  folio mkfs root.erofs ./root --compress zstd:12  the same, compressed
  folio mkfs --type erofs root.erofs oci:layout    of a container image; also of a tar archive, and of IMAGE:/path

A read-only EROFS is as large as its content. Equal files share their blocks. With SOURCE_DATE_EPOCH and --uuid, equal
sources give equal bytes. To choose or change what is copied, use folio cp -a SOURCE root.erofs:/ --create, or
folio tar -xf ARCHIVE root.erofs:/ --create.";

/// Create an image with an empty ext4, or with an EROFS of a tree
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mkfs {
    /// The image; it must not exist unless --force is given. IMAGE@2 is its second partition
    image: OsString,
    /// The files of an erofs: a directory, IMAGE:/path, a tar archive or a container image
    source: Option<OsString>,
    /// Type of the file system; the default follows from the name of the image: erofs for .erofs,
    /// else ext4
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<NewFileSystem>,
    /// Compress the contents of an erofs: lz4, zstd or zstd:LEVEL
    #[arg(long, value_name = "METHOD")]
    compress: Option<Compression>,
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

impl Mkfs {
    fn ext4_options(&self) -> FormatOptions {
        let number =
            |value: Option<u64>| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
        FormatOptions {
            label: self.label.clone().unwrap_or_default(),
            uuid: self.uuid,
            block_size: number(self.block_size),
            inode_ratio: number(self.inode_ratio),
            root_owner: self.root_owner.unwrap_or(Owner::ROOT),
            reserved_percent: self.reserved,
            clock: clock(),
            ..FormatOptions::default()
        }
    }

    /// Returns the options of an image that gets files.
    fn new_image(&self) -> NewImage {
        NewImage {
            create: Some(NewSize::Auto(ExtraSpace::None)),
            format: self.format,
            kind: self.kind,
            compress: self.compress,
            uuid: self.uuid,
            label: self.label.clone(),
        }
    }

    /// Creates an EROFS.
    fn erofs(&self, session: &Session, place: &ImagePath, new_image: &NewImage) -> Outcome {
        let is_sized = self.size.is_some() || self.format.is_some();
        let is_shaped = self.block_size.is_some() || self.inode_ratio.is_some();
        if is_sized || is_shaped || self.root_owner.is_some() || self.force {
            let text = "--size, --format, -b, -i, --root-owner and --force: only with --type ext4";
            return Err(Failure::usage(text));
        }
        let Some(source) = &self.source else {
            let text = format!(
                "{}: an erofs is read-only: give the SOURCE of its files",
                place.image_name()
            );
            return Err(Failure::usage(text));
        };
        new_erofs::create(session, place, new_image, source)
    }
}

/// Runs the command.
pub(crate) fn run(mkfs: &Mkfs, session: &Session) -> Outcome {
    let options = mkfs.ext4_options();
    session.refuse_options()?;
    session.check_interrupt()?;
    let place = ImagePath::parse(&mkfs.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole file system is created; omit the path");
        return Err(Failure::usage(text));
    }
    let name = place.image_name();
    let new_image = mkfs.new_image();
    if new_image.is_erofs(&place) {
        return mkfs.erofs(session, &place, &new_image);
    }
    if mkfs.source.is_some() || mkfs.compress.is_some() {
        let text = format!(
            "SOURCE and --compress: only with --type erofs; folio cp -a SOURCE {name}:/ --create \
             makes an ext4"
        );
        return Err(Failure::usage(text));
    }
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
