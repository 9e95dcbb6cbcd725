//! `IMAGE:/path` and `IMAGE@N:/path`, as opposed to paths on the host.

use crate::exit::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A path inside an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagePath {
    /// The image file.
    pub(crate) image: PathBuf,
    /// The partition; `None` is the only one that holds ext4.
    pub(crate) partition: Option<u32>,
    /// The absolute path inside.
    pub(crate) path: PathBuf,
}

/// An argument that is either a path inside an image or a path on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathArgument {
    /// Inside an image.
    Image(ImagePath),
    /// On the host.
    Host(PathBuf),
}

impl ImagePath {
    /// Parses `IMAGE`, `IMAGE:` or `IMAGE:/path`.
    pub(crate) fn parse(word: &OsStr) -> Outcome<Self> {
        if word.is_empty() {
            return Err(Failure::usage(
                "invalid image \"\": expected IMAGE or IMAGE:/path",
            ));
        }
        if let Some((image, path)) = split(word)
            && !is_image(Path::new(word))
        {
            return Ok(Self::new(image, path));
        }
        let bytes = word.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        if let Some(at) = colon
            && !Path::new(word).exists()
            && is_image(Path::new(OsStr::from_bytes(&bytes[..at])))
        {
            let (image, path) = (show(&bytes[..at]), show(&bytes[at + 1..]));
            let text = format!(
                "{image}:{path}: a path inside an image starts with '/': use {image}:/{path}"
            );
            return Err(Failure::usage(text));
        }
        Ok(Self::new(word, OsStr::new("/")))
    }

    fn new(image: &OsStr, path: &OsStr) -> Self {
        let (image, partition) = split_partition(image);
        Self {
            image,
            partition,
            path: path.into(),
        }
    }

    /// Returns the image as the user named it.
    pub(crate) fn image_name(&self) -> String {
        match self.partition {
            Some(number) => format!("{}@{number}", self.image.display()),
            None => self.image.display().to_string(),
        }
    }

    /// Returns the same image with another path.
    pub(crate) fn with_path(&self, path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ..self.clone()
        }
    }
}

impl fmt::Display for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.image_name(), self.path.display())
    }
}

impl PathArgument {
    /// Parses an argument: a path inside an image if the text before the first `:/` (or a final
    /// `:`) is an existing file or, with `creates`, any name.
    pub(crate) fn parse(word: &OsStr, creates: bool) -> Self {
        if let Some((image, path)) = split(word)
            && (creates || is_image(&split_partition(image).0))
        {
            return Self::Image(ImagePath::new(image, path));
        }
        Self::Host(word.into())
    }
}

impl fmt::Display for PathArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(place) => place.fmt(f),
            Self::Host(path) => path.display().fmt(f),
        }
    }
}

/// Splits at the first colon, if a slash or nothing follows it. A leading `./` marks a path on the
/// host.
fn split(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b':')?;
    let (image, path) = (&bytes[..at], &bytes[at + 1..]);
    if image.is_empty() || !(path.is_empty() || path[0] == b'/') {
        return None;
    }
    let path = if path.is_empty() { b"/" } else { path };
    Some((OsStr::from_bytes(image), OsStr::from_bytes(path)))
}

/// Splits off `@N`, unless a file has exactly this name.
fn split_partition(image: &OsStr) -> (PathBuf, Option<u32>) {
    let bytes = image.as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'@');
    if let Some(at) = at
        && let Ok(digits) = std::str::from_utf8(&bytes[at + 1..])
        && let Ok(number) = digits.parse()
        && !Path::new(image).exists()
    {
        return (
            OsString::from_vec(bytes[..at].to_vec()).into(),
            Some(number),
        );
    }
    (image.into(), None)
}

fn is_image(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(word: &str) -> bool {
        matches!(
            PathArgument::parse(OsStr::new(word), false),
            PathArgument::Host(_)
        )
    }

    #[test]
    fn only_existing_files_are_images() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.img");
        std::fs::write(&image, "").unwrap();
        let image = image.to_str().unwrap();
        assert!(host(image) && host("none.img:/a") && host("./a:b") && host("a:/b"));
        assert!(!host(&format!("{image}:/srv")) && !host(&format!("{image}:")));
        let word = format!("{image}@2:/srv/a:b");
        let PathArgument::Image(place) = PathArgument::parse(OsStr::new(&word), false) else {
            panic!()
        };
        assert_eq!(
            (place.partition, place.path.as_path()),
            (Some(2), Path::new("/srv/a:b"))
        );
        assert_eq!(place.to_string(), word);
    }

    #[test]
    fn image_alone_means_its_root() {
        let place = ImagePath::parse(OsStr::new("x.img")).unwrap();
        assert_eq!(
            (place.image.as_path(), place.path.as_path()),
            (Path::new("x.img"), Path::new("/"))
        );
    }
}
