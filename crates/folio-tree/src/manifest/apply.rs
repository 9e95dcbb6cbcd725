//! Applies a manifest to the files of an image, within the destination.

use super::entry::{ManifestEntry, ManifestKind, Owner};
use crate::entry::{as_path, read_names};
use crate::observer::Observer;
use crate::unpack::Directories;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags};
use folio::vfs::{DeviceNumber, FileType, SetTime, XattrFlags};
use folio::{Errno, Error, ErrorKind, Process, Result};
use std::path::{Path, PathBuf};

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
                    // The place of a plain errno is the name, which the observer shows too.
                    let is_named = error.kind() == ErrorKind::Errno && error.place().is_some();
                    let error = if is_named {
                        error.errno().into()
                    } else {
                        error
                    };
                    let place = format!("manifest: line {}", entry.line);
                    observer.failed(&entry.path, &error.at(place));
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
        self.set(at, as_path(name), uid, gid, entry.mode)?;
        for (name, value) in &entry.xattrs {
            self.process
                .lsetxattr(&path, name, value, XattrFlags::empty())?;
        }
        if entry.is_recursive {
            self.set_below(path, uid, gid, entry.mode)?;
        }
        Ok(())
    }

    /// Sets owner and mode. A change of the owner clears setuid, so the mode follows it.
    fn set(
        &self,
        at: Fd,
        path: &Path,
        uid: Option<u32>,
        gid: Option<u32>,
        mode: Option<u16>,
    ) -> Result<()> {
        let found = self.process.fstatat(at, path, NOFOLLOW)?;
        if uid.is_some() || gid.is_some() {
            self.process.fchownat(at, path, uid, gid, NOFOLLOW)?;
        }
        let is_link = found.file_type == FileType::Symlink;
        match mode.unwrap_or(found.mode) {
            mode if !is_link => self.process.fchmodat(at, path, mode),
            _ => Ok(()),
        }
    }

    fn set_below(
        &self,
        top: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
        mode: Option<u16>,
    ) -> Result<()> {
        let mut pending = vec![top];
        while let Some(folder) = pending.pop() {
            if self.process.lstat(&folder)?.file_type != FileType::Directory {
                continue;
            }
            let fd = self
                .process
                .open(&folder, OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW, 0)?;
            let listed = read_names(self.process, fd);
            self.process.close(fd)?;
            for name in listed? {
                let path = folder.join(as_path(&name));
                let found = self.process.lstat(&path)?;
                let is_directory = found.file_type == FileType::Directory;
                // A directory without x could not be entered: as chmod -R with X.
                let mode = mode.map(|mode| {
                    if is_directory {
                        mode | (mode & 0o444) >> 2
                    } else {
                        mode
                    }
                });
                self.set(AT_FDCWD, &path, uid, gid, mode)?;
                if is_directory {
                    pending.push(path);
                }
            }
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
