//! `IMAGE:/path` and `IMAGE@N:/path`, as opposed to paths on the host.

use crate::exit::{Failure, Outcome};
use crate::objects::{check_built, has_inner_path, is_url, split_url};
use folio::block::partition::{PartitionName, split_partition};
use folio::block::{self, Device};
use folio::fat::FatWidth;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A path inside an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagePath {
    /// The image file.
    pub(crate) image: PathBuf,
    /// The partition; `None` is the one that [`block::partition::select`] finds.
    pub(crate) partition: Option<PartitionName>,
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

/// Returns the name of what `device`, without an ext4, holds; of a FAT with its width.
///
/// # Errors
///
/// The device's errors.
pub(crate) fn contents_name(device: &Arc<dyn Device>) -> folio::Result<Option<&'static str>> {
    let name = block::contents(&**device)?;
    let width = name
        .filter(|name| *name == "fat")
        .and_then(|_| FatWidth::of(device).ok());
    Ok(width.map(FatWidth::name).or(name))
}

/// Whether a name or path has a character of a pattern.
pub(crate) fn has_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[".contains(byte))
}

/// The directory that paths without an image start in, of the option `--inside`.
static INSIDE: OnceLock<ImagePath> = OnceLock::new();

/// Makes all words without an image paths inside the directory that `word` names, in this process.
pub(crate) fn start_inside(word: &OsStr) -> Outcome {
    let place = ImagePath::parse(word)?;
    let place = INSIDE.get_or_init(|| place);
    tracing::debug!(%place, "paths start in a directory of an image");
    Ok(())
}

/// Returns the path of a word without an image, if [`start_inside`] was called.
fn inside(word: &OsStr) -> Option<ImagePath> {
    let start = INSIDE.get()?;
    let names_image = |(image, _)| is_image(&split_partition(image).0);
    if word.is_empty() || split(word).is_some_and(names_image) {
        return None;
    }
    Some(match word.as_bytes() {
        // Printed names then have no "/." in them.
        b"." => start.clone(),
        _ => start.with_path(start.path.join(word)),
    })
}

impl ImagePath {
    /// Parses `IMAGE`, `IMAGE:` or `IMAGE:/path`.
    pub(crate) fn parse(word: &OsStr) -> Outcome<Self> {
        if let Some((image, path)) = split_url(word) {
            check_built(Path::new(image)).map_err(Failure::usage)?;
            return Ok(Self::new(image, path));
        }
        if let Some(place) = inside(word) {
            return Ok(place);
        }
        if word.is_empty() {
            return Err(Failure::usage(
                "invalid image \"\": expected IMAGE or IMAGE:/path",
            ));
        }
        let split = split(word);
        if !split.is_some_and(|(image, _)| is_image(&split_partition(image).0)) {
            refuse_protocol(Path::new(word)).map_err(Failure::usage)?;
        }
        if let Some((image, path)) = split
            && !is_image(Path::new(word))
        {
            return Ok(Self::new(image, path));
        }
        let bytes = word.as_bytes();
        let mut colons = (0..bytes.len()).filter(|at| bytes[*at] == b':');
        if !Path::new(word).exists()
            && let Some(at) =
                colons.find(|at| is_image(Path::new(OsStr::from_bytes(&bytes[..*at]))))
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
        match &self.partition {
            Some(name) => format!("{}@{name}", self.image.display()),
            None => self.image.display().to_string(),
        }
    }

    /// Returns the number of the partition, if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`PartitionName::number`].
    pub(crate) fn partition_number(&self, disk: &dyn Device) -> folio::Result<Option<u32>> {
        let name = self.partition.as_ref();
        name.map(|name| name.number(disk)).transpose()
    }

    /// Returns the device of the file system: the partition, or the one that
    /// [`block::partition::select`] finds.
    ///
    /// # Errors
    ///
    /// Those of [`block::partition::select`].
    pub(crate) fn select(&self, disk: Arc<dyn Device>) -> folio::Result<Arc<dyn Device>> {
        let number = self.partition_number(&*disk)?;
        block::partition::select(disk, number)
    }

