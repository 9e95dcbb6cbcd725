//! `folio rm`: removes files and trees.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use clap::Args;
use folio::Errno;
use folio::vfs::FileType;
use std::ffi::OsString;
use std::path::Path;

/// Remove files and trees
#[derive(Args)]
#[command(after_help = "Example:\n  folio rm -r disk.qcow2:/var/cache")]
pub(crate) struct Rm {
    /// Files to remove, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Remove directories and their contents
    #[arg(short, visible_short_alias = 'R', long)]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(rm: &Rm, session: &Session) -> Outcome {
    for word in &rm.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let paths = image.expand(&place.path).into_iter();
            paths
                .map(|path| place.with_path(path))
                .try_for_each(|place| remove(rm, session, image, &place))
        })?;
    }
    Ok(())
}

fn remove(rm: &Rm, session: &Session, image: &Image, place: &ImagePath) -> Outcome {
    let found = match image.stat(&place.path, false) {
        Err(error) if rm.force && error.errno() == Errno::NOENT => return Ok(()),
        Err(error) => {
            session.fail(image.name(error).message);
            return Ok(());
        }
        Ok(found) => found,
    };
    if found.file_type == FileType::Directory && !rm.recursive {
        session.fail(format_args!(
            "{place}: is a directory; use -r to remove it with its contents"
        ));
        return Ok(());
    }
    let is_root = image
        .stat(Path::new("/"), true)
        .is_ok_and(|root| root.number == found.number);
    if is_root {
        session.fail(format_args!("{place}: cannot remove the root directory"));
        return Ok(());
    }
    let mut remover = Remover { session, image };
    walk(session, image, &place.path, found, &mut remover)
}

struct Remover<'a> {
    session: &'a Session,
    image: &'a Image,
}

impl Visitor for Remover<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        if visit.attributes.file_type != FileType::Directory
            && let Err(error) = self.image.process().unlink(visit.path)
        {
            self.session.fail(self.image.name(error).message);
        }
        Ok(WalkControl::Enter)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Outcome {
        if let Err(error) = self.image.process().rmdir(visit.path) {
            self.session.fail(self.image.name(error).message);
        }
        Ok(())
    }
}
