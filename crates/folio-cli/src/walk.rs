//! All that lies below a path in an image, without recursion and without following links.

use crate::exit::Outcome;
use crate::image::Image;
use crate::session::Session;
use folio::vfs::{Attributes, FileType};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `path/name`.
pub(crate) fn join(path: &Path, name: &[u8]) -> PathBuf {
    path.join(OsStr::from_bytes(name))
}

/// One thing met on a walk.
pub(crate) struct Visit<'a> {
    /// From `/`.
    pub(crate) path: &'a Path,
    /// What lstat(2) tells.
    pub(crate) attributes: &'a Attributes,
    /// Directories between the start and this.
    pub(crate) depth: usize,
}

/// What to do after something was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkControl {
    /// Go on, into it if it is a directory.
    Enter,
    /// Do not enter.
    Skip,
}

/// A walker: told of things before what is below them, and of directories again after it.
pub(crate) trait Visitor {
    /// Something is met.
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl>;

    /// All below a directory has been met.
    fn leave(&mut self, visit: &Visit<'_>) -> Outcome {
        let _ = visit;
        Ok(())
    }
}

struct Frame {
    path: PathBuf,
    attributes: Attributes,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// Walks from `start` down. What cannot be read is told and passed over.
pub(crate) fn walk(
    session: &Session,
    image: &Image,
    start: (&Path, Attributes),
    visitor: &mut impl Visitor,
) -> Outcome {
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = Some((start.0.to_path_buf(), start.1));
    loop {
        session.check_interrupt()?;
        if let Some((path, attributes)) = next.take() {
            let visit = Visit {
                path: &path,
                attributes: &attributes,
                depth: frames.len(),
            };
            let is_directory = attributes.file_type == FileType::Directory;
            if visitor.visit(&visit)? == WalkControl::Enter && is_directory {
                // A cycle of directories is damage; the longest path a program can name ends it.
                if frames.len() > 4096 {
                    session.fail(format_args!(
                        "{}: directories are nested too deep",
                        image.at(&path)
                    ));
                    continue;
                }
                let names = image.names(&path).unwrap_or_else(|error| {
                    session.fail(image.name(error).message);
                    Vec::new()
                });
                frames.push(Frame {
                    path,
                    attributes,
                    names: names.into_iter(),
                });
            }
        }
        let Some(frame) = frames.last_mut() else {
            return Ok(());
        };
        if let Some(name) = frame.names.next() {
            let path = join(&frame.path, &name);
            match image.stat(&path, false) {
                Ok(attributes) => next = Some((path, attributes)),
                Err(error) => session.fail(image.name(error).message),
            }
        } else if let Some(frame) = frames.pop() {
            let visit = Visit {
                path: &frame.path,
                attributes: &frame.attributes,
                depth: frames.len(),
            };
            visitor.leave(&visit)?;
        }
    }
}
