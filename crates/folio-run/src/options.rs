//! A command and its surroundings.

use crate::failure::Failure;
use rustix::fs::FileType;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// The place of the mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// It is the command's root directory.
    Image,
    /// It is at this directory of the host's own tree.
    At(PathBuf),
}

/// The network that the command sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// The host's.
    Host,
    /// A loopback interface alone.
    None,
}

/// A file or directory of the host that the command sees inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// The path on the host.
    pub host: PathBuf,
    /// The path inside; absolute.
    pub inside: PathBuf,
    /// Whether changes fail with EROFS.
    pub read_only: bool,
}

/// A command and its surroundings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program and its arguments; without any, the user's login shell.
    pub command: Vec<OsString>,
    /// Variables of the command's environment. They override those that Folio sets.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory; by default `/`, or with [`Root::At`] that of this process.
    pub working_directory: Option<PathBuf>,
    /// `USER` or `USER:GROUP`, as names of the image or numbers; by default the superuser.
    pub user: Option<String>,
    /// The host name; by default the host's.
    pub hostname: Option<String>,
    /// The network.
    pub network: Network,
    /// The place of the file system.
    pub root: Root,
    /// Paths of the host inside.
    pub binds: Vec<Bind>,
    /// Whether changes of the file system fail with EROFS.
    pub read_only: bool,
    /// Whether the command may create namespaces. With [`Root::At`] it always may.
    pub allows_namespaces: bool,
    /// The source of the mount in /proc/mounts.
    pub source: String,
}

impl Options {
    /// Refuses what no machine can run.
    ///
    /// # Errors
    /// With the image as the root, a standard stream that is a directory.
    pub fn check(&self) -> Result<(), Failure> {
        match self.root {
            Root::Image => refuse_directories(),
            Root::At(_) => Ok(()),
        }
    }
}

/// Refuses standard streams that are directories: the command would reach the host's tree by them.
fn refuse_directories() -> Result<(), Failure> {
    let is_directory = |stream: BorrowedFd<'_>| {
        rustix::fs::fstat(stream)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    let streams = [
        (rustix::stdio::stdin(), "input"),
        (rustix::stdio::stdout(), "output"),
        (rustix::stdio::stderr(), "error"),
    ];
    match streams
        .into_iter()
        .find(|(stream, _)| is_directory(*stream))
    {
        Some((_, name)) => Err(Failure::new(format!(
            "standard {name} is a directory of the host, which would lead out of the image: \
             redirect it, e.g. to /dev/null"
        ))),
        None => Ok(()),
    }
}
