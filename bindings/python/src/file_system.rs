//! Calls on paths.

use crate::argument::{ByteCount, FilePath};
use crate::error::invalid;
use crate::file::File;
use crate::stat::{kind_bits, mode, nanoseconds, stat_result};
use crate::state::State;
use crate::tree::copy_options;
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags, Process};
use folio::vfs::{Attributes, DeviceNumber, FileType, RenameFlags, SetTime, XattrFlags};
use folio::{Errno, Result, Timespec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

/// Directories and links to them, other files, and those links.
type Listing = (Vec<OsString>, Vec<OsString>, HashSet<OsString>);

/// Name, type and inode number.
type Entry = (OsString, u32, u64);

/// A mounted file system: system calls on paths. All paths start at its root.
#[pyclass(frozen, module = "foliofs._native")]
pub(crate) struct FileSystem {
    state: Arc<State>,
}

/// Returns the flags of a call that follows a symbolic link at the end of its path, or acts on it.
fn link_flags(follows: bool) -> AtFlags {
    if follows {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    }
}

fn time(nanos: i128) -> PyResult<SetTime> {
    let secs = i64::try_from(nanos.div_euclid(1_000_000_000));
    let secs = secs.map_err(|_| PyValueError::new_err("time out of range"))?;
    let nanos = nanos.rem_euclid(1_000_000_000) as u32;
    Ok(SetTime::To(Timespec::new(secs, nanos)))
}

impl FileSystem {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self { state }
    }

    fn attributes(&self, py: Python<'_>, path: &Path, follows: bool) -> PyResult<Attributes> {
        self.state.call(py, &[path], |process| {
            process.fstatat(AT_FDCWD, path, link_flags(follows))
        })
    }
}

/// Returns the entries of a directory without `.` and `..`.
fn entries(process: &Process, path: &Path) -> Result<Vec<Entry>> {
    let fd = process.open(path, OpenFlags::DIRECTORY, 0)?;
    let mut found = Vec::new();
    let listed = process.getdents_with(fd, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            let name = OsString::from_vec(entry.name.to_vec());
            let kind = entry.file_type.map_or(0, kind_bits);
            found.push((name, kind, entry.number.0));
        }
        ControlFlow::Continue(())
    });
    process.close(fd)?;
    listed.map(|()| found)
}

#[pymethods]
impl FileSystem {
    /// open(2); fails with EISDIR for a directory.
    fn open(&self, py: Python<'_>, path: FilePath, flags: u32, mode: u16) -> PyResult<File> {
        let (flags, fd) = self.state.call(py, &[&path], |process| {
            let flags = OpenFlags::from_bits(flags).ok_or_else(|| invalid("unknown open flags"))?;
            let fd = process.open(&path, flags, mode)?;
            // open(2) refuses a directory only for writing, Python for reading, too.
            let refused = match process.fstat(fd) {
                Ok(found) if found.file_type == FileType::Directory => Errno::ISDIR.into(),
                Ok(_) => return Ok((flags, fd)),
                Err(error) => error,
            };
            process.close(fd)?;
            Err(refused)
        })?;
        Ok(File::new(self.state.clone(), path.into(), flags, fd))
    }

