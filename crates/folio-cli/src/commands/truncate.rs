//! `folio truncate`: sets the size of files.

use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::syscall::OpenFlags;
use std::ffi::OsString;

/// Set the size of files
#[derive(Args)]
#[command(after_help = "Example:\n  folio truncate -s 1G disk.qcow2:/swapfile")]
pub(crate) struct Truncate {
    /// The new size
    #[arg(short, long, value_parser = size)]
    size: u64,
    /// Files, as IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(truncate: &Truncate, session: &Session) -> Outcome {
    for word in &truncate.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let process = image.process();
            let fd = process
                .open(&place.path, OpenFlags::WRONLY | OpenFlags::CREAT, 0o666)
                .map_err(|error| image.name(error))?;
            let truncated = process.ftruncate(fd, truncate.size);
            process.close(fd)?;
            truncated.map_err(|error| image.name(error.at(place.path.display().to_string())))
        })?;
    }
    Ok(())
}
