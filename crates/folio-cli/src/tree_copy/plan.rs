//! The mapping of sources to destinations, by the rules of cp(1).

use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, is_same_file, with_image};
use crate::image_path::{ImagePath, PathArgument, has_pattern};
use crate::nearest::nearest_file;
use crate::session::Session;
use folio::Errno;
use folio::vfs::{Attributes, FileType};
use folio_tree::{CopyJob, CopyOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The destination, and the options that affect it.
pub(crate) struct Request<'a> {
    pub(crate) target: &'a Path,
    /// The destination as the user named it.
    pub(crate) name: String,
    /// It is an existing directory.
    pub(crate) is_directory: bool,
    /// There are several sources, so it must be a directory.
    pub(crate) has_many: bool,
    /// `-T`.
    pub(crate) is_itself: bool,
}

impl<'a> Request<'a> {
    /// Returns a request to copy into a directory of an image that does not exist yet.
    pub(crate) fn into_new(place: &'a ImagePath) -> Self {
        Self {
            target: &place.path,
            name: place.to_string(),
            is_directory: true,
            has_many: false,
            is_itself: false,
        }
    }
}

pub(crate) fn is_directory(found: &Attributes) -> bool {
    found.file_type == FileType::Directory
}

/// Splits the sources into runs of neighbors in the same image, or on the host.
pub(crate) fn groups(sources: &[PathArgument]) -> impl Iterator<Item = &[PathArgument]> {
    sources.chunk_by(|a, b| match (a, b) {
        (PathArgument::Host(_), PathArgument::Host(_)) => true,
        (PathArgument::Image(a), PathArgument::Image(b)) => is_same(a, b),
        _ => false,
    })
}

/// Returns the sources in an image, with patterns replaced by the files that match.
pub(crate) fn expanded(image: &Image, group: &[PathArgument]) -> Vec<PathArgument> {
    let mut found = Vec::new();
    for source in group {
        match source {
            PathArgument::Image(place) => {
                let paths = image.expand(&place.path).into_iter();
                found.extend(paths.map(|path| PathArgument::Image(place.with_path(path))));
            }
            PathArgument::Host(_) => found.push(source.clone()),
        }
    }
    found
}

/// Returns the sources of a copy into an image: patterns are replaced by the files that match.
pub(crate) fn expand_all(
    session: &Session,
    sources: Vec<PathArgument>,
) -> Outcome<Vec<PathArgument>> {
    let mut found = Vec::new();
    for group in groups(&sources) {
        let pattern = group.iter().find_map(|source| match source {
            PathArgument::Image(place) if has_pattern(place.path.as_os_str().as_bytes()) => {
                Some(place)
            }
            _ => None,
        });
        let Some(place) = pattern else {
            found.extend_from_slice(group);
            continue;
        };
        with_image(session, place, Access::Read, |image| {
            found.extend(expanded(image, group));
            Ok(())
        })?;
    }
    Ok(found)
}

/// Whether both paths are in the same file system.
fn is_same(a: &ImagePath, b: &ImagePath) -> bool {
    a.partition == b.partition && is_same_file(&a.image, &b.image)
}

/// Returns the usage error of a copy from host to host, with the likely cause.
pub(crate) fn no_image(source: &PathArgument, target: &Path) -> Failure {
    let PathArgument::Host(source) = source else {
        return Failure::usage("missing IMAGE:/path");
    };
    let missing = |path: &Path| {
        let bytes = path.as_os_str().as_bytes();
        let at = bytes.windows(2).position(|pair| pair == b":/")?;
        let image = Path::new(OsStr::from_bytes(&bytes[..at]));
        (at > 0 && !image.exists()).then(|| image.to_owned())
    };
    let (from, to) = (source.display(), target.display());
    if let Some(image) = missing(target) {
        return Failure::usage(format!(
            "{to}: the image {} does not exist; create it with --create SIZE",
            image.display()
        ));
    }
    if let Some(image) = missing(source) {
        let meant = nearest_file(&image).map(|meant| format!("; did you mean {meant}?"));
        return Failure::usage(format!(
            "{from}: the image {} does not exist{}",
            image.display(),
            meant.unwrap_or_default()
        ));
    }
    for path in [source, target] {
        let bytes = path.as_os_str().as_bytes();
        let at = bytes.iter().position(|byte| *byte == b':').unwrap_or(0);
        let image = Path::new(OsStr::from_bytes(&bytes[..at]));
        if image.is_file() && !path.exists() {
            let (image, inside) = (image.display(), OsStr::from_bytes(&bytes[at + 1..]));
            return Failure::usage(format!(
                "{}: a path inside an image starts with '/': use {image}:/{}",
                path.display(),
                inside.display()
            ));
        }
    }
    let hint = if target.is_file() {
        format!("; to copy into the image {to}, write {to}:/")
    } else if source.is_file() {
        format!("; to copy out of the image {from}, write {from}:/path")
    } else {
        String::new()
    };
    Failure::usage(format!(
        "neither {from} nor {to} is a path in an image, IMAGE:/path{hint}"
    ))
}

