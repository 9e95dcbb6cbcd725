//! A minimal `sqlite3_vfs` for one connection, with its files on a Folio mount.
//!
//! Makes the calls of SQLite's `unix` VFS: fsync of the folder after a journal's first sync, and
//! after a removal that requests it. A single connection needs no locks. Source:
//! sqlite.org/c3ref/vfs.html.

use folio::syscall::{Fd, OpenFlags, Process};
use folio::{Errno, Error};
use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_vfs};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::slice;

/// A VFS that is registered with SQLite until it is dropped; connections must be closed before.
pub(super) struct RegisteredVfs {
    vfs: Box<sqlite3_vfs>,
    /// Owned here, because `vfs` points to it.
    _process: Box<Process>,
    name: CString,
}

/// An open file in the layout of SQLite.
#[repr(C)]
struct SqliteFile {
    base: sqlite3_file,
    process: *const Process,
    fd: Fd,
    /// Whether the file is a new journal, so that the folder must be synced with it.
    is_new: bool,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

impl RegisteredVfs {
    /// Registers a VFS with this name for the files of `process`.
    pub(super) fn new(name: &str, process: Process) -> Self {
        let (name, mut process) = (CString::new(name).expect("no zero byte"), Box::new(process));
        let mut vfs = Box::new(sqlite3_vfs {
            iVersion: 1,
            szOsFile: size_of::<SqliteFile>() as c_int,
            mxPathname: 512,
            pNext: null_mut(),
            zName: name.as_ptr(),
            pAppData: (&raw mut *process).cast(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_path),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: Some(last_error),
            xCurrentTimeInt64: None,
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        });
        // SAFETY: vfs, name and process are not moved or freed before `drop` unregisters them.
        let status = unsafe { ffi::sqlite3_vfs_register(&raw mut *vfs, 0) };
        assert_eq!(status, ffi::SQLITE_OK);
        Self {
            vfs,
            _process: process,
            name,
        }
    }

    /// Returns the name for `Connection::open_with_flags_and_vfs`.
    pub(super) fn name(&self) -> &CStr {
        &self.name
    }
}

impl Drop for RegisteredVfs {
    fn drop(&mut self) {
        // SAFETY: registered in `new`; all connections are closed.
        unsafe { ffi::sqlite3_vfs_unregister(&raw mut *self.vfs) };
    }
}

fn status(error: &Error, otherwise: c_int) -> c_int {
    if error.errno() == Errno::NOSPC {
        ffi::SQLITE_FULL
    } else {
        otherwise
    }
}

fn answer(result: Result<(), Error>, otherwise: c_int) -> c_int {
    result.map_or_else(|error| status(&error, otherwise), |()| ffi::SQLITE_OK)
}

/// Returns the process of a VFS.
///
/// # Safety
/// `vfs` was created by [`RegisteredVfs::new`].
unsafe fn process<'a>(vfs: *mut sqlite3_vfs) -> &'a Process {
    // SAFETY: as above; SQLite calls it only while it is registered.
    let data = unsafe { (*vfs).pAppData };
    // SAFETY: `new` stored a process there.
    unsafe { &*data.cast::<Process>() }
}

/// Converts a string of SQLite.
///
/// # Safety
/// `name` is a string of SQLite.
unsafe fn text<'a>(name: *const c_char) -> &'a str {
    // SAFETY: as above; SQLite's strings end with a zero byte and outlive the call.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
}

/// Returns an open file and its process.
///
/// # Safety
/// `file` was filled by [`open`].
unsafe fn parts<'a>(file: *mut sqlite3_file) -> (&'a mut SqliteFile, &'a Process) {
    // SAFETY: SQLite gave `open` room for a `SqliteFile`, and calls on one file come one at a time.
    let file = unsafe { &mut *file.cast::<SqliteFile>() };
    // SAFETY: the process outlives the connection, see `RegisteredVfs`.
    let process = unsafe { &*file.process };
    (file, process)
}

