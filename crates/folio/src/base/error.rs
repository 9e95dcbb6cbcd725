//! The error type: errno and [`Detail`] for programs; operation, places and cause for people.
//!
//! Each part is added once. The layer that finds the fault gives the errno, the reason and, if a
//! caller may act on it, the detail. Each layer that knows a name adds it as a place: the structure
//! its number, the file system its kind, [`crate::block::open`] the image, a system call its path.
//! Text is for people: code that decides matches errno, kind, detail and places.

use super::Errno;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// The result of most calls in Folio.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of a failure, beyond its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An ordinary errno, as a system call would return it: no such file, not a directory, no
    /// space.
    Errno,
    /// Bytes on the medium contradict the format. Errno is EUCLEAN.
    Corrupt,
    /// The format is valid but needs a feature that Folio does not support. Errno is EOPNOTSUPP.
    Unsupported,
    /// The host or a device failed to read or write. Errno is the host's, often EIO.
    Io,
}

/// What a failure is about, for a caller that acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detail {
    /// A mount option that the file system does not know.
    UnknownMountOption,
    /// A known mount option with an invalid value, or one that another option or the file system
    /// excludes.
    InvalidMountOption,
    /// This build lacks a feature of the crate, and so a kind of file system.
    FeatureNotBuilt {
        /// The feature's name in Cargo.toml.
        feature: String,
    },
    /// Only a copy with everything below it copies a directory, a device, a FIFO or a socket.
    CopyNotRecursive,
    /// Another program, or another open of this one, uses the image.
    ImageInUse,
    /// The policy for backing files refuses one.
    BackingRefused,
    /// A chain of backing files leads back to an image in it.
    BackingLoop,
    /// The image has the largest number of generations that forks may leave below it.
    TooManyGenerations,
    /// A smaller size would lose content, which the options do not allow.
    WouldShrink,
    /// Preallocation was requested for an image that does not grow.
    PreallocationWithoutGrowth,
    /// The image's format has no metadata that could be checked.
    NoMetadata,
    /// A qcow2 image of version 2 with internal snapshots cannot be resized.
    SnapshotsOfVersion2,
    /// The image needs features that Folio does not support.
    UnsupportedFeatures {
        /// Their names, as the image or its format has them.
        names: String,
    },
    /// The disk is larger than an existing image's format can map.
    DiskTooLarge,
    /// The size is larger than a qcow2 image with clusters of this size can map.
    TooLargeForClusters,
    /// The cluster size of a new image is not a power of two from 512 bytes to 2 MiB.
    InvalidClusterSize,
    /// The width of refcounts is not a power of two from 1 to 64 bits.
    InvalidRefcountWidth,
    /// Refcounts of another width than 16 bits need qcow2 of version 3.
    RefcountWidthNeedsVersion3,
    /// Lazy refcounts need qcow2 of version 3.
    LazyRefcountsNeedVersion3,
    /// A device failed a write for good: the page cache does not repeat it.
    WriteLost,
    /// A path leads to a name that belongs to the host. Errno is EXDEV.
    Elsewhere {
        /// The absolute path at which the host continues, without the links that were followed.
        path: Vec<u8>,
    },
}

/// A failure: errno, operation, place and cause.
///
/// The plain errno form costs no allocation, so a failed lookup stays cheap. Printed as
/// `place: operation: reason`; causes are chained through [`std::error::Error::source`].
pub struct Error(Repr);

enum Repr {
    Plain(Errno),
    Full(Box<Full>),
}

struct Full {
    kind: ErrorKind,
    errno: Errno,
    /// From outermost to innermost: "disk.img", "ext4", "inode 12".
    places: Vec<Cow<'static, str>>,
    reason: Cow<'static, str>,
    detail: Option<Detail>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an EUCLEAN error: bytes contradict the format. `what` is wrong at the place that
    /// [`Error::at`] adds.
    pub fn corrupt(what: impl Into<Cow<'static, str>>) -> Self {
        Self::full(ErrorKind::Corrupt, Errno::UCLEAN, what.into(), None)
    }

