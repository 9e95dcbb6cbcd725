//! `folio ln`: creates hard and symbolic links.

use crate::destination::{check_same_image, destination};
use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Create links
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio ln -s ../run disk.qcow2:/var/run\n  folio ln disk.qcow2:/a disk.qcow2:/b"
)]
pub(crate) struct Ln {
    /// Create a symbolic link: TARGET is then its text, not IMAGE:/path
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file, unless it is a directory
    #[arg(short, long)]
    force: bool,
    /// The target of the link
    target: OsString,
    /// The link, as IMAGE:/path
    link: OsString,
}

/// Runs the command.
pub(crate) fn run(ln: &Ln, session: &Session) -> Outcome {
    let link = ImagePath::parse(&ln.link)?;
    let target = if ln.symbolic {
        // Only its last name matters, if the link goes into a directory.
        link.with_path(PathBuf::from(&ln.target))
    } else {
        ImagePath::parse(&ln.target)?
    };
    if !ln.symbolic {
        check_same_image(&[target.clone(), link.clone()])?;
    }
    with_image(session, &link, Access::Write, |image| {
        if !ln.symbolic {
            // The error of the call names the link only.
            image
                .stat(&target.path, false)
                .map_err(|error| image.name(error))?;
        }
        let path = destination(image, &link, &target, false)?;
        if ln.force && image.stat(&path, false).is_ok() {
            image
                .process()
                .unlink(&path)
                .map_err(|error| image.name(error))?;
        }
        let created = if ln.symbolic {
            image.process().symlink(Path::new(&ln.target), &path)
        } else {
            image.process().link(&target.path, &path)
        };
        created.map_err(|error| image.name(error))
    })
}
