//! The targets: the same host folder as it is, through a mount, and in this process.

use crate::measure::Said;
use crate::report::with_context;
use folio::kernel::KernelOptions;
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, Process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for Folio's page cache in this process, in bytes: more than the large file.
const CACHE_BYTES: u64 = 1 << 30;
/// How long a mount may take.
const READY: Duration = Duration::from_secs(20);

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

/// A mount that is unmounted when the value drops.
struct Mounted {
    server: Child,
    said: Said,
    mount_point: PathBuf,
    /// `st_dev` of the folder below.
    device_below: u64,
}

impl HostTarget {
    pub(crate) fn native(source: &Path) -> Self {
        Self {
            root: source.to_owned(),
            mount: None,
        }
    }

    /// Mounts by a command that stays in the foreground, and waits until the mount is there.
    pub(crate) fn mounted(mut command: Command, mount_point: &Path) -> Result<Self, String> {
        fs::create_dir_all(mount_point).map_err(with_context(mount_point.display()))?;
        let name = command.get_program().to_string_lossy().into_owned();
        let before = rustix::fs::stat(mount_point)
            .map_err(with_context(mount_point.display()))?
            .st_dev;
        let said = Said::by(&mut command)?;
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(with_context(&name))?;
        let mut mounted = Mounted {
            server,
            said,
            mount_point: mount_point.to_owned(),
            device_below: before,
        };
        let start = Instant::now();
        while !mounted.is_there() {
            if mounted
                .server
                .try_wait()
                .map_err(with_context(&name))?
                .is_some()
                || start.elapsed() > READY
            {
                let reason = mounted.said.explain("does not mount");
                // Its name says nothing: it is made up for this run.
                return Err(reason.replace(&format!("{}: ", mount_point.display()), ""));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self {
            root: mount_point.to_owned(),
            mount: Some(mounted),
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

impl Mounted {
    /// Returns whether the mount exists. A server that ended leaves a mount that fails every stat.
    fn is_there(&self) -> bool {
        !rustix::fs::stat(&self.mount_point).is_ok_and(|found| found.st_dev == self.device_below)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if self.is_there() && rustix::mount::unmount(&self.mount_point, flags).is_err() {
            let helper = Command::new("fusermount3")
                .arg("-uz")
                .arg(&self.mount_point)
                .stderr(Stdio::null())
                .status();
            let _ = helper;
        }
        let start = Instant::now();
        while start.elapsed() < READY {
            if !matches!(self.server.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
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
            Some(mount) => mount.said.explain(reason),
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
