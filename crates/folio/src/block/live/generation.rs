//! Generations: frozen files that a fork leaves below an image, named `disk.gen-1.qcow2`.

use crate::base::{Errno, Error, Result};
use crate::block::file::HostFile;
use crate::block::image::ChainImage;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names that are tried for a generation.
const NAMES_MAX: u64 = 10_000;

/// Returns the name of a generation of the image at `image`.
fn name(image: &Path, number: u64) -> PathBuf {
    let stem = image.file_stem().unwrap_or_default();
    let mut name = stem.to_owned();
    name.push(format!(".gen-{number}"));
    if let Some(extension) = image.extension() {
        name.push(".");
        name.push(extension);
    }
    image.with_file_name(name)
}

/// Returns the image's name without extension, and the number, of a generation's path.
fn parse(path: &Path) -> Option<(&OsStr, u64)> {
    let number = |stem: &Path| {
        let digits = stem.extension()?.to_str()?.strip_prefix("gen-")?;
        digits.parse().ok()
    };
    let whole = Path::new(path.file_name()?);
    let without = Path::new(path.file_stem()?);
    let (stem, number) = match (number(whole), number(without)) {
        (Some(found), _) => (whole, found),
        (None, Some(found)) => (without, found),
        (None, None) => return None,
    };
    Some((stem.file_stem()?, number))
}

/// Returns how many generations are directly below the top image of a chain.
pub(super) fn count(chain: &[ChainImage]) -> usize {
    let below = chain.iter().skip(1);
    below
        .take_while(|image| parse(&image.path).is_some())
        .count()
}

/// Gives the image's file, which is at `image`, the name of its next generation as well.
///
/// # Errors
///
/// ESTALE if another file is at `image`; EOPNOTSUPP if the host has no second names; else the
/// host's errors.
pub(super) fn link(image: &Path, file: &HostFile, chain: &[ChainImage]) -> Result<PathBuf> {
    check_path(image, file)?;
    let own = image.file_stem();
    let numbers = chain.iter().filter_map(|image| parse(&image.path));
    let last = numbers
        .filter(|(stem, _)| own == Some(*stem))
        .map(|(_, number)| number)
        .max();
    let first = last.unwrap_or(0) + 1;
    for number in first..first + NAMES_MAX {
        let path = name(image, number);
        match fs::hard_link(image, &path) {
            Ok(()) => {
                check_path(&path, file).inspect_err(|_| {
                    // Created above, as a second name.
                    let _ = fs::remove_file(&path);
                })?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let errno = Errno::from_io_error(&error);
                if matches!(errno, Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS)) {
                    let why = "a fork on a host file system without hard links and reflinks";
                    return Err(Error::unsupported(why));
                }
                return Err(Error::io("link", error).at(path.display().to_string()));
            }
        }
    }
    let why = format!("{NAMES_MAX} names of generations are in use");
    Err(Error::new(Errno::EXIST, why))
}

/// Fails unless the image's file is at `path`.
///
/// # Errors
///
/// ESTALE for another file.
pub(super) fn check_path(path: &Path, file: &HostFile) -> Result<()> {
    let own = file.metadata()?;
    let found = fs::symlink_metadata(path)
        .map_err(|error| Error::io("stat", error).at(path.display().to_string()))?;
    if found.is_symlink() {
        let real = fs::canonicalize(path).unwrap_or_default();
        let why = format!(
            "the path is a symbolic link: open the image at {}",
            real.display()
        );
        return Err(Error::new(Errno::INVAL, why));
    }
    if (found.dev(), found.ino()) == (own.dev(), own.ino()) {
        return Ok(());
    }
    let why = "another file has taken the place of the open image";
    Err(Error::new(Errno::STALE, why).at(path.display().to_string()))
}

/// Makes the names in the folder of `path` durable.
pub(super) fn sync_folder(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| Error::io("fsync", error).at(folder.display().to_string()))
}

/// Returns the name of the file at `backing` for the header of the image at `image`: relative in
/// the same folder, else absolute.
///
/// # Errors
///
/// EINVAL for a path that is not text.
pub(super) fn name_for(image: &Path, backing: &Path) -> Result<String> {
    let is_beside = is_beside(image, backing)?;
    let absolute = std::path::absolute(backing)
        .map_err(|error| Error::io("open", error).at(path_text(backing)))?;
    let name = match backing.file_name() {
        Some(name) if is_beside => name,
        _ => absolute.as_os_str(),
    };
    let Some(name) = name.to_str() else {
        let why = "the path is not valid UTF-8, as the name of a backing file must be";
        return Err(Error::new(Errno::INVAL, why).at(path_text(backing)));
    };
    Ok(if is_beside && name.contains(':') {
        // Without the folder, readers would take the part before the colon for a protocol.
        format!("./{name}")
    } else {
        name.to_owned()
    })
}

/// Whether two files are in the same folder.
pub(super) fn is_beside(image: &Path, other: &Path) -> Result<bool> {
    let real =
        |path| fs::canonicalize(path).map_err(|error| Error::io("open", error).at(path_text(path)));
    Ok(real(folder_of(image))? == real(folder_of(other))?)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_names_are_recognized() {
        for (image, expected) in [
            ("/a/disk.qcow2", "/a/disk.gen-7.qcow2"),
            ("/a/disk", "/a/disk.gen-7"),
            ("/a/b.c.img", "/a/b.c.gen-7.img"),
        ] {
            let path = name(Path::new(image), 7);
            assert_eq!(path, Path::new(expected));
            assert_eq!(
                parse(&path),
                Path::new(image).file_stem().map(|stem| (stem, 7))
            );
        }
        for other in [
            "disk.qcow2",
            "gen-1",
            "disk.gen-x.qcow2",
            "disk.gen-1.old.qcow2",
        ] {
            assert_eq!(parse(Path::new(other)), None, "{other}");
        }
    }
}
