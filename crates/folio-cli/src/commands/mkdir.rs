//! `folio mkdir`: creates directories.

use crate::arguments::mode::parse_mode;
use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::Errno;
use folio::vfs::FileType;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Create directories
#[derive(Args)]
#[command(after_help = "Example:\n  folio mkdir -p disk.qcow2:/etc/app/conf.d")]
pub(crate) struct Mkdir {
    /// Directories, as IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Create missing parents too, and accept a directory that exists
    #[arg(short)]
    parents: bool,
    /// Mode of the directory, such as 750
    #[arg(short, value_name = "MODE")]
    mode: Option<String>,
}

/// Runs the command.
pub(crate) fn run(mkdir: &Mkdir, session: &Session) -> Outcome {
    for word in &mkdir.places {
        let place = ImagePath::parse(word)?;
        let mode = mkdir
            .mode
            .as_deref()
            .map(|text| parse_mode(text, 0o777, true))
            .transpose()?;
        with_image(session, &place, Access::Write, |image| {
            if let Err(error) = create(image, &place.path, mkdir.parents, mode) {
                session.fail(image.name(error).message);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn create(image: &Image, path: &Path, parents: bool, mode: Option<u16>) -> folio::Result<()> {
    let process = image.process();
    if parents {
        let mut above = PathBuf::new();
        for part in path.components() {
            above.push(part);
            match process.mkdir(&above, 0o755) {
                Err(error) if error.errno() != Errno::EXIST => return Err(error),
                _ => {}
            }
        }
        if image.stat(path, true)?.file_type != FileType::Directory {
            return Err(folio::Error::from(Errno::EXIST).at(path.display().to_string()));
        }
    } else {
        process.mkdir(path, 0o777)?;
    }
    mode.map_or(Ok(()), |mode| process.chmod(path, mode))
}