    /// Creates an EOPNOTSUPP error: the request is valid but not supported.
    pub fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self::full(ErrorKind::Unsupported, Errno::OPNOTSUPP, what.into(), None)
    }

    /// Creates an error of the host or a device during `operation`, with the host's errno, or EIO.
    pub fn io(operation: impl Into<Cow<'static, str>>, cause: std::io::Error) -> Self {
        let errno = Errno::from_io_error(&cause).unwrap_or(Errno::IO);
        Self::full(
            ErrorKind::Io,
            errno,
            operation.into(),
            Some(Box::new(cause)),
        )
    }

    /// Creates an error with an explanation.
    pub fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::full(ErrorKind::Errno, errno, reason.into(), None)
    }

    /// Adds a place: the first call names the innermost place, later calls the enclosing ones.
    #[must_use]
    pub fn at(self, place: impl Into<Cow<'static, str>>) -> Self {
        let mut full = self.into_full();
        full.places.insert(0, place.into());
        Self(Repr::Full(full))
    }

    /// Adds an enclosing place, unless the error names it as the outermost one already.
    #[must_use]
    pub fn within(self, place: impl Into<Cow<'static, str>>) -> Self {
        let place = place.into();
        if self.place() == Some(&*place) {
            self
        } else {
            self.at(place)
        }
    }

    /// Adds what the failure is about.
    #[must_use]
    pub fn about(self, detail: Detail) -> Self {
        let mut full = self.into_full();
        full.detail = Some(detail);
        Self(Repr::Full(full))
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(self, cause: impl StdError + Send + Sync + 'static) -> Self {
        let mut full = self.into_full();
        full.cause = Some(Box::new(cause));
        Self(Repr::Full(full))
    }

    fn into_full(self) -> Box<Full> {
        match self.0 {
            Repr::Full(full) => full,
            Repr::Plain(errno) => Box::new(Full {
                kind: ErrorKind::Errno,
                errno,
                places: Vec::new(),
                reason: Cow::Borrowed(""),
                detail: None,
                cause: None,
            }),
        }
    }

    /// Returns the errno, as of a system call.
    pub fn errno(&self) -> Errno {
        match &self.0 {
            Repr::Plain(errno) => *errno,
            Repr::Full(full) => full.errno,
        }
    }

    /// Returns whether storage is full or a quota is used up: the call can be repeated once there
    /// is space again.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.errno(), Errno::NOSPC | Errno::DQUOT)
    }

    /// Returns whether a walk over many files ends at this failure, as it would affect all of them:
    /// ENOSPC and EDQUOT (no space), EROFS, EIO, EUCLEAN (a damaged image) and EINTR (the walk was
    /// interrupted). Any other errno concerns one file.
    pub fn is_final(&self) -> bool {
        self.is_out_of_space()
            || matches!(
                self.errno(),
                Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::INTR
            )
    }

    /// Returns the class of the failure.
    pub fn kind(&self) -> ErrorKind {
        match &self.0 {
            Repr::Plain(_) => ErrorKind::Errno,
            Repr::Full(full) => full.kind,
        }
    }

    /// Returns what the failure is about, if a caller may act on it.
    pub fn detail(&self) -> Option<&Detail> {
        match &self.0 {
            Repr::Plain(_) => None,
            Repr::Full(full) => full.detail.as_ref(),
        }
    }

    /// Returns the places from the outermost to the innermost: image, partition, file system,
    /// structure, or the path of a system call.
    pub fn places(&self) -> impl DoubleEndedIterator<Item = &str> {
        let places = match &self.0 {
            Repr::Plain(_) => &[][..],
            Repr::Full(full) => &full.places,
        };
        places.iter().map(Cow::as_ref)
    }

    /// Returns the outermost place, if there is one.
    pub fn place(&self) -> Option<&str> {
        self.places().next()
    }

    /// Returns the reason or operation without places and causes; the errno's words without one.
    pub fn reason(&self) -> String {
        let full = match &self.0 {
            Repr::Plain(errno) => return errno_text(*errno),
            Repr::Full(full) => full,
        };
        match (&full.reason, &full.cause) {
            (reason, None) if reason.is_empty() => errno_text(full.errno),
            (reason, Some(_)) if full.kind == ErrorKind::Io => {
                format!("{reason}: {}", errno_text(full.errno))
            }
            (reason, _) => reason.to_string(),
        }
    }

    fn full(
        kind: ErrorKind,
        errno: Errno,
        reason: Cow<'static, str>,
        cause: Option<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Repr::Full(Box::new(Full {
            kind,
            errno,
            places: Vec::new(),
            reason,
            detail: None,
            cause,
        })))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self(Repr::Plain(errno))
    }
}

