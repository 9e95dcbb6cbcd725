//! All that lies below a path in an image, without recursion and without following links.

use crate::exit::Outcome;
use crate::image::Image;
use crate::session::Session;
use folio::syscall::OpenFlags;
use folio::vfs::{Attributes, FileType};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Entries that are asked for at once.
const BATCH: usize = 1024;

/// The names in a directory, sorted, without `.` and `..`.
pub(crate) fn names(image: &Image, path: &Path) -> folio::Result<Vec<Vec<u8>>> {
    let process = image.process();
    let fd = process.open(path, OpenFlags::DIRECTORY, 0)?;
    let mut names = Vec::new();
    let listed = loop {
        match process.getdents(fd, BATCH) {
            Ok(entries) if entries.is_empty() => break Ok(()),
            Ok(entries) => names.extend(entries.into_iter().map(|entry| entry.name)),
            Err(error) => break Err(error.at(path.display().to_string())),
        }
    };
    process.close(fd)?;
    listed?;
    names.retain(|name| name != b"." && name != b"..");
    names.sort_unstable();
    Ok(names)
}

/// `path/name`.
pub(crate) fn join(path: &Path, name: &[u8]) -> PathBuf {
    path.join(OsStr::from_bytes(name))
}

/// One thing met on a walk.
pub(crate) struct Met<'a> {
    /// From `/`.
    pub(crate) path: &'a Path,
    /// What lstat(2) tells.
    pub(crate) attributes: &'a Attributes,
    /// Directories between the start and this.
    pub(crate) depth: usize,
}

/// What to do after something was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on, into it if it is a directory.
    Enter,
    /// Do not enter.
    Skip,
}

/// A walker: told of things before what is below them, and of directories again after it.
pub(crate) trait Visitor {
    /// Something is met.
    fn meet(&mut self, met: &Met<'_>) -> Outcome<Next>;

    /// All below a directory has been met.
    fn leave(&mut self, met: &Met<'_>) -> Outcome {
        let _ = met;
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
            let met = Met {
                path: &path,
                attributes: &attributes,
                depth: frames.len(),
            };
            let is_directory = attributes.file_type == FileType::Directory;
            if visitor.meet(&met)? == Next::Enter && is_directory {
                // A cycle of directories is damage; the longest path a program can name ends it.
                if frames.len() > 4096 {
                    session.fail(format_args!(
                        "{}: directories are nested too deep",
                        image.at(&path)
                    ));
                    continue;
                }
                let names = names(image, &path).unwrap_or_else(|error| {
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
            let met = Met {
                path: &frame.path,
                attributes: &frame.attributes,
                depth: frames.len(),
            };
            visitor.leave(&met)?;
        }
    }
}
