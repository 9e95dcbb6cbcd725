//! `folio mv`: moves and renames files inside an image.

use crate::destination::{check_same_image, destination};
use crate::exit::{Failure, Outcome};
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::Errno;
use std::ffi::OsString;

/// Move or rename files inside an image
#[derive(Args)]
#[command(after_help = "Example:\n  folio mv disk.qcow2:/etc/old.conf disk.qcow2:/etc/new.conf")]
pub(crate) struct Mv {
    /// What to move, as IMAGE:/path, then the new path in the same image or the directory to move
    /// into
    #[arg(required = true, num_args = 1.., value_names = ["SOURCE", "DESTINATION"])]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(mv: &Mv, session: &Session) -> Outcome {
    let places = mv
        .places
        .iter()
        .map(|word| ImagePath::parse(word))
        .collect::<Outcome<Vec<_>>>()?;
    let Some((target, sources)) = places.split_last().filter(|(_, rest)| !rest.is_empty()) else {
        return Err(Failure::usage("expected SOURCE and DESTINATION"));
    };
    check_same_image(&places)?;
    with_image(session, target, Access::Write, |image| {
        for source in sources {
            let path = destination(image, target, source, sources.len() > 1)?;
            let is_inside = path.starts_with(&source.path) && path != source.path;
            match image.process().rename(&source.path, &path) {
                Err(error) if is_inside && error.errno() == Errno::INVAL => {
                    let to = image.at(&path);
                    session.fail(format_args!(
                        "{source}: cannot move a directory into itself, {to}"
                    ));
                }
                Err(error) => session.fail(image.name(error).message),
                Ok(()) => {}
            }
        }
        Ok(())
    })
}
