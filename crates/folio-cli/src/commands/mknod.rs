//! `folio mknod`: creates device nodes and FIFOs.

use crate::arguments::mode::parse_mode;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::syscall::AT_FDCWD;
use folio::vfs::{DeviceNumber, FileType};
use std::ffi::OsString;

/// Create device nodes and FIFOs
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio mknod -m 666 disk.qcow2:/dev/null c 1 3\n  folio mknod disk.qcow2:/run/pipe p"
)]
pub(crate) struct Mknod {
    /// Mode, as in chmod(1), instead of 644
    #[arg(short, long, default_value = "644", hide_default_value = true)]
    mode: String,
    /// The new file, as IMAGE:/path
    place: OsString,
    /// Type: b block device, c or u character device, p FIFO
    #[arg(value_name = "TYPE", value_parser = ["b", "c", "u", "p"])]
    kind: String,
    /// Major device number
    major: Option<u32>,
    /// Minor device number
    minor: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(mknod: &Mknod, session: &Session) -> Outcome {
    let place = ImagePath::parse(&mknod.place)?;
    let mode = parse_mode(&mknod.mode, 0o666, false)?;
    let numbers = mknod.major.zip(mknod.minor);
    let number = numbers.map(|(major, minor)| DeviceNumber::new(major, minor));
    let (file_type, device) = match (mknod.kind.as_str(), number) {
        ("p", None) if mknod.major.is_none() => (FileType::Fifo, DeviceNumber::default()),
        ("p", _) => return Err(Failure::usage("a FIFO has no device numbers")),
        ("b", Some(device)) => (FileType::BlockDevice, device),
        (_, Some(device)) => (FileType::CharacterDevice, device),
        (_, None) => {
            return Err(Failure::usage(
                "a device node needs MAJOR and MINOR (e.g. c 1 3)",
            ));
        }
    };
    with_image(session, &place, Access::Write, |image| {
        let process = image.process();
        process.umask(0);
        let made = process.mknodat(AT_FDCWD, &place.path, file_type, mode, device);
        made.map_err(|error| image.name(error))
    })
}