fn sync_folder(process: &Process, path: &str) -> Result<(), Error> {
    let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
    let fd = process.open(folder, OpenFlags::DIRECTORY, 0)?;
    let synced = process.fsync(fd);
    process.close(fd)?;
    synced
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    if name.is_null() {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: SQLite passes the VFS registered by `RegisteredVfs::new`.
    let process = unsafe { process(vfs) };
    // SAFETY: a string of SQLite.
    let path = unsafe { text(name) };
    // SAFETY: SQLite allocated `szOsFile` zeroed bytes for it.
    let file = unsafe { &mut *file.cast::<SqliteFile>() };
    let creates = flags & ffi::SQLITE_OPEN_CREATE != 0;
    let mut how = if flags & ffi::SQLITE_OPEN_READWRITE != 0 {
        OpenFlags::RDWR
    } else {
        OpenFlags::empty()
    };
    how.set(OpenFlags::CREAT, creates);
    how.set(
        OpenFlags::EXCL,
        creates && flags & ffi::SQLITE_OPEN_EXCLUSIVE != 0,
    );
    file.base.pMethods = std::ptr::null();
    let Ok(fd) = process.open(path, how, 0o644) else {
        return ffi::SQLITE_CANTOPEN;
    };
    let journals =
        ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_SUPER_JOURNAL;
    *file = SqliteFile {
        base: sqlite3_file { pMethods: &METHODS },
        process,
        fd,
        is_new: creates && flags & journals != 0,
    };
    if !out_flags.is_null() {
        // SAFETY: an integer of SQLite.
        unsafe { *out_flags = flags };
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    syncs_folder: c_int,
) -> c_int {
    // SAFETY: SQLite passes the VFS registered by `RegisteredVfs::new`.
    let process = unsafe { process(vfs) };
    // SAFETY: a string of SQLite.
    let path = unsafe { text(name) };
    match process.unlink(path) {
        Err(error) if error.errno() == Errno::NOENT => ffi::SQLITE_IOERR_DELETE_NOENT,
        Err(_) => ffi::SQLITE_IOERR_DELETE,
        Ok(()) if syncs_folder != 0 => {
            answer(sync_folder(process, path), ffi::SQLITE_IOERR_DIR_FSYNC)
        }
        Ok(()) => ffi::SQLITE_OK,
    }
}

unsafe extern "C" fn access(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the VFS registered by `RegisteredVfs::new`.
    let process = unsafe { process(vfs) };
    // SAFETY: a string of SQLite.
    let path = unsafe { text(name) };
    // SAFETY: an integer of SQLite.
    unsafe { *out = c_int::from(process.stat(path).is_ok()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_path(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: a string of SQLite.
    let from = unsafe { CStr::from_ptr(name) };
    // SAFETY: room for `len` bytes.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), len as usize) };
    let bytes = from.to_bytes_with_nul();
    if bytes.len() > out.len() {
        return ffi::SQLITE_CANTOPEN;
    }
    out[..bytes.len()].copy_from_slice(bytes);
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_: *mut sqlite3_vfs, len: c_int, out: *mut c_char) -> c_int {
    // SAFETY: room for `len` bytes.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), len as usize) };
    // Deterministic.
    out.iter_mut()
        .zip(1_u8..)
        .for_each(|(byte, n)| *byte = n.wrapping_mul(89));
    len
}

unsafe extern "C" fn sleep(_: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    microseconds
}

unsafe extern "C" fn current_time(_: *mut sqlite3_vfs, out: *mut f64) -> c_int {
    // SAFETY: a number of SQLite, a Julian day.
    unsafe { *out = 2_460_000.5 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn last_error(_: *mut sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    0
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    answer(process.close(file.fd), ffi::SQLITE_IOERR_CLOSE)
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    out: *mut c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    // SAFETY: room for `len` bytes.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), len as usize) };
    match process.pread(file.fd, out, offset as u64) {
        Ok(count) if count == out.len() => ffi::SQLITE_OK,
        Ok(count) => {
            out[count..].fill(0);
            ffi::SQLITE_IOERR_SHORT_READ
        }
        Err(_) => ffi::SQLITE_IOERR_READ,
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    // SAFETY: `len` bytes of SQLite.
    let from = unsafe { slice::from_raw_parts(from.cast::<u8>(), len as usize) };
    match process.pwrite(file.fd, from, offset as u64) {
        Ok(count) if count == from.len() => ffi::SQLITE_OK,
        Ok(_) => ffi::SQLITE_FULL,
        Err(error) => status(&error, ffi::SQLITE_IOERR_WRITE),
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    answer(
        process.ftruncate(file.fd, size as u64),
        ffi::SQLITE_IOERR_TRUNCATE,
    )
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    let synced = if flags & ffi::SQLITE_SYNC_DATAONLY != 0 {
        process.fdatasync(file.fd)
    } else {
        process.fsync(file.fd)
    };
    let is_new = std::mem::take(&mut file.is_new);
    let folder = synced.and_then(|()| {
        if is_new {
            sync_folder(process, super::FILE)
        } else {
            Ok(())
        }
    });
    answer(folder, ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn size(file: *mut sqlite3_file, out: *mut sqlite3_int64) -> c_int {
    // SAFETY: filled by `open`.
    let (file, process) = unsafe { parts(file) };
    let Ok(found) = process.fstat(file.fd) else {
        return ffi::SQLITE_IOERR_FSTAT;
    };
    // SAFETY: a number of SQLite.
    unsafe { *out = found.size_bytes as sqlite3_int64 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock(_: *mut sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_lock(_: *mut sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: an integer of SQLite.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn control(_: *mut sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn characteristics(_: *mut sqlite3_file) -> c_int {
    // The default of the unix VFS.
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}