impl From<Error> for std::io::Error {
    /// Keeps everything: a bare errno becomes the `io::Error` of that errno, and anything with a
    /// place or a cause is its payload, under the kind of the errno.
    fn from(error: Error) -> Self {
        let plain = Self::from(error.errno());
        match error.0 {
            Repr::Plain(_) => plain,
            Repr::Full(_) => {
                let kind = match error.errno() {
                    // std has no kind of its own for it.
                    Errno::UCLEAN => std::io::ErrorKind::InvalidData,
                    _ => plain.kind(),
                };
                Self::new(kind, error)
            }
        }
    }
}

/// Returns the errno of an error of the facade, or of std: that of the [`Error`] inside, else
/// [`std::io::Error::raw_os_error`].
///
/// ```
/// use folio::{Errno, Image, errno_of};
///
/// let error = Image::file("/none.img").mount().map(drop).unwrap_err();
/// assert_eq!(errno_of(&error), Some(Errno::NOENT));
/// ```
pub fn errno_of(error: &std::io::Error) -> Option<Errno> {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    inner
        .map(Error::errno)
        .or_else(|| Errno::from_io_error(error))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.places() {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.reason())
    }
}

/// The C library's words for an errno, without Rust's "(os error 2)" behind them.
fn errno_text(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?}, {:?})", self.kind(), self.errno())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Repr::Full(full) => full
                .cause
                .as_deref()
                .map(|c| c as &(dyn StdError + 'static)),
            Repr::Plain(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_places_from_outside_in() {
        let error = Error::corrupt("bad checksum")
            .at("extent block 8193")
            .at("inode 12")
            .at("ext4");
        assert_eq!(
            error.to_string(),
            "ext4: inode 12: extent block 8193: bad checksum"
        );
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Corrupt, Errno::UCLEAN)
        );
        assert_eq!(
            (error.place(), Error::from(Errno::NOENT).place()),
            (Some("ext4"), None)
        );
    }

    #[test]
    fn enclosing_place_is_added_once() {
        let error = Error::from(Errno::NOENT).about(Detail::BackingLoop).at("a");
        let error = error.within("a").within("b").within("b");
        assert_eq!(error.places().collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(error.detail(), Some(&Detail::BackingLoop));
        assert_eq!(error.to_string(), "b: a: No such file or directory");
    }

    #[test]
    fn io_error_keeps_errno_kind_and_place() {
        let plain = std::io::Error::from(Error::from(Errno::NOTEMPTY));
        assert_eq!(plain.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
        let damaged = std::io::Error::from(Error::corrupt("bad checksum"));
        assert_eq!(damaged.kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(errno_of(&damaged), Some(Errno::UCLEAN));
        let placed = std::io::Error::from(Error::from(Errno::NOENT).at("/a"));
        assert_eq!(placed.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(placed.to_string(), "/a: No such file or directory");
        let inner = placed.get_ref().unwrap().downcast_ref::<Error>().unwrap();
        assert_eq!((inner.errno(), inner.place()), (Errno::NOENT, Some("/a")));
    }

    #[test]
    fn plain_errno_speaks_like_the_c_library() {
        assert_eq!(
            Error::from(Errno::NOENT).to_string(),
            "No such file or directory"
        );
        assert_eq!(
            Error::from(Errno::NOENT).at("/a").to_string(),
            "/a: No such file or directory"
        );
    }

    #[test]
    fn host_failures_keep_the_hosts_errno() {
        let error = Error::io("read", std::io::Error::from(Errno::NOSPC)).at("disk.img");
        assert_eq!(error.errno(), Errno::NOSPC);
        assert_eq!(error.to_string(), "disk.img: read: No space left on device");
    }
}
