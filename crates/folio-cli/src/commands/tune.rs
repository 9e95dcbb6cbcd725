//! `folio tune`: changes label, UUID, reserved blocks and default mount options of a file system.

use crate::exit::{Failure, Outcome, explain};
use crate::image::{Access, Image, open_device};
use crate::image_path::ImagePath;
use crate::session::{Session, clock};
use clap::Args;
use folio::Errno;
use folio::ext4::{self, ReservedBlockCount, TuneOptions};
use std::ffi::OsString;

const AFTER_HELP: &str = "\
--mount-defaults sets the default mount options of the file system: errors=continue|remount-ro|panic, and, with the
names of tune2fs or mount, data=journal|ordered|writeback (journal_data and so on), nobarrier, discard, nodelalloc,
acl, user_xattr, block_validity. ^WORD clears one. This is -o of tune2fs.

A journal with transactions is replayed first.

Examples:
  folio tune disk.img -L data --mount-defaults errors=remount-ro,discard
  folio tune disk.qcow2@2 -m 1 -U 2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11
  folio tune disk.img --mount-defaults ^discard --mount-opts commit=30";

/// Change label, UUID, reserved blocks and default mount options of a file system
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Tune {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// UUID
    #[arg(short = 'U', long, value_parser = crate::value_parsers::uuid)]
    uuid: Option<[u8; 16]>,
    /// Percentage of blocks reserved for root
    #[arg(short = 'm', long, value_name = "PERCENT")]
    reserved: Option<f64>,
    /// Number of blocks reserved for root
    #[arg(short = 'r', long, value_name = "COUNT", conflicts_with = "reserved")]
    reserved_blocks: Option<u64>,
    /// User that may use reserved blocks too
    #[arg(long, value_name = "UID")]
    resuid: Option<u16>,
    /// Group that may use reserved blocks too
    #[arg(long, value_name = "GID")]
    resgid: Option<u16>,
    /// Number of mounts after which e2fsck checks everything; 0 for never
    #[arg(short = 'c', long, value_name = "COUNT")]
    max_mount_count: Option<u16>,
    /// Default mount options, as tune2fs -o
    #[arg(long, value_name = "OPTIONS", value_delimiter = ',')]
    mount_defaults: Vec<String>,
    /// Options that every mount applies before its own, at most 63 bytes; \"\" for none
    #[arg(long, value_name = "OPTIONS")]
    mount_opts: Option<String>,
}

/// Runs the command.
pub(crate) fn run(tune: &Tune, session: &Session) -> Outcome {
    let place = ImagePath::parse(&tune.image)?;
    if !session.options.is_empty() {
        return Err(Failure::usage(
            "-o: nothing is mounted here; use --mount-defaults to store default mount options",
        ));
    }
    let mut options = TuneOptions::default();
    options.label = tune.label.clone();
    options.uuid = tune.uuid;
    options.mount_defaults = Some(tune.mount_defaults.join(",")).filter(|words| !words.is_empty());
    options.mount_text = tune.mount_opts.clone();
    options.reserved = tune
        .reserved
        .map(ReservedBlockCount::Percent)
        .or(tune.reserved_blocks.map(ReservedBlockCount::Blocks));
    options.reserved_uid = tune.resuid;
    options.reserved_gid = tune.resgid;
    options.max_mount_count = tune.max_mount_count;
    options.clock = clock();
    session.check_interrupt()?;
    let device = open_device(&place.image, Access::Write)?;
    Image::replay(session, &place, device.clone())?;
    let device = place
        .select(device)
        .map_err(|error| Failure::image(error.at(place.image_name())))?;
    ext4::tune(&*device, &options).map_err(|error| {
        let text = format!("{}: {}", place.image_name(), explain(&error));
        // Only an invalid value of an option causes EINVAL.
        if error.errno() == Errno::INVAL {
            Failure::usage(text)
        } else {
            Failure::new(text)
        }
    })
}
