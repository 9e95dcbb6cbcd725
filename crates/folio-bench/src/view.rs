//! A directory as a contender sees it: through the host's kernel, or through Folio in this process.

use crate::outcome::{Context, Outcome};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, KernelOptions, Process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The directory. Paths are below it and begin without a slash.
pub(crate) enum View {
    /// A directory of the host.
    Host(PathBuf),
    /// The working directory of a process of Folio.
    Folio(Process),
}

/// Memory for Folio's page cache in this process, in bytes: more than any large file.
const CACHE_BYTES: u64 = 1 << 30;

/// An open file.
pub(crate) enum Opened {
    Host(File),
    Folio(Fd),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// To read and write; made if it is missing.
    Write,
    /// The same, and emptied.
    Truncate,
}

/// An entry of a directory.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
}

impl View {
    /// Returns a directory of the host in a kernel of this process, mounted with these options.
    pub(crate) fn in_process(source: &Path, options: &str) -> Outcome<Self> {
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: CACHE_BYTES,
            ..KernelOptions::default()
        });
        kernel.mount_hostfs(source, "/", &MountOptions::parse(options)?)?;
        let process = kernel.process(Credentials::root());
        process.chdir("/")?;
        Ok(Self::Folio(process))
    }

    /// open(2).
    pub(crate) fn open(&self, path: &str, access: Access) -> Outcome<Opened> {
        let (writes, truncates) = (access != Access::Read, access == Access::Truncate);
        match self {
            Self::Host(root) => {
                let mut options = File::options();
                options
                    .read(true)
                    .write(writes)
                    .create(writes)
                    .truncate(truncates);
                Ok(Opened::Host(options.open(root.join(path)).at(path)?))
            }
            Self::Folio(process) => {
                let mut flags = OpenFlags::empty();
                flags.set(OpenFlags::RDWR | OpenFlags::CREAT, writes);
                flags.set(OpenFlags::TRUNC, truncates);
                Ok(Opened::Folio(process.open(path, flags, 0o644)?))
            }
        }
    }

    /// close(2).
    pub(crate) fn close(&self, file: Opened) -> Outcome {
        match (self, file) {
            (Self::Folio(process), Opened::Folio(fd)) => Ok(process.close(fd)?),
            _ => Ok(()),
        }
    }

    /// Reads until `buf` is full or the file ends; returns the number of bytes.
    pub(crate) fn read_at(&self, file: &Opened, buf: &mut [u8], offset: u64) -> Outcome<usize> {
        let mut done = 0;
        while done < buf.len() {
            let (buf, offset) = (&mut buf[done..], offset + done as u64);
            let count = match (self, file) {
                (_, Opened::Host(file)) => file.read_at(buf, offset).at("read")?,
                (Self::Folio(process), Opened::Folio(fd)) => process.pread(*fd, buf, offset)?,
                (Self::Host(_), Opened::Folio(_)) => return Err(foreign()),
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        Ok(done)
    }

    /// pwrite(2) of all of `bytes`.
    pub(crate) fn write_at(&self, file: &Opened, bytes: &[u8], offset: u64) -> Outcome {
        match (self, file) {
            (_, Opened::Host(file)) => file.write_all_at(bytes, offset).at("write"),
            (Self::Folio(process), Opened::Folio(fd)) => {
                match process.pwrite(*fd, bytes, offset)? {
                    count if count == bytes.len() => Ok(()),
                    count => Err(format!("{count} bytes written").into()),
                }
            }
            (Self::Host(_), Opened::Folio(_)) => Err(foreign()),
        }
    }

    /// fsync(2).
    pub(crate) fn fsync(&self, file: &Opened) -> Outcome {
        match (self, file) {
            (_, Opened::Host(file)) => file.sync_all().at("fsync"),
            (Self::Folio(process), Opened::Folio(fd)) => Ok(process.fsync(*fd)?),
            (Self::Host(_), Opened::Folio(_)) => Err(foreign()),
        }
    }

    /// Writes a file with these bytes; an existing file is truncated first.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> Outcome {
        let file = self.open(path, Access::Truncate)?;
        if !bytes.is_empty() {
            self.write_at(&file, bytes, 0)?;
        }
        self.close(file)
    }

    /// unlink(2).
    pub(crate) fn remove(&self, path: &str) -> Outcome {
        match self {
            Self::Host(root) => fs::remove_file(root.join(path)).at(path),
            Self::Folio(process) => Ok(process.unlink(path)?),
        }
    }

    /// rename(2).
    pub(crate) fn rename(&self, from: &str, to: &str) -> Outcome {
        match self {
            Self::Host(root) => fs::rename(root.join(from), root.join(to)).at(from),
            Self::Folio(process) => Ok(process.rename(from, to)?),
        }
    }

    /// syncfs(2).
    pub(crate) fn sync(&self) -> Outcome {
        match self {
            Self::Host(root) => rustix::fs::syncfs(File::open(root).at(root)?).at("syncfs"),
            Self::Folio(process) => {
                let root = process.open(".", OpenFlags::DIRECTORY, 0)?;
                process.syncfs(root)?;
                Ok(process.close(root)?)
            }
        }
    }

    /// stat(2) of a path, without following a link; returns the size in bytes.
    pub(crate) fn stat(&self, path: &str) -> Outcome<u64> {
        match self {
            Self::Host(root) => Ok(fs::symlink_metadata(root.join(path)).at(path)?.len()),
            Self::Folio(process) => Ok(process.lstat(path)?.size_bytes),
        }
    }

    /// Lists a directory.
    pub(crate) fn list(&self, path: &str) -> Outcome<Vec<Entry>> {
        let mut found = Vec::new();
        match self {
            Self::Host(root) => {
                for entry in fs::read_dir(root.join(path)).at(path)? {
                    let entry = entry.at(path)?;
                    found.push(Entry {
                        name: entry.file_name().to_string_lossy().into_owned(),
                        is_directory: entry.file_type().at(path)?.is_dir(),
                    });
                }
            }
            Self::Folio(process) => {
                let folder = process.open(path, OpenFlags::DIRECTORY, 0)?;
                let listed = process.readdir(folder)?;
                found.extend(listed.into_iter().map(|entry| Entry {
                    name: String::from_utf8_lossy(&entry.name).into_owned(),
                    is_directory: entry.file_type == Some(FileType::Directory),
                }));
                process.close(folder)?;
            }
        }
        Ok(found)
    }
}

fn foreign() -> Box<dyn std::error::Error + Send + Sync> {
    "a file of another view".into()
}
