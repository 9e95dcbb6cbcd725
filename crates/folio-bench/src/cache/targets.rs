//! The contenders' targets: the same file in Folio's ramfs, in the kernel's tmpfs and in bare
//! memory.

use crate::outcome::{Context, Outcome};
use crate::race::scratch_in;
use crate::random::pattern;
use folio::syscall::{AT_FDCWD, Credentials, Fd, OpenFlags};
use folio::{Kernel, KernelOptions, Process};
use folio_c::process::FolioProcess;
use rustix::fs::Access;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The file that jobs work on, in the target's folder and again four components deep.
pub(crate) const FILE: &str = "file";
pub(crate) const DEEP_FILE: &str = "a/b/c/file";
const FOLDERS: [&str; 3] = ["a", "a/b", "a/b/c"];
/// `TMPFS_MAGIC` (linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;
const PART: usize = 1 << 20;

/// Folio, with the file in a file system that lives in its page cache.
pub(crate) struct FolioTarget {
    pub(crate) process: Process,
    pub(crate) dir: Fd,
    pub(crate) file: Fd,
    /// A process with the same file, for calls as a C program makes them.
    pub(crate) c_process: FolioProcess,
    pub(crate) c_file: Fd,
}

impl FolioTarget {
    /// A ramfs with a file of `set_bytes`. `Kernel::mount_tmpfs` has its place here: one more
    /// mount, one more target.
    pub(crate) fn new(set_bytes: u64) -> Outcome<Self> {
        let cache_bytes = set_bytes + set_bytes / 8 + (64 << 20);
        let kernel = Kernel::new(KernelOptions {
            cache_bytes,
            ..KernelOptions::default()
        });
        let process = kernel.process(Credentials::root());
        for folder in FOLDERS {
            process.mkdir(folder, 0o755)?;
        }
        let open = |name| process.openat(AT_FDCWD, name, OpenFlags::CREAT | OpenFlags::RDWR, 0o644);
        process.close(open(DEEP_FILE)?)?;
        let file = open(FILE)?;
        let dir = process.open("/", OpenFlags::DIRECTORY, 0)?;
        fill(set_bytes, |bytes, offset| {
            Ok(process.pwrite(file, bytes, offset)?)
        })?;
        let c_process = kernel.process(Credentials::root());
        let c_file = c_process.open(FILE, OpenFlags::empty(), 0)?;
        Ok(Self {
            process,
            dir,
            file,
            c_process: FolioProcess { process: c_process },
            c_file,
        })
    }
}

/// The kernel, with the file in one of its tmpfs.
pub(crate) struct KernelTarget {
    pub(crate) dir: File,
    pub(crate) file: File,
    /// Removes the folder at the end.
    _folder: tempfile::TempDir,
}

impl KernelTarget {
    /// Makes a folder below `dir`, with a file of `set_bytes`.
    pub(crate) fn new(dir: &Path, set_bytes: u64) -> Outcome<Self> {
        let folder = scratch_in(dir)?;
        for name in FOLDERS {
            std::fs::create_dir(folder.path().join(name)).at(name)?;
        }
        let open = |name| {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true);
            options.open(folder.path().join(name)).at(name)
        };
        drop(open(DEEP_FILE)?);
        let file = open(FILE)?;
        fill(set_bytes, |bytes, offset| {
            Ok(rustix::io::pwrite(&file, bytes, offset)?)
        })?;
        Ok(Self {
            dir: File::open(folder.path())?,
            file,
            _folder: folder,
        })
    }
}

fn fill(set_bytes: u64, mut write: impl FnMut(&[u8], u64) -> Outcome<usize>) -> Outcome {
    let part = pattern(PART);
    let mut offset = 0;
    while offset < set_bytes {
        let len = (set_bytes - offset).min(part.len() as u64) as usize;
        match write(&part[..len], offset)? {
            0 => return Err("a write of 0 bytes".into()),
            count => offset += count as u64,
        }
    }
    Ok(())
}

/// Returns whether `dir` is on a tmpfs, by statfs(2).
pub(crate) fn is_tmpfs(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}

/// Returns a folder of the kernel's tmpfs that this user may write.
pub(crate) fn find_tmpfs() -> Outcome<PathBuf> {
    let mut folders = vec![PathBuf::from("/dev/shm"), std::env::temp_dir()];
    folders.extend(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    let may_write = |folder: &Path| rustix::fs::access(folder, Access::WRITE_OK).is_ok();
    let found = folders
        .into_iter()
        .find(|folder| is_tmpfs(folder) && may_write(folder));
    Ok(found.ok_or("no tmpfs that may be written: mount one on /dev/shm")?)
}

/// Anonymous memory, in huge pages where the host gives them.
pub(crate) struct Memory {
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: it owns its mapping, and hands out nothing but a raw pointer.
unsafe impl Send for Memory {}
// SAFETY: as above; each thread that writes through the pointer keeps to a part of its own.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len_bytes` of memory, every page of it touched.
    pub(crate) fn new(len_bytes: u64) -> Outcome<Self> {
        let len_bytes = usize::try_from(len_bytes).at("memory")?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping wherever the kernel likes.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                protection,
                MapFlags::PRIVATE,
            )
        };
        let start = start.at("memory")?;
        let memory = Self {
            start: start.cast::<u8>(),
            len_bytes,
        };
        // SAFETY: the range is the mapping just made. Without huge pages it is memory all the same.
        let _ = unsafe { madvise(start, len_bytes, Advice::LinuxHugepage) };
        let part = pattern(PART);
        for offset in (0..len_bytes).step_by(PART) {
            let len = PART.min(len_bytes - offset);
            // SAFETY: offset + len is inside the mapping; `part` is other memory.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), memory.at(offset as u64), len) };
        }
        Ok(memory)
    }

    /// Returns its size.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the address of byte `offset`.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        self.start.wrapping_add(offset as usize)
    }

    /// Returns all of the memory, for the one thread that has it.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialized, and borrowed mutably for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len_bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no other reference to it is left.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), self.len_bytes) };
    }
}
