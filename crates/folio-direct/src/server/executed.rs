//! Files of the image that programs execute: they cannot be written meanwhile. Linux:
//! `deny_write_access`.

use super::request::Request;
use crate::shared::calls::Call;
use folio::Process;
use folio::base::{Errno, Result};
use folio::syscall::{AtFlags, Fd, OpenFlags, Statx};
use folio::vfs::HeldFile;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of a mount, and of an inode.
type Key = (u32, u64);

fn key(found: &Statx) -> Key {
    (found.mount_number, found.attributes.number.0)
}

/// The executed files of one server, with the number of their programs.
#[derive(Default)]
pub(super) struct ExecutedFiles(Mutex<HashMap<Key, usize>>);

impl ExecutedFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a program executes the file of a descriptor.
    pub(super) fn execute(self: &Arc<Self>, process: &Process, fd: Fd) -> Result<Executed> {
        let key = key(&process.statx(fd, Path::new(""), AtFlags::EMPTY_PATH)?);
        let file = process.hold(fd)?;
        *self.lock().entry(key).or_default() += 1;
        Ok(Executed {
            files: self.clone(),
            key,
            _file: file,
        })
    }

    /// Fails with ETXTBSY if a request would write an executed file.
    pub(super) fn check(&self, process: &Process, request: &Request<'_>) -> Result<()> {
        let executed = self.lock();
        if executed.is_empty() {
            return Ok(());
        }
        drop(executed);
        let writes = OpenFlags::WRONLY | OpenFlags::RDWR | OpenFlags::TRUNC;
        let is_written =
            |index| OpenFlags::from_bits_truncate(request.word(index)).intersects(writes);
        let found = match request.call {
            Call::Open if is_written(1) => {
                process.statx(request.directory(0), request.path()?, AtFlags::empty())
            }
            Call::Reopen if is_written(1) => {
                process.statx(request.fd(0)?, Path::new(""), AtFlags::EMPTY_PATH)
            }
            Call::Truncate => {
                process.statx(request.directory(0), request.path()?, AtFlags::EMPTY_PATH)
            }
            _ => return Ok(()),
        };
        match found {
            Ok(found) if self.lock().contains_key(&key(&found)) => Err(Errno::TXTBSY.into()),
            // The call itself fails, or creates the file.
            _ => Ok(()),
        }
    }
}

/// A file that a program executes, until this is dropped.
pub(super) struct Executed {
    files: Arc<ExecutedFiles>,
    key: Key,
    /// Keeps the inode, and so its number, if its names are removed.
    _file: HeldFile,
}

impl Drop for Executed {
    fn drop(&mut self) {
        let mut executed = self.files.lock();
        if let Some(count) = executed.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                executed.remove(&self.key);
            }
        }
    }
}
