//! The walk over all files below a path in an image, without recursion and without following links.

use crate::exit::Outcome;
use crate::image::Image;
use crate::session::Session;
use folio::vfs::{Attributes, FileType};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns `path/name`.
pub(crate) fn join(path: &Path, name: &[u8]) -> PathBuf {
    path.join(OsStr::from_bytes(name))
}

/// One file on a walk.
pub(crate) struct Visit<'a> {
    /// The absolute path.
    pub(crate) path: &'a Path,
    /// The result of lstat(2).
    pub(crate) attributes: &'a Attributes,
    /// The number of directories between the start and this file.
    pub(crate) depth: usize,
}

/// What the walk does after a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkControl {
    /// Continue, inside the file if it is a directory.
    Enter,
    /// Do not enter the directory.
    Skip,
}

/// Sees each file before the files below it, and each directory again after them.
pub(crate) trait Visitor {
    /// Visits a file.
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl>;

    /// Leaves a directory after all files below it.
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

/// Walks the tree of `start`, which has the attributes `found`. Failures to read are printed, and
/// the walk continues.
pub(crate) fn walk(
    session: &Session,
    image: &Image,
    start: &Path,
    found: Attributes,
    visitor: &mut impl Visitor,
) -> Outcome {
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = Some((start.to_path_buf(), found));
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
                // Only a damaged image has a cycle of directories. The longest possible path ends
                // it.
                if frames.len() > 4096 {
                    session.fail(format_args!(
                        "{}: skipped: directories nested too deeply",
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
