//! `folio mv`: moves and renames files inside an image.

use super::destination::{check_same_image, destination};
use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use std::ffi::OsString;

/// Move or rename files inside an image
#[derive(Args)]
#[command(after_help = "Example:\n  folio mv disk.qcow2:/etc/old.conf disk.qcow2:/etc/new.conf")]
pub(crate) struct Mv {
    /// Sources and destination in one image, as IMAGE:/path
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(mv: &Mv, session: &Session) -> Outcome {
    let places = mv
        .places
        .iter()
        .map(|word| ImagePath::parse(word))
        .collect::<Outcome<Vec<_>>>()?;
    let Some((target, sources)) = places.split_last() else {
        return Ok(());
    };
    check_same_image(&places)?;
    with_image(session, target, Access::Write, |image| {
        for source in sources {
            let path = destination(image, target, source, sources.len() > 1)?;
            if let Err(error) = image.process().rename(&source.path, path) {
                session.fail(image.name(error).message);
            }
        }
        Ok(())
    })
}