/// Returns a job for each source.
pub(crate) fn jobs(request: &Request<'_>, sources: &[PathArgument]) -> Outcome<Vec<CopyJob>> {
    let shown = &request.name;
    if request.is_itself && request.has_many {
        return Err(Failure::usage("-T: expected one source"));
    }
    if request.has_many && !request.is_directory {
        return Err(Failure::new(format!(
            "{shown}: not a directory, as required for several sources"
        )));
    }
    let into = request.is_directory && !request.is_itself;
    let of = |source: &PathArgument| {
        let from = match source {
            PathArgument::Host(path) => path,
            PathArgument::Image(place) => &place.path,
        };
        if into {
            CopyJob::into_directory(from, request.target)
        } else {
            CopyJob::to(from, request.target)
        }
    };
    Ok(sources.iter().map(of).collect())
}

/// Fails if a source on the host is missing, before an image is created for it.
pub(crate) fn check_host(source: &PathArgument, options: &CopyOptions) -> Outcome {
    let PathArgument::Host(path) = source else {
        return Ok(());
    };
    let found = if options.follows_links {
        path.metadata()
    } else {
        path.symlink_metadata()
    };
    match found {
        Ok(found) if found.is_dir() && !options.is_recursive => Err(Failure::new(format!(
            "{}: is a directory; use -r to copy it",
            path.display()
        ))),
        Ok(_) => Ok(()),
        Err(error) => {
            let error = folio::Error::from(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            let meant = if error.errno() == Errno::NOENT {
                nearest_file(path)
            } else {
                None
            };
            let hint = meant
                .map(|meant| format!("; did you mean {meant}?"))
                .unwrap_or_default();
            Err(Failure::new(format!("{}: {error}{hint}", path.display())))
        }
    }
}

/// Creates the directories above the destination in a new image, and the destination if it must be
/// a directory.
pub(crate) fn make_parents(image: &Image, place: &ImagePath, sources: &[PathArgument]) -> Outcome {
    let path = &place.path;
    let is_directory = sources.len() > 1 || path.as_os_str().as_bytes().ends_with(b"/");
    let until = if is_directory {
        Some(path.as_path())
    } else {
        path.parent()
    };
    let mut made = PathBuf::from("/");
    for part in until.into_iter().flat_map(Path::components) {
        made.push(part);
        match image.process().mkdir(&made, 0o755) {
            Err(error) if error.errno() != Errno::EXIST => return Err(image.name(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Fails if a directory would be copied into itself, or a file onto itself.
pub(crate) fn check_within(image: &Image, job: &CopyJob) -> Outcome {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Ok(source) = image.stat(&path(&job.from), false) else {
        return Ok(());
    };
    let target = job.target();
    if image
        .stat(&path(&target), false)
        .is_ok_and(|found| found.number == source.number)
    {
        let (from, to) = (image.at(&path(&job.from)), image.at(&path(&target)));
        return Err(Failure::new(format!("{from} and {to} are the same file")));
    }
    let mut above = path(&job.parent);
    let mut last = None;
    while let Ok(found) = image.stat(&above, true) {
        if found.number == source.number {
            let (from, to) = (image.at(&path(&job.from)), image.at(&path(&target)));
            return Err(Failure::new(format!(
                "{from}: cannot copy a directory into itself, {to}"
            )));
        }
        // The root is its own parent.
        if last == Some(found.number) {
            break;
        }
        last = Some(found.number);
        above.push("..");
    }
    Ok(())
}
