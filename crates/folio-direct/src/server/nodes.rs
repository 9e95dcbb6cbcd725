//! Nodes of the host in the place of the sockets and FIFOs whose names are in the image: each is
//! named after its mount and its inode.

use super::node_folder::Folder;
use super::request::Request;
use super::{files, names};
use crate::shared::calls::{Call, ON_HOST};
use folio::Process;
use folio::base::{Errno, Error, Result};
use folio::syscall::{AtFlags, Statx};
use folio::vfs::FileType;
use rustix::fs::{self, CWD, Gid, Mode, Uid};
use rustix::io::Errno as HostErrno;
use rustix::process::geteuid;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of the nodes, which is made for the first one. Locked while a node is found or a
/// name created, so that a new file does not get the node of a removed one.
#[derive(Default)]
pub(super) struct NodeFolder(Mutex<Folder>);

impl Folder {
    /// Returns the path of the node of a file.
    fn node(&mut self, file: &Statx) -> io::Result<PathBuf> {
        let (mount, inode) = (file.mount_number, file.attributes.number.0);
        Ok(self.path()?.join(format!("{mount:x}-{inode:x}")))
    }
}

impl NodeFolder {
    fn lock(&self) -> MutexGuard<'_, Folder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the folder, once no program is left.
    pub(super) fn remove(&self) {
        self.lock().remove();
    }
}

/// Opens a file. A FIFO is opened by the client: the reply is the path of its node.
pub(super) fn open(
    process: &Process,
    folder: &NodeFolder,
    request: &Request<'_>,
    output: &mut Vec<u8>,
) -> Result<i64> {
    let opened = files::serve(process, request, output);
    if !matches!(&opened, Err(error) if error.errno() == Errno::NXIO) {
        return opened;
    }
    let mut folder = folder.lock();
    let found = if request.call == Call::Reopen {
        process.statx(request.fd(0)?, Path::new(""), AtFlags::EMPTY_PATH)?
    } else {
        process.statx(request.directory(0), request.path()?, AtFlags::empty())?
    };
    if found.attributes.file_type != FileType::Fifo {
        return opened;
    }
    let made = folder
        .node(&found)
        .and_then(|node| make_fifo(&node, &found).map(|()| node));
    reply(made, output)?;
    Ok(-ON_HOST)
}

/// Makes a FIFO, unless there is one, with the owner and mode of the file. Without root, all
/// programs have one user, and the permissions are those that the library has checked.
fn make_fifo(path: &Path, file: &Statx) -> io::Result<()> {
    let private = Mode::RUSR | Mode::WUSR;
    match fs::mknodat(CWD, path, fs::FileType::Fifo, private, 0) {
        Ok(()) | Err(HostErrno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    if geteuid().is_root() {
        let attributes = &file.attributes;
        let (user, group) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        match fs::chown(path, Some(user), Some(group)) {
            Ok(()) => {}
            // In a container without this user: the superuser's programs alone have the FIFO.
            Err(HostErrno::INVAL | HostErrno::PERM) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mode = Mode::from_raw_mode(u32::from(attributes.mode & 0o777));
        fs::chmod(path, mode)?;
    }
    Ok(())
}

/// Creates a node of the image. An inode number that a removed file had has a new node of the host.
pub(super) fn make(
    process: &Process,
    folder: &NodeFolder,
    request: &Request<'_>,
    output: &mut Vec<u8>,
) -> Result<i64> {
    let mut folder = folder.lock();
    let made = names::serve(process, request, output)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let found = process.statx(request.directory(0), request.path()?, flags);
    if let Ok(found) = found
        && matches!(
            found.attributes.file_type,
            FileType::Fifo | FileType::Socket
        )
        && let Ok(node) = folder.node(&found)
    {
        // As a rule there is none.
        let _ = fs::unlink(node);
    }
    Ok(made)
}

/// Returns the path of the node of a socket.
pub(super) fn socket(
    process: &Process,
    folder: &NodeFolder,
    request: &Request<'_>,
    output: &mut Vec<u8>,
) -> Result<i64> {
    let flags = names::flags(request, 1)?;
    let found = process.statx(request.directory(0), request.path()?, flags)?;
    if found.attributes.file_type != FileType::Socket {
        return Err(Errno::CONNREFUSED.into());
    }
    reply(folder.lock().node(&found), output)
}

/// Appends a path and its zero byte.
fn reply(path: io::Result<PathBuf>, output: &mut Vec<u8>) -> Result<i64> {
    let path = path.map_err(|error| Error::io("folder of sockets and FIFOs", error))?;
    output.extend_from_slice(path.as_os_str().as_bytes());
    output.push(0);
    Ok(0)
}
