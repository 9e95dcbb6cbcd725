//! A file for a report: checked before the work, so that work of minutes is not lost to a path that
//! cannot be written.

use crate::exit::{Failure, Outcome};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Symbolic links in a path at most, as in Linux.
const LINKS_MAX: usize = 40;

/// A file that a report replaces at the end of a command. Without a report it stays as it was.
pub(crate) struct ReportFile {
    path: PathBuf,
    destination: Destination,
}

enum Destination {
    /// A regular file, replaced by a rename; symbolic links are resolved.
    File(PathBuf),
    /// A terminal or a pipe.
    Stream(File),
}

impl ReportFile {
    /// Checks that a report can be written to the path, and replaces nothing but a report that
    /// begins with the same text. Leaves the path as it is.
    ///
    /// # Errors
    /// If the path cannot be written, or has content of another kind.
    pub(crate) fn open(path: &Path, begins_with: &str) -> Outcome<Self> {
        let destination = match fs::metadata(path) {
            Ok(found) if found.is_file() => existing(path, begins_with),
            Ok(found) => stream(path, found.file_type().is_fifo()).map(Destination::Stream),
            Err(error) if error.kind() == ErrorKind::NotFound => new(path),
            Err(error) => Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            destination: destination.map_err(|error| failed(path, &error))?,
        })
    }

    /// Returns a failure if the file is one of the inputs of the command.
    pub(crate) fn refuse_inputs(
        &self,
        inputs: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Outcome {
        let id = |path: &Path| {
            fs::metadata(path)
                .ok()
                .map(|found| (found.dev(), found.ino()))
        };
        let own = id(&self.path);
        if own.is_some() && inputs.into_iter().any(|input| id(input.as_ref()) == own) {
            let error = refused("the report would replace a file that it is about");
            return Err(failed(&self.path, &error));
        }
        Ok(())
    }

    /// Replaces the content.
    pub(crate) fn write(self, report: &str) -> Outcome {
        let written = match self.destination {
            Destination::File(path) => replace(&path, report.as_bytes()),
            Destination::Stream(mut file) => file.write_all(report.as_bytes()),
        };
        written.map_err(|error| failed(&self.path, &error))
    }
}

/// Checks a file that exists: it must be writable, and empty or a report.
fn existing(path: &Path, begins_with: &str) -> io::Result<Destination> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(begins_with.len() as u64)
        .read_to_end(&mut start)?;
    if !start.is_empty() && start != begins_with.as_bytes() {
        return Err(refused(&format!(
            "not replaced: the file is not empty and does not begin with {begins_with}; \
             remove it first, or name another file"
        )));
    }
    fs::canonicalize(path).map(Destination::File)
}

/// Opens a file that is not regular, without a wait for its reader.
fn stream(path: &Path, is_fifo: bool) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(errno) if is_fifo && errno == Errno::NXIO.raw_os_error() => {
            io::Error::new(error.kind(), "the pipe has no reader")
        }
        _ => error,
    })?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Checks that a file can be created.
fn new(path: &Path) -> io::Result<Destination> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = fs::read_link(&path) else {
            break;
        };
        path = folder_of(&path).join(link);
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    // The command may change the working directory's name.
    std::path::absolute(&path).map(Destination::File)
}

/// Replaces a file at once: a failure leaves the old one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path).ok();
    // The umask applies, as for any other file.
    let temporary = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path));
    let mut temporary = match temporary {
        // A file in a folder that cannot be written.
        Err(_) if old.is_some() => return fs::write(path, bytes),
        temporary => temporary?,
    };
    temporary.write_all(bytes)?;
    if let Some(old) = &old {
        temporary.as_file().set_permissions(old.permissions())?;
    }
    match temporary.persist(path) {
        // Another file is mounted there.
        Err(error) if error.error.kind() == ErrorKind::ResourceBusy => fs::write(path, bytes),
        persisted => Ok(persisted.map(drop)?),
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, reason)
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn open(path: &Path) -> Outcome<ReportFile> {
        ReportFile::open(path, "<a>")
    }

    #[test]
    fn file_changes_only_if_there_is_a_report() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("report");
        drop(open(&path).unwrap());
        assert!(!path.exists());
        open(&path).unwrap().write("<a>longer").unwrap();
        drop(open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"<a>longer");
        open(&path).unwrap().write("<a>").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"<a>");
        assert!(open(&folder.path().join("no/report")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_of_another_kind_is_not_replaced() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("data");
        for content in ["data", "<", "<b>"] {
            fs::write(&path, content).unwrap();
            assert!(open(&path).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::write(&path, "").unwrap();
        assert!(open(&path).unwrap().refuse_inputs([&path]).is_err());
        open(&path).unwrap().write("<a>").unwrap();
    }

    #[test]
    fn file_of_the_command_stays_without_a_report() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("report");
        let report = open(&path).unwrap();
        fs::write(&path, "of the command").unwrap();
        drop(report);
        assert_eq!(fs::read(&path).unwrap(), b"of the command");
    }

    #[test]
    fn removed_file_is_written_again() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("report");
        fs::write(&path, "<a>old").unwrap();
        let report = open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        report.write("<a>new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"<a>new");
    }

    #[test]
    fn links_and_permissions_stay() {
        let folder = TempDir::new().unwrap();
        let path = |name| folder.path().join(name);
        symlink("middle", path("link")).unwrap();
        symlink("file", path("middle")).unwrap();
        // Dangling at first.
        open(&path("link")).unwrap().write("<a>1").unwrap();
        assert_eq!(fs::read(path("file")).unwrap(), b"<a>1");
        fs::set_permissions(path("file"), Permissions::from_mode(0o600)).unwrap();
        open(&path("link")).unwrap().write("<a>2").unwrap();
        assert_eq!(fs::read(path("file")).unwrap(), b"<a>2");
        let mode = fs::metadata(path("file")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("middle"));
    }

    #[test]
    fn pipe_without_a_reader_is_an_error() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let failure = open(&path).err().unwrap();
        assert!(
            failure.message.ends_with("no reader"),
            "{}",
            failure.message
        );
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .unwrap();
        open(&path).unwrap().write("<a>").unwrap();
        let mut found = String::new();
        reader.read_to_string(&mut found).unwrap();
        assert_eq!(found, "<a>");
    }
}
