//! Calls on paths.

use crate::error::invalid;
use crate::file::File;
use crate::stat::{kind_bits, stat_tuple};
use crate::state::State;
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags};
use folio::vfs::{FileType, RenameFlags, SetTime, XattrFlags};
use folio::{Result, Timespec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Entries per getdents call.
const GETDENTS_MAX: usize = 1024;

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
}

#[pymethods]
impl FileSystem {
    /// open(2).
    fn open(&self, py: Python<'_>, path: PathBuf, flags: u32, mode: u16) -> PyResult<File> {
        let fd = self.state.call(py, Some(&path), |process| {
            let flags = OpenFlags::from_bits(flags).ok_or_else(|| invalid("unknown open flags"))?;
            process.open(&path, flags, mode)
        })?;
        Ok(File::new(self.state.clone(), path, fd))
    }

    /// The whole content of a file.
    fn read_bytes<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.state.call(py, Some(&path), |process| {
            let fd = process.open(&path, OpenFlags::empty(), 0)?;
            let read = process.fstat(fd).and_then(|found| {
                let mut bytes =
                    vec![0; usize::try_from(found.size_bytes).unwrap_or(usize::MAX) + 1];
                let mut len = 0;
                loop {
                    let count = process.read(fd, &mut bytes[len..])?;
                    len += count;
                    if count == 0 {
                        break;
                    }
                    if len == bytes.len() {
                        bytes.resize(len * 2, 0);
                    }
                }
                bytes.truncate(len);
                Ok(bytes)
            });
            process.close(fd)?;
            read
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Names and types of a directory; a type is a mode of stat.
    fn entries(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(OsString, u32, u64)>> {
        self.state.call(py, Some(&path), |process| {
            let fd = process.open(&path, OpenFlags::DIRECTORY, 0)?;
            let mut found = Vec::new();
            let listed = loop {
                match process.getdents(fd, GETDENTS_MAX) {
                    Ok(entries) if entries.is_empty() => break Ok(()),
                    Ok(entries) => found.extend(entries),
                    Err(error) => break Err(error),
                }
            };
            process.close(fd)?;
            listed?;
            found.retain(|entry| entry.name != b"." && entry.name != b"..");
            let names = found.into_iter().map(|entry| {
                let kind = entry.file_type.map_or(0, kind_bits);
                (OsString::from_vec(entry.name), kind, entry.number)
            });
            Ok(names.collect())
        })
    }

    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let flags = link_flags(follow_symlinks);
        let found = self.state.call(py, Some(&path), |process| {
            process.fstatat(AT_FDCWD, &path, flags)
        })?;
        stat_tuple(&found).into_pyobject(py)
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u16) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.mkdir(&path, mode))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.rmdir(&path))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.unlink(&path))
    }

    /// renameat2(2); `replaces` false is RENAME_NOREPLACE.
    fn rename(&self, py: Python<'_>, path: PathBuf, to: PathBuf, replaces: bool) -> PyResult<()> {
        let flags = if replaces {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        self.state.call(py, Some(&path), |process| {
            process.renameat2(AT_FDCWD, &path, AT_FDCWD, &to, flags)
        })
    }

    fn link(&self, py: Python<'_>, path: PathBuf, to: PathBuf) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.link(&path, &to))
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, path: PathBuf) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.symlink(&target, &path))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        let target = self
            .state
            .call(py, Some(&path), |process| process.readlink(&path))?;
        Ok(OsString::from_vec(target))
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u16) -> PyResult<()> {
        self.state
            .call(py, Some(&path), |process| process.chmod(&path, mode))
    }

    #[pyo3(signature = (path, uid, gid, *, follow_symlinks=true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let flags = link_flags(follow_symlinks);
        self.state.call(py, Some(&path), |process| {
            process.fchownat(AT_FDCWD, &path, uid, gid, flags)
        })
    }

    /// Sets access and modification time, in nanoseconds; None is the current time.
    #[pyo3(signature = (path, times_ns, *, follow_symlinks=true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: PathBuf,
        times_ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (accessed, modified) = match times_ns {
            Some((accessed, modified)) => (time(accessed)?, time(modified)?),
            None => (SetTime::Now, SetTime::Now),
        };
        let flags = link_flags(follow_symlinks);
        self.state.call(py, Some(&path), |process| {
            process.utimensat(AT_FDCWD, &path, Some(accessed), Some(modified), flags)
        })
    }

    fn truncate(&self, py: Python<'_>, path: PathBuf, size_bytes: u64) -> PyResult<()> {
        self.state.call(py, Some(&path), |process| {
            process.truncate(&path, size_bytes)
        })
    }

    /// mknod(2): `mode` with the file type, `device` as os.makedev returns it.
    fn mknod(&self, py: Python<'_>, path: PathBuf, mode: u32, device: u64) -> PyResult<()> {
        let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
        let minor = device & 0xff | device >> 12 & !0xff;
        self.state.call(py, Some(&path), |process| {
            let file_type = match mode >> 12 {
                0o1 => FileType::Fifo,
                0o2 => FileType::CharacterDevice,
                0o6 => FileType::BlockDevice,
                0o14 => FileType::Socket,
                0o0 | 0o10 => FileType::Regular,
                _ => return Err(invalid("invalid file type for mknod")),
            };
            let mode = (mode & 0o7777) as u16;
            let device = (major as u32, minor as u32);
            process.mknodat(AT_FDCWD, &path, file_type, mode, device)
        })
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        name: OsString,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let name = name.into_vec();
        let value = self.state.call(py, Some(&path), |process| {
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
        path: PathBuf,
        name: OsString,
        value: &[u8],
        flags: u32,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let name = name.into_vec();
        self.state.call(py, Some(&path), |process| {
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
        path: PathBuf,
        follow_symlinks: bool,
    ) -> PyResult<Vec<OsString>> {
        let names = self.state.call(py, Some(&path), |process| {
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
        path: PathBuf,
        name: OsString,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let name = name.into_vec();
        self.state.call(py, Some(&path), |process| {
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
        path: PathBuf,
    ) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        let found = self
            .state
            .call(py, Some(&path), |process| process.statfs(&path))?;
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

    /// Makes all earlier writes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.state
            .call(py, None, |process| -> Result<()> { process.sync() })
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
