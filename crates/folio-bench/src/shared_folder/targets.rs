//! The targets: the same host folder as it is, through a mount, and in this process.

use crate::mounted::Mounted;
use crate::report::with_context;
use folio::kernel::KernelOptions;
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, Process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Memory for Folio's page cache in this process, in bytes: more than the large file.
const CACHE_BYTES: u64 = 1 << 30;

/// How the folder is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// As it is: the host's own file system.
    Native,
    /// `folio mount` with these options.
    Mount(&'static str),
    /// Folio in this process with these options.
    InProcess(&'static str),
    /// `bindfs`.
    Bindfs,
}

/// A folder as a contender sees it. Paths are below it and begin without a slash.
pub(crate) trait Target {
    /// Reads from `offset` on until `buf` is full or the file ends.
    fn read_at(&self, file: &Opened, buf: &mut [u8], offset: u64) -> Result<usize, String>;
    fn open(&self, path: &str) -> Result<Opened, String>;
    fn close(&self, file: Opened) -> Result<(), String>;
    /// stat(2); returns the size in bytes.
    fn stat(&self, path: &str) -> Result<u64, String>;
    /// Names in a directory, and whether each is one.
    fn list(&self, path: &str) -> Result<Vec<(String, bool)>, String>;
    /// Returns whether dropping the host's caches makes it cold.
    fn is_dropped(&self) -> bool {
        true
    }
    /// Returns a reason with the standard error of the target's server, if it has one.
    fn explain(&self, reason: String) -> String {
        reason
    }
}

/// A file that a target has opened.
pub(crate) enum Opened {
    Host(File),
    Folio(Fd),
}

/// A folder of the host's, or one that is mounted.
pub(crate) struct HostTarget {
    pub(crate) root: PathBuf,
    mount: Option<Mounted>,
}

impl HostTarget {
    pub(crate) fn native(source: &Path) -> Self {
        Self {
            root: source.to_owned(),
            mount: None,
        }
    }

    /// Mounts by a command that stays in the foreground, and waits until the mount is there.
    pub(crate) fn mounted(command: Command, mount_point: &Path) -> Result<Self, String> {
        Ok(Self {
            root: mount_point.to_owned(),
            mount: Some(Mounted::start(command, mount_point)?),
        })
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        }
    }
}

impl Target for HostTarget {
    fn read_at(&self, file: &Opened, buf: &mut [u8], offset: u64) -> Result<usize, String> {
        let Opened::Host(file) = file else {
            return Err("a file of another target".to_owned());
        };
        let mut done = 0;
        while done < buf.len() {
            match file
                .read_at(&mut buf[done..], offset + done as u64)
                .map_err(with_context("read"))?
            {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn open(&self, path: &str) -> Result<Opened, String> {
        File::open(self.path(path))
            .map(Opened::Host)
            .map_err(with_context(path))
    }

    fn close(&self, file: Opened) -> Result<(), String> {
        drop(file);
        Ok(())
    }

    fn stat(&self, path: &str) -> Result<u64, String> {
        fs::symlink_metadata(self.path(path))
            .map(|found| found.len())
            .map_err(with_context(path))
    }

    fn list(&self, path: &str) -> Result<Vec<(String, bool)>, String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path)).map_err(with_context(path))? {
            let entry = entry.map_err(with_context(path))?;
            let is_directory = entry.file_type().map_err(with_context(path))?.is_dir();
            names.push((
                entry.file_name().to_string_lossy().into_owned(),
                is_directory,
            ));
        }
        Ok(names)
    }

    fn explain(&self, reason: String) -> String {
        match &self.mount {
            Some(mount) => mount.explain(reason),
            None => reason,
        }
    }
}

/// The folder in a kernel of this process.
pub(crate) struct FolioTarget {
    process: Process,
    _kernel: Arc<Kernel>,
}

impl FolioTarget {
    pub(crate) fn new(source: &Path, options: &str) -> Result<Self, String> {
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: CACHE_BYTES,
            ..KernelOptions::default()
        });
        let options = MountOptions::parse(options).map_err(with_context(options))?;
        kernel
            .mount_hostfs(source, "/", &options)
            .map_err(with_context("folio"))?;
        let process = kernel.process(Credentials::root());
        process.chdir("/").map_err(with_context("folio"))?;
        Ok(Self {
            process,
            _kernel: kernel,
        })
    }
}

impl Target for FolioTarget {
    /// Its cache is in this process.
    fn is_dropped(&self) -> bool {
        false
    }

    fn read_at(&self, file: &Opened, buf: &mut [u8], offset: u64) -> Result<usize, String> {
        let Opened::Folio(fd) = file else {
            return Err("a file of another target".to_owned());
        };
        self.process
            .pread(*fd, buf, offset)
            .map_err(with_context("read"))
    }

    fn open(&self, path: &str) -> Result<Opened, String> {
        self.process
            .open(path, OpenFlags::default(), 0)
            .map(Opened::Folio)
            .map_err(with_context(path))
    }

    fn close(&self, file: Opened) -> Result<(), String> {
        match file {
            Opened::Folio(fd) => self.process.close(fd).map_err(with_context("close")),
            Opened::Host(_) => Err("a file of another target".to_owned()),
        }
    }

    fn stat(&self, path: &str) -> Result<u64, String> {
        self.process
            .lstat(path)
            .map(|found| found.size_bytes)
            .map_err(with_context(path))
    }

    fn list(&self, path: &str) -> Result<Vec<(String, bool)>, String> {
        let path = if path.is_empty() { "." } else { path };
        let open = self
            .process
            .open(path, OpenFlags::DIRECTORY, 0)
            .map_err(with_context(path))?;
        let mut names = Vec::new();
        loop {
            let entries = self
                .process
                .getdents(open, 1024)
                .map_err(with_context(path))?;
            for entry in &entries {
                if !matches!(entry.name.as_slice(), b"." | b"..") {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    names.push((name, entry.file_type == Some(FileType::Directory)));
                }
            }
            if entries.is_empty() {
                break;
            }
        }
        self.process.close(open).map_err(with_context(path))?;
        Ok(names)
    }
}
