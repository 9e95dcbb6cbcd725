//! Applies a manifest to the files of an image, within the destination.

use super::entry::{ManifestEntry, ManifestKind, Owner};
use crate::attributes::NewOwnerAndMode;
use crate::entry::{as_path, walk_below};
use crate::observer::{CopyFailure, Observer};
use crate::unpack::Directories;
use folio::syscall::{AT_FDCWD, AtFlags, Fd};
use folio::vfs::{DeviceNumber, FileType, SetTime};
use folio::{Errno, Error, Process, Result};
use std::path::Path;

const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// Sets owners, modes, times and extended attributes as a manifest lists them, and creates missing
/// directories, links, device nodes, FIFOs and empty files. Its paths begin at `destination`, and
/// stay below it. `find` returns the number of a user (`true`) or group by name. Failures of single
/// files go to the observer.
///
/// # Errors
///
/// `destination` is not a directory; failures that affect all files.
pub fn apply(
    process: &Process,
    destination: &Path,
    entries: &[ManifestEntry],
    find: &dyn Fn(bool, &str) -> Option<u32>,
    observer: &dyn Observer,
) -> Result<()> {
    process.umask(0);
    let directories = Directories::open(process, destination)?;
    let mut target = Target {
        process,
        destination,
        directories,
        find,
    };
    // The files made in a directory change its time, so times come last.
    for sets_times in [false, true] {
        for entry in entries {
            if observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            let applied = if sets_times {
                target.set_times(entry)
            } else {
                target.apply(entry)
            };
            match applied {
                Ok(()) => {}
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    let failure = CopyFailure::of_target(&*entry.path, error);
                    observer.failed(failure.at(format!("manifest: line {}", entry.line)));
                }
            }
        }
    }
    Ok(())
}

struct Target<'a> {
    process: &'a Process,
    destination: &'a Path,
    directories: Directories<'a>,
    find: &'a dyn Fn(bool, &str) -> Option<u32>,
}

impl Target<'_> {
    /// Enters the directory of an entry; returns it with the name, "." for the destination.
    fn enter<'e>(&mut self, entry: &'e ManifestEntry) -> Result<(Fd, &'e [u8])> {
        let parts: Vec<_> = entry.path.split(|byte| *byte == b'/').collect();
        let Some((name, parents)) = parts.split_last().filter(|_| !entry.path.is_empty()) else {
            self.directories.go_to_root();
            return Ok((self.directories.fd(), b"."));
        };
        let creates = entry.kind.is_some() && !entry.is_optional;
        self.directories.enter(parents, creates)?;
        Ok((self.directories.fd(), name))
    }

    fn owner(&self, owner: Option<&Owner>, is_user: bool) -> Result<Option<u32>> {
        match owner {
            None => Ok(None),
            Some(Owner::Number(id)) => Ok(Some(*id)),
            Some(Owner::Name(name)) => (self.find)(is_user, name).map(Some).ok_or_else(|| {
                let file = if is_user { "/etc/passwd" } else { "/etc/group" };
                Error::new(
                    Errno::INVAL,
                    format!("{name}: unknown name in the image's {file}"),
                )
            }),
        }
    }

    fn apply(&mut self, entry: &ManifestEntry) -> Result<()> {
        let uid = self.owner(entry.user.as_ref(), true)?;
        let gid = self.owner(entry.group.as_ref(), false)?;
        let (at, name) = match self.enter(entry) {
            Err(error) if error.errno() == Errno::NOENT && entry.is_optional => return Ok(()),
            entered => entered?,
        };
        let path = self.directories.absolute(name);
        match (
            self.process.fstatat(at, as_path(name), NOFOLLOW),
            &entry.kind,
        ) {
            (Ok(found), Some(kind)) => check_kind(found.file_type, kind)?,
            (Ok(_), None) => {}
            (Err(error), Some(kind)) if error.errno() == Errno::NOENT && !entry.is_optional => {
                self.create(at, name, kind, entry.mode)?;
            }
            (Err(error), _) if error.errno() == Errno::NOENT && entry.is_optional => return Ok(()),
            (Err(error), _) => return Err(error),
        }
        let new = NewOwnerAndMode {
            uid,
            gid,
            mode: entry.mode,
        };
        let found = self.process.fstatat(at, as_path(name), NOFOLLOW)?;
        new.set(self.process, &path, &found, &entry.xattrs)?;
        if entry.is_recursive && found.file_type == FileType::Directory {
            walk_below(self.process, &path, &mut |path, found| {
                let is_directory = found.file_type == FileType::Directory;
                // A directory without x could not be entered: as chmod -R with X.
                let mode = new.mode.map(|mode| {
                    if is_directory {
                        mode | (mode & 0o444) >> 2
                    } else {
                        mode
                    }
                });
                NewOwnerAndMode { mode, ..new }.set(self.process, path, found, &[])
            })?;
        }
        Ok(())
    }

    fn create(&self, at: Fd, name: &[u8], kind: &ManifestKind, mode: Option<u16>) -> Result<()> {
        let place = as_path(name);
        let node = |file_type, device| {
            self.process
                .mknodat(at, place, file_type, mode.unwrap_or(0o644), device)
        };
        match kind {
            ManifestKind::Directory => self.process.mkdirat(at, place, mode.unwrap_or(0o755)),
            ManifestKind::Symlink(target) => self.process.symlinkat(as_path(target), at, place),
            ManifestKind::HardLink(target) => {
                let target = self.destination.join(as_path(target));
                self.process
                    .linkat(AT_FDCWD, target, at, place, AtFlags::empty())
            }
            ManifestKind::File => node(FileType::Regular, DeviceNumber::default()),
            ManifestKind::CharacterDevice(major, minor) => {
                node(FileType::CharacterDevice, DeviceNumber::new(*major, *minor))
            }
            ManifestKind::BlockDevice(major, minor) => {
                node(FileType::BlockDevice, DeviceNumber::new(*major, *minor))
            }
            ManifestKind::Fifo => node(FileType::Fifo, DeviceNumber::default()),
            ManifestKind::Socket => node(FileType::Socket, DeviceNumber::default()),
        }
    }

    fn set_times(&mut self, entry: &ManifestEntry) -> Result<()> {
        let Some(time) = entry.modified else {
            return Ok(());
        };
        let (at, name) = match self.enter(entry) {
            // Reported already.
            Err(error) if error.errno() == Errno::NOENT => return Ok(()),
            entered => entered?,
        };
        let time = Some(SetTime::To(time));
        match self
            .process
            .utimensat(at, as_path(name), time, time, NOFOLLOW)
        {
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            set => set,
        }
    }
}

/// Fails if a file of another kind is in the place.
fn check_kind(found: FileType, kind: &ManifestKind) -> Result<()> {
    let is_same = match kind {
        ManifestKind::File => found == FileType::Regular,
        ManifestKind::Directory => found == FileType::Directory,
        ManifestKind::Symlink(_) => found == FileType::Symlink,
        ManifestKind::CharacterDevice(..) => found == FileType::CharacterDevice,
        ManifestKind::BlockDevice(..) => found == FileType::BlockDevice,
        ManifestKind::Fifo => found == FileType::Fifo,
        ManifestKind::Socket => found == FileType::Socket,
        ManifestKind::HardLink(_) => found != FileType::Directory,
    };
    if is_same {
        Ok(())
    } else {
        Err(Error::new(
            Errno::EXIST,
            "exists as another kind of file than the manifest says",
        ))
    }
}
