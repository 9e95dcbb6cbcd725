//! The loop of `folio chmod` and `folio chown`: applies a change to files, or to whole trees.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use std::ffi::OsString;

/// Applies `change` to each path, and with `is_recursive` to all files below it. Failures are
/// printed, and the walk continues.
pub(crate) fn change_each(
    session: &Session,
    words: &[OsString],
    is_recursive: bool,
    change: impl Fn(&Image, &Visit<'_>) -> Outcome,
) -> Outcome {
    for word in words {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let mut visitor = Changer {
                session,
                image,
                is_recursive,
                change: &change,
            };
            for path in image.expand(&place.path) {
                match image.stat(&path, false) {
                    Ok(found) => walk(session, image, &path, found, &mut visitor)?,
                    Err(error) => session.fail(image.name(error).message),
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

struct Changer<'a, F> {
    session: &'a Session,
    image: &'a Image,
    is_recursive: bool,
    change: &'a F,
}

impl<F: Fn(&Image, &Visit<'_>) -> Outcome> Visitor for Changer<'_, F> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        if let Err(failure) = (self.change)(self.image, visit) {
            self.session.fail(failure.message);
        }
        Ok(if self.is_recursive {
            WalkControl::Enter
        } else {
            WalkControl::Skip
        })
    }
}