    /// The whole content of a file.
    fn read_bytes<'py>(&self, py: Python<'py>, path: FilePath) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open(py, path, OpenFlags::empty().bits(), 0)?;
        let content = file.readall(py);
        file.close(py)?;
        content
    }

    /// Names, types and inode numbers of a directory; a type is a mode of stat, 0 if unknown.
    fn entries(&self, py: Python<'_>, path: FilePath) -> PyResult<Vec<Entry>> {
        self.state
            .call(py, &[&path], |process| entries(process, &path))
    }

    /// Names in a directory, for walk(): directories and links to them, all else, and those links.
    fn listing(&self, py: Python<'_>, path: FilePath) -> PyResult<Listing> {
        self.state.call(py, &[&path], |process| {
            let (mut directories, mut files, mut links) = Listing::default();
            for (name, kind, _) in entries(process, &path)? {
                let is_link = kind == kind_bits(FileType::Symlink);
                let is_directory = if is_link || kind == 0 {
                    let target = process.fstatat(AT_FDCWD, path.join(&name), AtFlags::empty());
                    target.is_ok_and(|found| found.file_type == FileType::Directory)
                } else {
                    kind == kind_bits(FileType::Directory)
                };
                if !is_directory {
                    files.push(name);
                    continue;
                }
                if is_link {
                    links.insert(name.clone());
                }
                directories.push(name);
            }
            Ok((directories, files, links))
        })
    }

    /// os.stat_result with this `st_dev`.
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: FilePath,
        device: u64,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = self.attributes(py, &path, follow_symlinks)?;
        stat_result(py, &found, device)
    }

    /// Mode with the file type; None if there is no such file, as for a name that none can have.
    fn mode(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        follow_symlinks: bool,
    ) -> PyResult<Option<u32>> {
        let path: PyResult<FilePath> = path.extract();
        let path = match path {
            Err(error) if error.is_instance_of::<PyValueError>(py) => return Ok(None),
            path => path?,
        };
        self.state.call(py, &[&path], |process| {
            match process.fstatat(AT_FDCWD, &path, link_flags(follow_symlinks)) {
                Ok(found) => Ok(Some(mode(&found))),
                Err(error) => match error.errno() {
                    // The last two: a name that no file can have.
                    Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::LOOP
                    | Errno::NAMETOOLONG
                    | Errno::INVAL => Ok(None),
                    _ => Err(error),
                },
            }
        })
    }

    /// Time of creation in nanoseconds since 1970, if it is stored.
    fn birthtime_ns<'py>(
        &self,
        py: Python<'py>,
        path: FilePath,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let created = self.attributes(py, &path, true)?.created;
        created.map(|time| nanoseconds(py, time)).transpose()
    }

    fn mkdir(&self, py: Python<'_>, path: FilePath, mode: u16) -> PyResult<()> {
        self.state
            .call(py, &[&path], |process| process.mkdir(&path, mode))
    }

    fn rmdir(&self, py: Python<'_>, path: FilePath) -> PyResult<()> {
        self.state
            .call(py, &[&path], |process| process.rmdir(&path))
    }

    fn unlink(&self, py: Python<'_>, path: FilePath) -> PyResult<()> {
        self.state
            .call(py, &[&path], |process| process.unlink(&path))
    }

    /// renameat2(2); `replaces` false is RENAME_NOREPLACE.
    fn rename(&self, py: Python<'_>, path: FilePath, to: FilePath, replaces: bool) -> PyResult<()> {
        let flags = if replaces {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        self.state.call(py, &[&path, &to], |process| {
            process.renameat2(AT_FDCWD, &path, AT_FDCWD, &to, flags)
        })
    }

    fn link(&self, py: Python<'_>, path: FilePath, to: FilePath) -> PyResult<()> {
        self.state
            .call(py, &[&path, &to], |process| process.link(&path, &to))
    }

    fn symlink(&self, py: Python<'_>, target: FilePath, path: FilePath) -> PyResult<()> {
        self.state.call(py, &[&target, &path], |process| {
            process.symlink(&target, &path)
        })
    }

    fn readlink(&self, py: Python<'_>, path: FilePath) -> PyResult<OsString> {
        let target = self
            .state
            .call(py, &[&path], |process| process.readlink(&path))?;
        Ok(OsString::from_vec(target))
    }

    fn chmod(&self, py: Python<'_>, path: FilePath, mode: u16) -> PyResult<()> {
        self.state
            .call(py, &[&path], |process| process.chmod(&path, mode))
    }

    #[pyo3(signature = (path, uid, gid, *, follow_symlinks=true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: FilePath,
        uid: Option<u32>,
        gid: Option<u32>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let flags = link_flags(follow_symlinks);
        self.state.call(py, &[&path], |process| {
            process.fchownat(AT_FDCWD, &path, uid, gid, flags)
        })
    }

    /// Sets access and modification time, in nanoseconds; None is the current time.
    #[pyo3(signature = (path, times_ns, *, follow_symlinks=true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: FilePath,
        times_ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (accessed, modified) = match times_ns {
            Some((accessed, modified)) => (time(accessed)?, time(modified)?),
            None => (SetTime::Now, SetTime::Now),
        };
        let flags = link_flags(follow_symlinks);
        self.state.call(py, &[&path], |process| {
            process.utimensat(AT_FDCWD, &path, Some(accessed), Some(modified), flags)
        })
    }

    fn truncate(&self, py: Python<'_>, path: FilePath, size_bytes: ByteCount) -> PyResult<()> {
        self.state.call(py, &[&path], |process| {
            process.truncate(&path, size_bytes.0)
        })
    }

    /// Copies a tree from the host.
    #[pyo3(signature = (path, to, *, keeps_all, exclude))]
    fn copy_in(
        &self,
        py: Python<'_>,
        path: FilePath,
        to: FilePath,
        keeps_all: bool,
        exclude: Vec<String>,
    ) -> PyResult<()> {
        let options = copy_options(keeps_all, &exclude)?;
        self.state.call(py, &[&path, &to], |process| {
            Ok(folio_tree::copy_in(process, &path, &to, &options)?)
        })
    }

    /// Copies a tree to the host.
    #[pyo3(signature = (path, to, *, keeps_all, exclude))]
    fn copy_out(
        &self,
        py: Python<'_>,
        path: FilePath,
        to: FilePath,
        keeps_all: bool,
        exclude: Vec<String>,
    ) -> PyResult<()> {
        let options = copy_options(keeps_all, &exclude)?;
        self.state.call(py, &[&path, &to], |process| {
            Ok(folio_tree::copy_out(process, &path, &to, &options)?)
        })
    }

    /// mknod(2): `mode` with the file type, `device` as os.makedev returns it.
    fn mknod(&self, py: Python<'_>, path: FilePath, mode: u32, device: u64) -> PyResult<()> {
        let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
        let minor = device & 0xff | device >> 12 & !0xff;
        self.state.call(py, &[&path], |process| {
            let file_type = match mode >> 12 {
                0o1 => FileType::Fifo,
                0o2 => FileType::CharacterDevice,
                0o6 => FileType::BlockDevice,
                0o14 => FileType::Socket,
                0o0 | 0o10 => FileType::Regular,
                _ => return Err(invalid("invalid file type for mknod")),
            };
            let mode = (mode & 0o7777) as u16;
            let device = DeviceNumber::new(major as u32, minor as u32);
            process.mknodat(AT_FDCWD, &path, file_type, mode, device)
        })
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: FilePath,
        name: OsString,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let name = name.into_vec();
        let value = self.state.call(py, &[&path], |process| {
            if follow_symlinks {
                process.getxattr(&path, &name)
            } else {
                process.lgetxattr(&path, &name)
            }
        })?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: FilePath,
        name: OsString,
        value: &[u8],
        flags: u32,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let name = name.into_vec();
        self.state.call(py, &[&path], |process| {
            let flags = XattrFlags::from_bits(flags).ok_or_else(|| invalid("unknown flags"))?;
            if follow_symlinks {
                process.setxattr(&path, &name, value, flags)
            } else {
                process.lsetxattr(&path, &name, value, flags)
            }
        })
    }

    fn listxattr(
        &self,
        py: Python<'_>,
        path: FilePath,
        follow_symlinks: bool,
    ) -> PyResult<Vec<OsString>> {
        let names = self.state.call(py, &[&path], |process| {
            if follow_symlinks {
                process.listxattr(&path)
            } else {
                process.llistxattr(&path)
            }
        })?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    fn removexattr(
        &self,
        py: Python<'_>,
        path: FilePath,
        name: OsString,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let name = name.into_vec();
        self.state.call(py, &[&path], |process| {
            if follow_symlinks {
                process.removexattr(&path, &name)
            } else {
                process.lremovexattr(&path, &name)
            }
        })
    }

    /// Block size, blocks, free blocks, blocks for users, inodes, free inodes, longest name.
    fn statvfs(
        &self,
        py: Python<'_>,
        path: FilePath,
    ) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        let found = self
            .state
            .call(py, &[&path], |process| process.statfs(&path))?;
        Ok((
            found.block_size,
            found.blocks,
            found.blocks_free,
            found.blocks_available,
            found.inodes,
            found.inodes_free,
            found.name_max,
        ))
    }

    /// fsync(2) of a file or directory.
    #[pyo3(signature = (path, *, data_only=false))]
    fn fsync(&self, py: Python<'_>, path: FilePath, data_only: bool) -> PyResult<()> {
        self.state.call(py, &[&path], |process| {
            let fd = process.open(&path, OpenFlags::empty(), 0)?;
            let done = if data_only {
                process.fdatasync(fd)
            } else {
                process.fsync(fd)
            };
            process.close(fd)?;
            done
        })
    }

    /// Makes all earlier writes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.state
            .call(py, &[], |process| -> Result<()> { process.sync() })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.state.is_closed()
    }

    /// Whether this process opened the file system, and not the parent of a fork.
    #[getter]
    fn is_own(&self) -> bool {
        self.state.is_own()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.close(py)
    }
}