    /// Returns the number of the partition that [`Self::select`] chooses, `None` for the whole
    /// disk.
    ///
    /// # Errors
    ///
    /// Those of [`Self::select`].
    pub(crate) fn selected(&self, disk: &Arc<dyn Device>) -> folio::Result<Option<u32>> {
        let number = self.partition_number(&**disk)?;
        let selected = block::partition::selected(disk, number)?;
        Ok(selected.map(|partition| partition.number))
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
    /// Whether it is a path inside an image.
    pub(crate) fn is_image(&self) -> bool {
        matches!(self, Self::Image(_))
    }

    /// Parses an argument: a path inside an image if the text before a `:/` (or a final `:`) is an
    /// existing file or, with `creates`, any name.
    pub(crate) fn parse(word: &OsStr, creates: bool) -> Self {
        if has_inner_path(word)
            && let Some((image, path)) = split_url(word)
        {
            return Self::Image(ImagePath::new(image, path));
        }
        if let Some(place) = inside(word) {
            return Self::Image(place);
        }
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

/// Splits at a colon with a slash or nothing after it: the first one that follows the name of an
/// image, else the first one that does not end the name of a directory.
fn split(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let mut first = None;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b':') {
        let (image, path) = (&bytes[..at], &bytes[at + 1..]);
        if image.is_empty() || !(path.is_empty() || path[0] == b'/') {
            continue;
        }
        let image = OsStr::from_bytes(image);
        let path = OsStr::from_bytes(if path.is_empty() { b"/" } else { path });
        if is_image(&split_partition(image).0) {
            return Some((image, path));
        }
        if first.is_none() && !Path::new(OsStr::from_bytes(&bytes[..=at])).is_dir() {
            first = Some((image, path));
        }
    }
    first
}

/// QEMU's protocols (block/*.c, `protocol_name`), and `json`, which it parses as options.
const PROTOCOLS: [&str; 32] = [
    "blkdebug",
    "blklogwrites",
    "blkverify",
    "fat",
    "file",
    "ftp",
    "ftps",
    "gluster",
    "gluster+rdma",
    "gluster+tcp",
    "gluster+unix",
    "host_cdrom",
    "host_device",
    "http",
    "https",
    "iscsi",
    "iser",
    "json",
    "nbd",
    "nbd+tcp",
    "nbd+unix",
    "nbds",
    "nfs",
    "null-aio",
    "null-co",
    "nvme",
    "quorum",
    "rbd",
    "replication",
    "sheepdog",
    "ssh",
    "throttle",
];

/// Refuses a name that QEMU takes for a protocol: as the name of a file it would be a surprise.
///
/// # Errors
///
/// The message of a usage error.
pub(crate) fn refuse_protocol(path: &Path) -> Result<(), String> {
    if is_url(path.as_os_str()) {
        return check_built(path);
    }
    let bytes = path.as_os_str().as_bytes();
    let Some(at) = bytes.iter().position(|byte| matches!(byte, b':' | b'/')) else {
        return Ok(());
    };
    let protocol = show(&bytes[..at]);
    if bytes[at] == b'/' || !PROTOCOLS.contains(&protocol.as_str()) {
        return Ok(());
    }
    let name = path.display();
    let hint = match protocol.as_str() {
        "file" => format!("; use {}", show(&bytes[at + 1..])),
        _ => format!("; a file with this name is ./{name}"),
    };
    Err(format!(
        "{name}: images are local files and block devices, and {protocol}: is a protocol of \
         QEMU{hint}"
    ))
}

/// Refuses the name of a new image that means a partition of an existing one.
pub(crate) fn refuse_partition(path: &Path) -> Outcome {
    match split_partition(path.as_os_str()) {
        (image, Some(name)) if is_image(&image) => Err(Failure::usage(format!(
            "{}: partition {name} of {}, and not a new image: choose another name",
            path.display(),
            image.display()
        ))),
        _ => Ok(()),
    }
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
            (place.partition.clone(), place.path.as_path()),
            (Some(PartitionName::Number(2)), Path::new("/srv/a:b"))
        );
        assert_eq!(place.to_string(), word);
        let word = format!("{image}@my root:/srv");
        let place = ImagePath::parse(OsStr::new(&word)).unwrap();
        assert_eq!(
            place.partition,
            Some(PartitionName::Label("my root".to_owned()))
        );
        assert_eq!(place.to_string(), word);
        assert!(host("none.img@root:/srv"));
    }

    #[test]
    fn colon_may_be_part_of_the_image_name() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run-10:23:");
        std::fs::create_dir(&inner).unwrap();
        let image = inner.join("x:y.img");
        for path in ["/f", "/a:/b", ""] {
            let word = format!("{}:{path}", image.display());
            let PathArgument::Image(new) = PathArgument::parse(OsStr::new(&word), true) else {
                panic!("{word}")
            };
            assert_eq!(new.image, image);
            assert!(host(&word));
        }
        std::fs::write(&image, "").unwrap();
        for (path, want) in [(":/f", "/f"), (":/a:/b", "/a:/b"), (":", "/"), ("", "/")] {
            let word = format!("{}{path}", image.display());
            let place = ImagePath::parse(OsStr::new(&word)).unwrap();
            assert_eq!(
                (place.image, place.path),
                (image.clone(), want.into()),
                "{word}"
            );
        }
        let word = format!("{}:f", image.display());
        let refused = ImagePath::parse(OsStr::new(&word)).unwrap_err();
        assert!(
            refused.message.contains("starts with '/'"),
            "{}",
            refused.message
        );
    }

    #[test]
    fn protocol_of_qemu_is_refused() {
        for word in [
            "nbd:localhost:1",
            "ssh://host/x",
            "json:{}",
            "file:x.img",
            "nbd+unix:///x",
        ] {
            let refused = ImagePath::parse(OsStr::new(word)).unwrap_err();
            assert!(refused.message.contains("protocol"), "{}", refused.message);
        }
        for word in [
            "./nbd:localhost:1",
            "run-10:23",
            "nbd",
            "/tmp/nbd:x",
            "nbdx:y",
        ] {
            ImagePath::parse(OsStr::new(word)).unwrap();
        }
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
