//! File handles: open_by_handle_at(2), as servers of NFS and programs for backups use it.

use crate::support::requires;
use crate::support::tools::fsck;
use crate::{FuseMount, empty};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, linkat};
use std::ffi::{CString, c_char, c_int, c_uint};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// `struct file_handle` with room for the largest one.
#[repr(C)]
struct FileHandle {
    len_bytes: c_uint,
    kind: c_int,
    bytes: [u8; 128],
}

unsafe extern "C" {
    fn name_to_handle_at(
        directory: c_int,
        path: *const c_char,
        handle: *mut FileHandle,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut FileHandle, flags: c_int) -> c_int;
}

impl FileHandle {
    fn of(path: &Path) -> Self {
        let mut handle = Self {
            len_bytes: 128,
            kind: 0,
            bytes: [0; 128],
        };
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut mount = 0;
        // SAFETY: all pointers are valid for the call, and the handle has room for its length.
        let done = unsafe { name_to_handle_at(-100, path.as_ptr(), &mut handle, &mut mount, 0) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        handle
    }

    fn open(&mut self, mount: impl AsFd) -> io::Result<File> {
        let mount = mount.as_fd().as_raw_fd();
        // SAFETY: the handle is valid for the call.
        let fd = unsafe { open_by_handle_at(mount, self, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
    }
}

fn is_stale(opened: io::Result<File>) -> bool {
    opened.is_err_and(|error| error.raw_os_error() == Some(116))
}

#[test]
fn handles_find_their_inodes_after_a_new_mount() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let mount = FuseMount::new(&image, "rw");
    fs::create_dir_all(mount.at("a/b/directory")).unwrap();
    fs::write(mount.at("a/b/file"), "text").unwrap();
    fs::write(mount.at("a/b/removed"), "text").unwrap();
    let handle = |name| FileHandle::of(&mount.at(name));
    let [mut file, mut removed] = ["a/b/file", "a/b/removed"].map(handle);
    let [mut directory, mut root] = ["a/b/directory", ""].map(handle);
    let number = fs::metadata(mount.at("a/b/removed")).unwrap().ino();
    mount.unmount();

    // The server has sent no name of this mount yet.
    let mount = FuseMount::new(&image, "rw");
    let top = File::open(mount.path()).unwrap();
    let mut content = String::new();
    let mut opened = file.open(&top).unwrap();
    opened.read_to_string(&mut content).unwrap();
    assert_eq!(content, "text");
    let opened_directory = directory.open(&top).unwrap();
    let path = format!("/proc/self/fd/{}", opened_directory.as_raw_fd());
    // A directory has its place in the tree, and takes new names.
    assert_eq!(fs::read_link(&path).unwrap(), mount.at("a/b/directory"));
    fs::write(format!("{path}/new"), "text").unwrap();
    assert!(mount.at("a/b/directory/new").exists());
    assert!(root.open(&top).is_ok());

    // By name it is the same inode, also after a rename.
    fs::rename(mount.at("a/b/file"), mount.at("moved")).unwrap();
    fs::write(mount.at("moved"), "more text").unwrap();
    content.clear();
    file.open(&top)
        .unwrap()
        .read_to_string(&mut content)
        .unwrap();
    assert_eq!(content, "more text");
    let by_descriptor = format!("/proc/self/fd/{}", opened.as_raw_fd());
    linkat(
        CWD,
        by_descriptor,
        CWD,
        mount.at("linked"),
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(fs::read_to_string(mount.at("linked")).unwrap(), "more text");

    // The number of a removed file finds neither it nor the next file that has the number.
    fs::remove_file(mount.at("a/b/removed")).unwrap();
    assert!(is_stale(removed.open(&top)));
    let reused = (0..64).map(|name| mount.at(format!("a/b/{name}")));
    let reused = reused.map(|path| fs::write(&path, "").and_then(|()| fs::metadata(&path)));
    assert!(reused.map(Result::unwrap).any(|made| made.ino() == number));
    assert!(is_stale(removed.open(&top)));
    drop((opened, opened_directory, top));
    mount.unmount();
    fsck(&image);
}
